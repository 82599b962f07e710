"""The windows of a CUDA join: rings in device memory, in arrival order, one a side and partition.

One row of `tables` (int64[2, 64, FIELDS]: side, partition) describes a ring (`DeviceRing`).  The
entry at position p lies in slot s = first + (p & mask) of three views of device memory:

    ring   int64[2 * slots]    time (µs) at 2s; the word at 2s + 1 is links[4s + 2] and [4s + 3]
    links  uint32[4 * slots]   the same memory: tag at 4s + 2, link (chain: the next older entry's
                               position) at 4s + 3
    rows   uint32[slots]       the row's number (mod 2^32)

A batch is copied once from its queue in mapped memory, a thread a record, coalesced
(`load`); every other access is to device memory.  `firsts` (int64[2, 65]) says where each
partition's records begin in a side's batch.

Invariants 1 to 3 of `kernels.cpu.rings` hold: positions grow, live entries are never overwritten,
what is below the tail is dead, and the disorder bounds how far times fall along a ring (here from
above: it is taken by pieces of as many records as a block has threads).

Results.  A probe counts each record's matches; the counts of a partition lie together, the left's
records before the right's (`place`); `totals` and `offsets` turn them into the first pair of each,
and the sum says how long the result queue must be before anything is written.  The order of
pairs is (partition, pass, record, newest partner first) for any schedule, and no queue can
overflow.

Launches: `begin` one block of two threads; `load` and `clear` any number; all others one block a
partition, or fewer, that take turns (fewer threads for the simulator).
Shared memory is at most 18 KiB a block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba

from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import I64, field, words
from kernels.cuda.blocks import exclusive_sum
from kernels.cuda.gpu import THREADS_MAX, cuda
from kernels.registry import cuda_device, cuda_kernel


class DeviceRing(NamedTuple):
    """A partition's ring of one side."""

    first: I64 = field("slot of its first entry")
    mask: I64 = field("entries - 1; their number is a power of two")
    index_at: I64 = field("where its hash index begins in the array of all indexes")
    index_mask: I64 = field("places of its hash index - 1; their number is a power of two")
    tail: I64 = field("position of the oldest live entry")
    head: I64 = field("position of the next entry to be written")
    newest_old: I64 = field("latest time of the old generation (`kernels.cpu.rings`)")
    newest_new: I64 = field("latest time of the new generation")
    disorder_old: I64 = field("how far times fall in the old generation (us)")
    disorder_new: I64 = field("how far times fall in the new generation (us)")
    generation: I64 = field("position of the new generation's first entry")
    begin: I64 = field("position of this beat's first record")


class RingReport(NamedTuple):
    """A ring's state after an eviction, for the host, in mapped memory: int64[2, 64, 3]."""

    tail: I64 = field("position of the oldest live entry")
    head: I64 = field("position of the next entry to be written")
    row: I64 = field("number of the row at `tail`")


RING, REPORT = words(DeviceRing), words(RingReport)
FIELDS = 16
"""Length of a ring's row: 128 bytes."""
LOW_32 = 0xFFFFFFFF
TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1

_TABLES = "int64[:, :, ::1]"
_FIRSTS = "int64[:, ::1]"
_RING = "int64[::1], uint32[::1], uint32[::1]"
TABLES = f"{_TABLES}, {_FIRSTS}"
"""Signature of the two tables of rings."""


@cuda_device
def later(time: int, us: int) -> int:
    """`time + us` for us >= 0, at most TIME_MAX."""
    return time + us if time <= TIME_MAX - us else TIME_MAX


@cuda_device
def earlier(time: int, us: int) -> int:
    """`time - us` for us >= 0, at least TIME_MIN."""
    return time - us if time >= TIME_MIN + us else TIME_MIN


@cuda_device
def fallen(newest: int, time: int) -> int:
    """How far `time` lies below `newest`, from 0 to TIME_MAX."""
    if time >= newest:
        return 0
    if newest >= 0 and time < newest - TIME_MAX:
        return TIME_MAX
    return newest - time


@cuda_device
def partition_of(firsts: Any, side: int, record: int) -> int:
    """The partition that a record of the batch lies in."""
    low, high = 0, PARTITIONS
    while high - low > 1:
        middle = (low + high) // 2
        if firsts[side, middle] <= record:
            low = middle
        else:
            high = middle
    return low


@cuda_device
def slot_of(tables: Any, side: int, p: int, position: int) -> Any:
    """The slot of an entry."""
    return tables[side, p, RING.first] + (position & tables[side, p, RING.mask])


