"""One segment file of the log: its header, and the scan of its records, also past damage.

The layout is that of `edged.store.log`.  A scan returns the valid records and the damaged regions
between them.  An invalid record with nothing behind it that proves it durable, neither a record nor
a mark (`edged.store.tail_marks`), is the torn tail and no damage.

A record that is proven durable and whose facts and inputs are whole counts as valid even where some
of its pages are not; `RecordEntry.lost` names these.  A damaged segment header costs nothing: the
seed of the checksums, which is all that a reader needs of it, follows from any whole record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from edged.platform.disk import File
from edged.store.page_index import Holder
from edged.store.records import (
    ALIGN,
    HEADER_BYTES,
    RECORD_MAGIC,
    RecordEntry,
    RecordHeader,
    RecordReader,
    own_checksum,
    parse_header,
)
from edged.store.tail_marks import MARK_BYTES, MARK_MAGIC, parse_mark

SEGMENT_MAGIC = 0x4C676445
_HEADER = struct.Struct("<IHHQQQQ20xI")
_VERSION = 1
_CHUNK = 1 << 20
_MASK = 0xFFFFFFFF
_TABLE = [zlib.crc32(bytes([i]), _MASK) ^ _MASK for i in range(256)]
_BY_TOP = {value >> 24: i for i, value in enumerate(_TABLE)}


class Segment(Holder):
    """One segment file."""

    def __init__(self, path: str, number: int, seed: int, follows: int, size: int) -> None:
        super().__init__(path)
        self.number = number
        self.seed = seed
        """Where the checksums of its records start: the CRC-32 of its nonce."""
        self.size = size
        self.end = ALIGN
        self.follows = follows
        """Beat of the record before its first one."""
        self.last = 0
        """Newest beat in it; 0: none."""


@dataclass(frozen=True)
class Region:
    """Damaged bytes of a segment that held durable records."""

    start: int
    end: int
    after: int
    """The newest beat before them."""
    before: int
    """The beat of the first whole header behind them."""
    headers: tuple[RecordHeader, ...]
    """Headers within that are whole."""


@dataclass
class Scanned:
    """The content of a segment after a scan: the valid records, and in `proof` the largest
    `durable` claimed by its mark or by a record after the first invalid one."""

    segment: Segment
    entries: list[RecordEntry]
    proof: int = 0
    regions: list[Region] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    """Offsets of blocks that the disk does not read."""
    problem: str = ""
    """Damage of the header, or why the file is not a segment of this store."""
    broken: int | None = None
    """Where the end of the segment is damaged: the newest beat before that."""
    foreign: bool = False
    """Whether nothing in it can be read: the header belongs to another store, or no record fits."""


def seed_of_nonce(nonce: int) -> int:
    """The CRC-32 of a segment's nonce."""
    return zlib.crc32(struct.pack("<Q", nonce))


