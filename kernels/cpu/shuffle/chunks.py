"""Exclusive chunks of pages, assigned by histogram: the page managers of radix and hybrid.

A thread knows how many tuples of each partition it will write, and of rows of any size their
lengths in order.  `assign` reserves for all of them greedily: what is left of the open page, then
new pages.  `write_chunked` fills the chunks in order, without synchronisation; it counts a chunk as
written once, when it is full.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import mem
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory
from kernels.cpu.shuffle.managers import reserve_plain
from kernels.cpu.shuffle.memory import CHUNK, CHUNK_BYTES, CTX, CURSOR, CURSOR_BYTES, THREAD, bump
from kernels.cpu.shuffle.pagetable import add_written
from kernels.cpu.shuffle.writing import write_tuples
from kernels.registry import device


@device
def assign(
    ctx: int, thread: int, owner: int, cursor: int, count: int, size: int, lengths: int, since: int
) -> None:
    """Reserve chunks for `count` tuples of a partition, with `size` bytes of data, and point a
    cursor at them.  The caller keeps other threads away from the partition."""
    at = get(thread, THREAD.chunks) + CHUNK_BYTES * get(thread, THREAD.chunk_count)
    put(cursor, CURSOR.next, at)
    put(cursor, CURSOR.left, 0)
    while count > 0:
        taken = reserve_plain(ctx, thread, owner, count, size, lengths, since)
        put(at, CHUNK.page, get(thread, THREAD.got_page))
        put(at, CHUNK.slot, get(thread, THREAD.got_first))
        put(at, CHUNK.offset, get(thread, THREAD.got_offset))
        put(at, CHUNK.slots, taken)
        at += CHUNK_BYTES
        size -= get(thread, THREAD.got_bytes)
        bump(thread, THREAD.chunk_count, 1)
        count -= taken
        if lengths != 0:
            lengths += 4 * taken


@device
def data_of(ctx: int, count: int, lengths: int) -> Any:
    """Bytes of data of some tuples."""
    if lengths == 0:
        return count * get(ctx, CTX.width) * get(ctx, CTX.slotted)
    data = 0
    for j in range(count):
        data += mem.load_u32(lengths + 4 * j)
    return data


@device
def write_chunked(
    ctx: int, thread: int, partition: int, count: int, block: int, hashes: int, lengths: int
) -> None:
    """Write a block of tuples (`writing.write_tuples`) to the thread's chunks."""
    cursor = get(thread, THREAD.cursors) + CURSOR_BYTES * partition
    bump(thread, THREAD.inserted, count)
    while count > 0:
        if get(cursor, CURSOR.left) == 0:
            chunk = get(cursor, CURSOR.next)
            mem.copy_16(cursor, chunk)
            mem.copy_16(cursor + 16, chunk + 16)
            put(cursor, CURSOR.left, get(chunk, CHUNK.slots))
            put(cursor, CURSOR.next, chunk + CHUNK_BYTES)
            memory.step(ctx, thread)
        page, left = get(cursor, CURSOR.page), get(cursor, CURSOR.left)
        taken = min(count, left)
        data = data_of(ctx, taken, lengths)
        bump(thread, THREAD.row_bytes, data)
        slot, offset = get(cursor, CURSOR.slot), get(cursor, CURSOR.offset)
        write_tuples(ctx, page, slot, offset, taken, data, block, hashes, lengths)
        put(cursor, CURSOR.slot, slot + taken)
        put(cursor, CURSOR.offset, offset + data)
        put(cursor, CURSOR.left, left - taken)
        if left == taken:
            add_written(ctx, thread, page, get(cursor, CURSOR.slots))
        count -= taken
        hashes += 4 * taken
        block += taken * get(ctx, CTX.stride) if get(ctx, CTX.slotted) == 0 else -data
        if lengths != 0:
            lengths += 4 * taken
