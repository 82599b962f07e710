"""ecoJoin's bucket join: R ⋈ S on equal keys and −before ≤ s.time − r.time ≤ after.

The paper ("ecoJoin", section 2.2) keeps a hash table a stream whose buckets hold interval buffers
of 64 tuples, and works in phases with global barriers between them:

    build     a batch's tuples go into their own stream's table; a slot is taken by incrementing
              the buffer's fill counter, atomically, since all cores insert at once
    probe     the same tuples look through their key's bucket of the other table; invalid tuples,
              which have left the window, are counted, and a bucket with more than a threshold of
              them is marked in a bitmap
    cleanup   marked buckets only, each by one core: an invalid tuple is replaced by one from the
              bucket's back

Unlike the authors' code, a full buffer is followed by another chunk (so nothing is bounded but
memory), windows are checked on both sides, and output is ordered by count, prefix sum, write.

This module has the phases build and probe; `kernels.cpu.bucket_table` the tables and their cleanup.
Records (see `partition`) lie partition by partition; lanes do contiguous ranges of them.  Partners
of a row are sorted newest first, and the segments of each (partition, pass, lane) are written where
the prefix sum of their sizes says.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import atomics, compare, mem
from kernels.cpu.bucket_table import (
    EXPIRIES,
    FILL,
    HEADS,
    NEXT,
    ROWS,
    SLOTS,
    TAGS,
    TIMES,
    bucket_of,
    insert,
    mark,
    valid,
)
from kernels.cpu.keys import same_key
from kernels.cpu.rings import RECORD_BYTES, earlier, later
from kernels.registry import device, kernel

BEFORE, AFTER, LEFT_BASE, RIGHT_BASE, LEFT_DEAD, RIGHT_DEAD, LEFT_BOUND, RIGHT_BOUND = range(8)
LEFT_NEW, RIGHT_NEW = 8, 9
JOB_FIELDS = 10
"""`job` (int64[10]): the windows (µs); the row number (mod 2^32) of each store's first row; the
expiry below which each side's entries have left, and below which they leave after this beat; the
first row of each store that came in this beat, which is there until the beat's end even if late."""

RECORD, PAIRS = 0, 1
"""`progress` (int64[2]): the next record, and the pairs written so far."""

INVALID_MAX = 8
"""Invalid entries in a bucket above which a probe marks it."""
HEADS_AHEAD, CHUNKS_AHEAD, SLOTS_AHEAD = 24, 12, 4
"""How many records ahead a bucket's head, its newest chunk and that chunk's next slot are
prefetched: records must be readable so far past their end."""
SORT_BY_INSERTION = 24
ROWS_MAX = 2**31
"""Rows of a store; larger numbers are those of rows that have left."""


@device
def newest_chunk(table: Any, partition: int, record: int) -> Any:
    """The newest chunk of a record's bucket."""
    tag = mem.load_u32(record + 8)
    return atomics.acquire_i64(table[HEADS] + 8 * bucket_of(table, partition, tag))


@device
def ask(table: Any, partition: int, record: int) -> Any:
    """Prefetch the bucket's head of a later record; returns a nearer one's newest chunk."""
    tag = mem.load_u32(record + RECORD_BYTES * HEADS_AHEAD + 8)
    mem.prefetch(table[HEADS] + 8 * bucket_of(table, partition, tag))
    return newest_chunk(table, partition, record + RECORD_BYTES * CHUNKS_AHEAD)


@device
def ask_to_build(table: Any, partition: int, record: int) -> None:
    """Prefetch what inserting later records touches."""
    mem.prefetch(ask(table, partition, record) + FILL)
    chunk = newest_chunk(table, partition, record + RECORD_BYTES * SLOTS_AHEAD)
    if chunk != 0:
        slot = mem.load_i64(chunk + FILL) & (SLOTS - 1)
        mem.prefetch(chunk + EXPIRIES + 8 * slot)
        mem.prefetch(chunk + TIMES + 8 * slot)
        mem.prefetch(chunk + TAGS + 4 * slot)
        mem.prefetch(chunk + ROWS + 4 * slot)