def pack_header(number: int, nonce: int, epoch: int, follows: int) -> bytes:
    """The 64 bytes of a segment's header."""
    head = _HEADER.pack(SEGMENT_MAGIC, _VERSION, 0, number, nonce, epoch, follows, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def epoch_of_segment(file: File) -> int | None:
    """The epoch in a segment's header; None where that is damaged."""
    head = file.pread(_HEADER.size, 0)
    if len(head) < _HEADER.size or int.from_bytes(head[-4:], "little") != zlib.crc32(head[:-4]):
        return None
    return int(_HEADER.unpack(head)[5])


def scan_segment(file: File, path: str, number: int, epoch: int) -> Scanned:
    """Read and check a segment.  Raises OSError where the disk does."""
    size = file.size()
    head, problem, foreign = file.pread(_HEADER.size, 0), "", False
    seed = follows = 0
    fields = _HEADER.unpack(head) if len(head) == _HEADER.size else None
    if fields is not None and fields[-1] == zlib.crc32(head[:-4]):
        magic, version, _, own, nonce, owner, follows, _ = fields
        seed = seed_of_nonce(nonce)
        if (magic, version, own, owner) != (SEGMENT_MAGIC, _VERSION, number, epoch):
            problem, foreign = "its header belongs to another store or place", True
    else:
        problem = "its header is damaged"
        found = _seed_of_records(file, number, size)
        foreign = found is None
        seed, follows = found or (0, 0)
    scanned = Scanned(Segment(path, number, seed, follows, size), [], problem=problem)
    scanned.foreign = foreign
    if not foreign:
        _scan_records(file, scanned)
    return scanned


def find_lost_ends(found: Sequence[Scanned]) -> None:
    """Note as damaged the ends of segments that lack records which the next segment follows: these
    were durable before its first record was written."""
    for part, behind in pairwise(found):
        segment, follows = part.segment, behind.segment.follows
        newest = segment.last or segment.follows
        consecutive = behind.segment.number == segment.number + 1
        if part.foreign or not consecutive or not behind.entries or follows <= newest:
            continue
        if segment.end < segment.size:
            part.regions.append(Region(segment.end, segment.size, newest, follows + 1, ()))
            part.broken = newest


def _scan_records(file: File, scanned: Scanned) -> None:
    segment = scanned.segment
    reader = RecordReader(file, segment.number, segment.seed, segment.size)
    _take(reader, scanned)
    headers, marks = _headers(file, segment)
    proofs = [*marks, *((at, h.lineage.durable) for at, h in headers)]
    scanned.proof = max((durable for _, durable in proofs), default=0)
    newest = segment.last or segment.follows
    while True:
        proof = max((durable for at, durable in proofs if at > segment.end), default=0)
        if proof <= newest:
            break  # the torn tail
        wounded = reader.entry(segment.end, wounded=True)
        if wounded is not None and wounded.header.number <= proof:
            _append(scanned, wounded)
        else:
            newest = _pass_damage(scanned, headers, marks, newest)
        _take(reader, scanned)
        newest = max(newest, segment.last)
    if any(at == segment.end for at, _ in marks):
        segment.end += MARK_BYTES


def _pass_damage(
    scanned: Scanned,
    headers: Sequence[tuple[int, RecordHeader]],
    marks: Sequence[tuple[int, int]],
    newest: int,
) -> int:
    """Go on behind damaged bytes, at the next whole header or mark; returns the newest beat before
    that.  `newest` is the one before the damage."""
    segment = scanned.segment
    start = segment.end
    behind = next(((at, h) for at, h in headers if at > start), None)
    if behind is not None:
        segment.end, previous = behind[0], behind[1].lineage.previous
        before = behind[1].number
    else:
        segment.end, previous = marks[-1]
        segment.last, before = previous, previous + 1
        scanned.broken = newest
    inside = tuple(h for at, h in headers if start <= at < segment.end)
    scanned.regions.append(Region(start, segment.end, newest, before, inside))
    return previous


def _append(scanned: Scanned, entry: RecordEntry) -> None:
    scanned.entries.append(entry)
    scanned.segment.end = entry.offset + entry.header.length
    scanned.segment.last = entry.header.number


def _take(reader: RecordReader, scanned: Scanned) -> None:
    """Take the valid records from the segment's end on."""
    while (entry := reader.entry(scanned.segment.end)) is not None:
        _append(scanned, entry)


def _blocks(file: File, start: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Offset and first bytes of each block that begins with the magic of a record or a mark."""
    for base in range(start, size, _CHUNK):
        data = file.pread(min(_CHUNK, size - base), base)
        words = np.frombuffer(data, "<u4", len(data) // 4)[:: ALIGN // 4]
        for block in np.flatnonzero((words == RECORD_MAGIC) | (words == MARK_MAGIC)):
            at = int(block) * ALIGN
            yield base + at, data[at : at + HEADER_BYTES]


def _headers(
    file: File, segment: Segment
) -> tuple[list[tuple[int, RecordHeader]], list[tuple[int, int]]]:
    """The whole record headers from the segment's valid end on, and the marks with their beats."""
    headers, marks = list[tuple[int, RecordHeader]](), list[tuple[int, int]]()
    for at, data in _blocks(file, segment.end, segment.size):
        header = parse_header(data, segment.number, segment.seed)
        beat = parse_mark(data, segment.number, segment.seed)
        if header is not None:
            headers.append((at, header))
        elif beat is not None:
            marks.append((at, beat))
    return headers, marks


def _seed_of_records(file: File, number: int, size: int) -> tuple[int, int] | None:
    """Seed of the checksums, and the beat before the first record, from the first whole record;
    None where there is none."""
    for at, data in _blocks(file, ALIGN, size):
        if len(data) < HEADER_BYTES:
            continue
        seed = _seed_before(data[: HEADER_BYTES - 4], own_checksum(data))
        entry = RecordReader(file, number, seed, size).entry(at)
        if entry is not None:
            return seed, entry.header.lineage.previous
    return None


def _seed_before(data: bytes, crc: int) -> int:
    """The CRC-32 that became `crc` over `data`."""
    state = crc ^ _MASK
    for byte in reversed(data):
        index = _BY_TOP[state >> 24]
        state = (state ^ _TABLE[index]) << 8 & _MASK | (index ^ byte)
    return state ^ _MASK
