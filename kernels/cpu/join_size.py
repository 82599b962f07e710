"""The size of a join before it runs: estimates from counts of keys.

A table has COUNTS words for each of BUCKETS buckets of tags (`kernels.cpu.partition`): how many
rows of that bucket each side's window holds.  A side has two generations, so that rows that have
left are forgotten: a new generation begins when all rows of the old one have left.

    int32 left, new | int32 left, old | int32 right, new | int32 right, old

`observe` counts one record in EVERY, with that weight, so that it costs next to nothing beside the
join.  Keys share buckets: by chance a record meets (rows of the other side / BUCKETS) rows of other
keys.  The caller subtracts them from the result of `observe`, and `fit` does so itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.partition import RECORD_BYTES, tag_of
from kernels.registry import device, kernel

BITS = 14
BUCKETS = 1 << BITS
COUNTS = 4
"""Words of a bucket."""
EVERY = 8
"""One record in so many is counted by `observe`."""
MIX, SHIFT = np.uint32(0x9E3779B1), np.uint32(32 - BITS)


@device
def bucket_at(table: int, tag: Any) -> Any:
    """The address of a tag's bucket."""
    bucket = np.uint32(np.uint32(tag) * MIX) >> SHIFT
    return table + 4 * COUNTS * np.int64(bucket)


@device
def held(bucket: int, side: int) -> Any:
    """Rows of a side (0 left, 1 right) in a bucket."""
    return np.int64(mem.load_u32(bucket + 8 * side)) + np.int64(mem.load_u32(bucket + 8 * side + 4))


@device
def add(bucket: int, side: int, rows: int) -> None:
    """Count more rows of a side in a bucket."""
    place = bucket + 8 * side
    mem.store_u32(place, np.uint32(np.int64(mem.load_u32(place)) + rows))


@device
def observe_side(table: int, side: int, records: int, rows: int, first: int, weight: int) -> int:
    """Count every EVERY-th record of one side from `first` on, each as `weight` rows; returns the
    rows of the other side that they meet, times EVERY."""
    met = 0
    for i in range(first, rows, EVERY):
        bucket = bucket_at(table, mem.load_u32(records + RECORD_BYTES * i + 8))
        met += held(bucket, 1 - side)
        add(bucket, side, weight)
    return EVERY * met


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, int64)",
    reference="tests.naive.join_size.observe",
)
def observe(
    table: int, left: int, left_rows: int, right: int, right_rows: int, first: int, weight: int
) -> Any:
    """Count a beat's records, given by address, and return about how many pairs they make.

    With `weight` -EVERY an earlier call is undone, and the result says nothing.
    """
    met = observe_side(table, 0, left, left_rows, first, weight)
    return met + observe_side(table, 1, right, right_rows, first, weight)


@kernel("void(int64, int64, uint64[::1])", reference="tests.naive.join_size.count")
def count(table: int, side: int, hashes: Any) -> None:
    """Count rows of a side by their hashes."""
    for i in range(hashes.size):
        add(bucket_at(table, tag_of(hashes[i])), side, 1)


@kernel(
    "void(int64, uint64[::1], int64, uint64[::1], int64, int64, float64[::1], float64[::1],"
    " int64[::1])",
    reference="tests.naive.join_size.fit",
)
def fit(
    table: int, left: Any, left_valid: int, right: Any, right_valid: int, limit: int, chance: Any,
    least: Any, taken: Any,
) -> None:  # fmt: skip
    """How many rows of both sides, by their hashes, make at most about `limit` pairs; they are
    counted, and their numbers written to `taken` (int64[2]).

    Both sides are taken in step, each row after the rows before it, and one row at least.
    `left_valid` and `right_valid` are addresses of a byte a row, 0 where the row takes part in
    nothing; 0 for none.  A row of a side meets `chance[side]` rows of other keys, and
    `least[side]` rows of its own.
    """
    i, j, pairs = 0, 0, 0.0
    lefts, rights = left.size, right.size
    while i < lefts or j < rights:
        if j == rights or (i < lefts and i * rights <= j * lefts):
            side, h = 0, left[i]
            valid = left_valid == 0 or mem.load_u8(left_valid + i) != 0
        else:
            side, h = 1, right[j]
            valid = right_valid == 0 or mem.load_u8(right_valid + j) != 0
        if valid:
            bucket = bucket_at(table, tag_of(h))
            met = max(held(bucket, 1 - side) - chance[side], least[side], 0.0)
            if i + j > 0 and pairs + met > limit:
                break
            pairs += met
            add(bucket, side, 1)
        i, j = i + (1 - side), j + side
    taken[0], taken[1] = i, j
