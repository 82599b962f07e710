"""The size of a join before it runs: an upper bound from counts of keys by time.

Time is cut into slices of 2^shift us.  The *home* of a left record is the slice of its time less
the join's `before`, that of a right record the slice of its time.  The partners of a left record
with home h have homes h, h + 1, … h + slices - 1, and those of a right record with home h have
h - slices + 1, … h (`slices_of`).

A table has CELL bytes for each of 2^bits cells.  A cell counts the rows of each side's window whose
key and home it stands for.  A side has two generations, so that rows that have left are forgotten:
a new one begins when all rows of the older one have left, and takes its place.

    uint32 left, one generation | uint32 left, the other | uint32 right, one | uint32 right, other

The cell of a key (by its tag, `kernels.cpu.partition`) and a home is (top bits of the tag + home)
mod 2^bits: the cells of following homes are neighbours, and records that come partition by
partition stay in a small part of the table.  Rows of other keys and of dead rows share cells by
chance, (rows counted / 2^bits) in each.  They make the bound larger, never smaller.  A window has
fewer than 2^29 rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.partition import PARTITIONS, RECORD_BYTES, tag_of
from kernels.registry import device, kernel

CELL = 16
"""Bytes of a cell."""
SLICES_MAX = 4
"""Slices in which the partners of a record may lie."""
DISTANCE = 16
"""Records between the prefetch of a cell and its use; so many are readable behind the last one."""
TIME_MIN = np.int64(-(2**63))
LOW, HALF = np.uint64(2**32 - 1), np.uint64(32)


def slices_of(before: int, after: int) -> tuple[int, int]:
    """The shift of a join's slices, and in how many of them the partners of a record may lie.

    Slices are as short as SLICES_MAX allows: the slices span less than twice the time in which
    partners lie.
    """
    span, shift = before + after, 0
    while -(-span >> shift) >= SLICES_MAX:
        shift += 1
    return shift, -(-span >> shift) + 1


@device
def home_of(time: Any, offset: int, shift: int) -> Any:
    """The home of a record of that time on a side with this offset: `before` left, 0 right."""
    moved = TIME_MIN if time < TIME_MIN + offset else time - offset
    return moved >> shift


@device
def cell_of(tag: Any, home: int, bits: int) -> Any:
    """The cell of a tag and a home, before it is taken mod 2^bits."""
    return np.int64(np.uint64(tag) >> np.uint64(32 - bits)) + (home & ((1 << bits) - 1))


@device
def counted(table: int, bits: int, side: int, first: int, slices: int) -> Any:
    """Rows of a side (0 left, 1 right) in following cells."""
    both, mask = np.uint64(0), (1 << bits) - 1
    for cell in range(first, first + slices):
        both += mem.load_u64(table + CELL * (cell & mask) + 8 * side)
    return np.int64(both & LOW) + np.int64(both >> HALF)


@device
def add(table: int, bits: int, column: int, cell: int, rows: int) -> None:
    """Count more rows in a column of a cell."""
    at = table + CELL * (cell & ((1 << bits) - 1)) + 4 * column
    mem.store_u32(at, np.uint32(np.int64(mem.load_u32(at)) + rows))


@device
def observe_part(
    table: int, bits: int, column: int, offset: int, shift: int, slices: int, records: int,
    rows: int, weight: int,
) -> int:  # fmt: skip
    """Count one side's records in a column; returns how many rows of the other side they meet."""
    met, side = 0, column >> 1
    back = side * (slices - 1)
    for at in range(records, records + RECORD_BYTES * rows, RECORD_BYTES):
        ahead = at + RECORD_BYTES * DISTANCE
        home = home_of(mem.load_i64(ahead), offset, shift)
        cell = cell_of(mem.load_u32(ahead + 8), home, bits)
        mem.prefetch(table + CELL * (cell & ((1 << bits) - 1)))
        home = home_of(mem.load_i64(at), offset, shift)
        cell = cell_of(mem.load_u32(at + 8), home, bits)
        met += counted(table, bits, 1 - side, cell - back, slices)
        add(table, bits, column, cell, weight)
    return met


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)",
    reference="tests.naive.join_size.observe",
)
def observe(
    table: int, bits: int, left_column: int, right_column: int, before: int, shift: int,
    slices: int, left: int, left_counts: int, right: int, right_counts: int, weight: int,
) -> Any:  # fmt: skip
    """Count a beat's records, given by address, partition by partition, left before right; returns
    how many pairs they make at most.

    A column is that of the side's present generation: 0 or 1 left, 2 or 3 right.  `weight` is 1.
    With -1 an earlier call is undone, and the result says nothing.
    """
    met = 0
    for part in range(PARTITIONS):
        lefts = mem.load_i64(left_counts + 8 * part)
        rights = mem.load_i64(right_counts + 8 * part)
        met += observe_part(table, bits, left_column, before, shift, slices, left, lefts, weight)
        met += observe_part(table, bits, right_column, 0, shift, slices, right, rights, weight)
        left += RECORD_BYTES * lefts
        right += RECORD_BYTES * rights
    return met


@kernel(
    "void(int64, int64, int64, int64, int64, uint64[::1], int64[::1])",
    reference="tests.naive.join_size.count",
)
def count(
    table: int, bits: int, column: int, offset: int, shift: int, hashes: Any, times: Any
) -> None:
    """Count rows by their hashes and times; `offset` is `before` on the left, 0 on the right."""
    for i in range(hashes.size):
        home = home_of(times[i], offset, shift)
        add(table, bits, column, cell_of(tag_of(hashes[i]), home, bits), 1)


@kernel("void(int64, int64, int64)", reference="tests.naive.join_size.forget")
def forget(table: int, bits: int, column: int) -> None:
    """Set a column of all cells to 0."""
    for at in range(table + 4 * column, table + (CELL << bits), CELL):
        mem.store_u32(at, np.uint32(0))


@kernel(
    "void(int64, int64, int64[::1], int64, int64, int64, uint64[::1], int64, int64, uint64[::1],"
    " int64, int64, int64, int64[::1])",
    reference="tests.naive.join_size.fit",
)
def fit(
    table: int, bits: int, columns: Any, before: int, shift: int, slices: int, left: Any,
    left_times: int, left_valid: int, right: Any, right_times: int, right_valid: int, limit: int,
    taken: Any,
) -> None:  # fmt: skip
    """How many rows of both sides, by their hashes, make at most `limit` pairs; they are counted in
    `columns`, and their numbers written to `taken` (int64[2]).

    Both sides are taken in step, each row after the rows before it, and one row at least.  Times
    are addresses of an int64 a row.  `left_valid` and `right_valid` are addresses of a byte a row,
    0 where the row takes part in nothing; 0 for none.
    """
    i, j, pairs = 0, 0, 0
    lefts, rights = left.size, right.size
    while i < lefts or j < rights:
        if j == rights or (i < lefts and i * rights <= j * lefts):
            side, h, home = 0, left[i], home_of(mem.load_i64(left_times + 8 * i), before, shift)
            valid = left_valid == 0 or mem.load_u8(left_valid + i) != 0
        else:
            side, h, home = 1, right[j], home_of(mem.load_i64(right_times + 8 * j), 0, shift)
            valid = right_valid == 0 or mem.load_u8(right_valid + j) != 0
        if valid:
            cell = cell_of(tag_of(h), home, bits)
            met = counted(table, bits, 1 - side, cell - side * (slices - 1), slices)
            if i + j > 0 and pairs + met > limit:
                break
            pairs += met
            add(table, bits, columns[side], cell, 1)
        i, j = i + (1 - side), j + side
    taken[0], taken[1] = i, j
