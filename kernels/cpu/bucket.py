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

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import atomics, compare, mem
from kernels.cpu.bucket_table import (
    CHUNK,
    SLOTS,
    TABLE,
    bucket_of,
    insert,
    mark,
    valid,
)
from kernels.cpu.keys import same_key
from kernels.cpu.partition import PARTITIONS, RECORD_BYTES
from kernels.cpu.records import I64, field, words
from kernels.cpu.rings import earlier, later
from kernels.registry import device, kernel


class BucketJob(NamedTuple):
    """What a beat's probes have in common."""

    before: I64 = field("how much earlier than the left row the right one may be (us)")
    after: I64 = field("how much later (us)")
    left_base: I64 = field("number (mod 2^32) of the left store's first row")
    right_base: I64 = field("number (mod 2^32) of the right store's first row")
    left_dead: I64 = field("expiry below which the left's entries have left")
    right_dead: I64 = field("expiry below which the right's entries have left")
    left_bound: I64 = field("expiry below which the left's entries leave after this beat")
    right_bound: I64 = field("expiry below which the right's entries leave after this beat")
    left_new: I64 = field(
        "first row of the left store that came in this beat: it stays till its end"
    )
    right_new: I64 = field("first row of the right store that came in this beat")


class BucketProgress(NamedTuple):
    """Where `probe` goes on after its output was full."""

    record: I64 = field("next record")
    pairs: I64 = field("pairs so far")


JOB, PROGRESS = words(BucketJob), words(BucketProgress)
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
    return atomics.acquire_i64(table[TABLE.heads] + 8 * bucket_of(table, partition, tag))


@device
def ask(table: Any, partition: int, record: int) -> Any:
    """Prefetch the bucket's head of a later record; returns a nearer one's newest chunk."""
    tag = mem.load_u32(record + RECORD_BYTES * HEADS_AHEAD + 8)
    mem.prefetch(table[TABLE.heads] + 8 * bucket_of(table, partition, tag))
    return newest_chunk(table, partition, record + RECORD_BYTES * CHUNKS_AHEAD)


@device
def ask_to_build(table: Any, partition: int, record: int) -> None:
    """Prefetch what inserting later records touches."""
    mem.prefetch(ask(table, partition, record) + CHUNK.fill)
    chunk = newest_chunk(table, partition, record + RECORD_BYTES * SLOTS_AHEAD)
    if chunk != 0:
        slot = mem.load_i64(chunk + CHUNK.fill) & (SLOTS - 1)
        mem.prefetch(chunk + CHUNK.expiries + 8 * slot)
        mem.prefetch(chunk + CHUNK.times + 8 * slot)
        mem.prefetch(chunk + CHUNK.tags + 4 * slot)
        mem.prefetch(chunk + CHUNK.rows + 4 * slot)


@device
def ask_to_probe(table: Any, partition: int, record: int) -> None:
    """Prefetch what probing with later records touches: half a chunk, as most are full."""
    chunk = ask(table, partition, record)
    mem.prefetch(chunk + CHUNK.fill)
    mem.prefetch(chunk + CHUNK.tags)
    mem.prefetch(chunk + CHUNK.tags + 64)
    for line in range(4):
        mem.prefetch(chunk + CHUNK.expiries + 64 * line)


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
    for p in range(PARTITIONS):
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
    chunk = mem.load_i64(table[TABLE.heads] + 8 * bucket)
    while chunk != 0:
        there = valid(chunk)
        hits = compare.equal_u32(chunk + CHUNK.tags, tag)
        gone = compare.below_i64(chunk + CHUNK.expiries, bound)
        if there >> np.uint64(32) != np.uint64(0):
            hits |= compare.equal_u32(chunk + CHUNK.tags + 128, tag) << np.uint64(32)
            gone |= compare.below_i64(chunk + CHUNK.expiries + 256, bound) << np.uint64(32)
        invalid += compare.ones(gone & there)
        hits &= there
        while hits != np.uint64(0):
            slot = compare.lowest(hits)
            hits &= hits - np.uint64(1)
            time = mem.load_i64(chunk + CHUNK.times + 8 * slot)
            if time < low or time > high:
                continue
            met = np.int64(np.uint32(mem.load_u32(chunk + CHUNK.rows + 4 * slot) - np.uint32(base)))
            left_before = mem.load_i64(chunk + CHUNK.expiries + 8 * slot) < dead
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
        chunk = mem.load_i64(chunk + CHUNK.next)
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
    back, ahead = (job[JOB.after], job[JOB.before]) if right else (job[JOB.before], job[JOB.after])
    base, met_base = (
        (job[JOB.right_base], job[JOB.left_base])
        if right
        else (job[JOB.left_base], job[JOB.right_base])
    )
    dead, bound = (
        (job[JOB.left_dead], job[JOB.left_bound])
        if right
        else (job[JOB.right_dead], job[JOB.right_bound])
    )
    new = job[JOB.left_new] if right else job[JOB.right_new]
    pairs = progress[PROGRESS.pairs]
    for p in range(PARTITIONS):
        for i in range(max(progress[PROGRESS.record], edges[p]), min(last, edges[p + 1])):
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
                progress[PROGRESS.record], progress[PROGRESS.pairs] = i, pairs
                return 0
            for k in range(pairs + 1, end):
                if out_met[k - 1] < out_met[k]:
                    sort_falling(out_met, pairs, end)
                    break
            counts[p] += end - pairs
            pairs = end
    progress[PROGRESS.record], progress[PROGRESS.pairs] = last, pairs
    return 1


@kernel(
    "void(int64[::1], int64[::1], int64[::1], int64[::1])",
    reference="tests.naive.bucket.write",
)
def write(source: Any, counts: Any, targets: Any, out: Any) -> None:
    """Copy the segments of `source`, one a partition of counts[p] values, to out[targets[p]:]."""
    at = 0
    for p in range(PARTITIONS):
        for k in range(counts[p]):
            out[targets[p] + k] = source[at + k]
        at += counts[p]
