"""One run of sorted records, in memory or in a file, and the files' format.

A file is the records, as they lie in memory, and then the directory, uint32 little-endian
(`kernels.cpu.tables.sort`).  What a reader needs besides is in the state that names the file: its
size, the CRC-32 of all of it, and the fields of `RunFacts`.  A file never changes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.errors import StoreCorrupt
from edged.platform.disk import Disk
from edged.platform.mapped import read_at_random
from kernels.cpu.tables import sort

Bytes = npt.NDArray[np.uint8]
Directory = npt.NDArray[np.uint32]
ROWS_PER_ENTRY = 4
"""Rows for each entry of a directory, at most."""
SMALL_ROWS = 1 << 16
"""A run of so many rows has an entry for each: most probes find none there, and read no record."""
SUFFIX = ".run"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run besides its records."""

    rows: int
    record_bytes: int
    bits: int
    """log2 of the directory's entries, the last one apart."""
    heaviest: int
    """The largest weight of a row, without its sign."""
    name: str = ""
    """Its file; empty: in memory."""
    crc: int = 0

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.record_bytes + 4 * ((1 << self.bits) + 1)

    def to_json(self) -> dict[str, Any]:
        """The facts of a file, for the state that names it."""
        return {**asdict(self), "bytes": self.file_bytes}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RunFacts:
        """The opposite of `to_json`."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(slots=True, eq=False)
class SortedRun:
    """A run.  `records` are the bytes of its records, `directory` lies in memory."""

    facts: RunFacts
    records: Bytes
    directory: Directory
    paid_ns: float = 0.0
    """See `edged.tables.compaction.RunDebt`."""

    @property
    def in_memory(self) -> bool:
        """Whether no file has its records."""
        return not self.facts.name

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory: of a file, the directory's alone."""
        return self.directory.nbytes + (self.records.nbytes if self.in_memory else 0)

    def place(self) -> tuple[int, int, int]:
        """The kernels' description (`kernels.cpu.tables.probe.RunPlace`)."""
        return address(self.records), address(self.directory), 64 - self.facts.bits


def bits_for(rows: int) -> int:
    """The directory's bits for so many rows."""
    per_entry = 1 if rows <= SMALL_ROWS else ROWS_PER_ENTRY
    return min(31, max(1, (rows // per_entry).bit_length()))


def from_records(records: Bytes, rows: int, heaviest: int) -> SortedRun:
    """A run in memory from the bytes of sorted records."""
    bits = bits_for(rows)
    directory = np.zeros((1 << bits) + 1, np.uint32)
    directory[-1] = records.nbytes >> 3
    sort.make_directory(address(records), directory)
    return SortedRun(RunFacts(rows, records.nbytes, bits, heaviest), records, directory)


def write_run(run: SortedRun, disk: Disk, directory: str, name: str) -> SortedRun:
    """A run in memory as one in a file, which is not durable yet.

    Raises OSError where it cannot be written; the file is gone then.
    """
    facts, path, crc = run.facts, f"{directory}/{name}", 0
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        content = [run.records[: facts.record_bytes], run.directory.view(np.uint8)]
        file.pwritev(content, 0)
    except OSError:
        disk.unlink(path)
        raise
    finally:
        file.close()
    for part in content:
        crc = zlib.crc32(part.data, crc)
    named = RunFacts(facts.rows, facts.record_bytes, facts.bits, facts.heaviest, name, crc)
    return open_run(disk, directory, named, check=False)


def open_run(disk: Disk, directory: str, facts: RunFacts, check: bool) -> SortedRun:
    """Map a run's file; with `check` its checksum is verified first.

    Raises StoreCorrupt that names the file and its rows.
    """
    path = f"{directory}/{facts.name}"
    takes = f"{facts.rows} rows of the table go with it"
    if not disk.exists(path):
        raise StoreCorrupt(f"{path}: the run is missing; {takes}")
    file = disk.open(path)
    try:
        if file.size() != facts.file_bytes:
            raise StoreCorrupt(
                f"{path}: the run has {file.size()} bytes instead of {facts.file_bytes}; {takes}"
            )
        if check:
            problem = _damage(file, facts)
            if problem:
                raise StoreCorrupt(f"{path}: {problem}; {takes}")
        content = file.map(facts.file_bytes)
        read_at_random(content)
    finally:
        file.close()
    entries = np.array(content[facts.record_bytes :]).view(np.uint32)
    return SortedRun(facts, content[: facts.record_bytes], entries)


def _damage(file: Any, facts: RunFacts) -> str:
    """Why a file is not what its state names; empty where it is."""
    crc, at, step = 0, 0, 1 << 20
    try:
        while at < facts.file_bytes:
            crc = zlib.crc32(file.pread(min(step, facts.file_bytes - at), at), crc)
            at += step
    except OSError as problem:
        return f"the run cannot be read at {at}: {problem}"
    return "" if crc == facts.crc else "the run does not match its checksum"
