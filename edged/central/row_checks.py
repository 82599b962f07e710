"""Checksums of the rows of a segment's index, and the mending of a damaged row.

    LANDING/segments/seg-<instance>-<number:08d>.crc     one u32 per row: CRC-32 of its 64 bytes

A row is believed in two cases only: its checksum matches, or the page at its place says the same.
The file is written beside the rows without a sync of its own, and durably when the segment is
sealed; a segment of an earlier version has none.  A row that is not believed is derived from its
page, whose own checksum covers all but `landed_at_us`; there a flipped bit is found by the row's
checksum.  A row whose page is damaged, too, becomes a
row of zeros: it names no stream, no device and no bytes, and keeps the numbers of the rows behind
it.

This module imports numpy only: executors use it.
"""

from __future__ import annotations

import logging
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.pages.header import HEADER, HEADER_BYTES, MAGIC, checksum

Rows = npt.NDArray[Any]
Hashes = Any
CRC_BYTES = 4
_ROW_BYTES, _TIME_AT = 64, 40
_PAGE_BYTES_MAX = 16 << 20
_FIELDS = ("length", "crc", "tuples", "partition", "seq", "epoch", "stream_hash", "device_hash")
_LOG = logging.getLogger(__name__)


@dataclass
class RowFaults:
    """What `believe` found: the numbers of rows, counted from the first of the segment."""

    mended: list[int] = field(default_factory=list)
    """Rows that were damaged and are derived from their pages."""
    lost: list[int] = field(default_factory=list)
    """Rows that are damaged together with their pages."""
    unchecked: list[int] = field(default_factory=list)
    """Right rows without a right checksum."""
    doubtful: list[int] = field(default_factory=list)
    """Those of them that have a wrong one: the checksum is damaged, or the time that the row
    landed."""


def row_crcs(rows: Rows) -> npt.NDArray[np.uint32]:
    """The checksum of each row."""
    data = memoryview(np.ascontiguousarray(rows).tobytes())
    crcs = [zlib.crc32(data[i : i + _ROW_BYTES]) for i in range(0, len(data), _ROW_BYTES)]
    return np.array(crcs, "<u4")


def all_match(rows: Rows, start: int, stem: Path) -> bool:
    """Whether `rows`, which begin at number `start` of a segment, all match their checksums."""
    return bool((row_crcs(rows) == _read_crcs(stem, start, len(rows))).all())


def believe(rows: Rows, stem: Path, hashes: Hashes) -> RowFaults:
    """Check `rows`, the first ones of a segment, and mend them in place.

    `stem` is the segment's path without a suffix; `hashes` has `stream_hash` and `device_hash`.
    """
    faults = RowFaults()
    crcs = _read_crcs(stem, 0, len(rows))
    doubtful = np.flatnonzero(row_crcs(rows) != crcs) if len(rows) else ()
    if not len(doubtful):
        return faults
    with stem.with_suffix(".pages").open("rb", buffering=0) as pages:
        for i in map(int, doubtful):
            _believe(rows, i, int(crcs[i]), pages.fileno(), hashes, faults)
    _tell(stem, faults)
    return faults


def _tell(stem: Path, faults: RowFaults) -> None:
    if faults.mended:
        _LOG.error(
            "%s.idx: %d damaged rows (the first is number %d) are derived from their pages",
            stem, len(faults.mended), faults.mended[0],
        )  # fmt: skip
    if faults.lost:
        _LOG.error(
            "%s.idx: %d rows (the first is number %d) are damaged, and so are their pages: run "
            "edged central check",
            stem, len(faults.lost), faults.lost[0],
        )  # fmt: skip


