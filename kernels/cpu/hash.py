"""64-bit hashes of columns.

Every type becomes a word first: values of 1, 2 and 4 bytes are zero-extended to 32 bits, values
of 8 bytes are taken as they stand; in floats -0.0 becomes 0.0 and every NaN the same NaN, so that
equal means what SQL says.  Then

  - 32-bit word w:  x = fmix32(w), hash = x << 32 | x.  `fmix32` (MurmurHash3's finaliser) is a
    bijection, so the low 32 bits tell values apart without looking at them.
  - 64-bit word w:  hash = fmix64(w), a bijection too: equal hashes are equal values.
  - string, binary: h = (length + 1) * K; for each 8-byte little-endian word h = (h ^ word) * K,
    h ^= h >> 29; hash = fmix64(h).  The last word is the value's last 8 bytes (overlapping); below
    8 bytes it is the bytes zero-extended.
  - null:           NULL_HASH, whatever lies under it.
  - more columns:   h = fmix64(h * K + next column's hash), from left to right.

The low and the top bits are both well mixed: the top 6 bits choose a row's logical partition, the
low bits its place in a table.  Rows `start..stop` are done by one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
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


@kernel("void(int64, int64, int64, int64, uint64[::1])", twin="tests.naive.hash.hash_fixed")
def hash_fixed(width: int, source: int, start: int, stop: int, out: Any) -> None:
    """Hash integers, bools and timestamps of `width` bytes at address `source` into `out`."""
    if width == 8:
        for i in range(start, stop):
            out[i] = fmix64(mem.load_u64(source + 8 * i))
    elif width == 4:
        for i in range(start, stop):
            out[i] = fmix32(mem.load_u32(source + 4 * i))
    elif width == 2:
        for i in range(start, stop):
            out[i] = fmix32(np.uint32(mem.load_u16(source + 2 * i)))
    else:
        for i in range(start, stop):
            out[i] = fmix32(np.uint32(mem.load_u8(source + i)))


@kernel("void(int64, int64, int64, int64, uint64[::1])", twin="tests.naive.hash.hash_float")
def hash_float(width: int, source: int, start: int, stop: int, out: Any) -> None:
    """Hash floats of `width` bytes (4 or 8): zeros are one value, NaNs are one value."""
    if width == 8:
        for i in range(start, stop):
            x = mem.load_u64(source + 8 * i)
            size = x & ABS_64
            x = np.uint64(0) if size == np.uint64(0) else x
            out[i] = fmix64(NAN_64 if size > INF_64 else x)
    else:
        for i in range(start, stop):
            y = mem.load_u32(source + 4 * i)
            small = y & ABS_32
            y = np.uint32(0) if small == np.uint32(0) else y
            out[i] = fmix32(NAN_32 if small > INF_32 else y)


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


@kernel("void(int64, int64, int64, int64, uint64[::1])", twin="tests.naive.hash.hash_variable")
def hash_variable(source: int, offsets: int, start: int, stop: int, out: Any) -> None:
    """Hash strings or binaries: bytes at address `source`, int64 offsets at address `offsets`."""
    for i in range(start, stop):
        begin = mem.load_i64(offsets + 8 * i)
        out[i] = hash_bytes(source + begin, mem.load_i64(offsets + 8 * i + 8) - begin)


@kernel("void(int64, int64, int64, uint64[::1])", twin="tests.naive.hash.hash_nulls")
def hash_nulls(valid: int, start: int, stop: int, out: Any) -> None:
    """Put NULL_HASH where the byte at address `valid` is 0."""
    for i in range(start, stop):
        if mem.load_u8(valid + i) == 0:
            out[i] = NULL_HASH


@kernel("void(uint64[::1], int64, int64, uint64[::1])", twin="tests.naive.hash.hash_combine")
def hash_combine(column: Any, start: int, stop: int, out: Any) -> None:
    """Take the next column's hashes `column` into `out`."""
    for i in range(start, stop):
        out[i] = fmix64(out[i] * K + column[i])


@kernel("void(int64, int64, int64, uint8[::1])", twin="tests.naive.hash.all_valid")
def all_valid(valid: int, start: int, stop: int, out: Any) -> None:
    """Clear `out` where the byte at address `valid` is 0."""
    for i in range(start, stop):
        out[i] &= np.uint8(mem.load_u8(valid + i) != 0)
