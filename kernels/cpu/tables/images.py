"""Records of rows: a header and an image whose bytes sort as the row's values do.

    record = hash uint64 | words uint32 | weight int32 | image, filled up with zeros to 8 bytes

`words` is the record's length in 8-byte words.  An image has the key columns first, in the order of
the key, and then the other columns.  A nullable column begins with a byte, 0 for null and 1 else.
Then follows, big-endian,

  - unsigned integer, bool: its bytes.
  - signed integer, timestamp: its bytes with the sign bit flipped.
  - float: IEEE bits, all flipped where negative, else the sign bit alone.  -0.0 is 0.0, and every
    NaN is the same one, above infinity.  A null has zeros for its bytes.
  - string, binary: its bytes, each byte 0 followed by 255, then two bytes 0.  A null has none.

No image is the beginning of another one.  Two images are therefore in the order of their first
words that differ, and are equal where the words of one of them are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.compiler import intrinsic, types
from kernels.cpu import mem
from kernels.cpu.compare import ones
from kernels.cpu.records import ADDRESS, I64, field, get, words
from kernels.registry import device, kernel

UNSIGNED, SIGNED, FLOAT, VARIABLE = 0, 1, 2, 3
HEADER = 16
"""Bytes before an image."""
BLOCK_ROWS = 128
"""Rows whose records are decoded while they are in the first cache."""
_SIGN, _ALL = np.uint64(1 << 63), np.uint64(2**64 - 1)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_LOWS = np.uint64(0x7F7F7F7F7F7F7F7F)
_NAN_64, _INF_64 = np.uint64(0x7FF8 << 48), np.uint64(0x7FF0 << 48)
_NAN_32, _INF_32, _SIGN_32 = np.uint64(0x7FC0 << 16), np.uint64(0x7F80 << 16), np.uint64(1 << 31)


class ImageColumn(NamedTuple):
    """A column of rows that become images, or that images become."""

    kind: I64 = field("UNSIGNED, SIGNED, FLOAT or VARIABLE")
    width: I64 = field("bytes of a value; 0: any length")
    nullable: I64 = field("1 where images begin with a byte for null")
    values: ADDRESS = field("the values")
    valid: ADDRESS = field("uint8, 0 where a value is null; 0: no value is")
    offsets: ADDRESS = field("int64 offsets of values of any length")


COLUMN = words(ImageColumn)


@intrinsic
def swapped(typingctx: Any, value: Any) -> Any:
    """The 8 bytes of a uint64 in opposite order."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


@device
def size_of(record: int) -> Any:
    """Bytes of a record, by its address."""
    return np.int64(mem.load_u32(record + 8)) << 3


@device
def order(a: int, b: int) -> Any:
    """-1, 0 or 1: how the images of two records compare, by the records' addresses."""
    return order_from(a, b, HEADER)


@device
def order_from(a: int, b: int, first: int) -> Any:
    """`order` of records that are known to agree before their byte `first`."""
    for at in range(first, min(size_of(a), size_of(b)), 8):
        x, y = mem.load_u64(a + at), mem.load_u64(b + at)
        if x != y:
            return -1 if swapped(x) < swapped(y) else 1
    return 0


@device
def _zeros(x: Any) -> Any:
    """A word with the high bit of each byte set where that byte of `x` is 0."""
    return ~(((x & _LOWS) + _LOWS) | x | _LOWS)


@device
def _load(width: int, at: int) -> Any:
    if width == 8:
        return mem.load_u64(at)
    if width == 4:
        return np.uint64(mem.load_u32(at))
    if width == 2:
        return np.uint64(mem.load_u16(at))
    return np.uint64(mem.load_u8(at))


@device
def _store(width: int, at: int, x: Any) -> None:
    if width == 8:
        mem.store_u64(at, x)
    elif width == 4:
        mem.store_u32(at, np.uint32(x))
    elif width == 2:
        mem.store_u16(at, np.uint16(x))
    else:
        mem.store_u8(at, np.uint8(x))


