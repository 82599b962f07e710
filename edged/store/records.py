"""The layout of a log record.

All numbers are little-endian.  A record starts at a multiple of 4096 in its segment and fills whole
blocks of 4096, so that writing one never touches a sector or page of another:

| offset | type | content |
|---|---|---|
| 0 | u32 | magic 0x52676445, "EdgR" |
| 4 | u16 | version of this layout: 1 |
| 6 | u16 | flags: bit 0 the commit asked for an fdatasync, bit 1 a copy made by a restart |
| 8 | u64 | number of the segment that it was written to |
| 16 | u64 | beat number, from 1 |
| 24 | u64 | beat number of the record before it in the log; 0: it is the first of all |
| 32 | u64 | the newest beat known durable when this record was written |
| 40 | u64 | one more than the beat of the newest snapshot at that time; 0: there was none |
| 48 | u64 | length of the record with header and padding, a multiple of 4096 |
| 56 | u32 | number of inputs |
| 60 | u32 | number of pages |
| 64 | u32 | CRC-32 over table, facts and inputs (with their padding) |
| 68 | u32 | CRC-32 over bytes 0 to 68 |
| 72 | | the table: u64 length of the facts, u64 length of each input, a page entry for each page |
| | | facts, inputs and pages, each padded with zeros to a multiple of 8 |

A page entry is 88 bytes: u64 sequence number, u64 length, u32 partition, u32 CRC-32 of the page, 64
bytes of stream name (UTF-8, at most 63, padded with zeros).  Every byte except padding after pages
is under exactly one checksum, so that a commit reads its data once.

Both checksums of a record start from the CRC-32 of its segment's random nonce.  Leftovers in a
recycled file, or page content that imitates a record, are therefore never taken for a record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from edged.errors import StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import Buffer, File, flat_view

ALIGN = 4096
HEADER_BYTES = 72
RECORD_MAGIC = 0x52676445
VERSION = 1
FLAG_SYNC = 1
FLAG_COPY = 2
_HEADER = struct.Struct("<IHHQQQQQQIIII")
_PAGE = struct.Struct("<QQII64s")
_ZEROS = memoryview(bytes(ALIGN))
JOINED_BYTES_MAX = 1 << 16
"""Inputs, or pages, of a record that are copied into one buffer: fewer calls than one a part."""


@dataclass(frozen=True)
class Hole:
    """Durable beats that damage took from the log, with their numbers and pages."""

    after: int
    """The newest beat before them."""
    before: int
    """The first beat behind them; there may be none between the two, where only a snapshot is
    lost."""
    pages: tuple[PageKey, ...] = ()
    """Pages of these beats that are whole; they are delivered."""
    next_pages: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """The number of the first page behind the hole, of each (stream, partition) that has one."""
    unknown_pages: int = 0
    """Upper bound of the pages in the hole that are not in `pages`."""
    text: str = ""
    """File, offset and what is damaged."""

    def is_below(self, base: int) -> bool:
        """Whether the state after beat `base` has all of the lost beats in it."""
        return self.after < base and self.before <= base + 1


@dataclass
class BeatRecord:
    """One beat in the log.  `number` grows from record to record."""

    number: int
    facts: bytes = b""
    """The heart's decisions: JSON, opaque here."""
    inputs: list[Buffer] = field(default_factory=list)
    """The rows received; recovery returns each as a writable uint8 array."""
    pages: list[SealedPage] = field(default_factory=list)
    lost: tuple[PageKey, ...] = ()
    """Pages of a record read back whose bytes are damaged; they are not in `pages`."""
    hole: Hole | None = None
    """What is lost before a record that recovery returns; None: nothing."""


@dataclass(frozen=True)
class PageEntry:
    """A page's entry in a table: its key, its CRC-32 and the location of its bytes in the file."""

    key: PageKey
    offset: int
    length: int
    crc: int


@dataclass(frozen=True)
class Lineage:
    """A record's references to earlier records, and its flags; see the header."""

    previous: int
    durable: int
    snapshots: int
    sync: bool
    copy: bool


@dataclass(frozen=True)
class RecordHeader:
    """The fixed 72 bytes, checked."""

    number: int
    lineage: Lineage
    length: int
    inputs: int
    pages: int
    crc: int


