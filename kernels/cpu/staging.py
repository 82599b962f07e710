"""Copying rows between columnar buffers of any schema.

A buffer is a table of columns (`kernels.cpu.columns`).  Offsets are absolute in their buffer and
need not start at 0; they are rebased.  `bytes_at[column]` is the target's next free variable-size
byte; the kernels advance it.  The target has room.  A target with `valid` and a source without one
gets ones.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu.columns import COLUMN
from kernels.cpu.mem import (
    copy_bytes,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)
from kernels.registry import device, kernel


@device
def fill_ones(address: int, count: int) -> None:
    """Set `count` bytes at `address` to 1."""
    whole = count - count % 8
    for i in range(0, whole, 8):
        store_u64(address + i, 0x0101010101010101)
    for i in range(whole, count):
        store_u8(address + i, 1)


@device
def copy_value(source: int, target: int, width: int) -> None:
    """Copy one value of 1, 2, 4 or 8 bytes."""
    if width == 8:
        store_u64(target, load_u64(source))
    elif width == 4:
        store_u32(target, load_u32(source))
    elif width == 2:
        store_u16(target, load_u16(source))
    else:
        store_u8(target, load_u8(source))


@kernel(
    "void(int64[:, ::1], int64, int64, int64[:, ::1], int64, int64[::1])",
    reference="tests.naive.staging.copy_rows",
)
def copy_rows(source: Any, start: int, stop: int, target: Any, at: int, bytes_at: Any) -> None:
    """Copy rows `start:stop` of `source` to row `at` of `target`."""
    rows = stop - start
    for c in range(source.shape[0]):
        width = source[c, COLUMN.width]
        if target[c, COLUMN.valid] != 0:
            if source[c, COLUMN.valid] != 0:
                copy_bytes(target[c, COLUMN.valid] + at, source[c, COLUMN.valid] + start, rows)
            else:
                fill_ones(target[c, COLUMN.valid] + at, rows)
        if width != 0:
            copy_bytes(
                target[c, COLUMN.values] + at * width,
                source[c, COLUMN.values] + start * width,
                rows * width,
            )
            continue
        first = load_i64(source[c, COLUMN.offsets] + 8 * start)
        size = load_i64(source[c, COLUMN.offsets] + 8 * stop) - first
        shift = bytes_at[c] - first
        for i in range(rows + 1):
            offset = load_i64(source[c, COLUMN.offsets] + 8 * (start + i))
            store_i64(target[c, COLUMN.offsets] + 8 * (at + i), offset + shift)
        copy_bytes(target[c, COLUMN.values] + bytes_at[c], source[c, COLUMN.values] + first, size)
        bytes_at[c] += size


@kernel(
    "void(int64[:, ::1], int64[::1], int64[:, ::1], int64, int64[::1])",
    reference="tests.naive.staging.take_rows",
)
def take_rows(source: Any, rows: Any, target: Any, at: int, bytes_at: Any) -> None:
    """Copy the rows of `source` that `rows` names, in that order, to row `at` of `target`."""
    for c in range(source.shape[0]):
        width = source[c, COLUMN.width]
        if target[c, COLUMN.valid] != 0:
            for i in range(rows.size):
                valid = 1
                if source[c, COLUMN.valid] != 0:
                    valid = load_u8(source[c, COLUMN.valid] + rows[i])
                store_u8(target[c, COLUMN.valid] + at + i, valid)
        if width != 0:
            for i in range(rows.size):
                copy_value(
                    source[c, COLUMN.values] + rows[i] * width,
                    target[c, COLUMN.values] + (at + i) * width,
                    width,
                )
            continue
        end = bytes_at[c]
        store_i64(target[c, COLUMN.offsets] + 8 * at, end)
        for i in range(rows.size):
            first = load_i64(source[c, COLUMN.offsets] + 8 * rows[i])
            size = load_i64(source[c, COLUMN.offsets] + 8 * rows[i] + 8) - first
            copy_bytes(target[c, COLUMN.values] + end, source[c, COLUMN.values] + first, size)
            end += size
            store_i64(target[c, COLUMN.offsets] + 8 * (at + i + 1), end)
        bytes_at[c] = end
