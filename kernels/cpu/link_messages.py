"""Arrow IPC messages of a link, written straight from columns.

A message is a template's head, patched in place, and a body:

    u32 0xFFFFFFFF | i32 metadata size | flatbuffer Message | body: the columns' buffers

Each column has a validity bitmap (empty without nulls), offsets (int32, of columns of values of any
length) and values, each padded with zeros to a multiple of 8.  `encode` writes several messages,
one behind the other, with rising sequence numbers; `cut` finds where a message ends.

The metadata of a message has fixed widths: `edged.seq` 18 decimal digits, `edged.watermark` a sign
and 19 digits, `edged.sum` 16 hexadecimal digits, the `digest` of the body.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.columns import COLUMN
from kernels.cpu.gather import fixed
from kernels.cpu.hash import K, fmix64
from kernels.cpu.records import I64, field, words
from kernels.registry import device, kernel


class LinkSpots(NamedTuple):
    """Places of a template, in bytes from its begin."""

    rows: I64 = field("rows of the RecordBatch (i64)")
    body: I64 = field("length of the body (i64)")
    nodes: I64 = field("first node: i64 rows, i64 nulls")
    buffers: I64 = field("first buffer: i64 offset, i64 length")
    seq: I64 = field("18 digits")
    watermark: I64 = field("sign and 19 digits")
    digest: I64 = field("16 hexadecimal digits")
    head: I64 = field("bytes of the template")


class LinkColumn(NamedTuple):
    """A column of a link's rows."""

    kind: I64 = field("bytes of a value; 0: a bit, -1: any number of bytes")
    nullable: I64 = field("1: it may have nulls")


SPOTS, LINK_COLUMN = words(LinkSpots), words(LinkColumn)
DIGITS, WATERMARK_CHARACTERS, SUM_CHARACTERS = 18, 20, 16


@device
def pad(size: int) -> Any:
    """`size`, up to the next multiple of 8."""
    return (size + 7) & ~7


@device
def row_at(rows: int, i: int) -> Any:
    """The number of row i; `rows` is the address of int64 numbers, 0: its own."""
    return i if rows == 0 else mem.load_i64(rows + 8 * i)


@device
def zero_tail(at: int, size: int) -> Any:
    """Zero the bytes from `size` to the next multiple of 8; returns that."""
    end = pad(size)
    for i in range(size, end):
        mem.store_u8(at + i, np.uint8(0))
    return end


@device
def put_digits(at: int, digits: int, value: Any) -> None:
    """Write a uint64 as decimal digits."""
    for i in range(digits):
        mem.store_u8(at + digits - 1 - i, np.uint8(np.uint64(48) + value % np.uint64(10)))
        value //= np.uint64(10)


@device
def put_watermark(at: int, value: int) -> None:
    """Write an int64 as a sign and 19 digits."""
    mem.store_u8(at, np.uint8(45) if value < 0 else np.uint8(43))
    put_digits(at + 1, 19, np.uint64(0) - np.uint64(value) if value < 0 else np.uint64(value))


@device
def put_hexadecimal(at: int, value: Any) -> None:
    """Write a uint64 as 16 digits, the highest first."""
    for i in range(16):
        digit = np.int64(value >> np.uint64(60))
        mem.store_u8(at + i, np.uint8(48 + digit + (39 if digit > 9 else 0)))
        value <<= np.uint64(4)


@device
def digest_of(at: int, size: int, seed: Any) -> Any:
    """The digest of `size` bytes, a multiple of 8: four sums side by side."""
    a, b, c, d = seed, seed ^ K, seed + K, seed - K
    end, wide = at + size, at + (size & ~31)
    while at < wide:
        a = (a ^ mem.load_u64(at)) * K
        b = (b ^ mem.load_u64(at + 8)) * K
        c = (c ^ mem.load_u64(at + 16)) * K
        d = (d ^ mem.load_u64(at + 24)) * K
        a ^= a >> np.uint64(29)
        b ^= b >> np.uint64(29)
        c ^= c >> np.uint64(29)
        d ^= d >> np.uint64(29)
        at += 32
    while at < end:
        a = (a ^ mem.load_u64(at)) * K
        a ^= a >> np.uint64(29)
        at += 8
    return fmix64(fmix64(fmix64(fmix64(a) ^ b) ^ c) ^ d ^ np.uint64(size))


