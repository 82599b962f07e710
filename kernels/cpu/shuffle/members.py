"""The algorithms of the family, one entry for a thread of each.

    on_demand   each tuple is inserted at once, or a batch goes through the buffers
    histogram   radix: all tuples are materialised, then assigned; hybrid: each batch is assigned
    group       a batch is read by all threads of a processing unit, each for its own partitions
    merge       on demand, buffered, on thread-local pages; open pages are merged at the end

After its last tuple a thread empties its buffers; when all have done so, open pages are flushed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.compiler import njit
from kernels.cpu import atomics, mem
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory
from kernels.cpu.shuffle.buffers import collect, deliver_one, spill_all
from kernels.cpu.shuffle.chunks import assign
from kernels.cpu.shuffle.lines import settle_lines
from kernels.cpu.shuffle.managers import flush
from kernels.cpu.shuffle.memory import BATCH, CTX, THREAD, THREAD_BYTES, barrier, bump, now_ns, step
from kernels.cpu.shuffle.merging import merge_partition
from kernels.cpu.shuffle.pagetable import settle
from kernels.cpu.shuffle.source import ask, row_length
from kernels.cpu.shuffle.vectors import LANES, select_sixteen
from kernels.cpu.shuffle.writing import copy_exact
from kernels.registry import device

GROUP_SLOTS = 4
"""Batches of a processing unit that its threads may work on at once."""


def member(function: Any) -> Any:
    """An entry of a thread: it is compiled when it is first called, and cached."""
    return njit(nogil=True, cache=True, error_model="numpy")(function)


@device
def begin(ctx: int, number: int) -> Any:
    """Start a thread."""
    thread = get(ctx, CTX.threads_at) + THREAD_BYTES * number
    now = now_ns(thread)
    put(thread, THREAD.began_ns, now)
    since = get(thread, THREAD.since)
    if since != 0:
        for p in range(get(ctx, CTX.partitions)):
            mem.store_i64(since + 8 * p, now)
    return thread


@device
def finish(ctx: int, thread: int, barriers: int) -> None:
    """Flush this thread's share of the partitions once all threads have inserted everything."""
    settle(ctx, thread)
    barrier(ctx, thread, barriers)
    for p in range(get(thread, THREAD.first), get(thread, THREAD.last)):
        flush(ctx, thread, get(ctx, CTX.owners) + p * get(ctx, CTX.owner_bytes))
    put(thread, THREAD.ended_ns, now_ns(thread))


@device
def flush_one(ctx: int, thread: int) -> None:
    """Flush a partition now and then, as a timer does, while others insert."""
    every = get(ctx, CTX.flushes)
    if every != 0 and get(thread, THREAD.batches) % every == 0:
        first, last = 0, get(ctx, CTX.partitions)
        if get(ctx, CTX.manager) == memory.EXCLUSIVE and get(thread, THREAD.owners) == 0:
            first, last = get(thread, THREAD.first), get(thread, THREAD.last)
        if first < last:
            p = first + get(thread, THREAD.batches) // every % (last - first)
            if get(thread, THREAD.lines) != 0:
                settle_lines(ctx, thread, p)
            flush(ctx, thread, memory.owner_of(ctx, thread, p))


@device
def insert_batch(ctx: int, thread: int, batch: int, buffered: int) -> None:
    """Insert all tuples of a batch."""
    count = get(batch, BATCH.tuples)
    if buffered != 0:
        collect(ctx, thread, batch, 0, count)
    else:
        for i in range(count):
            deliver_one(ctx, thread, batch, i)
    settle(ctx, thread)


@member
def run_on_demand(ctx: int, number: int, buffered: int) -> None:
    """A thread of on-demand partitioning."""
    thread = begin(ctx, number)
    batch = get(thread, THREAD.batch)
    while ask(ctx, thread, batch) > 0:
        insert_batch(ctx, thread, batch, buffered)
        flush_one(ctx, thread)
    if buffered != 0:
        spill_all(ctx, thread, 0, get(ctx, CTX.partitions), now_ns(thread))
    finish(ctx, thread, 1)


