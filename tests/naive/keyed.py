"""Operators by key in plain Python: rows are lists, state is a dict by key."""

from __future__ import annotations

import math

from tests.naive.window import normal


def key_of(row, keys):
    return tuple(normal(row[k]) for k in keys)


def find_slots(rows, keys):
    """The slot of each row's key, in the order of their first rows."""
    slots = {}
    return [slots.setdefault(key_of(row, keys), len(slots)) for row in rows]


def rebuild_slots(keys):
    return {key: i for i, key in enumerate(keys)}


def in_time_order(beats, watermarks, time):
    """Each beat's rows that its watermark has reached, by time and arrival, and a last beat's."""
    waiting, found = [], []
    for rows, watermark in [*zip(beats, watermarks, strict=True), ([], math.inf)]:
        waiting = sorted([*waiting, *rows], key=lambda row: row[time])
        found.append([row for row in waiting if row[time] <= watermark])
        waiting = [row for row in waiting if row[time] > watermark]
    return found


class States:
    """The state of each key, forgotten once its rows are older than a horizon."""

    def __init__(self, keys, time, keep):
        self._keys, self._time, self._keep = keys, time, keep
        self._states, self._horizon = {}, -math.inf

    def advance(self, watermark):
        if watermark < math.inf:
            self._horizon = max(self._horizon, watermark - self._keep)

    def of(self, row):
        """The state of a row's key, a list; empty: a new one."""
        time, key = row[self._time], key_of(row, self._keys)
        seen, state = self._states.get(key, (-math.inf, []))
        if seen < self._horizon:
            seen, state = -math.inf, []
        self._states[key] = max(seen, time, self._horizon), state
        return state


def rows_before(rows, states, time, keep):
    """The row of the same key before each row, None where it is more than `keep` back."""
    found = []
    for row in rows:
        last = states.of(row)
        near = last and row[time] - last[0][time] <= keep
        found.append(last[0] if near else None)
        last[:] = [row]
    return found


def changes(rows, before, columns, first):
    """Whether a value of each row is distinct from that of the row before."""
    return [
        first if b is None else any(normal(row[c]) != normal(b[c]) for c in columns)
        for row, b in zip(rows, before, strict=True)
    ]


def every_nth(rows, states, n):
    """Whether each row is the first of its key, or an n-th after it."""
    found = []
    for row in rows:
        state = states.of(row)
        found.append(len(state) % n == 0)
        state.append(row)
    return found


def first_of_spans(rows, states, time, most, span):
    """Whether a row is among the first `most` of its key in its span."""
    found = []
    for row in rows:
        state, own = states.of(row), row[time] // span
        latest = max(state, default=-math.inf)
        found.append(own >= latest and state.count(own) < most)
        state += [own] * found[-1]
    return found


def at_most(rows, states, time, most, span):
    """Whether fewer than `most` rows of its key have passed less than `span` before each row."""
    found = []
    for row in rows:
        times = states.of(row)
        passes = len(times) < most or row[time] - times[0] >= span
        found.append(passes or times[0] - row[time] >= span)
        if passes:
            times.append(row[time])
            del times[:-most]
    return found