@kernel("uint64(int64, int64, uint64)", reference="tests.naive.link_messages.digest")
def digest(at: int, size: int, seed: Any) -> Any:
    """The digest of `size` bytes at address `at`, a multiple of 8, that belong to number `seed`."""
    return digest_of(at, size, seed)


@kernel("void(int64, int64, int64, uint64)", reference="tests.naive.link_messages.patch")
def patch(head: int, body: int, size: int, number: Any) -> None:
    """Write the digest of a body of `size` bytes at the 16 digits at address `head`."""
    put_hexadecimal(head, digest_of(body, size, number))


@device
def put_bits(source: int, rows: int, start: int, stop: int, to: int) -> Any:
    """Pack bytes, each 0 or 1, of the rows `start..stop` into bits; returns how many are 1."""
    ones = 0
    for first in range(start, stop, 8):
        bits = np.int64(0)
        for i in range(first, min(first + 8, stop)):
            bit = np.int64(mem.load_u8(source + row_at(rows, i)))
            bits |= bit << (i - first)
            ones += bit
        mem.store_u8(to + (first - start) // 8, np.uint8(bits))
    return ones


@device
def put_values(width: int, source: int, rows: int, start: int, stop: int, to: int) -> None:
    """Copy values of `width` bytes of the rows `start..stop` to address `to`."""
    if rows == 0:
        mem.copy_bytes(to, source + width * start, width * (stop - start))
    else:
        fixed(width, source, rows, start, stop, to - width * start)


@device
def put_offsets(offsets: int, rows: int, start: int, stop: int, to: int) -> Any:
    """Write the offsets of the rows `start..stop` as int32 from 0; returns the bytes of values."""
    total = np.int64(0)
    mem.store_i32(to, np.int32(0))
    for i in range(start, stop):
        at = offsets + 8 * row_at(rows, i)
        total += mem.load_i64(at + 8) - mem.load_i64(at)
        mem.store_i32(to + 4 * (i + 1 - start), np.int32(total))
    return total


@device
def put_bytes(source: int, offsets: int, rows: int, start: int, stop: int, to: int) -> None:
    """Copy the bytes of the values of the rows `start..stop` to address `to`."""
    if rows == 0:
        begin = mem.load_i64(offsets + 8 * start)
        mem.copy_bytes(to, source + begin, mem.load_i64(offsets + 8 * stop) - begin)
        return
    for i in range(start, stop):
        at = offsets + 8 * mem.load_i64(rows + 8 * i)
        begin = mem.load_i64(at)
        size = mem.load_i64(at + 8) - begin
        mem.copy_bytes(to, source + begin, size)
        to += size


@device
def put_buffer(at: int, offset: int, length: int) -> None:
    """Write a buffer's entry."""
    mem.store_i64(at, offset)
    mem.store_i64(at + 8, length)


@device
def put_column(
    column: Any, kind: int, nullable: int, start: int, stop: int, node: int, entry: int, body: int,
    size: int,
) -> Any:  # fmt: skip
    """Write a column behind the `size` bytes of the body; returns the size with it."""
    rows, count, nulls = column[COLUMN.rows], stop - start, 0
    put_buffer(entry, size, 0)
    if nullable == 1 and column[COLUMN.valid] != 0:
        nulls = count - put_bits(column[COLUMN.valid], rows, start, stop, body + size)
        if nulls > 0:
            length = (count + 7) // 8
            put_buffer(entry, size, length)
            size += zero_tail(body + size, length)
    put_buffer(node, count, nulls)
    entry += 16
    if kind > 0:
        put_values(kind, column[COLUMN.values], rows, start, stop, body + size)
        length = kind * count
    elif kind == 0:
        put_bits(column[COLUMN.values], rows, start, stop, body + size)
        length = (count + 7) // 8
    else:
        total = put_offsets(column[COLUMN.offsets], rows, start, stop, body + size)
        put_buffer(entry, size, 4 * (count + 1))
        size += zero_tail(body + size, 4 * (count + 1))
        entry += 16
        put_bytes(column[COLUMN.values], column[COLUMN.offsets], rows, start, stop, body + size)
        length = total
    put_buffer(entry, size, length)
    return size + zero_tail(body + size, length)


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], uint8[::1], int64[::1], int64, int64[::1], int64[::1],"
    " int64, int64, int64[::1])",
    reference="tests.naive.link_messages.encode",
)
def encode(
    columns: Any,
    layout: Any,
    template: Any,
    spots: Any,
    start: int,
    ends: Any,
    watermarks: Any,
    seq: int,
    to: int,
    sizes: Any,
) -> Any:
    """Write a message of the rows up to each of `ends`, from row `start` on, to address `to`;
    returns the bytes of all.

    Message k has the number `seq + k` and the watermark `watermarks[k]`; `sizes[k]` is set to its
    bytes.  The caller provides memory for `room` bytes.
    """
    head, begin = spots[SPOTS.head], to
    for k in range(ends.size):
        stop = ends[k]
        mem.copy_bytes(to, np.int64(template.ctypes.data), head)
        body, size = to + head, np.int64(0)
        node, entry = to + spots[SPOTS.nodes], to + spots[SPOTS.buffers]
        for c in range(columns.shape[0]):
            kind = layout[c, LINK_COLUMN.kind]
            size = put_column(
                columns[c], kind, layout[c, LINK_COLUMN.nullable], start, stop, node, entry, body,
                size,
            )  # fmt: skip
            node += 16
            entry += 48 if kind < 0 else 32
        mem.store_i64(to + spots[SPOTS.rows], stop - start)
        mem.store_i64(to + spots[SPOTS.body], size)
        put_digits(to + spots[SPOTS.seq], DIGITS, np.uint64(seq + k))
        put_watermark(to + spots[SPOTS.watermark], watermarks[k])
        put_hexadecimal(to + spots[SPOTS.digest], digest_of(body, size, np.uint64(seq + k)))
        sizes[k] = head + size
        to += head + size
        start = stop
    return to - begin


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64, int64, int64, int64[::1])",
    reference="tests.naive.link_messages.cut",
)
def cut(columns: Any, layout: Any, start: int, stop: int, buffer: int, ends: Any) -> Any:
    """Set `ends` to where messages of the rows `start..stop` end that have reached `buffer` bytes;
    returns their number.

    A row counts with its values, 4 bytes for each value of any length, and a byte for each bit or
    null.  Rows behind the last end have not filled a buffer.
    """
    width = np.int64(0)
    loose = np.int64(0)
    for c in range(columns.shape[0]):
        kind = layout[c, LINK_COLUMN.kind]
        width += max(kind, 1) if kind >= 0 else 4
        width += layout[c, LINK_COLUMN.nullable]
        loose += kind < 0
    found, filled = 0, np.int64(0)
    if loose == 0:
        step = max(1, -(-buffer // width))
        for end in range(start + step, stop + 1, step):
            ends[found] = end
            found += 1
        return found
    for i in range(start, stop):
        filled += width
        for c in range(columns.shape[0]):
            if layout[c, LINK_COLUMN.kind] < 0:
                at = columns[c, COLUMN.offsets] + 8 * row_at(columns[c, COLUMN.rows], i)
                filled += mem.load_i64(at + 8) - mem.load_i64(at)
        if filled >= buffer:
            ends[found] = i + 1
            found += 1
            filled = np.int64(0)
    return found


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64, int64, int64, int64)",
    reference="tests.naive.link_messages.room",
)
def room(columns: Any, layout: Any, head: int, start: int, stop: int, messages: int) -> Any:
    """The most bytes that `messages` messages of the rows `start..stop` take."""
    rows, size = stop - start, np.int64(0)
    for c in range(columns.shape[0]):
        kind = layout[c, LINK_COLUMN.kind]
        size += rows // 8 + 16 * messages  # the bitmap, and what ends each buffer
        if kind > 0:
            size += kind * rows
        elif kind == 0:
            size += rows // 8 + 8 * messages
        else:
            size += 4 * rows + 16 * messages
            for i in range(start, stop):
                at = columns[c, COLUMN.offsets] + 8 * row_at(columns[c, COLUMN.rows], i)
                size += mem.load_i64(at + 8) - mem.load_i64(at)
    return size + 8 + messages * head
