"""Whether two rows of the stores of a join have equal keys, for keys that a hash does not decide.

`keys` has a row for each pair of key columns (`KeyColumn`); a table of no rows means that equal
tags are equal keys.  Keys are equal as in DuckDB: NaN equals NaN and -0.0 equals 0.0; rows with
null keys are not joined.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import ADDRESS, I64, field, get, size_of, words
from kernels.registry import device

CODE_FLOAT = 16


class KeyColumn(NamedTuple):
    """A key column of the left store and the one of the right store that it is compared with."""

    code: I64 = field("bytes of a value; 0: any length; CODE_FLOAT + bytes: a float")
    left: ADDRESS = field("values of the left column")
    left_offsets: ADDRESS = field("its int64 offsets, of values of any length")
    right: ADDRESS = field("values of the right column")
    right_offsets: ADDRESS = field("its int64 offsets, of values of any length")


KEY, KEY_BYTES = words(KeyColumn), size_of(KeyColumn)
LARGEST = np.int64(2**63 - 1)


@device
def same_bytes(a: int, b: int, size: int) -> bool:
    """Whether `size` bytes at two addresses agree."""
    at = 0
    while at + 8 <= size:
        if mem.load_u64(a + at) != mem.load_u64(b + at):
            return False
        at += 8
    while at < size:
        if mem.load_u8(a + at) != mem.load_u8(b + at):
            return False
        at += 1
    return True


@device
def same_float(a: int, b: int, width: int) -> Any:
    """Whether two floats are one key: zeros are equal, NaNs are equal."""
    if width == 8:
        x, y = mem.load_u64(a), mem.load_u64(b)
        size_x, size_y = x & np.uint64(LARGEST), y & np.uint64(LARGEST)
        inf = np.uint64(0x7FF0000000000000)
        return x == y or (size_x | size_y) == np.uint64(0) or (size_x > inf and size_y > inf)
    v, w = mem.load_u32(a), mem.load_u32(b)
    size_v, size_w = v & np.uint32(0x7FFFFFFF), w & np.uint32(0x7FFFFFFF)
    top = np.uint32(0x7F800000)
    return v == w or (size_v | size_w) == np.uint32(0) or (size_v > top and size_w > top)


@device
def same_key(keys: int, columns: int, left: int, right: int) -> bool:
    """Whether the keys of two rows of the stores are equal; `keys` is the table's address."""
    for key in range(keys, keys + KEY_BYTES * columns, KEY_BYTES):
        code = get(key, KEY.code)
        a, b = get(key, KEY.left), get(key, KEY.right)
        if code == 0:
            at_a = get(key, KEY.left_offsets) + 8 * left
            at_b = get(key, KEY.right_offsets) + 8 * right
            a0, b0 = mem.load_i64(at_a), mem.load_i64(at_b)
            size = mem.load_i64(at_a + 8) - a0
            if size != mem.load_i64(at_b + 8) - b0 or not same_bytes(a + a0, b + b0, size):
                return False
        elif code > CODE_FLOAT:
            width = code - CODE_FLOAT
            if not same_float(a + width * left, b + width * right, width):
                return False
        elif not same_bytes(a + code * left, b + code * right, code):
            return False
    return True
