"""Windowed aggregation in plain Python: a dict of lists, aggregated when a window ends."""

from __future__ import annotations

import math

MASK = 2**64 - 1


def normal(key):
    """A key value in which equal means what SQL says: one zero, one NaN."""
    if isinstance(key, float):
        return "nan" if key != key else key + 0.0
    return key


def absorb(groups, rows, time, keys, size, every, number):
    """Put rows (lists) into `groups`: (start, key) -> (number of the first row, key, rows)."""
    for i, row in enumerate(rows):
        start = row[time] // every * every
        while start + size > row[time]:
            key = tuple(normal(row[k]) for k in keys)
            values = [0.0 if row[k] == 0.0 and isinstance(row[k], float) else row[k] for k in keys]
            groups.setdefault((start, key), (number + i, values, []))[2].append(row)
            start -= every


def window_expire(groups, watermark, size):
    """Take out ended windows: (start, key values, rows) by (start, first row)."""
    ended = [g for g in groups if g[0] + size <= watermark]
    ended.sort(key=lambda g: (g[0], groups[g][0]))
    return [(g[0], *groups.pop(g)[1:]) for g in ended]


def aggregate(function, values, integers):
    """The output values of an aggregate over one group's column (or rows, for count(*))."""
    there = [v for v in values if v is not None]
    if function == "count":
        return [len(there)]
    if function == "mean":
        return [len(there), float(sum(there))]
    if function == "variance":
        return [len(there), *moments(there)]
    if not there:
        return [None]
    if function == "sum":
        total = sum(there) if integers else added(there)
        return [total if not integers or -(2**63) <= total < 2**63 else None]
    best = there[0]
    for v in there[1:]:
        low, high = (v, best) if function == "min" else (best, v)
        if low < high or (high != high and low == low):
            best = v
    return [best]


def added(values):
    """A float sum in order."""
    total = 0.0
    for v in values:
        total += v
    return total


def moments(values):
    """Mean and sum of squared deviations, by Welford's update."""
    mean = m2 = 0.0
    for n, value in enumerate(values, 1):
        delta = float(value) - mean
        mean += delta / n
        m2 += delta * (float(value) - mean)
        if math.isinf(delta):
            m2 = math.nan
    return [mean, m2]


def count_expired(starts, sizes, before):
    """How many groups start before `before`, and their strings' bytes."""
    gone = [i for i, s in enumerate(starts) if s < before]
    return [len(gone), sum(sizes[i] for i in gone)]


def expire(starts, values, before):
    """(start, string) of the groups that stay, and of those that go."""
    groups = list(zip(starts, values, strict=True))
    return [g for g in groups if g[0] >= before], [g for g in groups if g[0] < before]


def lay_out(values):
    """Strings one behind the other: (places, bytes)."""
    return [len(b"".join(values[:i])) for i in range(len(values))], b"".join(values)


def strings(values):
    """Offsets and bytes."""
    return [len(b"".join(values[:i])) for i in range(len(values) + 1)], b"".join(values)


def spread(key_hash, start):
    """A group's hash."""
    x = (key_hash ^ (start * 0x9E3779B97F4A7C15)) & MASK
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & MASK
    return x ^ (x >> 29)


def rebuild(hashes, starts, size):
    """A table of linear probes."""
    table = [-1] * size
    for g, (h, s) in enumerate(zip(hashes, starts, strict=True)):
        i = spread(h, s) % size
        while table[i] >= 0:
            i = (i + 1) % size
        table[i] = g
    return table
