"""Reading ahead of probes where a state is larger than the memory that holds its files.

A page that is missing stops a probe until the disk has read it, one page after another.  Once
probes have waited for pages, the keys of a probe are taken in parts: the pages of the next part are
asked for before a part is probed, so that the disk has many requests at once.  A part has no more
pages than the state may have memory, or they would be gone before they are read.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from edged.data.hashing import Hashes
from edged.platform.mapped import ASKED_BYTES, major_faults
from edged.tables._run import SortedRun
from kernels.cpu.tables import pages

KEYS_A_FAULT = 8
"""A probe that has waited for a page for each of so many keys is cold."""
WARM_NS = 1_500.0
"""Time of a page below which pages come from memory."""
GAP_BYTES = 1 << 14
"""Bytes between two pages that a disk reads as fast as it finds the second one."""
KEYS_MIN = 64
"""Keys of a part at least."""
LEARNT = 0.25
"""Weight of the last probe in the time of a page."""

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
_NOTHING = np.zeros(0)
_BITS = mmap.PAGESIZE.bit_length() - 1


class ColdReads:
    """Whether probes of one state wait for the disk, and what pages and merges cost then."""

    def __init__(self, memory_bytes: int) -> None:
        self.cold = False
        self._page_ns = self._row_ns = 0.0
        """Time that a page which was asked for adds to a probe, and that of a row that was merged;
        0: not known."""
        self._pages_most = max(KEYS_MIN, memory_bytes // mmap.PAGESIZE)
        self._faults, self._start_ns = 0, 0

    def begin(
        self, runs: Sequence[SortedRun], places: Int64s, hashes: Hashes, threads: int
    ) -> list[Ahead] | list[None]:
        """A probe begins; what each of its threads asks for ahead of its keys."""
        self._faults, self._start_ns = major_faults(), time.perf_counter_ns()
        if not self.cold:
            return [None] * threads
        most = self._pages_most // threads
        return [Ahead(runs, places, hashes, most) for _ in range(threads)]

    def end(self, keys: int, ahead: Sequence[Ahead | None], warm_ns: float) -> Float64s:
        """A probe of so many keys has ended, which takes `warm_ns` in memory; what the pages of
        each run have cost beside that (ns)."""
        asked = [part.asked for part in ahead if part is not None]
        if not asked:
            self.cold = (major_faults() - self._faults) * KEYS_A_FAULT > keys
            return _NOTHING
        pages_of = np.sum(asked, axis=0)
        if total := int(pages_of.sum()):
            took_ns = time.perf_counter_ns() - self._start_ns
            self._page_ns = _learnt(self._page_ns, max(0.0, took_ns - warm_ns) / total)
            self.cold = self._page_ns > WARM_NS
        cost_ns: Float64s = pages_of * self._page_ns
        return cost_ns

    def merge_ns(self, warm_ns: float) -> float:
        """What a row takes in a merge now, of `warm_ns` in memory."""
        return max(warm_ns, self._row_ns) if self.cold else warm_ns

    @contextmanager
    def merging(self, rows: int) -> Iterator[None]:
        """A slice of so many rows is merged inside."""
        start = time.perf_counter_ns()
        yield
        self._row_ns = _learnt(self._row_ns, (time.perf_counter_ns() - start) / max(1, rows))


def _learnt(known: float, new: float) -> float:
    return known + (new - known) * (LEARNT if known else 1.0)


class Ahead:
    """The pages of one thread's keys, asked for part by part."""

    def __init__(
        self, runs: Sequence[SortedRun], places: Int64s, hashes: Hashes, pages_most: int
    ) -> None:
        self.asked = np.zeros(len(runs), np.int64)
        """Pages of each run that were asked for."""
        self._places, self._hashes, self._most = places, hashes, pages_most
        self._marks = [
            (i, np.zeros((run.facts.record_bytes >> _BITS) + 1, np.uint8))
            for i, run in enumerate(runs)
            if not run.in_memory
        ]

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Ranges of the keys `start..stop`; when one is given, its pages have been asked for."""
        begin, end = start, self._ask(start, min(stop, start + KEYS_MIN))
        while begin < stop:
            per_key = max(1.0, float(self.asked.sum()) / (end - start))
            keys = max(KEYS_MIN, int(self._most / per_key))
            following = self._ask(end, min(stop, end + keys))
            yield begin, end
            begin, end = end, following

    def _ask(self, start: int, stop: int) -> int:
        gap = GAP_BYTES >> _BITS
        for i, marks in self._marks if start < stop else ():
            pages.mark(self._places, i, self._hashes, start, stop, _BITS, marks)
            self.asked[i] += pages.ask(self._places, i, _BITS, marks, gap, ASKED_BYTES)
        return stop
