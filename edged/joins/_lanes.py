"""The chain join's lanes: the memory that `kernels.cpu.beat` works in, and more where it is full.

A lane has the output of one range of partitions, which one thread joins.  All else, who
joins what and how the lanes' pairs get into one array, is done in one call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.data.columns import address, apart
from edged.data.workers import Workers
from edged.joins._rings import Rings
from edged.joins.base import PARTITIONS, Beat, Records
from kernels.cpu import beat as beats
from kernels.cpu import chain, chunk, probe, simd_probe, team
from kernels.cpu.rings import TIME_MIN

ROW_US = 0.01
"""What one thread takes for a record, before that is known."""
PAIRS_MIN = 1024
"""Pairs that a lane has room for at first."""
PATIENCE, PATIENCE_ROWS = 64, 4
"""So many beats that suit come before rings are pooled; before that is done again, after they had
to be taken apart, one more for so many rows that are to be moved: 0.1 us each and way, where a beat
gains 2 us and more."""

Int64s = npt.NDArray[np.int64]


class Lane:
    """Buffers of one range's pairs, rows of the `left` store and of the `right`, and the kernels'
    own state (see `kernels.cpu.chunk`)."""

    def __init__(self, job: Int64s, number: int) -> None:
        self._scratch = apart(chain.SCRATCH)
        self.state = apart(chunk.LANE_FIELDS)
        self.at = address(self.state)
        self.state[chunk.JOB] = address(job)
        self.state[chunk.NUMBER] = number
        self.state[chunk.VECTORS] = simd_probe.FAST
        self.state[chunk.SCRATCH_AT] = address(self._scratch)
        self.left = self.right = np.empty(0, np.int64)
        self.make_room(PAIRS_MIN)

    def make_room(self, pairs: int) -> None:
        """Buffers for so many pairs; those found so far are kept."""
        kept = int(self.state[chunk.PAIRS])
        self.left = enlarged(self.left, kept, pairs + probe.BLOCK)
        self.right = enlarged(self.right, kept, pairs + probe.BLOCK)
        buffers = address(self.left), address(self.right)
        self.state[[chunk.OUT_LEFT, chunk.OUT_RIGHT]] = buffers
        self.state[chunk.ROOM] = pairs


class Lanes:
    """Some lanes for each worker, over the partitions that `rings` describes."""

    def __init__(self, rings: Rings, before_us: int, after_us: int) -> None:
        self._rings = rings
        self._job = apart(chunk.JOB_FIELDS)
        self._job[chunk.BEFORE], self._job[chunk.AFTER] = before_us, after_us
        self._job[[chunk.LEFT_BOUND, chunk.RIGHT_BOUND]] = TIME_MIN
        left, right = rings.tables
        self._job[chunk.LEFT_TABLE], self._job[chunk.RIGHT_TABLE] = address(left), address(right)
        self._job[chunk.HOT] = address(rings.hot)
        self._keys: Int64s | None = None
        self._lanes: list[Lane] = []
        self.desk = apart(beats.DESK_FIELDS)
        self._desk_at = address(self.desk)
        self.desk[beats.ROW_PS] = int(1e6 * ROW_US)
        self.desk[beats.PATIENCE] = PATIENCE
        self._alone = Workers(1)
        self._employ(None)

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """All pairs of a beat.

        What is returned may be a view of the buffers: good until the next call.
        """
        if workers is not self._workers:
            self._employ(workers)
        if beat.keys is not self._keys:
            self._keys = beat.keys
            self._job[[chunk.KEYS, chunk.KEY_COLUMNS]] = address(beat.keys), len(beat.keys)
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
        """Lanes for these workers, who were not those of the last beat; None: the calling
        thread."""
        self._workers = workers
        workers = workers or self._alone
        count = team.SHARES * workers.count if workers.count > 1 else 1
        while len(self._lanes) < count:
            self._lanes.append(Lane(self._job, len(self._lanes)))
        self._table = np.array([(lane.at, 0) for lane in self._lanes], np.int64)
        self._calls = apart(count, team.CALL_FIELDS)
        for field, value in (
            (beats.DESK_JOB, address(self._job)),
            (beats.LANES, address(self._table)),
            (beats.CALLS, address(self._calls)),
            (beats.SEATS, workers.seats),
            (beats.THREADS, workers.count),
            (beats.ALONG, chain.join.address),
            (beats.LAYING, beats.lay.address),
            (beats.POOLED, chain.join_pooled.address),
        ):
            self.desk[field] = value

    def _rearrange(self, answer: int, left: Records, right: Records, beat: Beat) -> None:
        """What is to be done before a beat is joined."""
        if answer == chunk.SPREAD:
            self._rings.spread()
        elif answer == chunk.GATHER:
            self.desk[beats.PATIENCE] = PATIENCE + self._rings.rows() // PATIENCE_ROWS
            bounds_us = self._job[[chunk.LEFT_BOUND, chunk.RIGHT_BOUND]]
            pools = int(self.desk[beats.WANTED])
            self._rings.gather(pools, beat.bases, bounds_us, [left.counts, right.counts])
        elif self._rings.pooled:
            self._rings.spread()
            self.desk[beats.PATIENCE] = 1  # to be gathered with more room
        else:
            self._rings.reserve([left.counts, right.counts])

    def _grow(self) -> None:
        """Twice the room for each lane that is full; where none is, room for all pairs in the
        first."""
        lanes = self._lanes[: int(self.desk[beats.RANGES])]
        answers = self._table[: len(lanes), beats.ANSWER]
        full = [lane for lane, answer in zip(lanes, answers, strict=True) if answer == chunk.FULL]
        for lane in full:
            lane.make_room(2 * int(lane.state[chunk.ROOM]))
        if not full:
            lanes[0].make_room(sum(int(lane.state[chunk.PAIRS]) for lane in lanes))


def cut(counts: Int64s, ranges: int) -> list[int]:
    """Edges, from 0 to 64, of `ranges` ranges of partitions with about equal sums of `counts`."""
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