@device
def ask_to_probe(table: Any, partition: int, record: int) -> None:
    """Prefetch what probing with later records touches: half a chunk, as most are full."""
    chunk = ask(table, partition, record)
    mem.prefetch(chunk + FILL)
    mem.prefetch(chunk + TAGS)
    mem.prefetch(chunk + TAGS + 64)
    for line in range(4):
        mem.prefetch(chunk + EXPIRIES + 64 * line)


@kernel(
    "int64(int64, int64[::1], int64, int64, int64, int64[::1], int64[::1])",
    reference="tests.naive.bucket.prepare",
)
def prepare(
    records: int, edges: Any, base: int, first: int, last: int, newest: Any, expiry: Any
) -> Any:
    """Set `expiry` (int64, one a record) for the partitions first..last, and advance `newest`
    (int64[64], the largest time of each partition so far).

    Returns the least row of the store among them, 2^32 where there is none.
    """
    least = np.int64(2**32)
    for p in range(first, last):
        latest = newest[p]
        for i in range(edges[p], edges[p + 1]):
            at = records + RECORD_BYTES * i
            latest = max(latest, mem.load_i64(at))
            expiry[i] = latest
            row = np.uint32(mem.load_u32(at + 12) - np.uint32(base))
            least = min(least, np.int64(row))
        newest[p] = latest
    return least


@kernel(
    "void(int64[::1], int64, int64[::1], int64[::1], int64, int64, int64)",
    reference="tests.naive.bucket.build",
)
def build(
    table: Any, records: int, edges: Any, expiry: Any, first: int, last: int, lane: int
) -> None:
    """Insert records first..last; many lanes may at once, each with its own number."""
    for p in range(64):
        for i in range(max(first, edges[p]), min(last, edges[p + 1])):
            at = records + RECORD_BYTES * i
            ask_to_build(table, p, at)
            tag, row = mem.load_u32(at + 8), mem.load_u32(at + 12)
            bucket = bucket_of(table, p, tag)
            insert(table, bucket, expiry[i], mem.load_i64(at), tag, row, lane)


@device
def sift(heap: Any, first: int, root: int, size: int) -> None:
    """Sift an element down in the min-heap heap[first : first + size]."""
    value = heap[first + root]
    child = 2 * root + 1
    while child < size:
        if child + 1 < size and heap[first + child + 1] < heap[first + child]:
            child += 1
        if heap[first + child] >= value:
            break
        heap[first + root] = heap[first + child]
        root, child = child, 2 * child + 1
    heap[first + root] = value


