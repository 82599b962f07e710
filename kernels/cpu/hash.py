"""64-bit hashes of columns.

Every type becomes a word first: values of 1, 2 and 4 bytes are zero-extended to 32 bits, values
of 8 bytes are used unchanged; in floats -0.0 becomes 0.0 and every NaN the same NaN, so that
equality is that of SQL.  Then

  - 32-bit word w:  x = fmix32(w), hash = x << 32 | x.  `fmix32` (MurmurHash3's finaliser) is a
    bijection, so that different values have different low 32 bits.
  - 64-bit word w:  hash = fmix64(w), a bijection too: equal hashes are equal values.
  - string, binary: h = (length + 1) * K; for each 8-byte little-endian word h = (h ^ word) * K,
    h ^= h >> 29; hash = fmix64(h).  The last word is the value's last 8 bytes (overlapping); below
    8 bytes it is the bytes zero-extended.
  - null:           NULL_HASH.
  - more columns:   h = fmix64(h * K + next column's hash), from left to right.

The low and the top bits are both well mixed: the top 6 bits choose a row's logical partition, the
low bits its place in a table.  Rows `start..stop` are done by one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.compiler import intrinsic, ir, types
from kernels.cpu import mem
from kernels.cpu.keys import CODE_FLOAT
from kernels.registry import device, kernel

K = np.uint64(0x9E3779B97F4A7C15)
NULL_HASH = np.uint64(0x5BD1E995C2B2AE35)
NAN_32, NAN_64 = np.uint32(0x7FC00000), np.uint64(0x7FF8000000000000)
INF_32, INF_64 = np.uint32(0x7F800000), np.uint64(0x7FF0000000000000)
ABS_32, ABS_64 = np.uint32(0x7FFFFFFF), np.uint64(0x7FFFFFFFFFFFFFFF)


@device
def fmix32(x: Any) -> Any:
    """MurmurHash3's 32-bit finaliser, repeated in both halves of the result."""
    x ^= x >> np.uint32(16)
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x ^= x >> np.uint32(13)
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    x ^= x >> np.uint32(16)
    return np.uint64(x) << np.uint64(32) | np.uint64(x)


@device
def fmix64(x: Any) -> Any:
    """MurmurHash3's 64-bit finaliser."""
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xFF51AFD7ED558CCD)
    x ^= x >> np.uint64(33)
    x *= np.uint64(0xC4CEB9FE1A85EC53)
    x ^= x >> np.uint64(33)
    return x


def _mixer(bits: int, rounds: tuple[tuple[int, int], ...], last: int) -> Any:
    """An intrinsic that hashes eight words of so many bits: for each round x ^= x >> shift, then
    x *= factor; at last x ^= x >> `last`."""

    @intrinsic
    def mix(typingctx: Any, to: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind, wide = ir.VectorType(ir.IntType(bits), 8), ir.VectorType(ir.IntType(64), 8)
            x = builder.load(builder.inttoptr(args[1], kind.as_pointer()))
            x.align = 1
            for shift, factor in rounds:
                x = builder.xor(x, builder.lshr(x, ir.Constant(kind, [shift] * 8)))
                x = builder.mul(x, ir.Constant(kind, [factor] * 8))
            x = builder.xor(x, builder.lshr(x, ir.Constant(kind, [last] * 8)))
            if bits == 32:
                x = builder.zext(x, wide)
                x = builder.or_(builder.shl(x, ir.Constant(wide, [32] * 8)), x)
            builder.store(x, builder.inttoptr(args[0], wide.as_pointer())).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return mix


mix_eight_32 = _mixer(32, ((16, 0x85EBCA6B), (13, 0xC2B2AE35)), 16)
"""`mix_eight_32(to, source)`: `fmix32` of the eight uint32 at `source`."""
mix_eight_64 = _mixer(64, ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)), 33)
"""`mix_eight_64(to, source)`: `fmix64` of the eight uint64 at `source`."""


@device
def fixed_at(width: int, source: int, start: int, stop: int, to: int) -> None:
    """Hash the integers, bools and timestamps `start..stop` at address `source`; the first hash
    goes to address `to`."""
    at, end = source + width * start, source + width * stop
    if width == 8:
        while at + 64 <= end:
            mix_eight_64(to, at)
            to += 64
            at += 64
    elif width == 4:
        while at + 32 <= end:
            mix_eight_32(to, at)
            to += 64
            at += 32
    while at < end:
        if width == 8:
            mem.store_u64(to, fmix64(mem.load_u64(at)))
        elif width == 4:
            mem.store_u64(to, fmix32(mem.load_u32(at)))
        elif width == 2:
            mem.store_u64(to, fmix32(np.uint32(mem.load_u16(at))))
        else:
            mem.store_u64(to, fmix32(np.uint32(mem.load_u8(at))))
        to += 8
        at += width


