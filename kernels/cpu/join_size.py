"""The size of a join before it runs: an upper bound, or an estimate, from counts of keys by time.

Time is cut into slices of 2^shift us.  The *home* of a left record is the slice of its time less
the join's `before`, that of a right record the slice of its time.  The partners of a left record
with home h have homes h, h + 1, … h + slices - 1, and those of a right record with home h have
h - slices + 1, … h (`slices_of`).

A table has CELL bytes for each of 2^bits cells, `uint32 left | uint32 right`: how many of each
side's rows have a key and a home for which the cell stands.  The cell of a key (by its tag,
`kernels.cpu.partition`) and a home is (top bits of the tag + home) mod 2^bits: the cells of
following homes are neighbours, and records that come partition by partition stay in a small part of
the table.  Each side has a log of the rows that were counted, `uint32 tag | uint32 home mod 2^32`:
by it rows that have left are taken out again, and put into a larger table (`recount`).

Where all rows are counted, rows of other keys in the same cell make the bound larger, never
smaller.  Where a sample is counted, the distance from one counted record to the next is random, 1
to 2^n with equal chance, so that no pattern of the input escapes, and a pair has the square of the
sampling rate as its chance to be counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.partition import PARTITIONS, RECORD_BYTES, tag_of
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.registry import device, kernel

CELL, LOGGED = 8, 8
"""Bytes of a cell, and of an entry of a log."""
SLICES_MAX = 4
"""Slices in which the partners of a record may lie."""
BLOCK = 32
"""Records whose cells are prefetched together."""
TIME_MIN = np.int64(-(2**63))


class KeyCounts(NamedTuple):
    """The counts of a join's keys by slice of time."""

    table: ADDRESS = field("the cells")
    bits: I64 = field("base-2 logarithm of their number")
    before: I64 = field("the join's `before` (us)")
    shift: I64 = field("base-2 logarithm of a slice (us)")
    slices: I64 = field("slices in which the partners of a record may lie")
    gaps: I64 = field("longest distance between counted records, less 1; 2^n - 1, 0 for all")
    random: I64 = field("state of the random numbers, not 0")
    left_log: ADDRESS = field("where the left's log goes on")
    right_log: ADDRESS = field("where the right's log goes on")
    left_skip: I64 = field("left records before the next one that is counted")
    right_skip: I64 = field("right records before the next one that is counted")
    most: I64 = field("largest count of a cell that was written, since it was set to 0")


COUNTS = words(KeyCounts)


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
    """The cell of a tag and a home."""
    mask = (1 << bits) - 1
    return (np.int64(np.uint64(tag) >> np.uint64(32 - bits)) + (home & mask)) & mask


@device
def log_row(log: int, tag: Any, home: int) -> None:
    """Write an entry of a log."""
    mem.store_u32(log, tag)
    mem.store_u32(log + 4, np.uint32(home))


@device
def logged_cell(log: int, bits: int) -> Any:
    """The cell of an entry of a log."""
    return cell_of(mem.load_u32(log), np.int64(mem.load_u32(log + 4)), bits)


@device
def met_at(table: int, mask: int, side: int, cell: int, slices: int) -> int:
    """Rows of the other side that a row of `side` (0 left, 1 right) in a cell meets."""
    met, first = 0, cell - side * (slices - 1)
    for other in range(first, first + slices):
        met += np.int64(mem.load_u32(table + CELL * (other & mask) + 4 * (1 - side)))
    return met


@device
def add(table: int, side: int, cell: int, rows: int) -> Any:
    """Count more rows of a side in a cell; returns its count."""
    at = table + CELL * cell + 4 * side
    count = np.int64(mem.load_u32(at)) + rows
    mem.store_u32(at, np.uint32(count))
    return count


@device
def next_random(state: Any) -> Any:
    """The next random number: xorshift64, Marsaglia 2003, "Xorshift RNGs"."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    return state ^ state << np.uint64(17)


@device
def observe_part(counts: int, side: int, records: int, rows: int, start: int, log: int) -> Any:
    """Count one side's records of a partition, from `start` on.  Returns how many rows of the other
    side they meet, where the next record to be counted lies behind the last, and the log's end."""
    table, bits = get(counts, COUNTS.table), get(counts, COUNTS.bits)
    shift, slices = get(counts, COUNTS.shift), get(counts, COUNTS.slices)
    gaps, random = np.uint64(get(counts, COUNTS.gaps)), np.uint64(get(counts, COUNTS.random))
    offset = 0 if side else get(counts, COUNTS.before)
    mask, met, most = (1 << bits) - 1, 0, get(counts, COUNTS.most)
    while start < rows:
        first, full = log, log + LOGGED * BLOCK
        while start < rows and log < full:
            record = records + RECORD_BYTES * start
            home, tag = home_of(mem.load_i64(record), offset, shift), mem.load_u32(record + 8)
            mem.prefetch(table + CELL * cell_of(tag, home, bits))
            log_row(log, tag, home)
            random = next_random(random)
            start += 1 + np.int64(random & gaps)
            log += LOGGED
        for at in range(first, log, LOGGED):
            cell = logged_cell(at, bits)
            met += met_at(table, mask, side, cell, slices)
            most = max(most, add(table, side, cell, 1))
    put(counts, COUNTS.random, np.int64(random))
    put(counts, COUNTS.most, most)
    return met, start - rows, log


