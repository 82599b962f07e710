"""The probing of the chain join, dealt to workers.

The 64 partitions are cut into contiguous ranges of about equal numbers of records, one a worker.
A `Lane` joins one range into buffers of its own, which grow when the kernel says that they are
full; laid one after the other, the lanes' pairs are in the order of partitions whatever their
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.joins.base import PARTITIONS
from edged.workers import Workers
from kernels.cpu import chain

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
        count = 1 if workers is None else workers.count
        while len(self._lanes) < count:
            self._lanes.append(Lane())
        if workers is None or count == 1:
            return self._lanes[0].join(tables, job, keys, 0, PARTITIONS)
        calls = [
            partial(lane.join, tables, job, keys, first, last)
            for lane, (first, last) in zip(self._lanes, pairwise(cut(counts, count)), strict=False)
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
