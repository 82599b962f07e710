"""Decoding a GPU's answers on the CPU: bitmaps to pairs, and verification of candidates.

A bitmap is uint32[records, words]: bit b of word w of a record's row says that the record matches
entry 32 * w + b of the window that it was compared with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.keys import same_key
from kernels.registry import device, kernel


@device
def bits_of(word: Any) -> Any:
    """The number of bits of a uint32 that are set."""
    x = np.uint64(word)
    x = x - ((x >> np.uint64(1)) & np.uint64(0x55555555))
    x = (x & np.uint64(0x33333333)) + ((x >> np.uint64(2)) & np.uint64(0x33333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    return np.int64(((x * np.uint64(0x01010101)) & np.uint64(0xFFFFFFFF)) >> np.uint64(24))


@kernel("int64(uint32[:, ::1])", reference="tests.naive.bitmap.count")
def count(bits: Any) -> int:
    """The number of bits of a bitmap that are set."""
    total = 0
    for r in range(bits.shape[0]):
        for w in range(bits.shape[1]):
            if bits[r, w] != 0:
                total += bits_of(bits[r, w])
    return total


@kernel(
    "int64(uint32[:, ::1], uint32[::1], uint32[::1], int64, int64, int64[::1], int64[::1], int64)",
    reference="tests.naive.bitmap.decode",
)
def decode(
    bits: Any,
    mine: Any,
    met: Any,
    base: int,
    met_base: int,
    out_mine: Any,
    out_met: Any,
    at: int,
) -> int:
    """Write a bitmap's pairs, from `at` on: rows of the records (`mine`) and of the window (`met`),
    less the stores' bases mod 2^32.  Returns the end; the output has room."""
    for r in range(bits.shape[0]):
        row = np.int64(np.uint32(mine[r] - np.uint32(base)))
        for w in range(bits.shape[1]):
            word = bits[r, w]
            while word != 0:
                lowest = word & np.uint32(~word + np.uint32(1))
                entry = 32 * w + bits_of(np.uint32(lowest - np.uint32(1)))
                out_mine[at] = row
                out_met[at] = np.int64(np.uint32(met[entry] - np.uint32(met_base)))
                at += 1
                word = np.uint32(word & ~lowest)
    return at


@kernel("int64(int64[:, ::1], int64[::1], int64[::1])", reference="tests.naive.bitmap.keep_equal")
def keep_equal(keys: Any, left: Any, right: Any) -> int:
    """Keep, in order, the pairs of rows whose keys are equal; returns their number."""
    kept, table = 0, np.int64(keys.ctypes.data)
    for i in range(left.size):
        if same_key(table, keys.shape[0], left[i], right[i]):
            left[kept], right[kept] = left[i], right[i]
            kept += 1
    return kept
