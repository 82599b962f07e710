"""Sorting records into a run, and merging runs in slices.

A slice is a range of hashes: its records of all inputs are sorted together and laid out behind
those of the slice before.  Its cost is that of its rows, whatever the number of inputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.hashing import Hashes
from edged.data.scratch import Scratch
from edged.platform.disk import Disk, File
from edged.tables._images import RowRecords
from edged.tables._run import SUFFIX, Bytes, RunFacts, SortedRun, bits_for, open_run
from kernels.cpu.tables import sort

HASH_MAX = 2**64 - 1


class RunLayout:
    """Sorts records and lays them out, part by part in ascending ranges of hashes."""

    def __init__(self, rows: int, scratch: Scratch) -> None:
        """`rows` is the most that there can be."""
        self._bits = bits_for(rows)
        self.directory = np.zeros((1 << self._bits) + 1, np.uint32)
        self._state = np.zeros(4, np.int64)
        self._scratch = scratch

    def add(
        self, hashes: Hashes, records: npt.NDArray[np.int64], low: int, high: int, target: Bytes
    ) -> int:
        """Write the records (addresses), whose hashes are in `low..high`, to `target`; returns the
        bytes written.  Raises OverflowError where a row's weight leaves int32."""
        count = hashes.size
        get = self._scratch.get
        other_h, other = get("sort hashes", count, np.uint64), get("sort records", count, np.int64)
        counts = get("counts", (1 << sort.PASS_BITS) + 1, np.int64)
        sort.sort(hashes, records, other_h, other, counts, np.uint64(low), np.uint64(high))
        size: int = sort.lay_out(hashes, records, address(target), self.directory, self._state)
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
        name: str = "",
    ) -> None:
        """`name` is the file to be made; empty: a run in memory."""
        self.inputs, self.name = list(inputs), name
        self.rows = sum(run.facts.rows for run in inputs)
        self.bytes = sum(run.facts.record_bytes for run in inputs)
        self._scratch, self._disk, self._directory = scratch, disk, directory
        self._layout = RunLayout(self.rows, scratch)
        self._cursors = np.zeros(len(inputs), np.int64)
        self._low, self._written, self._crc = 0, 0, 0
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
        span = HASH_MAX * max(1, budget_rows) // max(1, self.rows)
        high = min(HASH_MAX, self._low + span)
        hashes, records, size = self._slice(high)
        if self.name:
            target = self._scratch.get("slice", size, np.uint8)
        else:
            target = self._memory[self._written :]
        made = self._layout.add(hashes, records, self._low, high, target)
        if self.name:
            self._write(target[:made])
        self._written += made
        self._low = high + 1
        return self._finish() if high == HASH_MAX else None

    def _slice(self, high: int) -> tuple[Hashes, npt.NDArray[np.int64], int]:
        """Hashes and addresses of the inputs' next records up to `high`, and their bytes."""
        counts, ends, place = [], self._cursors.copy(), np.zeros(1, np.int64)
        for i, run in enumerate(self.inputs):
            end, base = run.facts.record_bytes, address(run.records)
            counts.append(sort.until(base, self._cursors[i], end, np.uint64(high), place))
            ends[i] = place[0]
        total = sum(counts)
        hashes = self._scratch.get("merge hashes", total, np.uint64)
        records = self._scratch.get("merge records", total, np.int64)
        at = 0
        for i, (run, count) in enumerate(zip(self.inputs, counts, strict=True)):
            part = slice(at, at + count)
            sort.collect(address(run.records), self._cursors[i], hashes[part], records[part])
            at += count
        size = int((ends - self._cursors).sum())
        self._cursors = ends
        return hashes, records, size

    def _write(self, content: Bytes) -> None:
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
            self._file.truncate(0)
        self._file.pwritev([content], self._written)
        self._crc = zlib.crc32(content.data, self._crc)

    def _finish(self) -> SortedRun:
        facts = self._layout.facts()
        if not self.name:
            return SortedRun(facts, _trimmed(self._memory, self._written), self._layout.directory)
        assert self._file is not None
        self._write(self._layout.directory.view(np.uint8))
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
