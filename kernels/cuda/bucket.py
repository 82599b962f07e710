"""ecoJoin's bucket join on a GPU: interval buffers of 64 entries over the rings of `ring`.

The paper's three kernels: `build` puts a batch into its own side's buckets; `count` and `write`
probe the other side's with it, count the invalid entries that they find and mark a bucket with more
than STALE of them in a bitmap; `cleanup` goes over the marked buckets only.

A bucket is a queue of entries numbered low..high (uint32 each, never wrapping: a rebuild comes
first).  Entry q lies in place q & 63 of the bucket's chunk q >> 6:

    chunks  uint32[128 * pool]   64 tags, then the same entries' positions in the ring
    older   uint32[pool]         the bucket's next older chunk
    newest  uint32[buckets]      the bucket's newest chunk, where low>>6 <= (high-1)>>6
    free    uint32[pool]         a stack of chunks that are not in use;  free_count int64[1]

The bucket of a tag in partition p of a side is index_at + (tag & index_mask).  Times stay in the
ring and are read for equal tags only.

Unlike the paper's, entries are put in place by a stable sort instead of an atomic fill counter, so
that a bucket's positions rise and results have one order; and since rows leave oldest first, what
is invalid is a bucket's oldest part, so that cleaning up is to move `low` and to give whole chunks
back: nothing is swapped.  Atomics remain where order does not matter: the stack of free chunks and
the bitmap.  A bucket takes as many chunks as it needs; the host provides enough of them
(`chunks_at_most`) before it launches `build`.

Invariants.
  1. Chunks low>>6 .. (high-1)>>6 of a bucket exist, linked from new to old; none where low == high
     and high & 63 == 0.
  2. The stack is only popped in `build` and only pushed in `cleanup`.
  3. A bucket that takes a fresh chunk while its oldest entry has gone is marked, probed or not.
"""

from __future__ import annotations

from typing import Any

import numba

from kernels.cpu.partition import PARTITIONS
from kernels.cuda.blocks import COUNTERS, sort_by_key
from kernels.cuda.gpu import THREADS_MAX, cuda
from kernels.cuda.ring import (
    LOW_32,
    RING,
    TABLES,
    earlier,
    later,
    partition_of,
    place,
    slot_of,
    stop_below,
)
from kernels.registry import cuda_device, cuda_kernel

BUFFER = 64
"""Entries of an interval buffer."""
STALE = 16
"""A bucket with more invalid entries than this is cleaned up when a probe finds it."""

_BUCKETS = "uint32[::1], uint32[::1], uint32[::1], uint32[::1], uint32[::1]"
_FREE = "uint32[::1], int64[::1]"


def chunks_at_most(records: int, buckets: int) -> int:
    """Chunks that a batch takes in the worst case."""
    return records // BUFFER + min(records, buckets)


@cuda_device
def first_of_run(keys: Any, first: int, j: int) -> Any:
    """The begin of the run of equal, sorted keys that holds element j, from `first` on."""
    low, high = first, j
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < keys[j]:
            low = middle + 1
        else:
            high = middle
    return low


@cuda_device
def end_of_run(keys: Any, j: int, end: int) -> Any:
    """The end of the run that begins with element j, at most `end`."""
    low, high = j + 1, end
    while low < high:
        middle = (low + high) // 2
        if keys[middle] > keys[j]:
            high = middle
        else:
            low = middle + 1
    return low


@cuda_device
def mark(marks: Any, bucket: int) -> None:
    """Set a bucket's bit, and the word after all bits: something is marked."""
    cuda.atomic.or_(marks, bucket >> 5, numba.uint32(1 << (bucket & 31)))
    marks[marks.size - 1] = numba.uint32(1)


@cuda_kernel("void(uint32[::1], int64[::1])", reference="tests.naive.cuda.fill_free")
def fill_free(free: Any, free_count: Any) -> None:
    """All chunks are free."""
    for i in range(cuda.grid(1), free.size, cuda.gridsize(1)):
        free[i] = i
    if cuda.grid(1) == 0:
        free_count[0] = free.size


@cuda_kernel("void(int64[::1], uint32[::1], int64[::1])", reference="tests.naive.cuda.tell")
def tell(free_count: Any, marks: Any, report: Any) -> None:
    """Write to mapped memory, for the host, the number of free chunks and, if a bucket was marked
    since the last call, a one."""
    report[0] = free_count[0]
    if marks[marks.size - 1] != 0:
        report[1] = 1
        marks[marks.size - 1] = numba.uint32(0)


