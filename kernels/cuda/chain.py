"""The chained-ring join on a GPU: hash chains through the rings of `kernels.cuda.ring`.

`heads` (uint32, device memory) holds each chain's newest position: the chain of a tag in partition
p of a side begins at heads[index_at + (tag & index_mask)] and continues through the entries'
links, positions falling, down to the tail (0 always is below it).

A beat: `load` both sides; `count` the left against the right; `link` and `advance` the left; the
same for the right, against a left window that now holds the left's batch; `totals`, `offsets`;
`write` both; `evict` both.  `count` notes the position of the first match, where `write` begins.

`link` inserts a batch into its chains in arrival order and without atomics: a block sorts its
partition's records by chain, stably; then each record's link is its neighbour, the first one's is
the old head, and the last one is the new head.  That is linear in the batch also where all
records have one key.

Tags are compared here; where 32 bits do not decide, the pairs are candidates, which the host
verifies (`kernels.cpu.bitmap.keep_equal`): two in 2^32 of those that differ reach it.
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
from kernels.registry import cuda_kernel

_RING = "int64[::1], uint32[::1]"


@cuda_kernel(
    f"void(int64, {TABLES}, uint32[::1], uint32[::1], uint32[:, ::1])",
    reference="tests.naive.cuda.link",
)
def link(side: int, tables: Any, firsts: Any, links: Any, heads: Any, scratch: Any) -> None:
    """Insert a side's records of this beat into their chains; a block a partition.

    `scratch` is uint32[4, records]: keys, order and their spares.
    """
    counters = cuda.shared.array(COUNTERS, numba.int32)
    partial = cuda.shared.array(THREADS_MAX, numba.int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        first = firsts[side, p]
        n = firsts[side, p + 1] - first
        if n == 0:
            continue
        keys, order = scratch[0], scratch[1]
        start, mask, index = (
            tables[side, p, RING.begin],
            tables[side, p, RING.index_mask],
            tables[side, p, RING.index_at],
        )
        for i in range(t, n, threads):
            keys[first + i] = links[4 * slot_of(tables, side, p, start + i) + 2] & mask
            order[first + i] = i
        cuda.syncthreads()
        sort_by_key(keys, order, scratch[2], scratch[3], first, n, mask, counters, partial)
        for j in range(first + t, first + n, threads):
            older = numba.int64(heads[index + keys[j]])
            if j > first and keys[j - 1] == keys[j]:
                older = start + order[j - 1]
            links[4 * slot_of(tables, side, p, start + order[j]) + 3] = older
        cuda.syncthreads()
        for j in range(first + t, first + n, threads):
            if j == first + n - 1 or keys[j + 1] != keys[j]:
                heads[index + keys[j]] = start + order[j]


@cuda_kernel(
    f"void(int64, int64, {TABLES}, {_RING}, uint32[::1], int64, int64, int64[::1], uint32[::1])",
    reference="tests.naive.cuda.count",
)
def count(
    side: int,
    n: int,
    tables: Any,
    firsts: Any,
    ring: Any,
    links: Any,
    heads: Any,
    back: int,
    ahead: int,
    counts: Any,
    starts: Any,
) -> None:
    """Count each record's live matches on the other side, and note the first one's position.

    A partner's time lies from `back` before the record's to `ahead` after it.
    """
    other = 1 - side
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        p = partition_of(firsts, side, i)
        mine = slot_of(tables, side, p, tables[side, p, RING.begin] + i - firsts[side, p])
        time, tag = ring[2 * mine], links[4 * mine + 2]
        low, high = earlier(time, back), later(time, ahead)
        stop = stop_below(tables, other, p, low)
        tail = tables[other, p, RING.tail]
        position = numba.int64(
            heads[tables[other, p, RING.index_at] + (tag & tables[other, p, RING.index_mask])]
        )
        found, start = 0, numba.int64(0)
        while position >= tail:
            slot = slot_of(tables, other, p, position)
            when = ring[2 * slot]
            if when < stop:
                break
            if links[4 * slot + 2] == tag and low <= when and when <= high:
                if found == 0:
                    start = position
                found += 1
            position = numba.int64(links[4 * slot + 3])
        at = place(firsts, side, p, i)
        counts[at], starts[at] = found, start


@cuda_kernel(
    f"void(int64, int64, {TABLES}, {_RING}, uint32[::1], int64, int64, int64, int64,"
    " int64[::1], uint32[::1], int64[::1], int64[::1])",
    reference="tests.naive.cuda.write",
)
def write(
    side: int,
    n: int,
    tables: Any,
    firsts: Any,
    ring: Any,
    links: Any,
    rows: Any,
    back: int,
    ahead: int,
    base: int,
    met_base: int,
    offsets: Any,
    starts: Any,
    out_mine: Any,
    out_met: Any,
) -> None:
    """Write each record's pairs, as rows of the two stores, where `offsets` says."""
    other = 1 - side
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        p = partition_of(firsts, side, i)
        place_of = place(firsts, side, p, i)
        at, end = offsets[place_of], offsets[place_of + 1]
        if at == end:
            continue
        mine = slot_of(tables, side, p, tables[side, p, RING.begin] + i - firsts[side, p])
        time, tag = ring[2 * mine], links[4 * mine + 2]
        low, high = earlier(time, back), later(time, ahead)
        row = (numba.int64(rows[mine]) - base) & LOW_32
        position = numba.int64(starts[place_of])
        while at < end:
            slot = slot_of(tables, other, p, position)
            when = ring[2 * slot]
            if links[4 * slot + 2] == tag and low <= when and when <= high:
                out_mine[at] = row
                out_met[at] = (numba.int64(rows[slot]) - met_base) & LOW_32
                at += 1
            position = numba.int64(links[4 * slot + 3])