@device
def sort_falling(rows: Any, first: int, last: int) -> None:
    """Sort rows[first:last] in descending order: few by insertion, others by a heap."""
    size = last - first
    if size <= SORT_BY_INSERTION:
        for i in range(first + 1, last):
            row, j = rows[i], i
            while j > first and rows[j - 1] < row:
                rows[j] = rows[j - 1]
                j -= 1
            rows[j] = row
        return
    for root in range(size // 2 - 1, -1, -1):
        sift(rows, first, root, size)
    for end in range(size - 1, 0, -1):
        rows[first], rows[first + end] = rows[first + end], rows[first]
        sift(rows, first, 0, end)


@device
def look(
    table: Any,
    bucket: int,
    tag: Any,
    low: int,
    high: int,
    dead: int,
    bound: int,
    new: int,
    row: int,
    base: int,
    swapped: bool,
    keys: Any,
    pairs: int,
    out_mine: Any,
    out_met: Any,
) -> Any:
    """Write a record's pairs from `pairs` on, in any order; returns their end, -1 for no room."""
    invalid = 0
    chunk = mem.load_i64(table[HEADS] + 8 * bucket)
    while chunk != 0:
        there = valid(chunk)
        hits = compare.equal_u32(chunk + TAGS, tag)
        gone = compare.below_i64(chunk + EXPIRIES, bound)
        if there >> np.uint64(32) != np.uint64(0):
            hits |= compare.equal_u32(chunk + TAGS + 128, tag) << np.uint64(32)
            gone |= compare.below_i64(chunk + EXPIRIES + 256, bound) << np.uint64(32)
        invalid += compare.ones(gone & there)
        hits &= there
        while hits != np.uint64(0):
            slot = compare.lowest(hits)
            hits &= hits - np.uint64(1)
            time = mem.load_i64(chunk + TIMES + 8 * slot)
            if time < low or time > high:
                continue
            met = np.int64(np.uint32(mem.load_u32(chunk + ROWS + 4 * slot) - np.uint32(base)))
            left_before = mem.load_i64(chunk + EXPIRIES + 8 * slot) < dead
            if left_before and (met < new or met >= ROWS_MAX):
                continue
            left, right = (met, row) if swapped else (row, met)
            columns = keys.shape[0]
            if columns != 0 and not same_key(np.int64(keys.ctypes.data), columns, left, right):
                continue
            if pairs == out_met.size:
                return -1
            out_mine[pairs], out_met[pairs] = row, met
            pairs += 1
        chunk = mem.load_i64(chunk + NEXT)
    if invalid > INVALID_MAX:
        mark(table, bucket)
    return pairs


@kernel(
    "int64(int64[::1], int64, int64[::1], int64, int64[::1], int64[:, ::1], int64[::1], int64,"
    " int64[::1], int64[::1], int64[::1])",
    reference="tests.naive.bucket.probe",
)
def probe(
    table: Any,
    records: int,
    edges: Any,
    swapped: int,
    job: Any,
    keys: Any,
    progress: Any,
    last: int,
    out_mine: Any,
    out_met: Any,
    counts: Any,
) -> Any:
    """Probe the other side's `table` with records from progress[RECORD] to `last`; 0: output full,
    call again with more room.  `counts` (int64[64]) has each partition's pairs added."""
    right = swapped != 0
    back, ahead = (job[AFTER], job[BEFORE]) if right else (job[BEFORE], job[AFTER])
    base, met_base = (
        (job[RIGHT_BASE], job[LEFT_BASE]) if right else (job[LEFT_BASE], job[RIGHT_BASE])
    )
    dead, bound = (
        (job[LEFT_DEAD], job[LEFT_BOUND]) if right else (job[RIGHT_DEAD], job[RIGHT_BOUND])
    )
    new = job[LEFT_NEW] if right else job[RIGHT_NEW]
    pairs = progress[PAIRS]
    for p in range(64):
        for i in range(max(progress[RECORD], edges[p]), min(last, edges[p + 1])):
            at = records + RECORD_BYTES * i
            ask_to_probe(table, p, at)
            time, tag = mem.load_i64(at), mem.load_u32(at + 8)
            row = np.int64(np.uint32(mem.load_u32(at + 12) - np.uint32(base)))
            low, high = earlier(time, back), later(time, ahead)
            bucket = bucket_of(table, p, tag)
            end = look(
                table, bucket, tag, low, high, dead, bound, new, row, met_base, right, keys,
                pairs, out_mine, out_met,
            )  # fmt: skip
            if end < 0:
                progress[RECORD], progress[PAIRS] = i, pairs
                return 0
            for k in range(pairs + 1, end):
                if out_met[k - 1] < out_met[k]:
                    sort_falling(out_met, pairs, end)
                    break
            counts[p] += end - pairs
            pairs = end
    progress[RECORD], progress[PAIRS] = last, pairs
    return 1


@kernel(
    "void(int64[::1], int64[::1], int64[::1], int64[::1])",
    reference="tests.naive.bucket.write",
)
def write(source: Any, counts: Any, targets: Any, out: Any) -> None:
    """Copy the segments of `source`, one a partition of counts[p] values, to out[targets[p]:]."""
    at = 0
    for p in range(64):
        for k in range(counts[p]):
            out[targets[p] + k] = source[at + k]
        at += counts[p]
