"""Segments: the files of landed pages, with their only writer and readers.

    LANDING/segments/seg-<instance>-<number:08d>.pages    pages, end to end, exactly as received
    LANDING/segments/seg-<instance>-<number:08d>.idx      one 64-byte row per committed page
    LANDING/segments/seg-<instance>-<number:08d>.crc      the rows' checksums     (row_checks.py)

A row, little-endian, without padding:

    offset  size  field
         0     8  offset        u64  where the page begins in the .pages file
         8     4  length        u32  the page's bytes
        12     4  crc           u32  the page's own checksum, as in its header
        16     4  tuples        u32
        20     4  partition     u32
        24     8  seq           u64
        32     8  epoch         u64  of the device's store
        40     8  landed_at_us  i64  the collector's wall clock, microseconds since 1970 UTC
        48     8  stream_hash   u64  first 8 bytes, little-endian, of sha256("<stream>@<version>")
        56     8  device_hash   u64  first 8 bytes, little-endian, of sha256("<device>")

Invariants

 1. One process appends to a segment; any number read it.
 2. A page's bytes are durable before its row is written.  Only complete rows of the idx are valid;
    a torn row at its end, and bytes of the .pages file beyond the last row, are ignored.
 3. Neither file is ever rewritten below what the idx commits.  Rows are in the order of their
    offsets, but there may be holes between them.
 4. A row is durable before the page is acknowledged and before any high water counts it, so a
    position (a number of rows) that was once read stays valid after a power cut.  Rows left by a
    collector that died are written and synced again before they are counted.
 5. Every row is checked when it is read: by its checksum, or by its page's header.
 6. Within one (device_hash, epoch, stream, partition), over all segments, each seq occurs once.

A position in the landing is `{segment name: rows}`, as JSON with sorted keys.  The segment's name
is its file name without suffix.  Only numpy is imported: this runs on Spark executors.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.central import row_checks
from edged.central.row_checks import CRC_BYTES, RowFaults

ROW = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("crc", "<u4"),
        ("tuples", "<u4"),
        ("partition", "<u4"),
        ("seq", "<u8"),
        ("epoch", "<u8"),
        ("landed_at_us", "<i8"),
        ("stream_hash", "<u8"),
        ("device_hash", "<u8"),
    ]
)
ROW_BYTES = 64
SEGMENT_BYTES = 64 << 20
_READ_BYTES = 1 << 20
"""Bytes per read: they stay in the cache from the copy through the checksum to the decoder."""
_NAME = re.compile(r"seg-([a-z0-9_]+)-(\d{8})")
_IOV_MAX = 1024
_NAMES_REMEMBERED = 1 << 15
_ROW = struct.Struct("<QIIIIQQqQQ")

Rows = npt.NDArray[Any]
"""A one-dimensional array of dtype `ROW`."""
Buffer = bytes | bytearray | memoryview


@lru_cache(_NAMES_REMEMBERED)
def digest64(text: str) -> int:
    """The first 8 bytes of sha256 of `text`, little-endian: the hash of names in rows."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def pack_row(*values: int) -> bytes:
    """A row's bytes, of its fields in their order."""
    return _ROW.pack(*values)


def stream_hash(stream: str, version: int) -> int:
    """The `stream_hash` of `stream` at schema `version`."""
    return digest64(f"{stream}@{version}")


def device_hash(device: str) -> int:
    """The `device_hash` of `device`."""
    return digest64(device)


def segments_dir(landing: str | Path) -> Path:
    """The directory of the segments in `landing`."""
    return Path(landing) / "segments"


def pages_path(landing: str | Path, name: str) -> Path:
    """The file of pages of segment `name`."""
    return segments_dir(landing) / f"{name}.pages"


def idx_path(landing: str | Path, name: str) -> Path:
    """The file of rows of segment `name`."""
    return segments_dir(landing) / f"{name}.idx"


def segment_name(instance: str, number: int) -> str:
    """The name of a collector instance's `number`-th segment."""
    return f"seg-{instance}-{number:08d}"


