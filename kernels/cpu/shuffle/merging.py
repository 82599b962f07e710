"""Merging the thread-local open pages of a partition into the least number of pages.

Pages are sorted decreasingly by the space in use; tuples move from the emptiest page into the
fullest that is not full.  They are taken from a page's end, so that what is left needs no
reordering, and each tuple moves once at most: a page that takes tuples never gives any.

Moved tuples lie behind others of their batch or before them: this member keeps no order.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import mem
from kernels.cpu.pages import HEADER
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory
from kernels.cpu.shuffle.memory import CTX, DATA_AT, NO_PAGE, OWNER, PAGE, SLOT, THREAD, word_tuples
from kernels.cpu.shuffle.pagetable import free, hand_over
from kernels.cpu.shuffle.writing import copy_exact, write_slot
from kernels.registry import device


@device
def thread_owner(ctx: int, number: int, partition: int) -> Any:
    """The open page of a thread in a partition."""
    thread = get(ctx, CTX.threads_at) + memory.THREAD_BYTES * number
    return get(thread, THREAD.owners) + partition * get(ctx, CTX.owner_bytes)


@device
def space_of(ctx: int, page: int) -> Any:
    """Bytes of slots, rows and data in a page."""
    word = get(page, PAGE.reserved)
    return get(ctx, CTX.stride) * word_tuples(word) + memory.word_data(word)


@device
def length_at(page: int, slot: int) -> Any:
    """The length in a slot."""
    return mem.load_u32(get(page, PAGE.base) + HEADER + SLOT * slot + 8) + 0


@device
def movable(ctx: int, full: int, empty: int) -> Any:
    """How many of the last tuples of one page fit into another, and their bytes of data."""
    into, word = get(full, PAGE.reserved), get(empty, PAGE.reserved)
    left = word_tuples(word)
    if get(ctx, CTX.fixed_max) != 0:
        count = min(left, get(ctx, CTX.fixed_max) - word_tuples(into))
        return count, count * get(ctx, CTX.width) * get(ctx, CTX.slotted)
    free = get(full, PAGE.capacity) - HEADER - space_of(ctx, full)
    count, data = 0, 0
    while count < left:
        size = length_at(empty, left - 1 - count)
        free -= SLOT + size
        if free < 0:
            break
        data += size
        count += 1
    return count, data


@device
def move(ctx: int, full: int, empty: int, count: int, data: int) -> None:
    """Move the last tuples of one page behind those of another, in their order."""
    into, word = get(full, PAGE.reserved), get(empty, PAGE.reserved)
    stride, left = get(ctx, CTX.stride), word_tuples(word) - count
    to = get(full, PAGE.base) + HEADER + stride * word_tuples(into)
    source = get(empty, PAGE.base) + HEADER + stride * left
    if get(ctx, CTX.slotted) == 0:
        copy_exact(to, source, stride * count)
    else:
        offset = memory.word_data(into)
        for j in range(count):
            size = length_at(empty, left + j)
            offset += size
            write_slot(to + SLOT * j, mem.load_u32(source + SLOT * j), offset, size)
        end = get(full, PAGE.base) + get(full, PAGE.end_at) - offset
        copy_exact(
            end, get(empty, PAGE.base) + get(empty, PAGE.end_at) - memory.word_data(word), data
        )
    put(full, PAGE.reserved, into + count + (data << DATA_AT))
    put(empty, PAGE.reserved, word - count - (data << DATA_AT))
    put(full, PAGE.first_ns, min(get(full, PAGE.first_ns), get(empty, PAGE.first_ns)))


@device
def extreme(ctx: int, partition: int, most: bool) -> Any:
    """The owner of the page with the most space in use, or the least; -1 for none.  Of equal pages
    it is the first or the last."""
    found, found_space = -1, 0
    for t in range(get(ctx, CTX.threads)):
        owner = thread_owner(ctx, t, partition)
        page = get(owner, OWNER.page)
        if page != NO_PAGE:
            space = space_of(ctx, page)
            if found < 0 or (space > found_space if most else space <= found_space):
                found, found_space = owner, space
    return found


@device
def merge_partition(ctx: int, thread: int, partition: int) -> None:
    """Merge the open pages of a partition and hand them on; no thread writes to them any more."""
    while True:
        fullest, emptiest = extreme(ctx, partition, True), extreme(ctx, partition, False)
        if fullest < 0:
            return
        full, empty = get(fullest, OWNER.page), get(emptiest, OWNER.page)
        count, data = (0, 0) if full == empty else movable(ctx, full, empty)
        if count > 0:
            move(ctx, full, empty, count, data)
            memory.bump(thread, THREAD.moved, count)
            memory.bump(thread, THREAD.accesses, count)
        if word_tuples(get(empty, PAGE.reserved)) == 0:
            put(emptiest, OWNER.page, NO_PAGE)
            put(empty, PAGE.handed_ns, memory.FREED)
            free(ctx, thread, empty)
        else:
            put(fullest, OWNER.page, NO_PAGE)
            hand_over(ctx, thread, full)