@cuda_device
def place(firsts: Any, side: int, p: int, record: int) -> Any:
    """The place of a record's count among those of both sides."""
    return record + firsts[1 - side, p + side]


@cuda_device
def stop_below(tables: Any, side: int, p: int, low: int) -> int:
    """The time below which no older entry of a ring can be as late as `low`."""
    disorder = max(tables[side, p, RING.disorder_old], tables[side, p, RING.disorder_new])
    return earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN


@cuda_kernel(
    f"void(int64[:, ::1], {_TABLES}, {_FIRSTS}, int64[::1])", reference="tests.naive.cuda.begin"
)
def begin(counts: Any, tables: Any, firsts: Any, totals: Any) -> None:
    """Begin a beat: the places of each partition's records in the batch and in the rings."""
    side = cuda.threadIdx.x
    first = 0
    for p in range(PARTITIONS):
        firsts[side, p] = first
        first += counts[side, p]
        tables[side, p, RING.begin] = tables[side, p, RING.head]
        if side == 0:
            totals[p] = 0
    firsts[side, PARTITIONS] = first


@cuda_kernel(
    f"void(int64, int64[::1], int64, {_TABLES}, {_FIRSTS}, {_RING})",
    reference="tests.naive.cuda.load",
)
def load(
    side: int, data: Any, n: int, tables: Any, firsts: Any, ring: Any, links: Any, rows: Any
) -> None:
    """Copy a side's records from the queue into the free slots of its rings."""
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        p = partition_of(firsts, side, i)
        slot = slot_of(tables, side, p, tables[side, p, RING.begin] + i - firsts[side, p])
        word = data[2 * i + 1]
        ring[2 * slot] = data[2 * i]
        links[4 * slot + 2] = word & LOW_32
        rows[slot] = (word >> 32) & LOW_32