def _read_crcs(stem: Path, start: int, count: int) -> npt.NDArray[np.int64]:
    """The stored checksums; -1 where there is none."""
    found = np.full(count, -1, np.int64)
    try:
        with stem.with_suffix(".crc").open("rb") as file:
            file.seek(start * CRC_BYTES)
            data = file.read(count * CRC_BYTES)
    except FileNotFoundError:
        return found
    known = np.frombuffer(data, "<u4", len(data) // CRC_BYTES)
    found[: known.size] = known
    return found


def _believe(rows: Rows, i: int, crc: int, pages: int, hashes: Hashes, faults: RowFaults) -> None:
    own = _at(pages, int(rows["offset"][i]), hashes, rows.dtype, whole=False)
    if own is not None and all(own[name] == rows[name][i] for name in _FIELDS):
        kept, flipped = int(rows["landed_at_us"][i]), _time_before_flip(rows[i], crc)
        rows["landed_at_us"][i] = _landed_at(rows, i) if flipped is None else flipped
        (faults.unchecked if kept == rows["landed_at_us"][i] else faults.mended).append(i)
        if crc > 0 and faults.unchecked[-1:] == [i]:
            faults.doubtful.append(i)
        return
    page = _find(rows, i, pages, hashes)
    if page is None:
        rows[i] = np.zeros((), rows.dtype)
        faults.lost.append(i)
        return
    page["landed_at_us"] = rows["landed_at_us"][i]
    exact = zlib.crc32(page.tobytes()) == crc
    rows[i] = page
    if not exact:
        rows["landed_at_us"][i] = _landed_at(rows, i)
    faults.mended.append(i)


def _time_before_flip(row: Any, crc: int) -> int | None:
    """The time of a row, of which all else is right, before one of its bits flipped; None where no
    such time has the checksum."""
    trial = np.array(row)
    for bit in range(64):
        data = bytearray(trial.tobytes())
        data[_TIME_AT + bit // 8] ^= 1 << bit % 8
        if zlib.crc32(data) == crc:
            return int.from_bytes(data[_TIME_AT : _TIME_AT + 8], "little", signed=True)
    return None


def _landed_at(rows: Rows, i: int) -> int:
    """The row's own time where its neighbours allow it, else the one before."""
    times = rows["landed_at_us"]
    own = int(times[i])
    before = int(times[i - 1]) if i else None
    after = int(times[i + 1]) if i + 1 < len(rows) else None
    low, high = min(own, before or own), max(own, after or own)
    if low == (own if before is None else before) and high == (own if after is None else after):
        return own
    return before if before is not None else (own if after is None else after)


def _find(rows: Rows, i: int, pages: int, hashes: Hashes) -> Any:
    """The row of the page that row `i` must mean: the first valid one between its neighbours."""
    begin = int(rows["offset"][i - 1] + rows["length"][i - 1]) if i else 0
    for place in (begin, int(rows["offset"][i])):
        page = _at(pages, place, hashes, rows.dtype, whole=True)
        if page is not None:
            return page
    end = int(rows["offset"][i + 1]) if i + 1 < len(rows) else os.fstat(pages).st_size
    data = os.pread(pages, max(0, min(end - begin, 4 * _PAGE_BYTES_MAX)), begin)
    at = data.find(MAGIC, 1)
    while at >= 0:
        page = _at(pages, begin + at, hashes, rows.dtype, whole=True)
        if page is not None:
            return page
        at = data.find(MAGIC, at + 1)
    return None


def _at(pages: int, offset: int, hashes: Hashes, dtype: Any, whole: bool) -> Any:
    """The row of the page at `offset` without its time, None without one there; `whole` checks the
    page's checksum, too."""
    size = os.fstat(pages).st_size
    if offset + HEADER_BYTES > size:
        return None
    head = os.pread(pages, HEADER_BYTES, offset)
    if len(head) < HEADER_BYTES or head[:4] != MAGIC:
        return None
    (
        _, _, _, _, _, _, stored, _, tuples, _, crc, epoch, seq, _, partition, version,
        _, _, _, _, _, device, stream,
    ) = HEADER.unpack(head)  # fmt: skip
    if not HEADER_BYTES <= stored <= min(_PAGE_BYTES_MAX, size - offset):
        return None
    if whole and checksum(os.pread(pages, stored, offset)) != crc:
        return None
    try:
        names = [name.rstrip(b"\0").decode() for name in (stream, device)]
    except UnicodeDecodeError:
        return None
    row = np.zeros((), dtype)
    values = (
        offset, stored, crc, tuples, partition, seq, epoch, 0,
        hashes.stream_hash(names[0], version), hashes.device_hash(names[1]),
    )  # fmt: skip
    row[()] = values
    return row


def write_crcs(stem: Path, crcs: npt.NDArray[np.uint32], sync: bool) -> None:
    """Replace the checksums of a segment's first rows; with `sync` they are durable on return."""
    fd = os.open(stem.with_suffix(".crc"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, crcs.tobytes(), 0)
        if sync:
            os.fdatasync(fd)
    finally:
        os.close(fd)