def parse_name(name: str) -> tuple[str, int]:
    """The inverse of `segment_name`; ValueError for anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a segment")
    return match[1], int(match[2])


def list_segments(landing: str | Path) -> list[str]:
    """Names of the segments that have an idx, sorted; empty if there is no landing yet."""
    try:
        entries = list(segments_dir(landing).iterdir())
    except FileNotFoundError:
        return []
    return sorted(e.stem for e in entries if e.suffix == ".idx" and _NAME.fullmatch(e.stem))


def committed(landing: str | Path, name: str) -> int:
    """The number of committed pages of segment `name`: the complete rows of its idx."""
    return idx_path(landing, name).stat().st_size // ROW_BYTES


def positions(landing: str | Path) -> dict[str, int]:
    """The landing's end: rows per segment, at this moment.  A segment that is deleted meanwhile is
    left out."""
    found = {}
    for name in list_segments(landing):
        with suppress(FileNotFoundError):
            found[name] = committed(landing, name)
    return found


def read_rows(landing: str | Path, name: str, start: int = 0, stop: int | None = None) -> Rows:
    """Rows `start` to `stop` (None: all) of segment `name`, as a new array of `ROW`.

    Fewer are returned if the idx has fewer.  Each is checked, and a damaged one is derived from its
    page (`edged/central/row_checks.py`).
    """
    return checked_rows(landing, name, start, stop)[0]


def checked_rows(
    landing: str | Path, name: str, start: int = 0, stop: int | None = None
) -> tuple[Rows, RowFaults]:
    """`read_rows`, and what was wrong with the rows on the disk."""
    with idx_path(landing, name).open("rb") as file:
        count = os.fstat(file.fileno()).st_size // ROW_BYTES
        end = count if stop is None else min(stop, count)
        file.seek(start * ROW_BYTES)
        data = file.read(max(0, end - start) * ROW_BYTES)
    rows: Rows = np.frombuffer(data, dtype=ROW, count=len(data) // ROW_BYTES).copy()
    stem = segments_dir(landing) / name
    if row_checks.all_match(rows, start, stem):
        return rows, RowFaults()
    if start:
        whole, faults = checked_rows(landing, name)  # a row is mended between its neighbours
        return whole[start:end], faults
    return rows, row_checks.believe(rows, stem, _HASHES)


def renew_rows(landing: str | Path, name: str) -> Rows:
    """Write the rows of segment `name` again, mended, and make them and their checksums durable.
    Returns them.

    A failed sync leaves rows in the page cache that the medium lacks and that no later sync
    writes; so does a process that died before its sync.  Rows never change, so the process that
    appends to the segment may continue meanwhile.
    """
    rows, faults = checked_rows(landing, name)
    fd = os.open(idx_path(landing, name), os.O_RDWR | os.O_CLOEXEC)
    try:
        _pwrite(fd, memoryview(_left(fd, rows, faults)), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    row_checks.write_crcs(segments_dir(landing) / name, row_checks.row_crcs(rows), sync=True)
    return rows


def _left(fd: int, rows: Rows, faults: RowFaults) -> bytes:
    """The rows to write: a lost row stays as it was found."""
    data = bytearray(rows.tobytes())
    for number in faults.lost:
        at = number * ROW_BYTES
        data[at : at + ROW_BYTES] = _pread(fd, ROW_BYTES, at)
    return bytes(data)


def read_pages(
    landing: str | Path, name: str, rows: Rows, read_bytes: int = _READ_BYTES
) -> Iterator[memoryview]:
    """The bytes of the page of each of `rows`, in their order.

    Adjacent pages are read together, about `read_bytes` at a time, always into the same memory: a
    view is valid until the next is requested.  It is shorter than the row's length if the file was
    cut. Nothing is verified here.  The file is read, not mapped, so that a fault is an OSError
    instead of a SIGBUS.
    """
    memory = memoryview(bytearray())
    with pages_path(landing, name).open("rb", buffering=0) as file:
        for first, stop in _runs(rows, read_bytes):
            start = int(rows["offset"][first])
            end = int(rows["offset"][stop - 1]) + int(rows["length"][stop - 1])
            if len(memory) < end - start:
                memory = memoryview(bytearray(max(end - start, read_bytes)))
            data = memory[: _pread_into(file.fileno(), memory[: end - start], start)]
            for at, length in zip(
                (rows["offset"][first:stop] - np.uint64(start)).tolist(),
                rows["length"][first:stop].tolist(),
                strict=True,
            ):
                yield data[at : at + length]


def _runs(rows: Rows, read_bytes: int) -> Iterator[tuple[int, int]]:
    """Split `rows` where they are not adjacent or a read would exceed `read_bytes`."""
    offsets, lengths = rows["offset"].tolist(), rows["length"].tolist()
    first = 0
    for i in range(1, len(offsets) + 1):
        if (
            i == len(offsets)
            or offsets[i] != offsets[i - 1] + lengths[i - 1]
            or offsets[i] + lengths[i] - offsets[first] > read_bytes
        ):
            yield first, i
            first = i


def _pread(fd: int, length: int, offset: int) -> bytes:
    """`length` bytes at `offset`, or as many as there are."""
    parts = []
    while length > 0:
        part = os.pread(fd, length, offset)
        if not part:
            break
        parts.append(part)
        length, offset = length - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _pread_into(fd: int, memory: memoryview, offset: int) -> int:
    """Fill `memory` from `offset` on, as far as the file goes; returns the number of bytes."""
    filled = 0
    while filled < len(memory):
        got = os.preadv(fd, [memory[filled:]], offset + filled)
        if not got:
            break
        filled += got
    return filled


class _Hashes:
    """The hashes of names, for `row_checks`."""

    stream_hash, device_hash = staticmethod(stream_hash), staticmethod(device_hash)


_HASHES = _Hashes()


class SegmentWriter:
    """Appends to one segment.  Three steps make a page visible: `append`, `sync`, `commit`.

    Opening an existing segment cuts a torn row off its idx.  Bytes of the .pages file beyond the
    last row stay, beginning at `tail`, until `cut` or a later `append`. A failed write or sync
    leaves the writer unusable: the process must end and open it again.
    """

    def __init__(self, landing: str | Path, name: str) -> None:
        parse_name(name)
        self.name = name
        directory = segments_dir(landing)
        directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._pages = os.open(pages_path(landing, name), flags, 0o644)
        self._idx = os.open(idx_path(landing, name), flags, 0o644)
        self._crc = os.open(directory / f"{name}.crc", flags, 0o644)
        sync_directory(directory)
        self.rows = os.fstat(self._idx).st_size // ROW_BYTES
        os.ftruncate(self._idx, self.rows * ROW_BYTES)
        self.size = os.fstat(self._pages).st_size
        rows = read_rows(landing, name)
        self.tail = int((rows["offset"] + rows["length"]).max()) if self.rows else 0
        """The end of the last committed page."""

    def renew_tail(self) -> bytes:
        """The bytes beyond the last committed page, made durable first: the process that wrote them
        may have died of a failed sync, see `renew_rows`."""
        data = _pread(self._pages, self.size - self.tail, self.tail)
        if data:
            _pwrite(self._pages, memoryview(data), self.tail)
            self.sync()
        return data

    def cut(self, size: int) -> None:
        """Truncate the .pages file to `size`, which must not be below the last committed page."""
        if size < self.tail:
            raise ValueError(f"{self.name}: {size} lies below the committed end {self.tail}")
        os.ftruncate(self._pages, size)
        self.size = size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write `buffers` end to end at the end of the file; returns their offset.

        They are neither durable nor visible yet.
        """
        start = self.size
        views = [memoryview(b).cast("B") for b in buffers if len(b)]
        for i in range(0, len(views), _IOV_MAX):
            self._write_all(views[i : i + _IOV_MAX])
        return start

    def _write_all(self, views: list[memoryview]) -> None:
        while views:
            written = os.pwritev(self._pages, views, self.size)
            self.size += written
            while views and written >= len(views[0]):
                written -= len(views[0])
                views.pop(0)
            if written:
                views[0] = views[0][written:]

    def sync(self) -> None:
        """Make the pages appended so far durable."""
        os.fdatasync(self._pages)

    def commit(self, rows: Rows) -> None:
        """Append `rows`, which makes their pages visible, and make the rows durable."""
        if not len(rows):
            return
        rows = np.ascontiguousarray(rows, dtype=ROW)
        crcs = row_checks.row_crcs(rows).tobytes()
        _pwrite(self._crc, memoryview(crcs), self.rows * CRC_BYTES)
        _pwrite(self._idx, memoryview(rows.tobytes()), self.rows * ROW_BYTES)
        os.fdatasync(self._idx)
        self.rows += len(rows)
        self.tail = int(rows["offset"][-1]) + int(rows["length"][-1])

    def close(self) -> None:
        """Close the files.  Does not sync."""
        for fd in (self._pages, self._idx, self._crc):
            os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names in directory `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
