"""The probing of the chain join, dealt to workers.

The 64 partitions are cut into contiguous ranges of about equal numbers of records, one a worker.
A `Lane` joins one range into buffers of its own, which grow when the kernel says that they are
full; laid one after the other, the lanes' pairs are in the order of partitions whatever their
number.  A beat that is done sooner than another thread wakes is joined by one.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.columns import address
from edged.joins._rings import Rings
from edged.joins.base import PARTITIONS, Beat, Records
from edged.workers import Workers
from kernels.cpu import chain, chunk, walk

PARALLEL_US = 400.0
"""Work that is worth waking other threads for.  On a 2-core virtual machine handing it out and
gathering it cost 150 to 250 us: two threads took 119 us for what one did in 77, and 0.65 ms for
0.90."""
SPARE_US, STEP = 30.0, 0.25
"""How much sooner than the calling thread the others should be done, so that it need not be woken;
and how much of what was missing from that the next beat corrects."""
PAIRS_MIN = 1024
"""Pairs that a lane has room for at first."""
ANY = 2**62
"""More records than there can be."""

Int64s = npt.NDArray[np.int64]


class Lane:
    """Buffers of one range's pairs, and the kernels' own state (see `kernels.cpu.chunk`)."""

    def __init__(self, job: Int64s) -> None:
        self.state = np.zeros(chunk.LANE_FIELDS, np.int64)
        self._scratch = np.zeros(chain.SCRATCH, np.int64)
        self.state[chunk.JOB], self.state[chunk.SCRATCH_AT] = address(job), address(self._scratch)
        self._left = self._right = np.empty(0, np.int64)
        self.began_us = self.ended_us = 0.0
        """When `join` was last at work."""
        self.make_room(PAIRS_MIN)

    def make_room(self, pairs: int) -> None:
        """Buffers for so many pairs; those found so far are kept."""
        kept = int(self.state[chunk.PAIRS])
        self._left = enlarged(self._left, kept, pairs + walk.BLOCK)
        self._right = enlarged(self._right, kept, pairs + walk.BLOCK)
        buffers = address(self._left), address(self._right)
        self.state[[chunk.OUT_LEFT, chunk.OUT_RIGHT]] = buffers
        self.state[chunk.ROOM] = pairs

    def join(self, keys: Int64s, first: int, last: int) -> tuple[Int64s, Int64s]:
        """The pairs of partitions `first..last`: rows of the left store, rows of the right."""
        self.began_us = time.perf_counter_ns() / 1e3
        found = self.finish(keys, chain.join(self.state, keys, first, last))
        self.ended_us = time.perf_counter_ns() / 1e3
        return found

    def finish(self, keys: Int64s, pairs: int) -> tuple[Int64s, Int64s]:
        """All pairs, where a kernel answered that there are `pairs`, or that there is no room."""
        while pairs == chain.FULL:
            self.make_room(2 * int(self.state[chunk.ROOM]))
            pairs = chain.resume(self.state, keys)
        return self._left[:pairs], self._right[:pairs]


class Lanes:
    """As many lanes as there were ever workers, over the partitions that `tables` describe."""

    def __init__(self, rings: Rings, before_us: int, after_us: int) -> None:
        self._rings = rings
        self._job = np.zeros(chunk.JOB_FIELDS, np.int64)
        self._job[chunk.BEFORE], self._job[chunk.AFTER] = before_us, after_us
        left, right = rings.tables
        self._job[chunk.LEFT_TABLE], self._job[chunk.RIGHT_TABLE] = address(left), address(right)
        self._lanes = [Lane(self._job)]
        self._row_us = 0.0
        """Time of one thread for a record, as seen in the last beats."""
        self._lead_us = 0.0
        """How much more work the calling thread takes: the others have to wake first."""

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """All pairs of a beat.

        What is returned may be a view of the buffers: good until the next call.
        """
        lane, keys = self._lanes[0], beat.keys
        if workers is None or workers.count == 1:
            pairs = self._begin(left, right, beat, ANY)
            return (
                lane.finish(keys, pairs) if pairs != chain.MANY else lane.join(keys, 0, PARTITIONS)
            )
        before_us = time.perf_counter_ns() / 1e3
        pairs = self._begin(left, right, beat, int(PARALLEL_US / max(self._row_us, 1e-9)))
        rows = int(lane.state[chunk.ROWS_IN])
        if pairs == chain.MANY and rows * self._row_us > PARALLEL_US:
            found, us = self._side_by_side(keys, left.counts + right.counts, workers)
        else:
            many = pairs == chain.MANY
            found = lane.join(keys, 0, PARTITIONS) if many else lane.finish(keys, pairs)
            us = time.perf_counter_ns() / 1e3 - before_us
        if rows:
            self._row_us = (
                us / rows if self._row_us == 0.0 else 0.8 * self._row_us + 0.2 * us / rows
            )
        return found

    def _begin(self, left: Records, right: Records, beat: Beat, most: int) -> int:
        """Join a beat of up to `most` records on this thread; what the kernel answers."""
        state, everything = self._lanes[0].state, beat.everything[0] | beat.everything[1] << 1
        args = (
            state, beat.keys, left.data, left.counts, right.data, right.counts, *beat.bases,
            *beat.bounds_us, everything, most,
        )  # fmt: skip
        pairs: int = chain.beat(*args)
        if pairs == chain.NO_ROOM:
            self._rings.reserve([left.counts, right.counts])
            pairs = chain.beat(*args)
        return pairs

    def _side_by_side(
        self, keys: Int64s, counts: Int64s, workers: Workers
    ) -> tuple[tuple[Int64s, Int64s], float]:
        """All pairs, and how long one thread would have worked."""
        while len(self._lanes) < workers.count:
            self._lanes.append(Lane(self._job))
        lead = int(self._lead_us / max(self._row_us, 1e-9))
        ranges = list(pairwise(cut(counts, workers.count, lead)))
        lanes = self._lanes[: len(ranges)]
        calls = [
            partial(lane.join, keys, first, last)
            for lane, (first, last) in zip(lanes, ranges, strict=True)
        ]
        parts = workers.run(calls)
        left = np.concatenate([part[0] for part in parts])
        right = np.concatenate([part[1] for part in parts])
        late_us = max(lane.ended_us for lane in lanes[1:]) - lanes[0].ended_us
        us = sum(lane.ended_us - lane.began_us for lane in lanes)
        self._lead_us = min(max(0.0, self._lead_us + STEP * (late_us + SPARE_US)), us)
        return (left, right), us


def cut(counts: Int64s, ranges: int, lead: int = 0) -> list[int]:
    """Edges, from 0 to 64, of `ranges` ranges of partitions with about equal sums of `counts`; the
    first has `lead` more than the others."""
    upto = np.cumsum(counts)
    lead = min(lead, int(upto[-1]))
    aims = lead + (upto[-1] - lead) * np.arange(1, ranges) // ranges
    return [0, *np.searchsorted(upto, aims, side="right").tolist(), PARTITIONS]


def enlarged(array: Int64s, kept: int, size: int) -> Int64s:
    """An array of another size, with the first `kept` values of this one."""
    larger = np.empty(size, np.int64)
    larger[:kept] = array[:kept]
    return larger


def doubled(array: Int64s, kept: int) -> Int64s:
    """An array of twice the size, with the first `kept` values of this one."""
    return enlarged(array, kept, 2 * array.size)
