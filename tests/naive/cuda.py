"""What the CUDA kernels do, on lists: entries are (position, time, tag, row), a ring is a list of
them in arrival order, and no thread but one is at work."""

from __future__ import annotations

from itertools import accumulate

from tests.naive.chain import meets


def begin(counts, heads):
    """Where each partition's records begin in the batch, and where they go."""
    return [0, *accumulate(counts)], list(heads)


def load(records, counts, froms):
    """Each partition's new entries."""
    left, out = list(records), []
    for count, first in zip(counts, froms, strict=True):
        out.append([(first + i, *record) for i, record in enumerate(left[:count])])
        left = left[count:]
    return out


def advance(times):
    """The latest of a ring's times, and how far they fall at the most."""
    latest = list(accumulate(times, max))
    return latest[-1], max(a - b for a, b in zip(latest, times, strict=True))


def totals(counts):
    """Each partition's pairs."""
    return [sum(part) for part in counts]


def offsets(counts):
    """The number of each record's first pair, and of all."""
    return [0, *accumulate(count for part in counts for count in part)]


def evict(ring, bound, everything):
    """What stays: the oldest go, up to the first that is not below the bound."""
    ring = list(ring)
    while ring and (everything or ring[0][1] < bound):
        ring.pop(0)
    return ring


def move(ring):
    """The entries without their positions, which are assigned again."""
    return [entry[1:] for entry in ring]


def export(rings, base):
    """{row of the store: (partition, tag)}."""
    return {(row - base) % 2**32: (p, tag) for p, ring in enumerate(rings) for *_, tag, row in ring}


def clear(values):
    """Zeros."""
    return [0] * len(values)


def link(ring, mask):
    """{chain: its positions, newest first}."""
    chains = {}
    for position, _, tag, _ in ring:
        chains.setdefault(tag & mask, []).insert(0, position)
    return chains


def matches(record, ring, back, ahead):
    """The rows of a ring that a record (time, tag) meets, newest first."""
    time, tag = record
    return [r for _, u, t, r in reversed(ring) if t == tag and meets(time, u, back, ahead)]


def count(records, ring, back, ahead):
    """How many rows each record meets."""
    return [len(matches(record, ring, back, ahead)) for record in records]


def write(records, ring, back, ahead):
    """The rows that each record meets, one after the other."""
    return [row for record in records for row in matches(record, ring, back, ahead)]


def fill_free(free):
    """Every chunk once."""
    return list(range(len(free)))


def tell(free, marked):
    """How many are free, and whether a bucket is marked."""
    return [len(free), int(bool(marked))]


def build(ring, mask):
    """{bucket: its positions, oldest first}."""
    return {bucket: chain[::-1] for bucket, chain in link(ring, mask).items()}


count_buckets, write_buckets = count, write


def cleanup(buckets, tail):
    """Marked buckets without what has gone."""
    return {b: [p for p in positions if p >= tail] for b, positions in buckets.items()}


def predicate(records, window, back, ahead):
    """For each record (time, key) the entries (time, key) of the window that it matches."""
    return [
        [
            e
            for e, (when, other) in enumerate(window)
            if other == key and meets(t, when, back, ahead)
        ]
        for t, key in records
    ]
