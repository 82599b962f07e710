"""The input of a shuffle: a thread asks for its next batch, which is made in its memory.

A batch's tuples depend on its number alone, whatever thread asks for it.  Tuple i of the generator
has the key `fmix32(i * 0x9E3779B1 + seed)`, or with `key_table` the entry of that number modulo the
table's length.  Word j of its data, 8 bytes, is `(i + 1) * K + (j + 1) * L`; with rows of any size
it has `data_min + (fmix32(i) * data_span >> 32)` bytes of data.  Without `fresh`, data is made once
for each thread's memory and only the keys change.

    dense row     key u32 | data              slotted row   key u32 | length of the data u32 | data

From columns, a batch is the next of the row numbers; its rows are assembled as
`kernels.cpu.pages` does it.

The partition is that of the page format, `(hash >> 32) % partitions`, or `key % partitions` with
`hashed` 0 (generator only).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.compiler import carray
from kernels.cpu import atomics, mem
from kernels.cpu.columns import COLUMN
from kernels.cpu.hash import K, fmix32
from kernels.cpu.pages import PLACE, SHAPE, measure, write_columns, write_variable
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import vectors
from kernels.cpu.shuffle.memory import BATCH, CTX, THREAD, bump, now_ns
from kernels.cpu.shuffle.vectors import LANES
from kernels.registry import device

L = np.uint64(0xD1B54A32D192ED03)
BLOCK_ROWS = 256


@device
def ask(ctx: int, thread: int, batch: int) -> Any:
    """Make the next batch; returns its number of tuples, 0 at the end."""
    number = atomics.add_i64(ctx + 8 * CTX.ticket, 1)
    first = number * get(ctx, CTX.batch)
    count = max(0, min(get(ctx, CTX.batch), get(ctx, CTX.tuples) - first))
    put(batch, BATCH.number, number)
    put(batch, BATCH.tuples, count)
    put(batch, BATCH.arrived_ns, now_ns(thread))
    if count == 0:
        return count
    bump(thread, THREAD.batches, 1)
    if get(ctx, CTX.columns) != 0:
        assemble(ctx, batch, first, count)
    else:
        generate(ctx, batch, first, count)
        aim(ctx, batch, count)
    return count


@device
def aim(ctx: int, batch: int, count: int) -> None:
    """Hash the keys of a batch and set their partitions."""
    keys, hashes = get(batch, BATCH.keys), get(batch, BATCH.hashes)
    targets, source = get(batch, BATCH.targets), hashes if get(ctx, CTX.hashed) != 0 else keys
    for at in range(0, 4 * count, 4 * LANES):
        vectors.hash_sixteen(hashes + at, keys + at)
    partitions = get(ctx, CTX.partitions)
    if get(ctx, CTX.mask) != 0:
        for at in range(0, 4 * count, 4 * LANES):
            vectors.mask_sixteen(targets + at, source + at, partitions - 1)
    else:
        for at in range(0, 4 * count, 4 * LANES):
            vectors.modulo_sixteen(targets + at, source + at, partitions)


@device
def generate(ctx: int, batch: int, first: int, count: int) -> None:
    """The tuples from number `first` on."""
    keys, rows, seed = get(batch, BATCH.keys), get(batch, BATCH.rows), get(ctx, CTX.seed)
    for at in range(0, count, LANES):
        vectors.random_sixteen(keys + 4 * at, first + at, seed)
    table, mask = get(ctx, CTX.key_table), get(ctx, CTX.key_mask)
    if table != 0:
        for j in range(count):
            key = mem.load_u32(table + 4 * (mem.load_u32(keys + 4 * j) & mask))
            mem.store_u32(keys + 4 * j, key)
    if get(ctx, CTX.fresh) != 0:
        make_data(ctx, batch, first, count)
    elif get(batch, BATCH.filled) == 0:
        make_data(ctx, batch, 0, get(ctx, CTX.batch))
        put(batch, BATCH.filled, 1)
    width, offsets = get(ctx, CTX.width), get(batch, BATCH.offsets)
    if width != 0:
        for j in range(count):
            mem.store_u32(rows + width * j, mem.load_u32(keys + 4 * j))
    else:
        for j in range(count):
            mem.store_u32(rows + mem.load_i64(offsets + 8 * j), mem.load_u32(keys + 4 * j))


@device
def make_data(ctx: int, batch: int, first: int, count: int) -> None:
    """All of the rows but their keys."""
    rows, offsets = get(batch, BATCH.rows), get(batch, BATCH.offsets)
    width, slotted = get(ctx, CTX.width), get(ctx, CTX.slotted)
    span, least = get(ctx, CTX.data_span), get(ctx, CTX.data_min)
    at = rows
    for j in range(count):
        size = width - 4 - 4 * slotted
        if width == 0:
            varied = np.int64(fmix32(np.uint32(first + j)) & np.uint64(0xFFFFFFFF))
            size = least + ((varied * span) >> 32)
            mem.store_i64(offsets + 8 * j, at - rows)
        at += 4
        if slotted != 0:
            mem.store_u32(at, np.uint32(size))
            at += 4
        word = np.uint64(first + j + 1) * K
        for k in range(0, size - 7, 8):
            word += L
            mem.store_u64(at + k, word)
        word += L
        for k in range(size & ~7, size):
            mem.store_u8(at + k, np.uint8(word & np.uint64(255)))
            word >>= np.uint64(8)
        at += size
    if width == 0:
        mem.store_i64(offsets + 8 * count, at - rows)


@device
def assemble(ctx: int, batch: int, first: int, count: int) -> None:
    """The rows of the input's columns with the next row numbers."""
    columns = table_at(get(ctx, CTX.columns), get(ctx, CTX.column_count), len(COLUMN))
    places = table_at(get(ctx, CTX.places), get(ctx, CTX.column_count), len(PLACE))
    shape = words_at(get(ctx, CTX.shape), len(SHAPE))
    order = words_at(get(ctx, CTX.order), get(ctx, CTX.tuples))
    rows, offsets, at = get(batch, BATCH.rows), get(batch, BATCH.offsets), 0
    tuples, lengths = np.empty(BLOCK_ROWS, np.int64), np.empty(BLOCK_ROWS, np.int64)
    ends = np.empty(BLOCK_ROWS, np.int64)
    for begin in range(0, count, BLOCK_ROWS):
        block = min(BLOCK_ROWS, count - begin)
        numbers = order[first + begin : first + begin + block]
        if get(ctx, CTX.width) == 0:
            measure(columns, shape, numbers, block, lengths)
        else:
            lengths[:] = get(ctx, CTX.width)
        for j in range(block):
            tuples[j] = rows + at
            if offsets != 0:
                mem.store_i64(offsets + 8 * (begin + j), at)
            at += lengths[j]
        write_columns(columns, places, shape, numbers, tuples, block)
        if get(ctx, CTX.slotted) != 0:
            write_variable(columns, places, shape, numbers, tuples, block, ends)
        aim_rows(ctx, batch, numbers, begin, block)
    if offsets != 0:
        mem.store_i64(offsets + 8 * count, at)


