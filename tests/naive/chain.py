"""The interval join as nested loops over lists, its order of output and its eviction included."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TIME_MAX = 2**63 - 1


def meets(r_time, s_time, before, after):
    """Whether a left and a right row are near enough to each other."""
    return -before <= s_time - r_time <= after


def same(a, b):
    """SQL's equality of keys (tuples of values), with NaN equal to NaN and null to nothing."""
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            return False
        if x != y and not (isinstance(x, float) and math.isnan(x) and math.isnan(y)):
            return False
    return True


def pairs(left, right, before, after):
    """All pairs of rows (time, key) that belong together, as pairs of indices."""
    return [
        (i, j)
        for i, (r_time, r_key) in enumerate(left)
        for j, (s_time, s_key) in enumerate(right)
        if same(r_key, s_key) and meets(r_time, s_time, before, after)
    ]


def insert(held, rows):
    """Rows join the held ones in arrival order."""
    held.extend(rows)


def evict(held, bound, everything):
    """The oldest arrivals leave while they are dead."""
    while held and (everything or held[0][0] < bound):
        held.pop(0)


def point(held, counts, capacities):
    """How many partitions have no room for so many rows more."""
    return sum(h + n > c for h, n, c in zip(held, counts, capacities, strict=True))


def lay(outputs):
    """Several outputs as one."""
    return [pair for pairs in outputs for pair in pairs]


def oldest(parts, rows):
    """The least row that is held."""
    return min((r for part in parts for *_, r in part), default=rows)


def live(parts):
    """Each held row's partition."""
    return {r: p for p, part in enumerate(parts) for *_, r in part}


@dataclass
class Join:
    """A join of rows (time, key, partition, row); partition None: a null key."""

    before: int
    after: int
    left: list = field(default_factory=lambda: [[] for _ in range(64)])
    right: list = field(default_factory=lambda: [[] for _ in range(64)])

    def join(self, left, right, left_watermark, right_watermark):
        """One beat: its pairs (left row, right row) in the order of the output."""
        out = []
        for p in range(64):
            ours = [(t, k, r) for t, k, q, r in left if q == p]
            theirs = [(t, k, r) for t, k, q, r in right if q == p]
            for t, k, r in ours:
                out += [
                    (r, s)
                    for u, other, s in reversed(self.right[p])
                    if same(k, other) and meets(t, u, self.before, self.after)
                ]
            insert(self.left[p], ours)
            for u, k, s in theirs:
                out += [
                    (r, s)
                    for t, other, r in reversed(self.left[p])
                    if same(k, other) and meets(t, u, self.before, self.after)
                ]
            insert(self.right[p], theirs)
            evict(self.left[p], right_watermark - self.after, right_watermark == TIME_MAX)
            evict(self.right[p], left_watermark - self.before, left_watermark == TIME_MAX)
        return out


def join(beats, before, after):
    """The pairs of every beat; a beat is the arguments of `Join.join`."""
    state = Join(before, after)
    return [state.join(*beat) for beat in beats]