@cuda_device
def take_chunks(
    bucket: int,
    run: int,
    j: int,
    high: int,
    newest: Any,
    older: Any,
    free: Any,
    free_count: Any,
    chunk_ids: Any,
) -> Any:
    """Give a bucket room for `run` entries after `high`; chunk_ids[j..] name their chunks.  Returns
    the number of fresh chunks."""
    chunk = newest[bucket]
    ids = j
    if high & (BUFFER - 1) != 0:
        chunk_ids[ids] = chunk
        ids += 1
    fresh = ((high + run + BUFFER - 1) >> 6) - ((high + BUFFER - 1) >> 6)
    for _ in range(fresh):
        taken = free[cuda.atomic.add(free_count, 0, -1) - 1]
        older[taken] = chunk
        chunk = taken
        chunk_ids[ids] = chunk
        ids += 1
    newest[bucket] = chunk
    return fresh


@cuda_kernel(
    f"void(int64, {TABLES}, uint32[::1], {_BUCKETS}, {_FREE}, uint32[::1], uint32[:, ::1])",
    reference="tests.naive.cuda.build",
)
def build(
    side: int,
    tables: Any,
    firsts: Any,
    links: Any,
    lows: Any,
    highs: Any,
    newest: Any,
    older: Any,
    chunks: Any,
    free: Any,
    free_count: Any,
    marks: Any,
    scratch: Any,
) -> None:
    """Put a side's records of this beat into their buckets; a block a partition, the bucket's first
    record's thread makes room."""
    counters = cuda.shared.array(COUNTERS, numba.int32)
    partial = cuda.shared.array(THREADS_MAX, numba.int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        first, end = firsts[side, p], firsts[side, p + 1]
        if first == end:
            continue
        keys, order, chunk_ids = scratch[0], scratch[1], scratch[2]
        start, mask = tables[side, p, RING.begin], tables[side, p, RING.index_mask]
        index, tail = tables[side, p, RING.index_at], tables[side, p, RING.tail]
        for i in range(first + t, end, threads):
            keys[i] = links[4 * slot_of(tables, side, p, start + i - first) + 2] & mask
            order[i] = i - first
        cuda.syncthreads()
        sort_by_key(
            keys, order, scratch[2], scratch[3], first, end - first, mask, counters, partial
        )
        for j in range(first + t, end, threads):
            if j > first and keys[j - 1] == keys[j]:
                continue
            bucket = index + keys[j]
            low, high = numba.int64(lows[bucket]), numba.int64(highs[bucket])
            oldest = tail
            if low < high and (high - 1) >> 6 == low >> 6:
                oldest = numba.int64(chunks[128 * newest[bucket] + BUFFER + (low & 63)])
            elif low < high:
                oldest = tail - 1
            run = end_of_run(keys, j, end) - j
            fresh = take_chunks(bucket, run, j, high, newest, older, free, free_count, chunk_ids)
            if fresh > 0 and oldest < tail:
                mark(marks, bucket)
        cuda.syncthreads()
        for j in range(first + t, end, threads):
            begin = first_of_run(keys, first, j)
            high = numba.int64(highs[index + keys[j]])
            at = high + j - begin
            chunk = numba.int64(chunk_ids[begin + (at >> 6) - (high >> 6)])
            position = start + order[j]
            chunks[128 * chunk + (at & 63)] = links[4 * slot_of(tables, side, p, position) + 2]
            chunks[128 * chunk + BUFFER + (at & 63)] = position
        cuda.syncthreads()
        for j in range(first + t, end, threads):
            if j == end - 1 or keys[j + 1] != keys[j]:
                bucket = index + keys[j]
                highs[bucket] = numba.int64(highs[bucket]) + j + 1 - first_of_run(keys, first, j)
        cuda.syncthreads()


@cuda_kernel(
    f"void(int64, int64, {TABLES}, int64[::1], uint32[::1], {_BUCKETS}, uint32[::1], int64,"
    " int64, int64[::1])",
    reference="tests.naive.cuda.count_buckets",
)
def count(
    side: int,
    n: int,
    tables: Any,
    firsts: Any,
    ring: Any,
    links: Any,
    lows: Any,
    highs: Any,
    newest: Any,
    older: Any,
    chunks: Any,
    marks: Any,
    back: int,
    ahead: int,
    counts: Any,
) -> None:
    """Count each record's live matches on the other side; mark stale buckets."""
    other = 1 - side
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        p = partition_of(firsts, side, i)
        mine = slot_of(tables, side, p, tables[side, p, RING.begin] + i - firsts[side, p])
        time, tag = ring[2 * mine], links[4 * mine + 2]
        low, high = earlier(time, back), later(time, ahead)
        stop = stop_below(tables, other, p, low)
        tail = tables[other, p, RING.tail]
        bucket = tables[other, p, RING.index_at] + (tag & tables[other, p, RING.index_mask])
        at, bottom = numba.int64(highs[bucket]), numba.int64(lows[bucket])
        chunk = numba.int64(newest[bucket])
        found = 0
        while at > bottom:
            entry = 128 * chunk + ((at - 1) & 63)
            position = numba.int64(chunks[entry + BUFFER])
            if position < tail:
                if at - bottom > STALE:
                    mark(marks, bucket)
                break
            if chunks[entry] == tag:
                when = ring[2 * slot_of(tables, other, p, position)]
                if when < stop:
                    break
                if low <= when and when <= high:
                    found += 1
            at -= 1
            if at & 63 == 0:
                chunk = numba.int64(older[chunk])
        counts[place(firsts, side, p, i)] = found


@cuda_kernel(
    f"void(int64, int64, {TABLES}, int64[::1], uint32[::1], uint32[::1], {_BUCKETS}, int64,"
    " int64, int64, int64, int64[::1], int64[::1], int64[::1])",
    reference="tests.naive.cuda.write_buckets",
)
def write(
    side: int,
    n: int,
    tables: Any,
    firsts: Any,
    ring: Any,
    links: Any,
    rows: Any,
    lows: Any,
    highs: Any,
    newest: Any,
    older: Any,
    chunks: Any,
    back: int,
    ahead: int,
    base: int,
    met_base: int,
    offsets: Any,
    out_mine: Any,
    out_met: Any,
) -> None:
    """Write each record's pairs, as rows of the two stores, to the places in `offsets`.

    Left records match the right window as it stood before the batch, although that has been built.
    """
    other = 1 - side
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        p = partition_of(firsts, side, i)
        pair, end = offsets[place(firsts, side, p, i)], offsets[place(firsts, side, p, i) + 1]
        if pair == end:
            continue
        mine = slot_of(tables, side, p, tables[side, p, RING.begin] + i - firsts[side, p])
        time, tag = ring[2 * mine], links[4 * mine + 2]
        low, high = earlier(time, back), later(time, ahead)
        row = (numba.int64(rows[mine]) - base) & LOW_32
        limit = tables[other, p, RING.begin] if side == 0 else LOW_32 + 1
        bucket = tables[other, p, RING.index_at] + (tag & tables[other, p, RING.index_mask])
        at, chunk = numba.int64(highs[bucket]), numba.int64(newest[bucket])
        while pair < end:
            entry = 128 * chunk + ((at - 1) & 63)
            position = numba.int64(chunks[entry + BUFFER])
            if position < limit and chunks[entry] == tag:
                slot = slot_of(tables, other, p, position)
                when = ring[2 * slot]
                if low <= when and when <= high:
                    out_mine[pair] = row
                    out_met[pair] = (numba.int64(rows[slot]) - met_base) & LOW_32
                    pair += 1
            at -= 1
            if at & 63 == 0:
                chunk = numba.int64(older[chunk])


@cuda_device
def clean(
    bucket: int,
    tail: int,
    lows: Any,
    highs: Any,
    newest: Any,
    older: Any,
    chunks: Any,
    free: Any,
    free_count: Any,
) -> None:
    """Move a bucket's `low` to its first live entry, and free the chunks before it."""
    low, at = numba.int64(lows[bucket]), numba.int64(highs[bucket])
    chunk = numba.int64(newest[bucket])
    first = low
    while at > low:
        bottom = max(low, ((at - 1) >> 6) << 6)
        live = at
        if chunks[128 * chunk + BUFFER + (bottom & 63)] >= tail:
            live = bottom
        while live > bottom and chunks[128 * chunk + BUFFER + ((live - 1) & 63)] >= tail:
            live -= 1
        following = numba.int64(older[chunk])
        if first > low:
            free[cuda.atomic.add(free_count, 0, 1)] = chunk
        elif live > bottom:
            first = live
            if first >> 6 > bottom >> 6:
                free[cuda.atomic.add(free_count, 0, 1)] = chunk
        at, chunk = bottom, following
    lows[bucket] = first


@cuda_kernel(
    f"void(int64, int64[:, :, ::1], {_BUCKETS}, {_FREE}, uint32[::1])",
    reference="tests.naive.cuda.cleanup",
)
def cleanup(
    side: int,
    tables: Any,
    lows: Any,
    highs: Any,
    newest: Any,
    older: Any,
    chunks: Any,
    free: Any,
    free_count: Any,
    marks: Any,
) -> None:
    """Clean a side's marked buckets, a thread a bucket, and clear the marks."""
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        first = tables[side, p, RING.index_at]
        for b in range(cuda.threadIdx.x, tables[side, p, RING.index_mask] + 1, cuda.blockDim.x):
            bucket = first + b
            if (marks[bucket >> 5] >> (bucket & 31)) & 1 != 0:
                clean(
                    bucket,
                    tables[side, p, RING.tail],
                    lows,
                    highs,
                    newest,
                    older,
                    chunks,
                    free,
                    free_count,
                )
                cuda.atomic.and_(marks, bucket >> 5, numba.uint32(LOW_32 - (1 << (bucket & 31))))