@device
def aim_rows(ctx: int, batch: int, numbers: Any, begin: int, count: int) -> None:
    """Slot keys and partitions of rows with given hashes."""
    source, hashes = get(ctx, CTX.row_hashes), get(batch, BATCH.hashes)
    targets, partitions = get(batch, BATCH.targets), np.uint32(get(ctx, CTX.partitions))
    for j in range(count):
        h = mem.load_u64(source + 8 * numbers[j])
        mem.store_u32(hashes + 4 * (begin + j), np.uint32(h & np.uint64(0xFFFFFFFF)))
        mem.store_u32(targets + 4 * (begin + j), np.uint32(h >> np.uint64(32)) % partitions)


@device
def words_at(address: int, count: int) -> Any:
    """An int64 array at an address."""
    return carray(vectors.pointer(address), (count,), np.int64)


@device
def table_at(address: int, rows: int, columns: int) -> Any:
    """An int64 table at an address."""
    return carray(vectors.pointer(address), (rows, columns), np.int64)


@device
def row_length(ctx: int, batch: int, number: int) -> Any:
    """Bytes of a batch's row."""
    width = get(ctx, CTX.width)
    if width == 0:
        at = get(batch, BATCH.offsets) + 8 * number
        return mem.load_i64(at + 8) - mem.load_i64(at)
    return width


@device
def row_at(ctx: int, batch: int, number: int) -> Any:
    """The address of a batch's row."""
    width = get(ctx, CTX.width)
    if width == 0:
        return get(batch, BATCH.rows) + mem.load_i64(get(batch, BATCH.offsets) + 8 * number)
    return get(batch, BATCH.rows) + width * number
