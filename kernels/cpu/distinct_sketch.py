"""DISTINCT: registers of a HyperLogLog sketch, which estimates the number of different values.

A value's hash is MurmurHash3 (x64, 128 bits) with the seed of Apache DataSketches.  Its lower half
names one of 2^size registers, and the register keeps the largest rank that was seen: one more than
the zeros before the first bit of the upper half, 63 at most.  Registers are bytes, so that a sketch
depends on the set of values alone, and merged sketches, by the larger register, equal the sketch of
all values.

What is hashed is what DataSketches hashes: integers as 8 bytes; floats as the bits of a float64
with one zero and one NaN; strings as their UTF-8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import AGGREGATE, F4, F8, VARIABLE, load_float, load_int
from kernels.cpu.columns import COLUMN
from kernels.cpu.exact_sums import float_bits
from kernels.cpu.hash import fmix64
from kernels.registry import device

SEED = 9001
"""The seed of Apache DataSketches."""
RANK_MAX = 63
C1, C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
N1, N2, FIVE = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)


@device
def turned(x: Any, bits: int) -> Any:
    """Rotate 64 bits to the left."""
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@device
def closed(h1: Any, h2: Any, size: int) -> Any:
    """The end of MurmurHash3."""
    h1 ^= np.uint64(size)
    h2 ^= np.uint64(size)
    h1 += h2
    h2 += h1
    h1 = fmix64(h1)
    h2 = fmix64(h2)
    h1 += h2
    return h1, h2 + h1


@device
def hash_word(word: Any) -> Any:
    """MurmurHash3 of 8 bytes."""
    h1 = np.uint64(SEED) ^ (turned(word * C1, 31) * C2)
    return closed(h1, np.uint64(SEED), 8)


@device
def tail(at: int, size: int) -> Any:
    """The last bytes of a value as one word, the first byte lowest."""
    word = np.uint64(0)
    for b in range(size):
        word |= np.uint64(mem.load_u8(at + b)) << np.uint64(8 * b)
    return word


@device
def hash_bytes(at: int, size: int) -> Any:
    """MurmurHash3 of bytes."""
    h1, h2 = np.uint64(SEED), np.uint64(SEED)
    blocks = size >> 4
    for b in range(blocks):
        h1 ^= turned(mem.load_u64(at + 16 * b) * C1, 31) * C2
        h1 = (turned(h1, 27) + h2) * FIVE + N1
        h2 ^= turned(mem.load_u64(at + 16 * b + 8) * C2, 33) * C1
        h2 = (turned(h2, 31) + h1) * FIVE + N2
    rest = size - 16 * blocks
    if rest > 8:
        h2 ^= turned(tail(at + 16 * blocks + 8, rest - 8) * C2, 33) * C1
    if rest > 0:
        h1 ^= turned(tail(at + 16 * blocks, min(rest, 8)) * C1, 31) * C2
    return closed(h1, h2, size)


@device
def rank_of(high: Any) -> Any:
    """One more than the zeros before the first bit that is set."""
    rank, x = np.int64(1), np.uint64(high)
    for step in (32, 16, 8, 4, 2, 1):
        if x >> np.uint64(64 - step) == np.uint64(0):
            x <<= np.uint64(step)
            rank += step
    return min(rank, np.int64(RANK_MAX))


@device
def word_of(code: int, at: int) -> Any:
    """The 8 bytes that stand for a value of fixed width."""
    if code in (F4, F8):
        value = load_float(code, at)
        if value != value:
            return np.uint64(0x7FF8000000000000)
        return np.uint64(0) if value == 0.0 else np.uint64(float_bits(value))
    return np.uint64(load_int(code, at))


@device
def add_distinct(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, ok: Any, n: int, groups: Any
) -> None:
    """Add a block's values; `ok` says which are not null."""
    c, code, w = aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.code], aggs[a, AGGREGATE.word]
    values, width, offsets = (
        columns[c, COLUMN.values],
        columns[c, COLUMN.width],
        columns[c, COLUMN.offsets],
    )
    mask = np.uint64((1 << aggs[a, AGGREGATE.size]) - 1)
    base, row_bytes = np.int64(groups.ctypes.data) + 8 * w, 8 * groups.shape[1]
    registers, ranks = np.empty(n, np.int64), np.empty(n, np.uint8)
    for j in range(n):
        ranks[j], registers[j] = 0, base
        if ok[j]:
            row = rows[j]
            if code == VARIABLE:
                begin = mem.load_i64(offsets + 8 * row)
                h1, h2 = hash_bytes(values + begin, mem.load_i64(offsets + 8 * row + 8) - begin)
            else:
                h1, h2 = hash_word(word_of(code, values + width * row))
            registers[j] = base + row_bytes * to[j] + np.int64(h1 & mask)
            ranks[j] = np.uint8(rank_of(h2))
            mem.prefetch(registers[j])
    for j in range(n):
        if mem.load_u8(registers[j]) < ranks[j]:
            mem.store_u8(registers[j], ranks[j])
