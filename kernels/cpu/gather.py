"""Rows picked out of columns by index: `target[i] = source[rows[i]]`.

Columns come as addresses (see `mem`), so that one kernel serves every type; each call does the
output rows `start..stop`, so that workers share a column without sharing a byte.

Variable-size columns take two passes: `gather_offsets` turns the picked lengths into offsets, which
start at 0, then `gather_bytes` copies.  Short values are copied as whole 8-byte words where neither
the read nor the write can leave its range; the bytes written too many belong to values that the
same call writes next.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import mem
from kernels.registry import device, kernel


@kernel("void(int64, int64, int64[::1], int64, int64, int64)", twin="tests.naive.gather.gather")
def gather_fixed(width: int, source: int, rows: Any, start: int, stop: int, target: int) -> None:
    """Copy values of `width` bytes (1, 2, 4 or 8) at address `source` to address `target`."""
    if width == 8:
        for i in range(start, stop):
            mem.store_u64(target + 8 * i, mem.load_u64(source + 8 * rows[i]))
    elif width == 4:
        for i in range(start, stop):
            mem.store_u32(target + 4 * i, mem.load_u32(source + 4 * rows[i]))
    elif width == 2:
        for i in range(start, stop):
            mem.store_u16(target + 2 * i, mem.load_u16(source + 2 * rows[i]))
    else:
        for i in range(start, stop):
            mem.store_u8(target + i, mem.load_u8(source + rows[i]))


@kernel("int64(int64, int64[::1], int64[::1])", twin="tests.naive.gather.gather_offsets")
def gather_offsets(offsets: int, rows: Any, target: Any) -> int:
    """Fill `target` (int64[n+1]) with the picked values' offsets; returns their bytes."""
    total = 0
    target[0] = 0
    for i in range(rows.size):
        at = offsets + 8 * rows[i]
        total += mem.load_i64(at + 8) - mem.load_i64(at)
        target[i + 1] = total
    return total


@kernel("int64(uint8[::1], int64[::1])", twin="tests.naive.gather.flagged")
def flagged(flags: Any, rows: Any) -> int:
    """Fill `rows` (int64[n]) with the positions where `flags` is not 0; returns how many."""
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


@kernel(
    "void(int64, int64, int64, int64[::1], int64, int64, int64[::1], int64)",
    twin="tests.naive.gather.gather",
)
def gather_bytes(
    source: int,
    source_size: int,
    offsets: int,
    rows: Any,
    start: int,
    stop: int,
    target_offsets: Any,
    target: int,
) -> None:
    """Copy the picked values' bytes; `source_size` is what may be read at address `source`."""
    source_end = source + source_size
    target_end = target + target_offsets[stop]
    for i in range(start, stop):
        at = offsets + 8 * rows[i]
        begin = mem.load_i64(at)
        size = mem.load_i64(at + 8) - begin
        copy_value(target + target_offsets[i], target_end, source + begin, source_end, size)
