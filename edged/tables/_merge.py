"""Sorting records into a run, and merging runs in slices.

A slice is a range of hashes: its records of all inputs are sorted together and laid out behind
those of the slice before.  Its cost is that of its rows, whatever the number of inputs.  An input
that has most of the bytes is not sorted again: its records are copied, with the rest between them.
A slice is written while the next one is made, where there is a second worker.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.hashing import Hashes
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.platform.disk import Disk, File
from edged.platform.mapped import will_read
from edged.tables._images import RowRecords
from edged.tables._run import SUFFIX, Bytes, RunFacts, SortedRun, bits_for, open_run
from kernels.cpu.tables import sort

HASH_MAX = 2**64 - 1
Int64s = npt.NDArray[np.int64]


class RunLayout:
    """Sorts records and lays them out, part by part in ascending ranges of hashes."""

    def __init__(self, rows: int, scratch: Scratch) -> None:
        """`rows` is the most that there can be."""
        self._bits = bits_for(rows)
        self.directory = np.zeros((1 << self._bits) + 1, np.uint32)
        self._state = np.zeros(4, np.int64)
        self._scratch = scratch

    def add(self, hashes: Hashes, records: Int64s, low: int, high: int, target: Bytes) -> int:
        """Write the records (addresses), whose hashes are in `low..high`, to `target`; returns the
        bytes written.  Raises OverflowError where a row's weight leaves int32."""
        self._sort(hashes, records, low, high)
        return self._checked(
            sort.lay_out(hashes, records, address(target), self.directory, self._state)
        )

    def add_beside(
        self, hashes: Hashes, records: Int64s, low: int, high: int, run: tuple[int, int],
        target: Bytes,
    ) -> int:  # fmt: skip
        """`add`, with the records of a run from one address to another, all in `low..high`."""
        self._sort(hashes, records, low, high)
        return self._checked(
            sort.lay_out_beside(hashes, records, *run, address(target), self.directory, self._state)
        )

    def _sort(self, hashes: Hashes, records: Int64s, low: int, high: int) -> None:
        count, get = hashes.size, self._scratch.get
        other_h, other = get("sort hashes", count, np.uint64), get("sort records", count, np.int64)
        counts = get("counts", (1 << sort.PASS_BITS) + 1, np.int64)
        sort.sort(hashes, records, other_h, other, counts, np.uint64(low), np.uint64(high))

    def _checked(self, size: int) -> int:
        if size == sort.OVERFLOW:
            raise OverflowError("the weight of a row leaves int32")
        return size

    def facts(self) -> RunFacts:
        """The run of all parts; its directory is complete then."""
        words, entry, rows, heaviest = self._state.tolist()
        self.directory[entry:] = words
        return RunFacts(rows, 8 * words, self._bits, heaviest)


def sorted_run(records: RowRecords, hashes: Hashes, scratch: Scratch) -> SortedRun:
    """A run in memory of these records.  `hashes` are changed.

    Raises OverflowError where a row's weight leaves int32.
    """
    layout = RunLayout(hashes.size, scratch)
    memory = np.empty(records.offsets[-1], np.uint8)
    size = layout.add(hashes, records.addresses(), 0, HASH_MAX, memory)
    return SortedRun(layout.facts(), _trimmed(memory, size), layout.directory)


def _trimmed(memory: Bytes, size: int) -> Bytes:
    """The first bytes of `memory`; as a copy where much is behind them."""
    return memory[:size] if size > memory.nbytes * 7 // 8 else memory[:size].copy()