@device
def count_tuples(ctx: int, thread: int, batch: int) -> None:
    """Make the histogram of a batch and, of rows of any size, their lengths by partition."""
    counts, partitions = get(thread, THREAD.counts), get(ctx, CTX.partitions)
    count, targets = get(batch, BATCH.tuples), get(batch, BATCH.targets)
    bump(thread, THREAD.accesses, count)
    for p in range(partitions):
        mem.store_i64(counts + 8 * p, 0)
    for i in range(count):
        at = counts + 8 * (mem.load_u32(targets + 4 * i) + 0)
        mem.store_i64(at, mem.load_i64(at) + 1)
    if get(ctx, CTX.width) != 0:
        return
    starts, lengths, sum_ = get(thread, THREAD.starts), get(thread, THREAD.lengths), 0
    sizes = get(thread, THREAD.sizes)
    for p in range(partitions):
        mem.store_i64(sizes + 8 * p, 0)
        mem.store_i64(starts + 8 * p, sum_)
        sum_ += mem.load_i64(counts + 8 * p)
    for i in range(count):
        p, row = mem.load_u32(targets + 4 * i) + 0, row_length(ctx, batch, i)
        place = mem.load_i64(starts + 8 * p)
        mem.store_u32(lengths + 4 * place, np.uint32(row))
        mem.store_i64(starts + 8 * p, place + 1)
        mem.store_i64(sizes + 8 * p, mem.load_i64(sizes + 8 * p) + row)


@device
def assign_to(ctx: int, thread: int, to: int, partition: int, since: int) -> None:
    """Assign chunks of a partition to the thread at `to`, as its histogram says."""
    count = mem.load_i64(get(to, THREAD.counts) + 8 * partition)
    lengths, size = 0, get(ctx, CTX.slotted) * get(ctx, CTX.width) * count
    if get(ctx, CTX.width) == 0:
        size = mem.load_i64(get(to, THREAD.sizes) + 8 * partition)
        end = mem.load_i64(get(to, THREAD.starts) + 8 * partition)
        lengths = get(to, THREAD.lengths) + 4 * (end - count)
    owner = get(ctx, CTX.owners) + partition * get(ctx, CTX.owner_bytes)
    cursor = get(to, THREAD.cursors) + memory.CURSOR_BYTES * partition
    assign(ctx, thread, owner, cursor, count, size, lengths, since)


@member
def run_hybrid(ctx: int, number: int, buffered: int) -> None:
    """A thread of ad-hoc radix partitioning: a histogram of each batch is turned into exclusive
    chunks at once, partition by partition under its lock."""
    thread = begin(ctx, number)
    batch, partitions = get(thread, THREAD.batch), get(ctx, CTX.partitions)
    while ask(ctx, thread, batch) > 0:
        count_tuples(ctx, thread, batch)
        put(thread, THREAD.chunk_count, 0)
        since = get(batch, BATCH.arrived_ns)
        for p in range(partitions):
            if mem.load_i64(get(thread, THREAD.counts) + 8 * p) != 0:
                lock = get(ctx, CTX.owners) + p * get(ctx, CTX.owner_bytes) + 8 * memory.OWNER.lock
                memory.acquire_lock(thread, lock)
                assign_to(ctx, thread, thread, p, since)
                step(ctx, thread)
                atomics.release_i64(lock, 0)
        insert_batch(ctx, thread, batch, buffered)
        if buffered != 0:
            spill_all(ctx, thread, 0, partitions, since)
        flush_one(ctx, thread)
    finish(ctx, thread, 1)


@device
def materialise(ctx: int, thread: int, batch: int, store: int) -> None:
    """Append a batch to the thread's store."""
    held, count = get(store, BATCH.tuples), get(batch, BATCH.tuples)
    bump(thread, THREAD.accesses, count)
    if held == 0:
        put(store, BATCH.arrived_ns, get(batch, BATCH.arrived_ns))
    size, begins = count * get(ctx, CTX.width), held * get(ctx, CTX.width)
    if get(ctx, CTX.width) == 0:
        source, to = get(batch, BATCH.offsets), get(store, BATCH.offsets) + 8 * held
        begins, size = mem.load_i64(to), mem.load_i64(source + 8 * count)
        for i in range(count + 1):
            mem.store_i64(to + 8 * i, begins + mem.load_i64(source + 8 * i))
    copy_exact(get(store, BATCH.rows) + begins, get(batch, BATCH.rows), size)
    copy_exact(get(store, BATCH.hashes) + 4 * held, get(batch, BATCH.hashes), 4 * count)
    copy_exact(get(store, BATCH.targets) + 4 * held, get(batch, BATCH.targets), 4 * count)
    put(store, BATCH.tuples, held + count)