@dataclass(frozen=True)
class RecordEntry:
    """A valid record in a segment: its header, offset and pages (offsets in the file)."""

    header: RecordHeader
    offset: int
    pages: tuple[PageEntry, ...]
    lost: tuple[PageEntry, ...] = ()
    """Pages whose bytes are damaged; they are not in `pages`."""


def padding(length: int, to: int = 8) -> int:
    """Bytes missing to a multiple of `to`."""
    return -length % to


def pack_page(key: PageKey, length: int, crc: int) -> bytes:
    """A page entry.  Raises StoreError if the stream's name is too long."""
    name = key.stream.encode()
    if not 0 < len(name) <= 63:
        raise StoreError(
            f"stream name {key.stream!r} is {len(name)} bytes long; the store takes 1 to 63"
        )
    return _PAGE.pack(key.seq, length, key.partition, crc, name)


def unpack_pages(table: memoryview, start: int, count: int, offset: int) -> tuple[PageEntry, ...]:
    """`count` page entries from `table[start:]`; their bytes begin at file `offset`."""
    pages = []
    for i in range(count):
        seq, length, partition, crc, name = _PAGE.unpack_from(table, start + i * _PAGE.size)
        key = PageKey(name.rstrip(b"\0").decode(), partition, seq)
        pages.append(PageEntry(key, offset, length, crc))
        offset += length + padding(length)
    return tuple(pages)


PAGE_ENTRY_BYTES = _PAGE.size


class Encoded:
    """A record as buffers ready to be written; pages are not copied."""

    def __init__(self, record: BeatRecord) -> None:
        inputs = [flat_view(b) for b in record.inputs]
        datas = [flat_view(p.data) for p in record.pages]
        crcs = [zlib.crc32(d) for d in datas]
        lengths = struct.pack(f"<{1 + len(inputs)}Q", len(record.facts), *map(len, inputs))
        entries = [
            pack_page(p.key, len(d), c) for p, d, c in zip(record.pages, datas, crcs, strict=True)
        ]
        facts = record.facts + bytes(padding(len(record.facts)))
        self._head = b"".join([lengths, *entries, facts])
        self._inputs = _joined(inputs)
        self._pages = _joined(datas)
        self._counts = len(inputs), len(datas)
        size = _HEADER.size + len(self._head)
        size += sum(map(len, self._inputs)) + sum(map(len, self._pages))
        self._tail = padding(size, ALIGN)
        self.number = record.number
        self.sync_us = 0
        """How long the log's last sync for this record took; 0: it was not synced."""
        self.length = size + self._tail
        self._pages_at = size - sum(map(len, self._pages))
        self._keys = [(p.key, len(d), c) for p, d, c in zip(record.pages, datas, crcs, strict=True)]

    def buffers(self, segment: int, seed: int, lineage: Lineage) -> list[Buffer]:
        """Everything to write, in order."""
        crc = zlib.crc32(self._head, seed)
        for part in self._inputs:
            crc = zlib.crc32(part, crc)
        flags = FLAG_SYNC * lineage.sync | FLAG_COPY * lineage.copy
        fields = (RECORD_MAGIC, VERSION, flags, segment, self.number)
        past = (lineage.previous, lineage.durable, lineage.snapshots)
        header = _HEADER.pack(*fields, *past, self.length, *self._counts, crc, 0)[:-4]
        header += struct.pack("<I", zlib.crc32(header, seed))
        return [header + self._head, *self._inputs, *self._pages, _ZEROS[: self._tail]]

    def entry(self, offset: int, lineage: Lineage) -> RecordEntry:
        """The entry that a scan finds once the record is written at file `offset`."""
        places, at = [], offset + self._pages_at
        for key, length, crc in self._keys:
            places.append(PageEntry(key, at, length, crc))
            at += length + padding(length)
        header = RecordHeader(self.number, lineage, self.length, *self._counts, crc=0)
        return RecordEntry(header, offset, tuple(places))


def _joined(parts: Sequence[memoryview]) -> list[memoryview]:
    """The parts with their padding, in one buffer if they are small."""
    out: list[memoryview] = []
    for part in parts:
        out.append(part)
        if pad := padding(len(part)):
            out.append(_ZEROS[:pad])
    if len(out) > 1 and sum(map(len, out)) <= JOINED_BYTES_MAX:
        return [memoryview(b"".join(out))]
    return out