@device
def _ordered(kind: int, width: int, x: Any) -> Any:
    """A value's bits as an unsigned integer that sorts as the value does."""
    if kind == SIGNED:
        return x ^ (np.uint64(1) << np.uint64(8 * width - 1))
    if kind == FLOAT and width == 8:
        size = x & ~_SIGN
        if size > _INF_64:
            x = _NAN_64
        elif size == np.uint64(0):
            x = np.uint64(0)
        return ~x if x & _SIGN else x | _SIGN
    if kind == FLOAT:
        size = x & ~_SIGN_32
        if size > _INF_32:
            x = _NAN_32
        elif size == np.uint64(0):
            x = np.uint64(0)
        return ~x & np.uint64(0xFFFFFFFF) if x & _SIGN_32 else x | _SIGN_32
    return x


@device
def _value(kind: int, width: int, x: Any) -> Any:
    """The opposite of `_ordered`."""
    if kind == SIGNED:
        return x ^ (np.uint64(1) << np.uint64(8 * width - 1))
    if kind == FLOAT and width == 8:
        return x & ~_SIGN if x & _SIGN else ~x
    if kind == FLOAT:
        return x & ~_SIGN_32 if x & _SIGN_32 else ~x & np.uint64(0xFFFFFFFF)
    return x


@kernel("int64(int64[:, ::1], int64, int64, int64[::1])", reference="tests.naive.tables.offsets")
def measure(columns: Any, fixed: int, header: int, offsets: Any) -> int:
    """Fill `offsets` (int64[rows + 1]) with the places of the rows' records; returns their bytes.

    `fixed` is the image's bytes that every row has.  With `header` 0 images alone are measured.
    """
    rows = offsets.size - 1
    offsets[:] = 0
    for c in range(columns.shape[0]):
        if columns[c, COLUMN.kind] == VARIABLE:
            values, at, valid = (
                columns[c, COLUMN.values],
                columns[c, COLUMN.offsets],
                columns[c, COLUMN.valid],
            )
            for i in range(rows):
                if valid == 0 or mem.load_u8(valid + i) != 0:
                    begin, end = mem.load_i64(at + 8 * i), mem.load_i64(at + 8 * i + 8)
                    offsets[i + 1] += end - begin + 2 + _count_zeros(values + begin, end - begin)
    total = 0
    for i in range(rows):
        total += (header + fixed + offsets[i + 1] + 7) & ~7
        offsets[i + 1] = total
    return total


@device
def _count_zeros(source: int, size: int) -> Any:
    count, at = 0, 0
    while at + 8 <= size:
        count += ones(_zeros(mem.load_u64(source + at)))
        at += 8
    while at < size:
        count += mem.load_u8(source + at) == 0
        at += 1
    return count


@kernel("void(int64, int64[::1], uint64[::1], int32[::1])", reference="tests.naive.tables.records")
def write_headers(base: int, offsets: Any, hashes: Any, weights: Any) -> None:
    """Write the headers of records that lie at `base` + `offsets`, and zeros as their last word."""
    for i in range(hashes.size):
        record, size = base + offsets[i], offsets[i + 1] - offsets[i]
        mem.store_u64(record + size - 8, np.uint64(0))
        mem.store_u64(record, hashes[i])
        mem.store_u32(record + 8, np.uint32(size >> 3))
        mem.store_u32(record + 12, np.uint32(weights[i]))


@kernel("void(int64[:, ::1], int64[::1])", reference="tests.naive.tables.image")
def encode(columns: Any, at: Any) -> None:
    """Write the images of all rows; row i at address `at[i]`, which becomes the image's end."""
    for c in range(columns.shape[0]):
        column = np.int64(columns.ctypes.data) + 8 * columns.shape[1] * c
        if get(column, COLUMN.kind) == VARIABLE:
            _encode_variable(column, at)
        else:
            _encode_fixed(column, at)


@device
def _encode_fixed(column: int, at: Any) -> None:
    kind, width = get(column, COLUMN.kind), get(column, COLUMN.width)
    values, valid = get(column, COLUMN.values), get(column, COLUMN.valid)
    nullable, shift = get(column, COLUMN.nullable), np.uint64(64 - 8 * width)
    for i in range(at.size):
        to, x = at[i], _ordered(kind, width, _load(width, values + width * i))
        if nullable:
            held = valid == 0 or mem.load_u8(valid + i) != 0
            mem.store_u8(to, np.uint8(held))
            to += 1
            x = x if held else np.uint64(0)
        _store(width, to, swapped(x << shift))
        at[i] = to + width