@cuda_kernel(f"void(int64, {_TABLES}, {_FIRSTS}, int64[::1])", reference="tests.naive.cuda.advance")
def advance(side: int, tables: Any, firsts: Any, ring: Any) -> None:
    """Move a side's heads over the batch, and measure how far its times fall."""
    extremes = cuda.shared.array(2, numba.int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        n = firsts[side, p + 1] - firsts[side, p]
        first = tables[side, p, RING.begin]
        newest = max(tables[side, p, RING.newest_old], tables[side, p, RING.newest_new])
        newest_new, disorder = tables[side, p, RING.newest_new], tables[side, p, RING.disorder_new]
        for start in range(0, n, threads):
            if t == 0:
                extremes[0], extremes[1] = TIME_MAX, TIME_MIN
            cuda.syncthreads()
            if start + t < n:
                time = ring[2 * slot_of(tables, side, p, first + start + t)]
                cuda.atomic.min(extremes, 0, time)
                cuda.atomic.max(extremes, 1, time)
            cuda.syncthreads()
            newest_new = max(newest_new, extremes[1])
            newest = max(newest, extremes[1])
            disorder = max(disorder, fallen(newest, extremes[0]))
            cuda.syncthreads()
        if t == 0 and n > 0:
            tables[side, p, RING.newest_new] = newest_new
            tables[side, p, RING.disorder_new] = disorder
            tables[side, p, RING.head] = first + n


@cuda_kernel(f"void({_FIRSTS}, int64[::1], int64[::1])", reference="tests.naive.cuda.totals")
def totals(firsts: Any, counts: Any, sums: Any) -> None:
    """Each partition's number of pairs; `sums` begins at zero."""
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        low = firsts[0, p] + firsts[1, p]
        high = firsts[0, p + 1] + firsts[1, p + 1]
        mine = 0
        for i in range(low + cuda.threadIdx.x, high, cuda.blockDim.x):
            mine += counts[i]
        if mine > 0:
            cuda.atomic.add(sums, p, mine)


@cuda_kernel(
    f"void({_FIRSTS}, int64[::1], int64[::1], int64[::1])", reference="tests.naive.cuda.offsets"
)
def offsets(firsts: Any, sums: Any, counts: Any, total: Any) -> None:
    """Turn counts into the number of each record's first pair; the last of `counts`, and `total`
    (int64[1], mapped), become the sum."""
    partial = cuda.shared.array(THREADS_MAX, numba.int64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        low = firsts[0, p] + firsts[1, p]
        high = firsts[0, p + 1] + firsts[1, p + 1]
        if low == high and p < PARTITIONS - 1:
            continue
        at = 0
        for q in range(p):
            at += sums[q]
        piece = (high - low + threads - 1) // threads
        start, end = min(high, low + t * piece), min(high, low + t * piece + piece)
        mine = 0
        for i in range(start, end):
            mine += counts[i]
        below, _ = exclusive_sum(partial, mine)
        at += below
        for i in range(start, end):
            count = counts[i]
            counts[i] = at
            at += count
        if p == PARTITIONS - 1 and t == threads - 1:
            counts[high] = at
            total[0] = at


@cuda_device
def first_not_below(tables: Any, side: int, p: int, ring: Any, bound: int, found: Any) -> Any:
    """The position of a ring's first live entry at or above `bound`; the head where there is none.
    `found` is shared int64[1]."""
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    tail, head = tables[side, p, RING.tail], tables[side, p, RING.head]
    while tail < head:
        end = min(head, tail + threads)
        if t == 0:
            found[0] = end
        cuda.syncthreads()
        if tail + t < end and ring[2 * slot_of(tables, side, p, tail + t)] >= bound:
            cuda.atomic.min(found, 0, tail + t)
        cuda.syncthreads()
        tail = found[0]
        cuda.syncthreads()
        if tail < end:
            break
    return tail


@cuda_kernel(
    f"void(int64, int64, int64, {_TABLES}, int64[::1], uint32[::1], int64[:, :, ::1])",
    reference="tests.naive.cuda.evict",
)
def evict(
    side: int, bound: int, everything: int, tables: Any, ring: Any, rows: Any, report: Any
) -> None:
    """Move a side's tails over entries below `bound`, oldest first, and advance generations."""
    found = cuda.shared.array(1, numba.int64)
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        head = tables[side, p, RING.head]
        tail = head
        if everything == 0:
            tail = first_not_below(tables, side, p, ring, bound, found)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            tables[side, p, RING.tail] = tail
            if tail >= tables[side, p, RING.generation]:
                tables[side, p, RING.newest_old] = tables[side, p, RING.newest_new]
                tables[side, p, RING.disorder_old] = tables[side, p, RING.disorder_new]
                tables[side, p, RING.newest_new], tables[side, p, RING.disorder_new] = TIME_MIN, 0
                tables[side, p, RING.generation] = head
            if tail == head:
                tables[side, p, RING.newest_old] = tables[side, p, RING.newest_new] = TIME_MIN
                tables[side, p, RING.disorder_old] = tables[side, p, RING.disorder_new] = 0
            report[side, p, REPORT.tail], report[side, p, REPORT.head] = tail, head
            report[side, p, REPORT.row] = rows[slot_of(tables, side, p, tail)]


@cuda_kernel(
    f"void(int64, {_TABLES}, {_RING}, {_TABLES}, {_RING})", reference="tests.naive.cuda.move"
)
def move(
    side: int,
    old: Any,
    old_ring: Any,
    old_links: Any,
    old_rows: Any,
    new: Any,
    ring: Any,
    links: Any,
    rows: Any,
) -> None:
    """Copy live entries, without links, into new rings, from this beat's first position on."""
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        tail, first = old[side, p, RING.tail], new[side, p, RING.begin]
        for i in range(cuda.threadIdx.x, old[side, p, RING.head] - tail, cuda.blockDim.x):
            source, target = slot_of(old, side, p, tail + i), slot_of(new, side, p, first + i)
            ring[2 * target] = old_ring[2 * source]
            links[4 * target + 2] = old_links[4 * source + 2]
            rows[target] = old_rows[source]


@cuda_kernel(
    f"void(int64, int64, {_TABLES}, uint32[::1], uint32[::1], uint64[::1], uint8[::1])",
    reference="tests.naive.cuda.export",
)
def export(
    side: int, base: int, tables: Any, links: Any, rows: Any, hashes: Any, alive: Any
) -> None:
    """For each live entry, at its store row: partition (top 6 bits) and tag, and alive = 1."""
    for p in range(cuda.blockIdx.x, PARTITIONS, cuda.gridDim.x):
        tail = tables[side, p, RING.tail]
        for i in range(cuda.threadIdx.x, tables[side, p, RING.head] - tail, cuda.blockDim.x):
            slot = slot_of(tables, side, p, tail + i)
            row = (numba.int64(rows[slot]) - base) & LOW_32
            tag = numba.uint64(links[4 * slot + 2])
            hashes[row] = (numba.uint64(p) << numba.uint64(58)) | tag
            alive[row] = 1


@cuda_kernel("void(uint32[::1])", reference="tests.naive.cuda.clear")
def clear(values: Any) -> None:
    """Set an array to zero."""
    for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
        values[i] = 0