def parse_header(data: bytes | memoryview, segment: int, seed: int) -> RecordHeader | None:
    """The header in `data[:72]` if it is one of this segment, else None."""
    if len(data) < _HEADER.size:
        return None
    magic, version, flags, number_of, beat, *rest = _HEADER.unpack_from(data)
    previous, durable, snapshots, length, inputs, pages, crc, own = rest
    if magic != RECORD_MAGIC or version != VERSION or number_of != segment:
        return None
    if own != zlib.crc32(data[: HEADER_BYTES - 4], seed):
        return None
    marks = bool(flags & FLAG_SYNC), bool(flags & FLAG_COPY)
    lineage = Lineage(previous, durable, snapshots, *marks)
    return RecordHeader(beat, lineage, length, inputs, pages, crc)


def own_checksum(data: bytes) -> int:
    """The checksum that a header in `data[:72]` claims to have."""
    return int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little")


class RecordReader:
    """Reads and checks records of one segment through one reused buffer."""

    def __init__(self, file: File, segment: int, seed: int, size: int) -> None:
        self._file, self._segment, self._seed, self._size = file, segment, seed, size
        self._buffer = bytearray(1 << 16)

    def entry(self, offset: int, wounded: bool = False) -> RecordEntry | None:
        """The record at `offset`, every byte of it checked; None if there is no valid one.

        With `wounded` one whose pages are damaged counts, if all else is whole."""
        header = self._header(offset)
        if header is None:
            return None
        if len(self._buffer) < header.length:
            self._buffer = bytearray(header.length)
        with memoryview(self._buffer)[: header.length] as view:
            if self._file.preadinto(view, offset) < header.length:
                return None
            found = self._check(header, view, offset)
            return found if found is None or wounded or not found.lost else None

    def record(self, entry: RecordEntry) -> BeatRecord | None:
        """The record of `entry` in memory of its own; None if it is no longer valid."""
        data: npt.NDArray[np.uint8] = np.empty(entry.header.length, np.uint8)
        view = data.data
        if self._file.preadinto(view, entry.offset) < entry.header.length:
            return None
        header = parse_header(view, self._segment, self._seed)
        checked = None if header is None else self._check(header, view, entry.offset)
        if checked is None or checked.pages != entry.pages:
            return None
        lengths = _lengths(entry.header, view)
        at = _body(entry.header)
        facts = bytes(view[at : at + lengths[0]])
        at += lengths[0] + padding(lengths[0])
        inputs: list[Buffer] = []
        for length in lengths[1:]:
            inputs.append(data[at : at + length])
            at += length + padding(length)
        pages = []
        for page in entry.pages:
            start = page.offset - entry.offset
            pages.append(SealedPage(page.key, bytes(view[start : start + page.length])))
        lost = tuple(page.key for page in entry.lost)
        return BeatRecord(entry.header.number, facts, inputs, pages, lost)

    def _header(self, offset: int) -> RecordHeader | None:
        if offset + HEADER_BYTES > self._size:
            return None
        header = parse_header(self._file.pread(HEADER_BYTES, offset), self._segment, self._seed)
        if header is None or header.length < ALIGN or offset + header.length > self._size:
            return None
        return header

    def _check(self, header: RecordHeader, view: memoryview, offset: int) -> RecordEntry | None:
        body = _body(header)
        if body > header.length:
            return None
        lengths = _lengths(header, view)
        pages_at = body + sum(n + padding(n) for n in lengths)
        if (
            pages_at > header.length
            or zlib.crc32(view[HEADER_BYTES:pages_at], self._seed) != header.crc
        ):
            return None
        start = HEADER_BYTES + 8 * len(lengths)
        pages, lost = list[PageEntry](), list[PageEntry]()
        for page in unpack_pages(view, start, header.pages, pages_at):
            whole = zlib.crc32(view[page.offset : page.offset + page.length]) == page.crc
            moved = replace(page, offset=page.offset + offset)
            (pages if whole else lost).append(moved)
        return RecordEntry(header, offset, tuple(pages), tuple(lost))


def _body(header: RecordHeader) -> int:
    return HEADER_BYTES + 8 * (1 + header.inputs) + PAGE_ENTRY_BYTES * header.pages


def _lengths(header: RecordHeader, view: memoryview) -> tuple[int, ...]:
    return struct.unpack_from(f"<{1 + header.inputs}Q", view, HEADER_BYTES)
