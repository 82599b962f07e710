"""The probing of the chain join, dealt to workers.

The 64 partitions are cut into contiguous ranges of about equal numbers of records, one a worker.
A `Lane` joins one range into buffers of its own, which grow when the kernel says that they are
full; laid one after the other, the lanes' pairs are in the order of partitions whatever their
number.  A beat that is done sooner than another thread wakes is joined by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.joins.base import PARTITIONS
from edged.workers import Workers
from kernels.cpu import chain

PARALLEL_US = 400.0
"""Work that is worth waking other threads for.  On a 2-core virtual machine handing it out and
gathering it cost 150 to 250 us: two threads took 119 us for what one did in 77, and 0.65 ms for
0.90."""
GAIN = 1.5
"""What two threads were seen to gain at beats just above that."""
PAIRS_MIN = 1024
"""Pairs that a lane has room for at first."""

Int64s = npt.NDArray[np.int64]


class Lane:
    """Buffers of one range's pairs."""

    def __init__(self) -> None:
        self._left = np.empty(PAIRS_MIN, np.int64)
        self._right = np.empty(PAIRS_MIN, np.int64)
        self._candidates = np.zeros(chain.SCRATCH, np.int64)
        self._progress = np.zeros(chain.PROGRESS_FIELDS, np.int64)

    def join(
        self, tables: Sequence[Int64s], job: Int64s, keys: Int64s, first: int, last: int
    ) -> tuple[Int64s, Int64s]:
        """The pairs of partitions `first..last`: rows of the left store, rows of the right."""
        progress, candidates = self._progress, self._candidates
        progress[:] = 0
        progress[chain.PARTITION] = first
        while not chain.join(
            last, *tables, job, keys, progress, candidates, self._left, self._right
        ):
            pairs = int(progress[chain.PAIRS])
            self._left = doubled(self._left, pairs)
            self._right = doubled(self._right, pairs)
        pairs = int(progress[chain.PAIRS])
        return self._left[:pairs], self._right[:pairs]


class Lanes:
    """As many lanes as there were ever workers."""

    def __init__(self) -> None:
        self._lanes = [Lane()]
        self._row_us = 0.0
        """Time of one thread for a record, as seen in the last beats."""

    def join(
        self,
        tables: Sequence[Int64s],
        job: Int64s,
        keys: Int64s,
        counts: Int64s,
        workers: Workers | None,
    ) -> tuple[Int64s, Int64s]:
        """All pairs of a beat; `counts` (int64[64]) are the partitions' records.

        What is returned may be a view of the buffers: good until the next call.
        """
        rows, before = int(counts.sum()), time.perf_counter_ns()
        parallel = workers is not None and workers.count > 1 and rows * self._row_us > PARALLEL_US
        if parallel and workers is not None:
            found = self._side_by_side(tables, job, keys, counts, workers)
        else:
            found = self._lanes[0].join(tables, job, keys, 0, PARTITIONS)
        if rows:
            us = (time.perf_counter_ns() - before) / 1e3 * (GAIN if parallel else 1.0)
            self._row_us = (
                us / rows if self._row_us == 0.0 else 0.8 * self._row_us + 0.2 * us / rows
            )
        return found

    def _side_by_side(
        self,
        tables: Sequence[Int64s],
        job: Int64s,
        keys: Int64s,
        counts: Int64s,
        workers: Workers,
    ) -> tuple[Int64s, Int64s]:
        while len(self._lanes) < workers.count:
            self._lanes.append(Lane())
        ranges = pairwise(cut(counts, workers.count))
        calls = [
            partial(lane.join, tables, job, keys, first, last)
            for lane, (first, last) in zip(self._lanes, ranges, strict=False)
        ]
        parts = workers.run(calls)
        left = np.concatenate([part[0] for part in parts])
        right = np.concatenate([part[1] for part in parts])
        return left, right


def cut(counts: Int64s, ranges: int) -> list[int]:
    """Edges, from 0 to 64, of `ranges` ranges of partitions with about equal sums of `counts`."""
    upto = np.cumsum(counts)
    aims = upto[-1] * np.arange(1, ranges) // ranges
    return [0, *np.searchsorted(upto, aims, side="right").tolist(), PARTITIONS]


def doubled(array: Int64s, kept: int) -> Int64s:
    """An array of twice the size, with the first `kept` values of this one."""
    larger = np.empty(2 * array.size, np.int64)
    larger[:kept] = array[:kept]
    return larger