@device
def _encode_variable(column: int, at: Any) -> None:
    values, valid = get(column, COLUMN.values), get(column, COLUMN.valid)
    offsets, nullable = get(column, COLUMN.offsets), get(column, COLUMN.nullable)
    for i in range(at.size):
        to, held = at[i], valid == 0 or mem.load_u8(valid + i) != 0
        if nullable:
            mem.store_u8(to, np.uint8(held))
            to += 1
        if held:
            begin, end = mem.load_i64(offsets + 8 * i), mem.load_i64(offsets + 8 * i + 8)
            to = _escape(to, values + begin, values + end)
        at[i] = to


@device
def _escape(to: int, source: int, end: int) -> Any:
    """Write a value and its end at `to`; returns the address behind it."""
    while source + 8 <= end:
        x = mem.load_u64(source)
        if _zeros(x) != np.uint64(0):
            break
        mem.store_u64(to, x)
        source += 8
        to += 8
    while source < end:
        x = mem.load_u8(source)
        mem.store_u8(to, x)
        source += 1
        to += 1
        if x == 0:
            mem.store_u8(to, np.uint8(255))
            to += 1
    mem.store_u16(to, np.uint16(0))
    return to + 2


@kernel("void(int64[:, ::1], int64[::1])", reference="tests.naive.tables.column")
def decode_fixed(columns: Any, at: Any) -> None:
    """Fill columns, one behind the other, from the images' places `at`, which move behind them.

    Goes by blocks of rows, so that records stay in the first cache from column to column.
    """
    first, step = np.int64(columns.ctypes.data), 8 * columns.shape[1]
    end = first + step * columns.shape[0]
    for start in range(0, at.size, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, at.size)
        for i in range(stop, min(stop + BLOCK_ROWS, at.size)):
            mem.prefetch(at[i])
        for column in range(first, end, step):
            _decode_fixed(column, at, start, stop)


@device
def _decode_fixed(column: int, at: Any, start: int, stop: int) -> None:
    kind, width = get(column, COLUMN.kind), get(column, COLUMN.width)
    values, valid = get(column, COLUMN.values), get(column, COLUMN.valid)
    shift = np.uint64(64 - 8 * width)
    for i in range(start, stop):
        place = at[i]
        if valid:
            mem.store_u8(valid + i, mem.load_u8(place))
            place += 1
        x = swapped(_load(width, place)) >> shift
        _store(width, values + width * i, _value(kind, width, x))
        at[i] = place + width


@kernel("int64(int64, int64[::1])", reference="tests.naive.tables.column")
def decode_lengths(column: int, at: Any) -> int:
    """Fill a variable column's `valid` and `offsets` (which start at 0) from the images' places
    `at`, which move to the values' bytes; returns the bytes of all values."""
    valid, offsets = get(column, COLUMN.valid), get(column, COLUMN.offsets)
    total = 0
    mem.store_i64(offsets, 0)
    for i in range(at.size):
        held = True
        if valid:
            held = mem.load_u8(at[i]) != 0
            mem.store_u8(valid + i, np.uint8(held))
            at[i] += 1
        if held:
            total += _length(at[i])
        mem.store_i64(offsets + 8 * i + 8, total)
    return total


@device
def _length(place: int) -> Any:
    """Bytes of the value that is escaped at `place`."""
    size = 0
    while True:
        x = mem.load_u8(place)
        if x == 0:
            if mem.load_u8(place + 1) == 0:
                return size
            place += 1
        place += 1
        size += 1


@kernel("void(int64, int64[::1])", reference="tests.naive.tables.column")
def decode_bytes(column: int, at: Any) -> None:
    """Fill a variable column's values; the places `at` move behind them."""
    values, valid = get(column, COLUMN.values), get(column, COLUMN.valid)
    offsets = get(column, COLUMN.offsets)
    for i in range(at.size):
        if valid and mem.load_u8(valid + i) == 0:
            continue
        to, end = values + mem.load_i64(offsets + 8 * i), values + mem.load_i64(offsets + 8 * i + 8)
        place = at[i]
        while to + 8 <= end:
            x = mem.load_u64(place)
            if _zeros(x) != np.uint64(0):
                break
            mem.store_u64(to, x)
            to += 8
            place += 8
        while to < end:
            x = mem.load_u8(place)
            mem.store_u8(to, x)
            to += 1
            place += 1 if x != 0 else 2
        at[i] = place + 2
