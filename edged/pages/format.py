"""The page format, version 1, byte by byte.  This text is the specification.

A page is a self-contained block of rows ("tuples") of one stream.  All numbers are little-endian,
nothing is aligned, and pages may follow each other in a file or a request.

    page = header (224 bytes) | body
    body = dense rows, or slots and tuple data; LZ4-compressed where flag bit 0 says so

Header

    offset size type      field          meaning
         0    4 bytes     magic          45 44 47 50, "EDGP"
         4    1 u8        format         1
         5    1 u8        layout         1 dense, 2 slotted
         6    1 u8        checksum_kind  1 = CRC-32 (see below)
         7    1 u8        reserved       0
         8    4 u32       capacity       size the writer allowed, header included; raw_bytes <=
                                         capacity <= 16777216
        12    4 u32       stored_bytes   size of this page as stored, header included: the
                                         next page begins this many bytes after this magic
        16    4 u32       raw_bytes      size with the body uncompressed, header included
        20    4 u32       tuples         number of rows
        24    4 u32       stride         dense: bytes a row; slotted: bytes a slot
        28    4 u32       checksum       see below
        32    8 u64       epoch          the store's number: changes only with a new store
        40    8 u64       seq            1, 2, 3, ... per (device, epoch, stream, partition)
        48    8 u64       beat           the beat of the device that sealed the page
        56    4 u32       partition      0 .. partitions-1
        60    4 u32       version        of the stream's schema: `stream@version`
        64    8 i64       time_min_us    smallest and
        72    8 i64       time_max_us    largest event time in the page
        80    8 i64       sealed_at_us   wall clock of the device when it was sealed: a label
        88    4 u32       flags          bit 0: body is LZ4-compressed; bit 1: tuples carry
                                         a weight; all other bits 0
        92    4 u32       reserved       0
        96   64 chars     device         UTF-8, at most 63 bytes, padded with zero bytes
       160   64 chars     stream         the same

Times are microseconds since 1970-01-01 00:00 UTC.

Checksum.  CRC-32 as in zlib, PNG and Ethernet (reflected polynomial 0xEDB88320, initial value and
final xor 0xFFFFFFFF; the check value of the nine ASCII bytes "123456789" is 0xCBF43926), over all
`stored_bytes` bytes of the page as stored with the four bytes of the field itself taken as zero.
A page whose checksum differs is damaged and none of it is used.

Compression.  With flag bit 0 the stored_bytes - 224 bytes after the header are one LZ4 *block* (not
a frame, no size prefix) that decompresses to raw_bytes - 224 bytes.  Without it stored_bytes =
raw_bytes.  Offsets below are in the page with its body uncompressed.

Schema.  The page does not hold its columns' names and types; `stream@version` names a registered
schema: an ordered list of columns, each with a name, a type and whether it may be null.  Its text
form is a JSON array (RFC 8259, UTF-8) of at least one object, in the order of the columns:

    [{"name":"time","type":"timestamp","nullable":false},{"name":"kw","type":"float64"}]

`name` is a string that is not empty and differs from all others; `type` is one of the words below;
`nullable` is true or false, and false where it is missing.  One column, of type int32 and not
nullable, may have `role`, the word weight: its row stands for so many rows, or takes them back
where it is negative.  There are no other keys.  The canonical
text has no spaces, the keys in this order, and characters beyond ASCII as \\u escapes:
equal schemas have equal canonical texts, byte for byte.  A new schema is registered only within
these limits: a text of 1 MiB, 4096 columns, a name of 255 bytes of UTF-8.

    type                        bytes  as
    bool                            1  0 or 1
    int8  int16  int32  int64 1 2 4 8  two's complement
    uint8 uint16 uint32 uint64 1 2 4 8 unsigned
    float32 float64               4 8  IEEE 754
    timestamp                       8  i64, microseconds since 1970-01-01 UTC
    string, binary           variable  UTF-8 text; any bytes
    lists, as float32[64]    variable  the items, one after the other

Presence bitmap.  Only where at least one column of the schema is nullable, each tuple has
ceil(columns / 8) bytes; the bit i % 8 (of value 1 << (i % 8)) of byte i // 8 belongs to column i of
the schema, and is 1 where a value is present.  It is always 1 for a column that is not nullable;
the bits beyond the last column are 0.  A null fixed-width value occupies its bytes, all zero; a
null variable value has no bytes.

Weight.  Only with flag bit 1: an i32 a tuple that says by how much the tuple's multiplicity changes
(+1 inserts it, -1 deletes it).  Without the flag every tuple has weight +1.

Layout 1, dense: every column is of fixed width.  Row k begins at 224 + k * stride and is

    [weight: i32, with flag bit 1] [presence bitmap] column 0, column 1, ... without padding

so stride = 4 (with a weight) + bitmap + the columns' widths, and raw_bytes = 224 + tuples *
stride.

Layout 2, slotted: at least one column is variable.  Slots grow up from the header, tuple data
grows down from the page's end.  Slot k begins at 224 + k * stride, stride = 12 (16 with a weight):

    u32 key     the lower 32 bits of the partition columns' hash (0 without such columns)
    u32 offset  where the tuple's data begins, counted BACK from the page's end:
                it begins at raw_bytes - offset
    u32 length  of the tuple's data in bytes
    [i32 weight, with flag bit 1]

A tuple's data is

    [presence bitmap] fixed-width columns in schema order without padding
    for every variable column, in schema order: u32 end
    the variable columns' bytes, in schema order without padding

where `end` is the end of that column's bytes, counted from the first byte after the last `end`;
the column begins at the `end` before it, the first at 0.  The last `end` is the size of all.

There are no gaps: offset of slot 0 is its length, offset of slot k is that of slot k-1 plus its own
length, and raw_bytes = 224 + tuples * stride + offset of the last slot (224 with no tuples).
Offsets count from the end so that sealing trims a page by moving its data once, without rewriting
a slot.

What a reader refuses.  It returns no row of a page, and names the page and the fault, where

    - the magic, format, layout or checksum_kind is none of those above;
    - a reserved field is not 0, or a bit of `flags` other than 0 and 1 is set: a later version of
      the format may give it a meaning that changes how the page is read;
    - a name is longer than 63 bytes, is not UTF-8, or has a byte other than 0 in its padding;
    - sizes contradict each other: raw_bytes > capacity, capacity > 16777216, a stored_bytes that
      is not what is there, tuples * stride that do not fit into raw_bytes (dense: do not fill it),
      a stride of 0 (dense) or other than 12, 16 with a weight (slotted), an LZ4 block of less than
      1/255 of the raw_bytes - 224 bytes that it should make, which no block can;
    - the checksum differs, or the LZ4 block does not make raw_bytes - 224 bytes;
    - the page does not fit its schema: a layout or stride that the schema does not make; slots with
      gaps or overlaps; a variable column whose `end` runs backwards or past its tuple;
    - a string that is read is not UTF-8.

It accepts, and ignores, the key of a slot, bits of the presence bitmap that belong to no column or
to one that is not nullable, and the bytes of a null value.  A bool's byte other than 0 is true.
time_min_us, time_max_us, sealed_at_us and beat are labels, which readers need not check.

Partitions.  A row's partition is (hash >> 32) % partitions with the 64-bit hash of its partition
columns as `kernels/cpu/hash.py` defines it; readers need not know it.

Sizes.  A capacity is 4 KiB to 16 MiB, 1 MiB by default; a page is trimmed to what it holds.  A
tuple that is too large for the stream's capacity gets a page with a larger one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edged.data.schema import Schema
from edged.errors import PageError
from edged.pages.header import HEADER, HEADER_BYTES, MAGIC, checksum

FORMAT = 1
LAYOUT_DENSE, LAYOUT_SLOTTED = 1, 2
CRC_32 = 1
FLAG_LZ4, FLAG_WEIGHT = 1, 2
NAME_BYTES_MAX = 63
CAPACITY_MIN, CAPACITY_DEFAULT, CAPACITY_MAX = 4 << 10, 1 << 20, 16 << 20
PAGE_COLUMNS_MAX = 4096
COLUMN_NAME_BYTES_MAX = 255
LZ4_RATIO_MAX = 255
"""Bytes that one byte of an LZ4 block makes at most."""
SLOT_BYTES = 12
WEIGHT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Header:
    """A page's header; fields as in the module's docstring, names without their padding."""

    layout: int
    capacity: int
    stored_bytes: int
    raw_bytes: int
    tuples: int
    stride: int
    checksum: int
    epoch: int
    seq: int
    beat: int
    partition: int
    version: int
    time_min_us: int
    time_max_us: int
    sealed_at_us: int
    flags: int
    device: str
    stream: str

    @property
    def compressed(self) -> bool:
        """Whether the body is an LZ4 block."""
        return bool(self.flags & FLAG_LZ4)

    @property
    def weighted(self) -> bool:
        """Whether tuples carry a change weight."""
        return bool(self.flags & FLAG_WEIGHT)

    @property
    def name(self) -> str:
        """The page's name for messages."""
        return (
            f"page {self.stream}@{self.version} partition {self.partition} seq {self.seq} "
            f"of device {self.device} epoch {self.epoch}"
        )

    def pack(self) -> bytes:
        """The header's 224 bytes, with `checksum` as it is."""
        return HEADER.pack(
            MAGIC, FORMAT, self.layout, CRC_32, 0, self.capacity, self.stored_bytes,
            self.raw_bytes, self.tuples, self.stride, self.checksum, self.epoch, self.seq,
            self.beat, self.partition, self.version, self.time_min_us, self.time_max_us,
            self.sealed_at_us, self.flags, 0, encode_name(self.device), encode_name(self.stream),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TupleLayout:
    """Offsets of a tuple's parts from its first byte (dense row or tuple data)."""

    bitmap_at: int
    bitmap_bytes: int
    places: tuple[int, ...]
    """Per column: the offset of a fixed-width value, or of a variable column's u32 end."""
    fixed_bytes: int
    """Size of everything before the variable bytes; a dense row's stride."""


def tuple_layout(schema: Schema, weighted: bool = False) -> TupleLayout:
    """The layout of `schema`'s tuples; `weighted` shifts only dense rows (slots hold the
    weight)."""
    at = WEIGHT_BYTES if weighted and schema.fixed_width else 0
    bitmap_at = at
    bitmap_bytes = (len(schema) + 7) // 8 if any(f.nullable for f in schema) else 0
    at += bitmap_bytes
    places = [0] * len(schema)
    for i, f in enumerate(schema):
        if not f.dtype.variable:
            places[i] = at
            at += f.dtype.width
    for i, f in enumerate(schema):
        if f.dtype.variable:
            places[i] = at
            at += 4
    return TupleLayout(bitmap_at, bitmap_bytes, tuple(places), at)


def encode_name(name: str) -> bytes:
    """A device's or stream's name as stored in a header, without the padding.

    Raises PageError if it is longer than 63 bytes or contains a zero byte.
    """
    data = name.encode()
    if len(data) > NAME_BYTES_MAX or b"\0" in data:
        raise PageError(
            f"name {name!r} does not fit a page: at most {NAME_BYTES_MAX} bytes, no NUL"
        )
    return data


def parse_header(buffer: Any, offset: int = 0) -> Header:
    """The header at `offset`; raises PageError for invalid bytes.

    The body is not checked: see `verify`.
    """
    view = memoryview(buffer).cast("B")
    if len(view) - offset < HEADER_BYTES:
        raise PageError(
            f"page at byte {offset} is cut off: {len(view) - offset} of {HEADER_BYTES} header bytes"
        )
    (
        magic, format_, layout, kind, zero, capacity, stored, raw, tuples, stride, crc, epoch,
        seq, beat, partition, version, time_min, time_max, sealed_at, flags, zeros, device, stream,
    ) = HEADER.unpack_from(view, offset)  # fmt: skip
    problem = ""
    if magic != MAGIC:
        problem = f"begins with {magic.hex()}, not with the magic {MAGIC.hex()}"
    elif format_ != FORMAT:
        problem = f"has format {format_}; this reader knows {FORMAT}"
    elif kind != CRC_32:
        problem = f"has a checksum of kind {kind}; this reader knows {CRC_32} (CRC-32)"
    elif layout not in (LAYOUT_DENSE, LAYOUT_SLOTTED):
        problem = f"has the unknown layout {layout}"
    elif zero or zeros or flags & ~(FLAG_LZ4 | FLAG_WEIGHT):
        problem = f"has unknown flags {flags:#x} or reserved bytes that are not zero"
    if problem:
        raise PageError(f"page at byte {offset} {problem}")
    header = Header(
        layout, capacity, stored, raw, tuples, stride, crc, epoch, seq, beat, partition, version,
        time_min, time_max, sealed_at, flags, _decode_name(device, offset),
        _decode_name(stream, offset),
    )  # fmt: skip
    _check_sizes(header, offset)
    return header


def verify(buffer: Any) -> Header:
    """The header of the one page that fills `buffer`, its sizes and checksum checked."""
    view = memoryview(buffer).cast("B")
    header = parse_header(view)
    if len(view) != header.stored_bytes:
        raise PageError(f"{header.name} has {header.stored_bytes} bytes, here are {len(view)}")
    require_checksum(header, view)
    return header


def require_checksum(header: Header, page: memoryview) -> None:
    """Raise PageError unless the bytes of a whole page match the checksum in its header."""
    actual = checksum(page)
    if actual != header.checksum:
        raise PageError(
            f"{header.name} is damaged: checksum {actual:08x}, its header says "
            f"{header.checksum:08x}"
        )


def iter_pages(buffer: Any) -> Iterator[tuple[Header, memoryview]]:
    """The consecutive pages in `buffer`, as views; checksums are not checked.

    Raises PageError at the first offset without a valid header or with an incomplete page.
    """
    view = memoryview(buffer).cast("B")
    offset = 0
    while offset < len(view):
        header = parse_header(view, offset)
        end = offset + header.stored_bytes
        if end > len(view):
            raise PageError(
                f"{header.name} at byte {offset} is cut off: {len(view) - offset} of "
                f"{header.stored_bytes} bytes"
            )
        yield header, view[offset:end]
        offset = end


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """One result of `scan_pages`: a valid page, or a damaged range and its problem."""

    offset: int
    data: memoryview
    header: Header | None
    problem: PageError | None


def scan_pages(buffer: Any) -> Iterator[ScannedPage]:
    """Like `iter_pages`, but checksums are checked, and the scan continues after damage.

    After a damaged page the scan resumes at the end given in its header if a page (or the end of
    the buffer) follows there, else at the next magic.
    """
    view = memoryview(buffer).cast("B")
    whole = bytes(view)
    offset = 0
    while offset < len(view):
        header: Header | None = None
        try:
            header = parse_header(view, offset)
            verify(view[offset : offset + header.stored_bytes])
            end = offset + header.stored_bytes
            yield ScannedPage(offset, view[offset:end], header, None)
        except PageError as problem:
            end = _resume(whole, offset, header)
            yield ScannedPage(offset, view[offset:end], header, problem)
        offset = end


def _resume(whole: bytes, offset: int, header: Header | None) -> int:
    if header is not None:
        end = offset + header.stored_bytes
        if end == len(whole) or whole[end : end + 4] == MAGIC:
            return end
    following = whole.find(MAGIC, offset + 1)
    return len(whole) if following < 0 else following


def _decode_name(padded: bytes, offset: int) -> str:
    name = padded.rstrip(b"\0")
    try:
        if b"\0" in name or len(name) > NAME_BYTES_MAX:
            raise ValueError
        return name.decode()
    except ValueError:
        raise PageError(f"page at byte {offset} has a name that is not padded UTF-8") from None


def _check_sizes(header: Header, offset: int) -> None:
    slots = header.tuples * header.stride
    if header.layout == LAYOUT_SLOTTED:
        exact = header.stride == SLOT_BYTES + WEIGHT_BYTES * header.weighted
    else:
        exact = header.stride > 0 and header.raw_bytes == HEADER_BYTES + slots
    body = header.stored_bytes - HEADER_BYTES
    stored_fits = (
        0 <= body <= header.raw_bytes - HEADER_BYTES <= LZ4_RATIO_MAX * body
        if header.compressed
        else header.stored_bytes == header.raw_bytes
    )
    if not (
        stored_fits
        and exact
        and HEADER_BYTES + slots <= header.raw_bytes <= header.capacity <= CAPACITY_MAX
    ):
        raise PageError(f"{header.name} at byte {offset} has sizes that contradict each other")