@kernel("int64(int64, int64, int64, int64, int64)", reference="tests.naive.join_size.observe")
def observe(counts: int, left: int, left_counts: int, right: int, right_counts: int) -> Any:
    """Count a beat's records, given by address, partition by partition, left before right; returns
    how many pairs the counted ones make at most.

    `counts` is the address of a KeyCounts.  The logs have room for as many entries as there are
    records.
    """
    met, left_skip, right_skip = 0, get(counts, COUNTS.left_skip), get(counts, COUNTS.right_skip)
    left_log, right_log = get(counts, COUNTS.left_log), get(counts, COUNTS.right_log)
    for part in range(PARTITIONS):
        lefts = mem.load_i64(left_counts + 8 * part)
        rights = mem.load_i64(right_counts + 8 * part)
        more, left_skip, left_log = observe_part(counts, 0, left, lefts, left_skip, left_log)
        met += more
        more, right_skip, right_log = observe_part(counts, 1, right, rights, right_skip, right_log)
        met += more
        left += RECORD_BYTES * lefts
        right += RECORD_BYTES * rights
    for place, value in (
        (COUNTS.left_log, left_log), (COUNTS.right_log, right_log),
        (COUNTS.left_skip, left_skip), (COUNTS.right_skip, right_skip),
    ):  # fmt: skip
        put(counts, place, value)
    return met


@kernel("void(int64, int64, uint64[::1], int64[::1])", reference="tests.naive.join_size.count")
def count(counts: int, side: int, hashes: Any, times: Any) -> None:
    """Count rows of a side by their hashes and times."""
    table, bits, shift = (
        get(counts, COUNTS.table), get(counts, COUNTS.bits), get(counts, COUNTS.shift),
    )  # fmt: skip
    gaps, random = np.uint64(get(counts, COUNTS.gaps)), np.uint64(get(counts, COUNTS.random))
    place = COUNTS.right_log if side else COUNTS.left_log
    offset, log = 0 if side else get(counts, COUNTS.before), get(counts, place)
    most, i = get(counts, COUNTS.most), 0
    while i < hashes.size:
        tag, home = np.uint32(tag_of(hashes[i])), home_of(times[i], offset, shift)
        most = max(most, add(table, side, cell_of(tag, home, bits), 1))
        log_row(log, tag, home)
        random = next_random(random)
        i += 1 + np.int64(random & gaps)
        log += LOGGED
    put(counts, COUNTS.random, np.int64(random))
    put(counts, COUNTS.most, most)
    put(counts, place, log)


@kernel("void(int64, int64, int64, int64, int64)", reference="tests.naive.join_size.recount")
def recount(counts: int, side: int, log: int, rows: int, weight: int) -> None:
    """Put the rows of a side that are in so many entries of a log into their cells (`weight` 1), or
    take them out (-1)."""
    table, bits, most = (
        get(counts, COUNTS.table), get(counts, COUNTS.bits), get(counts, COUNTS.most),
    )  # fmt: skip
    for at in range(log, log + LOGGED * rows, LOGGED):
        most = max(most, add(table, side, logged_cell(at, bits), weight))
    put(counts, COUNTS.most, most)


@kernel(
    "void(int64, uint64[::1], int64, int64, uint64[::1], int64, int64, int64, int64[::1])",
    reference="tests.naive.join_size.fit",
)
def fit(
    counts: int, left: Any, left_times: int, left_valid: int, right: Any, right_times: int,
    right_valid: int, limit: int, taken: Any,
) -> None:  # fmt: skip
    """How many rows of both sides, by their hashes, make at most `limit` pairs; they are counted,
    and their numbers written to `taken` (int64[2]).

    Both sides are taken in step, each row after the rows before it, and one row at least.  Times
    are addresses of an int64 a row.  `left_valid` and `right_valid` are addresses of a byte a row,
    0 where the row takes part in nothing; 0 for none.
    """
    table, bits, before = (
        get(counts, COUNTS.table), get(counts, COUNTS.bits), get(counts, COUNTS.before),
    )  # fmt: skip
    shift, slices, mask = get(counts, COUNTS.shift), get(counts, COUNTS.slices), (1 << bits) - 1
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
            met = met_at(table, mask, side, cell, slices)
            if i + j > 0 and pairs + met > limit:
                break
            pairs += met
            add(table, side, cell, 1)
            log = COUNTS.right_log if side else COUNTS.left_log
            log_row(get(counts, log), np.uint32(tag_of(h)), home)
            put(counts, log, get(counts, log) + LOGGED)
        i, j = i + (1 - side), j + side
    taken[0], taken[1] = i, j
