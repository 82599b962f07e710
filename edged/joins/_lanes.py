"""The chain join's lanes: the buffers of `kernels.cpu.beat`, enlarged where they are full.

A lane has the output of one range of partitions, which one thread joins.  Dealing, joining and
laying out are one call of a kernel.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.data.columns import address, apart
from edged.data.workers import Workers
from edged.joins._rings import Rings
from edged.joins.base import Beat, Records
from kernels.cpu import beat as beats
from kernels.cpu import chain, chunk, pooled, probe, simd_probe, team
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.rings import TIME_MIN

ROW_US = 0.01
"""Assumed time of a record, until it is measured."""
PAIRS_MIN = 1024
"""Initial room of a lane."""
PATIENCE, PATIENCE_ROWS = 64, 4
"""Suitable beats before rings are pooled; after pools were taken apart, one more for every
PATIENCE_ROWS rows: moving a row takes 0.1 us, and a pooled beat saves 2 us or more."""

Int64s = npt.NDArray[np.int64]


class Lane:
    """The pairs of one range, as rows of the left and right stores, and the kernels' `Lane`
    record."""

    def __init__(self, job: Int64s, number: int) -> None:
        self._scratch = apart(chain.SCRATCH)
        self.state = apart(chunk.LANE_FIELDS)
        self.at = address(self.state)
        self.state[chunk.LANE.job] = address(job)
        self.state[chunk.LANE.number] = number
        self.state[chunk.LANE.vectors] = simd_probe.FAST
        self.state[chunk.LANE.scratch] = address(self._scratch)
        self.left = self.right = np.empty(0, np.int64)
        self.make_room(PAIRS_MIN)

    def make_room(self, pairs: int) -> None:
        """Buffers for `pairs` pairs; the pairs found so far are kept."""
        kept = int(self.state[chunk.LANE.pairs])
        self.left = enlarged(self.left, kept, pairs + probe.BLOCK)
        self.right = enlarged(self.right, kept, pairs + probe.BLOCK)
        buffers = address(self.left), address(self.right)
        self.state[[chunk.LANE.out_left, chunk.LANE.out_right]] = buffers
        self.state[chunk.LANE.room] = pairs


class Lanes:
    """Several lanes for each worker, over the partitions of `rings`."""

    def __init__(self, rings: Rings, before_us: int, after_us: int) -> None:
        self._rings = rings
        self._job = apart(chunk.JOB_FIELDS)
        self._job[chunk.JOB.before], self._job[chunk.JOB.after] = before_us, after_us
        self._job[[chunk.JOB.left_bound, chunk.JOB.right_bound]] = TIME_MIN
        left, right = rings.tables
        self._job[chunk.JOB.left_table], self._job[chunk.JOB.right_table] = (
            address(left),
            address(right),
        )
        self._job[chunk.JOB.heavy] = address(rings.hot)
        self._keys: Int64s | None = None
        self._lanes: list[Lane] = []
        self.desk = apart(beats.DESK_FIELDS)
        self._desk_at = address(self.desk)
        self.desk[beats.DESK.row_ps] = int(1e6 * ROW_US)
        self.desk[beats.DESK.patience] = PATIENCE
        self._alone = Workers(1)
        self._employ(None)

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """All pairs of a beat: views of the buffers, valid until the next call."""
        if workers is not self._workers:
            self._employ(workers)
        if beat.keys is not self._keys:
            self._keys = beat.keys
            self._job[[chunk.JOB.keys, chunk.JOB.key_columns]] = address(beat.keys), len(beat.keys)
        ended = beat.everything
        args = (
            self._desk_at, left.data_at, left.counts_at, right.data_at, right.counts_at,
            *beat.bases, *beat.bounds_us, ended[0] | ended[1] << 1,
        )  # fmt: skip
        pairs: int = beats.beat(*args)
        while pairs < 0:
            if pairs == chunk.FULL:
                self._grow()
                pairs = beats.resume(self._desk_at)
                continue
            self._rearrange(pairs, left, right, beat)
            pairs = beats.beat(*args)
        first = self._lanes[0]
        return first.left[:pairs], first.right[:pairs]

    def _employ(self, workers: Workers | None) -> None:
        """Make lanes for these workers; None: for the calling thread."""
        self._workers = workers
        workers = workers or self._alone
        count = team.SHARES * workers.count if workers.count > 1 else 1
        while len(self._lanes) < count:
            self._lanes.append(Lane(self._job, len(self._lanes)))
        self._table = np.array([(lane.at, 0) for lane in self._lanes], np.int64)
        self._calls = apart(count, team.CALL_FIELDS)
        for field, value in (
            (beats.DESK.job, address(self._job)),
            (beats.DESK.lanes, address(self._table)),
            (beats.DESK.calls, address(self._calls)),
            (beats.DESK.seats, workers.seats),
            (beats.DESK.threads, workers.count),
            (beats.DESK.pipeline, chain.join.address),
            (beats.DESK.lay, beats.lay.address),
            (beats.DESK.pooled, pooled.join.address),
        ):
            self.desk[field] = value

    def _rearrange(self, answer: int, left: Records, right: Records, beat: Beat) -> None:
        """Do what must be done before the beat can be joined."""
        if answer == chunk.SPREAD:
            self._rings.spread()
        elif answer == chunk.GATHER:
            self.desk[beats.DESK.patience] = PATIENCE + self._rings.rows() // PATIENCE_ROWS
            bounds_us = self._job[[chunk.JOB.left_bound, chunk.JOB.right_bound]]
            pools = int(self.desk[beats.DESK.wanted])
            self._rings.gather(pools, beat.bases, bounds_us, [left.counts, right.counts])
        elif self._rings.pooled:
            self._rings.spread()
            self.desk[beats.DESK.patience] = 1  # gather again at once, with more room
        else:
            self._rings.reserve([left.counts, right.counts])

    def _grow(self) -> None:
        """Double the room of each lane that is full; where none is, make room for all pairs in the
        first."""
        lanes = self._lanes[: int(self.desk[beats.DESK.ranges])]
        answers = self._table[: len(lanes), beats.DEALT.answer]
        full = [lane for lane, answer in zip(lanes, answers, strict=True) if answer == chunk.FULL]
        for lane in full:
            lane.make_room(2 * int(lane.state[chunk.LANE.room]))
        if not full:
            lanes[0].make_room(sum(int(lane.state[chunk.LANE.pairs]) for lane in lanes))


def cut(counts: Int64s, ranges: int) -> list[int]:
    """The edges, from 0 to 64, of `ranges` ranges of partitions with about equal sums of
    `counts`."""
    upto = np.cumsum(counts)
    aims = upto[-1] * np.arange(1, ranges) // ranges
    return [0, *np.searchsorted(upto, aims, side="right").tolist(), PARTITIONS]


def enlarged(array: Int64s, kept: int, size: int) -> Int64s:
    """An array of another size, with the first `kept` values of this one."""
    larger = np.empty(size, np.int64)
    larger[:kept] = array[:kept]
    return larger


def doubled(array: Int64s, kept: int) -> Int64s:
    """An array of twice the size, with the first `kept` values of this one."""
    return enlarged(array, kept, 2 * array.size)
