"""Patterns of steps in plain Python: from each row that may start one, forward to its end."""

from __future__ import annotations


def attempt(rows, start, steps, time, within):
    """The places of a match's rows from the row `start` on, or None."""
    if not steps[0][0](rows[start]):
        return None
    taken = [start]
    for at in range(start + 1, len(rows)):
        where, unless = steps[len(taken)]
        if where(rows[at]):
            taken.append(at)
            if len(taken) == len(steps):
                return taken if rows[at][time] - rows[start][time] <= within else None
        elif unless is not None and unless(rows[at]):
            return None
    return None


def matches(rows, steps, time, within, past_last):
    """All matches in one key's rows, as places.  `steps` are pairs of functions of a row."""
    found, free = [], 0
    for start in range(len(rows)):
        if start < free:
            continue
        taken = attempt(rows, start, steps, time, within)
        if taken is not None:
            found.append(taken)
            free = taken[-1] + 1 if past_last else 0
    return found
