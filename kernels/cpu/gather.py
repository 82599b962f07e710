"""Gathering rows of columns by index: `target[i] = source[rows[i]]`.

Columns come as addresses (see `mem`), so that one kernel serves every type.  Each part does the
output rows `start..stop`, so that workers share a column without sharing a byte.

Variable-size columns take two passes: `gather_offsets` turns the gathered lengths into offsets from
0, then a part copies.  Short values are copied as whole 8-byte words where neither the read nor the
write can leave its range; the excess bytes belong to values that the same part writes next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem, team
from kernels.cpu.records import ADDRESS, I64, field, get, size_of, words
from kernels.registry import device, kernel, task


class GatherPart(NamedTuple):
    """Some rows of a column to be gathered."""

    width: I64 = field("bytes of a value; of values of any length: bytes readable at `source`")
    source: ADDRESS = field("the column's values")
    rows: ADDRESS = field("int64 numbers of the rows to be gathered")
    start: I64 = field("first of them that this part does")
    stop: I64 = field("end of those")
    target: ADDRESS = field("values of the result")
    offsets: ADDRESS = field("the column's int64 offsets; 0: fixed width")
    target_offsets: ADDRESS = field("the result's int64 offsets; 0: fixed width")


PART, PART_BYTES = words(GatherPart), size_of(GatherPart)


@device
def fixed(width: int, source: int, rows: int, start: int, stop: int, target: int) -> None:
    """Copy values of `width` bytes (1, 2, 4 or 8) at address `source` to address `target`."""
    if width == 8:
        for i in range(start, stop):
            row = mem.load_i64(rows + 8 * i)
            mem.store_u64(target + 8 * i, mem.load_u64(source + 8 * row))
    elif width == 4:
        for i in range(start, stop):
            row = mem.load_i64(rows + 8 * i)
            mem.store_u32(target + 4 * i, mem.load_u32(source + 4 * row))
    elif width == 2:
        for i in range(start, stop):
            row = mem.load_i64(rows + 8 * i)
            mem.store_u16(target + 2 * i, mem.load_u16(source + 2 * row))
    else:
        for i in range(start, stop):
            mem.store_u8(target + i, mem.load_u8(source + mem.load_i64(rows + 8 * i)))


@kernel("int64(int64, int64[::1], int64[::1])", reference="tests.naive.gather.gather_offsets")
def gather_offsets(offsets: int, rows: Any, target: Any) -> int:
    """Fill `target` (int64[n+1]) with the gathered values' offsets; returns their bytes."""
    total = 0
    target[0] = 0
    for i in range(rows.size):
        at = offsets + 8 * rows[i]
        total += mem.load_i64(at + 8) - mem.load_i64(at)
        target[i + 1] = total
    return total


@kernel("int64(uint8[::1], int64[::1])", reference="tests.naive.gather.flagged")
def flagged(flags: Any, rows: Any) -> int:
    """Fill `rows` (int64[n]) with the positions where `flags` is not 0; returns their number."""
    found = 0
    for i in range(flags.size):
        rows[found] = i
        found += flags[i] != 0
    return found


@device
def copy_value(target: int, target_end: int, source: int, source_end: int, size: int) -> None:
    """Copy `size` bytes; may write up to 7 bytes more, but never past `target_end`."""
    if size > 32 or target + size + 8 > target_end or source + size + 8 > source_end:
        mem.copy_bytes(target, source, size)
        return
    for word in range(0, size, 8):
        mem.store_u64(target + word, mem.load_u64(source + word))


@device
def variable(
    source: int, size: int, offsets: int, rows: int, start: int, stop: int, to_offsets: int, to: int
) -> None:
    """Copy values of any length to `to`; `size` bytes can be read at address `source`; offsets are
    those of the column and of the result."""
    source_end, target_end = source + size, to + mem.load_i64(to_offsets + 8 * stop)
    for i in range(start, stop):
        at = offsets + 8 * mem.load_i64(rows + 8 * i)
        begin = mem.load_i64(at)
        target = to + mem.load_i64(to_offsets + 8 * i)
        bytes_wide = mem.load_i64(at + 8) - begin
        copy_value(target, target_end, source + begin, source_end, bytes_wide)


@task(reference="tests.naive.gather.gather")
def gather_part(part: int) -> int:
    """Do the part at address `part`."""
    source, rows, to = get(part, PART.source), get(part, PART.rows), get(part, PART.target)
    start, stop, offsets = get(part, PART.start), get(part, PART.stop), get(part, PART.offsets)
    if offsets == 0:
        fixed(get(part, PART.width), source, rows, start, stop, to)
    else:
        size = get(part, PART.width)
        variable(source, size, offsets, rows, start, stop, get(part, PART.target_offsets), to)
    return 0


@kernel("void(int64, int64[:, ::1])", reference="tests.naive.gather.gather")
def gather_all(function: int, parts: Any) -> None:
    """Do all parts, one after the other; `function` is the address of `gather_part`."""
    for k in range(parts.shape[0]):
        team.call(function, np.int64(parts.ctypes.data) + PART_BYTES * k)
