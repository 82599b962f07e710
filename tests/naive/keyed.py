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


def rows_before(rows, keys, time, keep, last=None):
    """The row of the same key before each row, None where it is more than `keep` back."""
    last, found = {} if last is None else last, []
    for row in rows:
        before = last.get(key_of(row, keys))
        found.append(before if before is not None and row[time] - before[time] <= keep else None)
        last[key_of(row, keys)] = row
    return found


def changes(rows, before, columns, first):
    """Whether a value of each row is distinct from that of the row before."""
    return [
        first if b is None else any(normal(row[c]) != normal(b[c]) for c in columns)
        for row, b in zip(rows, before, strict=True)
    ]


def every_nth(rows, keys, n, seen=None):
    """Whether each row is the first of its key, or an n-th after it."""
    seen, found = {} if seen is None else seen, []
    for row in rows:
        count = seen.get(key_of(row, keys), 0)
        found.append(count % n == 0)
        seen[key_of(row, keys)] = count + 1
    return found


def first_of_spans(rows, keys, time, most, span, spans=None):
    """Whether a row is among the first `most` of its key in its span."""
    spans, found = {} if spans is None else spans, []
    for row in rows:
        number, count = spans.get(key_of(row, keys), (-math.inf, 0))
        own = row[time] // span
        if own > number:
            number, count = own, 0
        found.append(own == number and count < most)
        spans[key_of(row, keys)] = number, count + found[-1]
    return found


def at_most(rows, keys, time, most, span, passed=None):
    """Whether fewer than `most` rows of its key have passed less than `span` before each row."""
    passed, found = {} if passed is None else passed, []
    for row in rows:
        times = passed.setdefault(key_of(row, keys), [])
        full = len(times) == most
        passes = not full or row[time] - times[0] >= span
        found.append(passes or times[0] - row[time] >= span)
        if passes:
            times.append(row[time])
            del times[:-most]
    return found
