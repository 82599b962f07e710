"""Software managed buffers: a thread collects tuples for each partition and inserts them at once.

Dense rows grow up from a buffer's start.  A slotted buffer is a small page: rows grow down, and the
uint32 keys and, for rows of any size, lengths of their slots follow behind them.

    dense     [rows]
    slotted   [room for a copy's excess | rows | keys | lengths]

A full buffer is spilled to a page manager or, where histograms have assigned chunks, to those.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import get
from kernels.cpu.shuffle.chunks import write_chunked
from kernels.cpu.shuffle.lines import collect_lines, collect_lines_varied, settle_lines
from kernels.cpu.shuffle.managers import insert
from kernels.cpu.shuffle.memory import BATCH, BUFFER_EXCESS, CTX, THREAD, bump, owner_of
from kernels.cpu.shuffle.source import row_at, row_length
from kernels.cpu.shuffle.writing import copy_down, copy_down_varied, copy_exact
from kernels.registry import device

AHEAD, FAR_BYTES = 12, 3 << 19
"""Where all slotted buffers of a thread have more bytes, the place of the tuple so many ahead is
prefetched.  A batch's partitions must be readable so far past its end."""


@device
def deliver(
    ctx: int, thread: int, partition: int, count: int, size: int, block: int, hashes: int,
    lengths: int, since: int,
) -> None:  # fmt: skip
    """Write a block of tuples of a partition to pages."""
    bump(thread, THREAD.accesses, count)
    if get(thread, THREAD.cursors) != 0:
        write_chunked(ctx, thread, partition, count, block, hashes, lengths)
    else:
        owner = owner_of(ctx, thread, partition)
        insert(ctx, thread, owner, count, size, block, hashes, lengths, since)


@device
def deliver_one(ctx: int, thread: int, batch: int, number: int) -> None:
    """Write a tuple of a batch to a page, without a buffer."""
    row, size, lengths = row_at(ctx, batch, number), row_length(ctx, batch, number), 0
    partition = mem.load_u32(get(batch, BATCH.targets) + 4 * number) + 0
    if get(ctx, CTX.width) == 0:
        lengths = thread + 8 * THREAD.one_length
        mem.store_u32(lengths, np.uint32(size))
    if get(ctx, CTX.slotted) != 0:
        row += size
    else:
        size = 0
    hashes = get(batch, BATCH.hashes) + 4 * number
    since = get(batch, BATCH.arrived_ns)
    deliver(ctx, thread, partition, 1, size, row, hashes, lengths, since)


@device
def spill(ctx: int, thread: int, partition: int, now: int) -> None:
    """Empty a buffer; `now` is when tuples that are added next have arrived."""
    fill, since = get(thread, THREAD.fill), get(thread, THREAD.since)
    count = mem.load_u32(fill + 4 * partition) + 0
    block = get(thread, THREAD.buffers) + get(ctx, CTX.buffer_bytes) * partition
    lengths, hashes, size = 0, block, get(ctx, CTX.slotted) * get(ctx, CTX.width) * count
    if get(ctx, CTX.slotted) != 0:
        block += BUFFER_EXCESS + get(ctx, CTX.buffer_data)
        hashes = block
    if get(ctx, CTX.width) == 0:
        lengths = block + 4 * get(ctx, CTX.buffer_tuples)
        size = mem.load_u32(get(thread, THREAD.used) + 4 * partition) + 0
        mem.store_u32(get(thread, THREAD.used) + 4 * partition, np.uint32(0))
    oldest = mem.load_i64(since + 8 * partition)
    mem.store_u32(fill + 4 * partition, np.uint32(0))
    mem.store_i64(since + 8 * partition, now)
    if get(ctx, CTX.batch_insert) != 0:
        deliver(ctx, thread, partition, count, size, block, hashes, lengths, oldest)
    else:
        spill_singly(ctx, thread, partition, count, block, hashes, lengths, oldest)


@device
def spill_singly(
    ctx: int, thread: int, partition: int, count: int, block: int, hashes: int, lengths: int,
    oldest: int,
) -> None:  # fmt: skip
    """Insert a buffer's tuples one by one: what batch insert is measured against."""
    size = get(ctx, CTX.slotted) * get(ctx, CTX.width)
    for _ in range(count):
        if lengths != 0:
            size = mem.load_u32(lengths) + 0
        deliver(ctx, thread, partition, 1, size, block, hashes, lengths, oldest)
        hashes += 4
        block += get(ctx, CTX.stride) if get(ctx, CTX.slotted) == 0 else -size
        if lengths != 0:
            lengths += 4


@device
def spill_all(ctx: int, thread: int, first: int, last: int, now: int) -> None:
    """Empty the buffers of partitions first..last - 1."""
    for p in range(first, last):
        if get(thread, THREAD.lines) != 0:
            settle_lines(ctx, thread, p)
        elif mem.load_u32(get(thread, THREAD.fill) + 4 * p) != 0:
            spill(ctx, thread, p, now)


