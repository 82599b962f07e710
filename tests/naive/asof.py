"""The as-of join in plain Python: every left row looks at all right rows."""

from __future__ import annotations

from tests.naive.keyed import key_of


def match(row, rights, keys, times, direction, tolerance):
    """The right row (of a list in the order of arrival) that a left row meets, or None."""
    if any(row[k] is None for k in keys[0]):
        return None
    found, best = None, None
    for right in sorted(rights, key=lambda r: r[times[1]]):
        gap = right[times[1]] - row[times[0]]
        if any(right[k] is None for k in keys[1]) or key_of(right, keys[1]) != key_of(row, keys[0]):
            continue
        if abs(gap) > tolerance or (direction == "backward" and gap > 0):
            continue
        if direction == "forward" and (gap < 0 or (found is not None and gap >= best)):
            continue
        if found is None or abs(gap) <= best:
            found, best = right, abs(gap)
    return found


def join(lefts, rights, keys, times, direction, tolerance):
    """The match of each left row."""
    return [match(row, rights, keys, times, direction, tolerance) for row in lefts]
