"""Rows in whole cache lines, straight into pages that one thread writes to.

The lines that a row fills go from the batch to the page with non-temporal stores; what is left of
it waits in a line for the partition's next row.  Keys and lengths of sixteen slots wait in lines of
their own.  A partition's block of four lines, LINE_BYTES:

    LineCursor | the line that is begun, as it will lie in the page | uint32 keys | uint32 lengths

The page's own record is brought up to date when the page is full, or by `settle_lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.pages import HEADER
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory
from kernels.cpu.shuffle.managers import flush, insert
from kernels.cpu.shuffle.memory import BATCH, CTX, LINE, LINE_BYTES, NO_PAGE, OWNER, PAGE, THREAD
from kernels.cpu.shuffle.pagetable import allocate, settle
from kernels.cpu.shuffle.vectors import LANES, copy_64, merge_64, stream_64, stream_merged
from kernels.cpu.shuffle.writing import copy_exact, write_slots
from kernels.registry import device

BEGUN, KEYS, LENGTHS = 64, 128, 192


@device
def open_lines(ctx: int, thread: int, partition: int, since: int) -> None:
    """Point a partition's cursor behind the last tuple of its open page, or at a new page."""
    line, owner = line_of(thread, partition), memory.owner_of(ctx, thread, partition)
    page, stride = get(owner, OWNER.page), get(ctx, CTX.stride)
    if page == NO_PAGE:
        page = allocate(ctx, thread, owner, get(ctx, CTX.page_bytes), since)
        put(owner, OWNER.page, page)
    tuples = memory.word_tuples(get(page, PAGE.reserved))
    data = memory.word_data(get(page, PAGE.reserved))
    top = get(page, PAGE.base) + get(page, PAGE.end_at)
    slot = get(page, PAGE.base) + HEADER + stride * tuples
    at, left = top - data, get(ctx, CTX.fixed_max) - tuples
    if get(ctx, CTX.slotted) == 0:
        at = slot
    if get(ctx, CTX.width) == 0:
        left = get(page, PAGE.capacity) - HEADER - stride * tuples - data
    put(line, LINE.page, page)
    put(line, LINE.top, top)
    put(line, LINE.at, at)
    put(line, LINE.slot, slot)
    put(line, LINE.offset, data)
    put(line, LINE.left, left)
    copy_64(line + BEGUN, at & ~63)


@device
def line_of(thread: int, partition: int) -> Any:
    """A partition's block."""
    return get(thread, THREAD.lines) + LINE_BYTES * partition


@device
def write_held(ctx: int, line: int, stream: int) -> None:
    """Write the slots that wait."""
    held, slot, offset = get(line, LINE.held), get(line, LINE.slot), get(line, LINE.offset)
    if get(ctx, CTX.width) != 0:
        write_slots(slot, offset, held, line + KEYS, ctx + 8 * CTX.widths, 0, stream)
    else:
        write_slots(slot, offset, held, line + KEYS, line + LENGTHS, 4, stream)
    put(line, LINE.slot, slot + memory.SLOT * held)
    put(line, LINE.offset, get(line, LINE.top) - get(line, LINE.at))
    put(line, LINE.held, 0)


@device
def settle_lines(ctx: int, thread: int, partition: int) -> None:
    """Write what waits for the partition's next row, and note all tuples in the page's record."""
    line = line_of(thread, partition)
    page, at = get(line, LINE.page), get(line, LINE.at)
    if page == NO_PAGE:
        return
    inside, end, data = at & 63, at, 0
    if get(ctx, CTX.slotted) == 0:
        copy_exact(at - inside, line + BEGUN, inside)
    else:
        copy_exact(at, line + BEGUN + inside, -at & 63)
        write_held(ctx, line, 0)
        end, data = get(line, LINE.slot), get(line, LINE.offset)
    tuples = (end - get(page, PAGE.base) - HEADER) // get(ctx, CTX.stride)
    word = get(page, PAGE.reserved)
    new = tuples - memory.word_tuples(word)
    memory.bump(thread, THREAD.inserted, new)
    memory.bump(thread, THREAD.row_bytes, data - memory.word_data(word))
    tag = word >> memory.TAG_AT << memory.TAG_AT
    put(page, PAGE.reserved, tag + tuples + (data << memory.DATA_AT))
    put(page, PAGE.written, get(page, PAGE.written) + new)
    put(line, LINE.page, NO_PAGE)
    put(line, LINE.left, 0)


@device
def close_lines(ctx: int, thread: int, partition: int) -> None:
    """Hand the partition's page on."""
    settle_lines(ctx, thread, partition)
    flush(ctx, thread, memory.owner_of(ctx, thread, partition))