@device
def collect(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """Put tuples of a batch into the buffers: all `count`, or those whose uint32 numbers are at
    `selected`."""
    if selected == 0:  # else the scan that selected them has counted them
        bump(thread, THREAD.accesses, count)
    varied = get(ctx, CTX.width) == 0
    if get(thread, THREAD.lines) != 0:
        if varied:
            collect_lines_varied(ctx, thread, batch, selected, count)
        else:
            collect_lines(ctx, thread, batch, selected, count)
    elif varied:
        collect_varied(ctx, thread, batch, selected, count)
    elif get(ctx, CTX.slotted) != 0:
        collect_slotted(ctx, thread, batch, selected, count)
    else:
        collect_dense(ctx, thread, batch, selected, count)


@device
def collect_dense(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """`collect` for rows of dense pages."""
    fill, buffers = get(thread, THREAD.fill), get(thread, THREAD.buffers)
    width, room, full = get(ctx, CTX.width), get(ctx, CTX.buffer_bytes), get(ctx, CTX.buffer_tuples)
    rows, targets = get(batch, BATCH.rows), get(batch, BATCH.targets)
    now = get(batch, BATCH.arrived_ns)
    for j in range(count):
        i = j if selected == 0 else mem.load_u32(selected + 4 * j) + 0
        p = mem.load_u32(targets + 4 * i) + 0
        k = mem.load_u32(fill + 4 * p) + 0
        to = buffers + room * p + width * k
        if width == 16:
            mem.copy_16(to, rows + 16 * i)
        elif width == 4:
            mem.store_u32(to, mem.load_u32(rows + 4 * i))
        else:
            copy_exact(to, rows + width * i, width)
        mem.store_u32(fill + 4 * p, np.uint32(k + 1))
        if k + 1 == full:
            spill(ctx, thread, p, now)


@device
def collect_slotted(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """`collect` for rows of one width of slotted pages."""
    fill, buffers = get(thread, THREAD.fill), get(thread, THREAD.buffers)
    width, room, full = get(ctx, CTX.width), get(ctx, CTX.buffer_bytes), get(ctx, CTX.buffer_tuples)
    rows, targets = get(batch, BATCH.rows), get(batch, BATCH.targets)
    hashes, now = get(batch, BATCH.hashes), get(batch, BATCH.arrived_ns)
    top = BUFFER_EXCESS + get(ctx, CTX.buffer_data)
    last = get(ctx, CTX.partitions) - 1
    far = room * last > FAR_BYTES
    for j in range(count):
        i = j if selected == 0 else mem.load_u32(selected + 4 * j) + 0
        p = mem.load_u32(targets + 4 * i) + 0
        k = mem.load_u32(fill + 4 * p) + 0
        if far:
            q = min(last, mem.load_u32(targets + 4 * (i + AHEAD)) + 0)
            mem.prefetch_to_write(buffers + room * q + top - width * mem.load_u32(fill + 4 * q) - 1)
        end = buffers + room * p + top
        copy_down(end - width * k, rows + width * (i + 1), width)
        mem.store_u32(end + 4 * k, mem.load_u32(hashes + 4 * i))
        mem.store_u32(fill + 4 * p, np.uint32(k + 1))
        if k + 1 == full:
            spill(ctx, thread, p, now)


@device
def collect_varied(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """`collect` for rows of any size.  A row larger than a buffer is inserted at once, behind the
    rows of its partition that are buffered."""
    fill, used = get(thread, THREAD.fill), get(thread, THREAD.used)
    buffers, data = get(thread, THREAD.buffers), get(ctx, CTX.buffer_data)
    room, full = get(ctx, CTX.buffer_bytes), get(ctx, CTX.buffer_tuples)
    targets, hashes = get(batch, BATCH.targets), get(batch, BATCH.hashes)
    rows, offsets = get(batch, BATCH.rows), get(batch, BATCH.offsets)
    now = get(batch, BATCH.arrived_ns)
    for j in range(count):
        i = j if selected == 0 else mem.load_u32(selected + 4 * j) + 0
        p = mem.load_u32(targets + 4 * i) + 0
        row_end = rows + mem.load_i64(offsets + 8 * i + 8)
        size = row_end - rows - mem.load_i64(offsets + 8 * i)
        k, held = mem.load_u32(fill + 4 * p) + 0, mem.load_u32(used + 4 * p) + 0
        if k == full or held + size > data:
            if k > 0:
                spill(ctx, thread, p, now)
            k, held = 0, 0
            if size > data:
                deliver_one(ctx, thread, batch, i)
                continue
        end = buffers + room * p + BUFFER_EXCESS + data
        copy_down_varied(end - held, row_end, size)
        mem.store_u32(end + 4 * k, mem.load_u32(hashes + 4 * i))
        mem.store_u32(end + 4 * (full + k), np.uint32(size))
        mem.store_u32(fill + 4 * p, np.uint32(k + 1))
        mem.store_u32(used + 4 * p, np.uint32(held + size))