@member
def run_radix(ctx: int, number: int, buffered: int) -> None:
    """A thread of radix partitioning: all tuples are materialised before the first is written."""
    thread = begin(ctx, number)
    batch, store = get(thread, THREAD.batch), get(thread, THREAD.store)
    while ask(ctx, thread, batch) > 0:
        materialise(ctx, thread, batch, store)
    count_tuples(ctx, thread, store)
    barrier(ctx, thread, 1)
    for p in range(get(thread, THREAD.first), get(thread, THREAD.last)):
        for t in range(get(ctx, CTX.threads)):
            to = get(ctx, CTX.threads_at) + THREAD_BYTES * t
            since = get(get(to, THREAD.store), BATCH.arrived_ns)
            assign_to(ctx, thread, to, p, since)
        flush(ctx, thread, get(ctx, CTX.owners) + p * get(ctx, CTX.owner_bytes))
    barrier(ctx, thread, 2)
    insert_batch(ctx, thread, store, buffered)
    if buffered != 0:
        spill_all(ctx, thread, 0, get(ctx, CTX.partitions), now_ns(thread))
    put(thread, THREAD.ended_ns, now_ns(thread))


@device
def shared_batch(ctx: int, thread: int, use: int) -> Any:
    """The batch of a processing unit with the number `use`: the first of its threads that comes
    makes it, when all are done with the batch that was there before."""
    threads = get(thread, THREAD.unit_threads)
    batch = get(thread, THREAD.unit) + memory.BATCH_BYTES * (use % GROUP_SLOTS)
    spins = 0
    if atomics.swap_i64(batch + 8 * BATCH.claimed, use - GROUP_SLOTS, use) == use - GROUP_SLOTS:
        while atomics.acquire_i64(batch + 8 * BATCH.done) != threads * (use // GROUP_SLOTS):
            memory.back_off(thread, spins)
            spins += 1
        ask(ctx, thread, batch)
        step(ctx, thread)
        atomics.release_i64(batch + 8 * BATCH.made, use + 1)
    while atomics.acquire_i64(batch + 8 * BATCH.made) <= use:
        memory.back_off(thread, spins)
        spins += 1
    return batch


@device
def select(thread: int, batch: int, count: int) -> Any:
    """Note the tuples of a batch in this thread's partitions; returns their number."""
    first, last = get(thread, THREAD.first), get(thread, THREAD.last)
    targets, to, found = get(batch, BATCH.targets), get(thread, THREAD.selected), 0
    bump(thread, THREAD.scanned, count)
    whole = count // LANES * LANES
    for i in range(0, whole, LANES):
        at = targets + 4 * i
        found += select_sixteen(to + 4 * found, at, i, first, last - first)
    for i in range(whole, count):
        p = mem.load_u32(targets + 4 * i) + 0
        mem.store_u32(to + 4 * found, np.uint32(i))
        found += (p >= first) & (p < last)
    return found


@member
def run_group(ctx: int, number: int, barriers: int) -> None:
    """A thread of collaborative morsel processing, with exclusive ranges or in units."""
    thread, use = begin(ctx, number), 0
    while True:
        batch = shared_batch(ctx, thread, use)
        count = get(batch, BATCH.tuples)
        if count == 0:
            break
        if get(thread, THREAD.unit_threads) == 1:
            collect(ctx, thread, batch, 0, count)
        else:
            found = select(thread, batch, count)
            collect(ctx, thread, batch, get(thread, THREAD.selected), found)
        settle(ctx, thread)
        atomics.add_i64(batch + 8 * BATCH.done, 1)
        flush_one(ctx, thread)
        use += 1
    now = now_ns(thread)
    spill_all(ctx, thread, get(thread, THREAD.first), get(thread, THREAD.last), now)
    finish(ctx, thread, barriers)


@member
def run_merge(ctx: int, number: int, buffered: int) -> None:
    """A thread of on-demand partitioning on thread-local pages.  Full pages are handed on at once;
    the open ones of all threads are merged by partition."""
    thread = begin(ctx, number)
    batch = get(thread, THREAD.batch)
    while ask(ctx, thread, batch) > 0:
        insert_batch(ctx, thread, batch, buffered)
        flush_one(ctx, thread)
    if buffered != 0:
        spill_all(ctx, thread, 0, get(ctx, CTX.partitions), now_ns(thread))
    settle(ctx, thread)
    barrier(ctx, thread, 1)
    for p in range(get(thread, THREAD.first), get(thread, THREAD.last)):
        merge_partition(ctx, thread, p)
    put(thread, THREAD.ended_ns, now_ns(thread))