class RunMerge:
    """Inputs that become one run, a slice at a time.  The inputs stay as they are."""

    def __init__(
        self,
        inputs: Sequence[SortedRun],
        scratch: Scratch,
        disk: Disk,
        directory: str,
        workers: Workers,
        name: str = "",
    ) -> None:
        """`name` is the file to be made; empty: a run in memory."""
        self.inputs, self.name = list(inputs), name
        self.rows = sum(run.facts.rows for run in inputs)
        sizes = [run.facts.record_bytes for run in inputs]
        self.bytes = sum(sizes)
        large = sizes.index(max(sizes))
        self._large = large if len(sizes) > 1 and 2 * sizes[large] > self.bytes else -1
        """An input that has most of the bytes: it is copied, and the rest sorted into it."""
        self._scratch, self._disk, self._directory = scratch, disk, directory
        self._layout = RunLayout(self.rows, scratch)
        self._cursors = np.zeros(len(inputs), np.int64)
        self._asked = np.zeros(len(inputs), np.int64)
        """Where the bytes end that the disk was asked for."""
        self._workers, self._slices = workers, [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._low, self._made, self._written, self._crc = 0, 0, 0, 0
        self._ready = np.empty(0, np.uint8)
        """A slice that is to be written."""
        self._memory = np.empty(0 if name else self.bytes, np.uint8)
        self._file: File | None = None

    @property
    def path(self) -> str:
        """The file that is being written."""
        return f"{self._directory}/{self.name}"

    def step(self, budget_rows: int) -> SortedRun | None:
        """Merge about so many rows more; returns the run once it is complete.

        Raises OSError where its file cannot be written; `abandon` it then.
        """
        high = min(HASH_MAX, self._low + self._span(budget_rows))
        self._read_ahead(min(HASH_MAX, high + self._span(budget_rows)))
        ready, self._ready = self._ready, np.empty(0, np.uint8)
        calls: list[Callable[[], Any]] = [partial(self._make, high)]
        if ready.size:
            calls.append(partial(self._write, ready))
        self._ready = self._workers.run(calls)[0]
        return self._finish() if high == HASH_MAX else None

    def _span(self, budget_rows: int) -> int:
        return HASH_MAX * max(1, budget_rows) // max(1, self.rows)

    def _read_ahead(self, high: int) -> None:
        """Begin to read what inputs have up to `high`."""
        for i, run in enumerate(self.inputs):
            if run.in_memory:
                continue
            end = 8 * int(run.directory[(high >> (64 - run.facts.bits)) + 1])
            start = max(self._asked[i], self._cursors[i])
            will_read(run.records, int(start), end)
            self._asked[i] = max(start, end)

    def _make(self, high: int) -> Bytes:
        """Lay out the next slice, up to `high`; returns the bytes to be written."""
        starts, ends, counts = self._ranges(high)
        size = int((ends - starts).sum())
        hashes, records = self._collected(counts)
        target = self._slice(size) if self.name else self._memory[self._made :]
        if self._large >= 0:
            base = address(self.inputs[self._large].records)
            run = base + int(starts[self._large]), base + int(ends[self._large])
            made = self._layout.add_beside(hashes, records, self._low, high, run, target)
        else:
            made = self._layout.add(hashes, records, self._low, high, target)
        self._cursors, self._low = ends, high + 1
        self._made += made
        return target[: made if self.name else 0]

    def _slice(self, size: int) -> Bytes:
        """Memory for a slice.  There are two: one is written while the other is made."""
        self._slices.reverse()
        if self._slices[0].size < size:
            self._slices[0] = np.empty(size + size // 8, np.uint8)
        return self._slices[0]

    def _ranges(self, high: int) -> tuple[Int64s, Int64s, list[int]]:
        """Where the inputs' next records begin, where those up to `high` end, and the number to be
        sorted."""
        counts, ends, place = [], self._cursors.copy(), np.zeros(1, np.int64)
        for i, run in enumerate(self.inputs):
            end, base, at = run.facts.record_bytes, address(run.records), self._cursors[i]
            if i == self._large:
                at = max(at, 8 * int(run.directory[high >> (64 - run.facts.bits)]))
            counts.append(sort.until(base, at, end, np.uint64(high), place))
            ends[i] = place[0]
        if self._large >= 0:
            counts[self._large] = 0
        return self._cursors, ends, counts

    def _collected(self, counts: list[int]) -> tuple[Hashes, Int64s]:
        """Hashes and addresses of so many of the inputs' next records."""
        total = sum(counts)
        hashes = self._scratch.get("merge hashes", total, np.uint64)
        records = self._scratch.get("merge records", total, np.int64)
        at = 0
        for i, (run, count) in enumerate(zip(self.inputs, counts, strict=True)):
            part = slice(at, at + count)
            sort.collect(address(run.records), self._cursors[i], hashes[part], records[part])
            at += count
        return hashes, records

    def _write(self, content: Bytes) -> None:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
            self._file.truncate(0)
        self._file.pwritev([content], self._written)
        self._written += content.nbytes
        self._crc = zlib.crc32(content.data, self._crc)

    def _finish(self) -> SortedRun:
        facts = self._layout.facts()
        if not self.name:
            return SortedRun(facts, _trimmed(self._memory, self._made), self._layout.directory)
        self._write(self._ready)
        self._write(self._layout.directory.view(np.uint8))
        assert self._file is not None
        self._file.close()
        named = RunFacts(
            facts.rows, facts.record_bytes, facts.bits, facts.heaviest, self.name, self._crc
        )
        return open_run(self._disk, self._directory, named, check=False)

    def abandon(self) -> None:
        """Give up: the file goes."""
        if self._file is not None:
            self._file.close()
            if self._disk.exists(self.path):
                self._disk.unlink(self.path)


def number_of(name: str) -> int:
    """The number in a run's file name; -1 where it is no run's."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and stem.isdigit() else -1
