"""`bucket`: ecoJoin as in the paper, by `kernels.cpu.bucket`.

A beat goes in phases, all workers at once in each, with a barrier after each:

    prepare    each record's expiry (by ranges of partitions)
    left       build the left's records into the left table, then probe the right table with them
    right      build the right's, then probe the left table, the new left rows included
    cleanup    marked buckets of both tables, by ranges of the bitmap
    write      each lane's pairs, to places from a prefix sum over (partition, pass, lane)

In `left` and `right` the records are shared out evenly, whatever partitions they are in: fill
counters are atomic.  Where windows grow, tables are rebuilt before the beat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from edged.data.columns import address
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins._lanes import PAIRS_MIN, cut, doubled
from edged.joins._tables import Table
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, marked, window_join
from kernels.cpu import bucket, bucket_table, rings
from kernels.cpu.partition import PARTITIONS

GROUPS = 256
"""Groups of beats, each with its first row, that describe the held rows, about."""


class _Side:
    """A side's table, and its groups of beats in arrival order."""

    def __init__(self) -> None:
        self.table = Table(0, 1)
        self.bound_us = self.reached_us = int(rings.TIME_MIN)
        self.newest: Int64s = np.full(PARTITIONS, rings.TIME_MIN, np.int64)
        self.expiry: Int64s = np.zeros(0, np.int64)
        self.edges: Int64s = np.zeros(PARTITIONS + 1, np.int64)
        self.records, self.rows = 0, 0
        self._groups: deque[list[int]] = deque()

    def take(self, records: Records, lanes: int) -> None:
        """Point at a batch and make room for it."""
        self.edges = np.append(0, records.counts.cumsum())
        self.records, self.rows = address(records.data), int(self.edges[-1])
        if self.expiry.size < self.rows:
            self.expiry = np.zeros(2 * self.rows, np.int64)
        if self.table.full(self.rows):
            old = self.table
            kept = int(bucket_table.count(old.row, self.bound_us))
            self.table = Table(kept + self.rows, lanes)
            self.table.entries = int(bucket_table.rebuild(old.row, self.bound_us, self.table.row))
        self.table.reserve(self.rows, lanes)
        self.table.entries += self.rows

    def prepare(self, base: int, counts: Int64s, ranges: int) -> list[Callable[[], int]]:
        """Calls that set the records' expiries; each returns its least row."""
        return [
            partial(bucket.prepare, self.records, self.edges, base, a, b, self.newest, self.expiry)
            for a, b in pairwise(cut(counts, ranges))
        ]

    def arrived(self, base: int, least: int) -> None:
        """Note the batch's first store row, and the time until which it is needed."""
        if self.rows == 0:
            return
        self.reached_us = max(self.reached_us, int(self.newest.max()))
        last = self._groups[-1] if self._groups else None
        if last is not None and last[1] + self.rows <= max(64, self.table.entries // GROUPS):
            last[1:] = last[1] + self.rows, self.reached_us
        else:
            self._groups.append([(base + least) % 2**32, self.rows, self.reached_us])

    def leave(self, bound_us: int, everything: bool) -> None:
        """End a beat: rows below the bound have left."""
        self.bound_us = max(self.bound_us, bound_us)
        if everything and self.table.entries:
            self.table = Table(0, 1)
            self.newest[:] = self.reached_us = int(rings.TIME_MIN)
            self._groups.clear()
        while self._groups and self._groups[0][2] < self.bound_us:
            self._groups.popleft()

    def oldest(self, base: int, rows: int) -> int:
        """The first row of the oldest group that is needed."""
        return (self._groups[0][0] - base) % 2**32 if self._groups else rows


class _Lane:
    """One lane's pairs of both passes."""

    def __init__(self) -> None:
        self.pairs = [[np.empty(PAIRS_MIN, np.int64) for _ in range(2)] for _ in range(2)]
        self.counts: Int64s = np.zeros((2, PARTITIONS), np.int64)
        self._progress: Int64s = np.zeros(2, np.int64)

    def work(
        self,
        mine: _Side,
        other: _Side,
        lane: int,
        lanes: int,
        which: int,
        job: Int64s,
        keys: Int64s,
    ) -> None:
        """Build this lane's share of a batch into its table, then probe the other with it."""
        first, last = mine.rows * lane // lanes, mine.rows * (lane + 1) // lanes
        records, edges = mine.records, mine.edges
        bucket.build(mine.table.row, records, edges, mine.expiry, first, last, lane)
        counts, pairs, progress = self.counts[which], self.pairs[which], self._progress
        counts[:] = 0
        progress[:] = first, 0
        while not bucket.probe(
            other.table.row, records, edges, which, job, keys, progress, last, *pairs, counts
        ):
            kept = int(progress[bucket.PROGRESS.pairs])
            pairs[:] = [doubled(array, kept) for array in pairs]


@window_join("bucket", device="cpu", ordered=True)
class BucketJoin(WindowJoin):
    """Hash tables of chunks of 64 on the CPU."""

    about = "chunks of 64 entries, 40 to 130 bytes a row"

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        self._sides = _Side(), _Side()
        self._lanes: list[_Lane] = []
        self._out = [np.empty(PAIRS_MIN, np.int64) for _ in range(2)]

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in the family's order."""
        lanes = 1 if workers is None else workers.count
        while len(self._lanes) < lanes:
            self._lanes.append(_Lane())
        job = self._job(beat, self._prepare((left, right), beat, lanes, workers))
        for which in (0, 1):
            mine, other = self._sides[which], self._sides[1 - which]
            phase = [
                partial(lane.work, mine, other, i, lanes, which, job, beat.keys)
                for i, lane in enumerate(self._lanes[:lanes])
            ]
            _run(phase, workers)
        self._clean(beat, lanes, workers)
        return self._write(lanes, workers)

    def _prepare(
        self, batches: Sequence[Records], beat: Beat, lanes: int, workers: Workers | None
    ) -> list[int]:
        """Prepare the beat; returns each side's first store row in it, 2^32 for none."""
        calls: list[Callable[[], int]] = []
        for side, batch, base in zip(self._sides, batches, beat.bases, strict=True):
            side.take(batch, lanes)
            calls += side.prepare(base, batch.counts, lanes)
        least = _run(calls, workers)
        firsts = [min(least[i * lanes : (i + 1) * lanes]) for i in (0, 1)]
        for side, base, first in zip(self._sides, beat.bases, firsts, strict=True):
            side.arrived(base, first)
        return firsts

    def _job(self, beat: Beat, firsts: list[int]) -> Int64s:
        left, right = self._sides
        job: Int64s = np.zeros(len(bucket.JOB), np.int64)
        job[bucket.JOB.before], job[bucket.JOB.after] = self.before_us, self.after_us
        job[bucket.JOB.left_base], job[bucket.JOB.right_base] = beat.bases
        job[bucket.JOB.left_dead], job[bucket.JOB.right_dead] = left.bound_us, right.bound_us
        job[bucket.JOB.left_bound], job[bucket.JOB.right_bound] = beat.bounds_us
        job[bucket.JOB.left_new], job[bucket.JOB.right_new] = firsts
        return job

    def _clean(self, beat: Beat, lanes: int, workers: Workers | None) -> None:
        calls: list[Callable[[], int]] = []
        for side, bound, everything in zip(
            self._sides, beat.bounds_us, beat.everything, strict=True
        ):
            side.leave(bound, everything)
            words = side.table.marked()
            edges = [words * k // lanes for k in range(lanes + 1)]
            row = side.table.row
            calls += [
                partial(bucket_table.clean, row, side.bound_us, a, b) for a, b in pairwise(edges)
            ]
        gone = _run(calls, workers)
        for i, side in enumerate(self._sides):
            side.table.entries -= sum(gone[i * lanes : (i + 1) * lanes])

    def _write(self, lanes: int, workers: Workers | None) -> tuple[Int64s, Int64s]:
        """All lanes' pairs, by (partition, pass, lane): prefix sums say where each segment goes."""
        counts = np.stack([lane.counts for lane in self._lanes[:lanes]])
        by_place = counts.transpose(2, 1, 0).ravel()
        ends = by_place.cumsum()
        total = int(ends[-1])
        starts = (ends - by_place).reshape(PARTITIONS, 2, lanes)
        if self._out[0].size < total:
            self._out = [np.empty(2 * total, np.int64) for _ in range(2)]
        calls = []
        for i, lane in enumerate(self._lanes[:lanes]):
            for which in (0, 1):
                targets = np.ascontiguousarray(starts[:, which, i])
                mine, met = lane.pairs[which]
                sides = (met, mine) if which else (mine, met)
                for source, out in zip(sides, self._out, strict=True):
                    calls.append(partial(bucket.write, source, lane.counts[which], targets, out))
        if total:
            _run(calls, workers)
        return self._out[0][:total], self._out[1][:total]

    def restore(self, side: int, records: Records) -> None:
        """Build without probing."""
        at = self._sides[side]
        at.take(records, 1)
        # Row numbers are distinct within 2^31 of each other.
        base = (int(records.data.view(np.uint32)[3]) - 2**31) % 2**32
        least = [call() for call in at.prepare(base, records.counts, 1)]
        bucket.build(at.table.row, at.records, at.edges, at.expiry, 0, at.rows, 0)
        at.arrived(base, min(least))

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """The valid entries."""
        at = self._sides[side]
        mark = partial(bucket_table.live, at.table.row, at.bound_us, base)
        return marked(f"live.{side}", rows, scratch, mark)

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The first row of the oldest beats that still have rows in the window."""
        return self._sides[side].oldest(base, rows)

    def held(self, side: int) -> int:
        """Entries of the table, those that wait for a cleanup included."""
        return self._sides[side].table.entries

    def nbytes(self) -> int:
        """Bytes of both tables."""
        return sum(side.table.nbytes() for side in self._sides)


def _run(calls: Sequence[Callable[[], Any]], workers: Workers | None) -> list[Any]:
    return [call() for call in calls] if workers is None else workers.run(calls)