@device
def add_down(line: int, source: int, width: int) -> None:
    """Write a row that ends before `source` to before the rows of a slotted page."""
    at = get(line, LINE.at)
    last = (at - 1) & 63
    to, left = at - 1 - last, width - 1 - last
    source -= last + 1
    if left < 0:
        merge_64(line + BEGUN, line + BEGUN, source, -2 << last)
    else:
        stream_merged(to, line + BEGUN, source, -2 << last)
        while left >= 64:
            to -= 64
            source -= 64
            stream_64(to, source)
            left -= 64
        copy_64(line + BEGUN, source - 64)
    put(line, LINE.at, at - width)


@device
def add_up(line: int, source: int, width: int) -> None:
    """Write a row of 64 bytes or more at `source` behind the rows of a dense page."""
    at = get(line, LINE.at)
    inside = at & 63
    to, end = at - inside, source + width
    source -= inside
    stream_merged(to, line + BEGUN, source, ~(-1 << inside))
    source += 64
    while end - source >= 64:
        to += 64
        stream_64(to, source)
        source += 64
    copy_64(line + BEGUN, source)
    put(line, LINE.at, at + width)


@device
def hold_slot(ctx: int, line: int, key: Any, length: int) -> None:
    """Let the slot of the row just written wait, or write it and those before."""
    held = get(line, LINE.held)
    mem.store_u32(line + KEYS + 4 * held, key)
    mem.store_u32(line + LENGTHS + 4 * held, np.uint32(length))
    put(line, LINE.held, held + 1)
    if held + 1 == LANES:
        write_held(ctx, line, 1)


@device
def collect_lines(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """`buffers.collect` without buffers, for rows of one width, 64 bytes or more."""
    width, slotted = get(ctx, CTX.width), get(ctx, CTX.slotted)
    rows, targets = get(batch, BATCH.rows), get(batch, BATCH.targets)
    hashes = get(batch, BATCH.hashes)
    for j in range(count):
        i = j if selected == 0 else mem.load_u32(selected + 4 * j) + 0
        p = mem.load_u32(targets + 4 * i) + 0
        line = line_of(thread, p)
        if get(line, LINE.left) == 0:
            open_lines(ctx, thread, p, get(batch, BATCH.arrived_ns))
        if slotted == 0:
            add_up(line, rows + width * i, width)
        else:
            add_down(line, rows + width * (i + 1), width)
            hold_slot(ctx, line, mem.load_u32(hashes + 4 * i), width)
        left = get(line, LINE.left) - 1
        put(line, LINE.left, left)
        if left == 0:
            close_lines(ctx, thread, p)


@device
def collect_lines_varied(ctx: int, thread: int, batch: int, selected: int, count: int) -> None:
    """`collect_lines` for rows of any size."""
    rows, offsets = get(batch, BATCH.rows), get(batch, BATCH.offsets)
    targets, hashes = get(batch, BATCH.targets), get(batch, BATCH.hashes)
    usable = get(ctx, CTX.page_bytes) - HEADER
    for j in range(count):
        i = j if selected == 0 else mem.load_u32(selected + 4 * j) + 0
        p = mem.load_u32(targets + 4 * i) + 0
        row_end, line = rows + mem.load_i64(offsets + 8 * i + 8), line_of(thread, p)
        size = row_end - rows - mem.load_i64(offsets + 8 * i)
        left = get(line, LINE.left) - size - memory.SLOT
        if left < 0:
            if size + memory.SLOT > usable:
                insert_large(ctx, thread, batch, i, p, size)
                continue
            left = make_room(ctx, thread, p, size + memory.SLOT, get(batch, BATCH.arrived_ns))
        put(line, LINE.left, left)
        add_down(line, row_end, size)
        hold_slot(ctx, line, mem.load_u32(hashes + 4 * i), size)


@device
def make_room(ctx: int, thread: int, partition: int, need: int, since: int) -> Any:
    """Open the partition's page, or another, for `need` bytes; returns how many they leave."""
    line = line_of(thread, partition)
    if get(line, LINE.page) == NO_PAGE:
        open_lines(ctx, thread, partition, since)
    if get(line, LINE.left) < need:
        close_lines(ctx, thread, partition)
        open_lines(ctx, thread, partition, since)
    return get(line, LINE.left) - need


@device
def insert_large(ctx: int, thread: int, batch: int, number: int, partition: int, size: int) -> None:
    """Insert a row that is larger than a page."""
    row_end = get(batch, BATCH.rows) + mem.load_i64(get(batch, BATCH.offsets) + 8 * number + 8)
    lengths, hashes = thread + 8 * THREAD.one_length, get(batch, BATCH.hashes) + 4 * number
    mem.store_u32(lengths, np.uint32(size))
    settle_lines(ctx, thread, partition)
    owner, since = memory.owner_of(ctx, thread, partition), get(batch, BATCH.arrived_ns)
    insert(ctx, thread, owner, 1, size, row_end, hashes, lengths, since)
    settle(ctx, thread)