@device
def float_at(width: int, source: int, start: int, stop: int, to: int) -> None:
    """The same for floats of `width` bytes (4 or 8): zeros are one value, NaNs are one value."""
    if width == 8:
        for i in range(start, stop):
            x = mem.load_u64(source + 8 * i)
            size = x & ABS_64
            x = np.uint64(0) if size == np.uint64(0) else x
            mem.store_u64(to + 8 * (i - start), fmix64(NAN_64 if size > INF_64 else x))
    else:
        for i in range(start, stop):
            y = mem.load_u32(source + 4 * i)
            small = y & ABS_32
            y = np.uint32(0) if small == np.uint32(0) else y
            mem.store_u64(to + 8 * (i - start), fmix32(NAN_32 if small > INF_32 else y))


@device
def last_word(end: int, size: int) -> Any:
    """The last word of a value of `size` > 0 bytes that ends before address `end`."""
    if size >= 8:
        return mem.load_u64(end - 8)
    word = np.uint64(0)
    if size >= 4:
        low = np.uint64(mem.load_u32(end - size))
        high = np.uint64(mem.load_u32(end - 4))
        return low | high << np.uint64(8 * (size - 4))
    for i in range(size):
        word |= np.uint64(mem.load_u8(end - size + i)) << np.uint64(8 * i)
    return word


@device
def hash_bytes(begin: int, size: int) -> Any:
    """Hash of the `size` bytes at address `begin`."""
    h = np.uint64(size + 1) * K
    at, end = begin, begin + size
    while at + 8 < end:
        h = (h ^ mem.load_u64(at)) * K
        h ^= h >> np.uint64(29)
        at += 8
    if size > 0:
        h = (h ^ last_word(end, size)) * K
        h ^= h >> np.uint64(29)
    return fmix64(h)


@device
def variable_at(source: int, offsets: int, start: int, stop: int, to: int) -> None:
    """The same for strings and binaries: bytes at address `source`, int64 offsets at `offsets`."""
    for i in range(start, stop):
        begin = mem.load_i64(offsets + 8 * i)
        size = mem.load_i64(offsets + 8 * i + 8) - begin
        mem.store_u64(to + 8 * (i - start), hash_bytes(source + begin, size))


@device
def nulls_at(valid: int, start: int, stop: int, to: int) -> None:
    """Write NULL_HASH where a row's byte at address `valid` is 0."""
    for i in range(start, stop):
        if mem.load_u8(valid + i) == 0:
            mem.store_u64(to + 8 * (i - start), NULL_HASH)


@device
def combine_at(column: int, start: int, stop: int, to: int) -> None:
    """Combine the next column's hashes at address `column` with those at `to`."""
    for at in range(8 * start, 8 * stop, 8):
        mem.store_u64(to + at, fmix64(mem.load_u64(to + at) * K + mem.load_u64(column + at)))


@device
def column_at(code: int, source: int, offsets: int, start: int, stop: int, to: int) -> None:
    """Hash any column: `code` is its width in bytes, 0 where that varies, CODE_FLOAT more for
    floats."""
    if code == 0:
        variable_at(source, offsets, start, stop, to)
    elif code > CODE_FLOAT:
        float_at(code - CODE_FLOAT, source, start, stop, to)
    else:
        fixed_at(code, source, start, stop, to)


@kernel(
    "void(int64, int64, int64, int64, int64, uint64[::1])", reference="tests.naive.hash.hash_value"
)
def hash_column(code: int, source: int, offsets: int, start: int, stop: int, out: Any) -> None:
    """Hash the rows `start..stop` of a column into `out`: see `column_at`."""
    column_at(code, source, offsets, start, stop, np.int64(out.ctypes.data) + 8 * start)


@kernel("void(int64, int64, int64, uint64[::1])", reference="tests.naive.hash.hash_nulls")
def hash_nulls(valid: int, start: int, stop: int, out: Any) -> None:
    """Write NULL_HASH where the byte at address `valid` is 0."""
    nulls_at(valid, start, stop, np.int64(out.ctypes.data) + 8 * start)


@kernel("void(uint64[::1], int64, int64, uint64[::1])", reference="tests.naive.hash.hash_combine")
def hash_combine(column: Any, start: int, stop: int, out: Any) -> None:
    """Combine the next column's hashes `column` with `out`."""
    combine_at(np.int64(column.ctypes.data), start, stop, np.int64(out.ctypes.data))


@kernel("void(int64, int64, int64, uint8[::1])", reference="tests.naive.hash.all_valid")
def all_valid(valid: int, start: int, stop: int, out: Any) -> None:
    """Clear `out` where the byte at address `valid` is 0."""
    for i in range(start, stop):
        out[i] &= np.uint8(mem.load_u8(valid + i) != 0)
