"""Page managers: reserving slots and data space on the open page of a partition.

    LOCK, LOCK_MINIMAL, EXCLUSIVE   `reserve_plain`, under the partition's lock or by its one thread
    LOCK_FREE                       `reserve_free`: one compare-and-exchange takes slots and data

A reservation takes as many of a batch's next tuples as fit, in their order.  A thread's later
reservation lies behind its earlier one, on the same page or a later one: each manager keeps the
order of a producer's tuples within a partition.

**The end of a page.**  Algorithm 3 of the thesis tests for a full page only after an exchange has
failed: one that succeeds at once takes a slot beyond the end.  Here every attempt computes what
fits, and the reservation that crosses the end (or meets it) closes the page in the same exchange;
that thread alone allocates the successor, if it has tuples left.  Else the next tuple's thread
does: pages are allocated at their first tuple, instead of one for each partition in advance.

A tuple larger than a page gets a page of its own size, which is closed at once; the open page
before it is closed too, so that the order holds.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import atomics
from kernels.cpu.pages import HEADER
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory, pagetable
from kernels.cpu.shuffle.memory import CTX, NO_PAGE, OWNER, PAGE, THREAD, bump, step, word_tuples
from kernels.cpu.shuffle.pagetable import allocate, close, fits, is_full
from kernels.cpu.shuffle.writing import write_tuples
from kernels.registry import device


@device
def take(thread: int, page: int, word: int, data: int) -> None:
    """Note a reservation that begins where `word` ends."""
    put(thread, THREAD.got_page, page)
    put(thread, THREAD.got_first, word_tuples(word))
    put(thread, THREAD.got_offset, memory.word_data(word))
    put(thread, THREAD.got_bytes, data)
    bump(thread, THREAD.reservations, 1)


@device
def older(page: int, since: int) -> None:
    """Note the arrival of a page's oldest tuple."""
    at = page + 8 * PAGE.first_ns
    seen = atomics.acquire_i64(at)
    while since < seen:
        before = atomics.swap_i64(at, seen, since)
        if before == seen:
            return
        seen = before


@device
def capacity_for(ctx: int, lengths: int) -> Any:
    """The capacity of an empty page for the next tuple: the common one, if it fits, else its own in
    whole KiB."""
    need = pagetable.need_of(ctx, lengths)
    if need > get(ctx, CTX.page_bytes):
        return (need + 1023) // 1024 * 1024
    return get(ctx, CTX.page_bytes)


@device
def reserve_on(
    ctx: int, thread: int, owner: int, page: int, want: int, size: int, lengths: int
) -> Any:
    """Reserve on a page for some of the next `want` tuples, with `size` bytes of data, and publish
    it as the partition's, or close it; the caller keeps other threads away from it.  Returns how
    many; the place is in the thread's `got_…` fields."""
    capacity, word = get(page, PAGE.capacity), get(page, PAGE.reserved)
    count, data = fits(ctx, word, capacity, want, size, lengths)
    after = word + count + (data << memory.DATA_AT)
    own_size = capacity != get(ctx, CTX.page_bytes)
    ends = count < want or own_size or is_full(ctx, after, capacity)
    step(ctx, thread)
    atomics.release_i64(page + 8 * PAGE.reserved, after | memory.CLOSED if ends else after)
    atomics.release_i64(owner + 8 * OWNER.page, NO_PAGE if ends else page)
    take(thread, page, word, data)
    if ends:
        close(ctx, thread, page, word_tuples(after))
    return count


@device
def reserve_plain(
    ctx: int, thread: int, owner: int, want: int, size: int, lengths: int, since: int
) -> Any:
    """`reserve_on` the open page or a new one, of a partition that the caller keeps other threads
    away from; for at least one tuple."""
    while True:
        page = get(owner, OWNER.page)
        if page == NO_PAGE:
            page = allocate(ctx, thread, owner, capacity_for(ctx, lengths), since)
        put(page, PAGE.first_ns, min(since, get(page, PAGE.first_ns)))
        count = reserve_on(ctx, thread, owner, page, want, size, lengths)
        if count > 0:
            return count


@device
def reserve_free(
    ctx: int, thread: int, owner: int, want: int, size: int, lengths: int, since: int
) -> Any:
    """As `reserve_plain`, with any threads at once and no lock."""
    at, spins, capacity = owner + 8 * OWNER.page, 0, get(ctx, CTX.page_bytes)
    while True:
        page = atomics.acquire_i64(at)
        if page == NO_PAGE and atomics.swap_i64(at, NO_PAGE, memory.ALLOCATING) == NO_PAGE:
            page = allocate(ctx, thread, owner, capacity_for(ctx, lengths), since)
            return reserve_on(ctx, thread, owner, page, want, size, lengths)
        word = memory.CLOSED
        if page > memory.ALLOCATING:
            word = atomics.acquire_i64(page + 8 * PAGE.reserved)
        if word >> memory.TAG_AT != get(owner, OWNER.number):  # closed, or another partition's
            memory.back_off(thread, spins)
            spins += 1
            continue
        count, data = fits(ctx, word, capacity, want, size, lengths)
        after = word + count + (data << memory.DATA_AT)
        ends = count < want or is_full(ctx, after, capacity)
        step(ctx, thread)
        new = after | memory.CLOSED if ends else after
        if atomics.swap_i64(page + 8 * PAGE.reserved, word, new) != word:
            bump(thread, THREAD.retries, 1)
            continue
        older(page, since)
        take(thread, page, word, data)
        if ends:
            succeed(ctx, thread, owner, count < want and lengths == 0, since)
            close(ctx, thread, page, word_tuples(after))
        if count > 0:
            return count


@device
def succeed(ctx: int, thread: int, owner: int, more: bool, since: int) -> None:
    """Replace a page that this thread has closed: by a new one if it has more tuples, which all
    have the width of those before, else by none."""
    page = NO_PAGE
    step(ctx, thread)
    if more and get(ctx, CTX.fixed_max) != 0:
        page = allocate(ctx, thread, owner, get(ctx, CTX.page_bytes), since)
    atomics.release_i64(owner + 8 * OWNER.page, page)


@device
def insert_alone(
    ctx: int, thread: int, owner: int, count: int, size: int, block: int, hashes: int, lengths: int
) -> bool:
    """Insert a block that leaves room on the open page of a partition that only this thread writes
    to; whether it does."""
    page = get(owner, OWNER.page)
    if page == NO_PAGE:
        return False
    word = get(page, PAGE.reserved)
    first, offset = word_tuples(word), memory.word_data(word)
    if lengths == 0:
        if first + count >= get(ctx, CTX.fixed_max):
            return False
    elif HEADER + memory.SLOT * (first + count + 1) + offset + size > get(ctx, CTX.page_bytes):
        return False
    put(page, PAGE.reserved, word + count + (size << memory.DATA_AT))
    write_tuples(ctx, page, first, offset, count, size, block, hashes, lengths)
    put(page, PAGE.written, get(page, PAGE.written) + count)
    return True


@device
def insert(
    ctx: int, thread: int, owner: int, count: int, size: int, block: int, hashes: int,
    lengths: int, since: int,
) -> None:  # fmt: skip
    """Insert a block of tuples (`writing.write_tuples`) into a partition."""
    bump(thread, THREAD.inserted, count)
    bump(thread, THREAD.row_bytes, size)
    if get(ctx, CTX.alone) != 0 and insert_alone(
        ctx, thread, owner, count, size, block, hashes, lengths
    ):
        return
    manager, left = get(ctx, CTX.manager), count
    lock = owner + 8 * OWNER.lock
    if manager == memory.LOCK:
        pagetable.settle(ctx, thread)
        memory.acquire_lock(thread, lock)
    while left > 0:
        pagetable.settle(ctx, thread)
        if manager == memory.LOCK_FREE:
            taken = reserve_free(ctx, thread, owner, left, size, lengths, since)
        elif manager != memory.LOCK_MINIMAL:
            taken = reserve_plain(ctx, thread, owner, left, size, lengths, since)
        else:
            memory.acquire_lock(thread, lock)
            taken = reserve_plain(ctx, thread, owner, left, size, lengths, since)
            step(ctx, thread)
            atomics.release_i64(lock, 0)
        step(ctx, thread)
        page, data = get(thread, THREAD.got_page), get(thread, THREAD.got_bytes)
        first, offset = get(thread, THREAD.got_first), get(thread, THREAD.got_offset)
        write_tuples(ctx, page, first, offset, taken, data, block, hashes, lengths)
        pagetable.put_off(thread, page, taken)
        left -= taken
        size -= data
        hashes += 4 * taken
        block += taken * get(ctx, CTX.stride) if get(ctx, CTX.slotted) == 0 else -data
        if lengths != 0:
            lengths += 4 * taken
    if manager == memory.LOCK:
        step(ctx, thread)
        atomics.release_i64(lock, 0)


@device
def flush(ctx: int, thread: int, owner: int) -> None:
    """Close the open page of a partition, also while other threads insert.  Of a partition without
    synchronisation this may do its own thread only."""
    manager, lock, at = get(ctx, CTX.manager), owner + 8 * OWNER.lock, owner + 8 * OWNER.page
    if manager == memory.LOCK_FREE:
        page = atomics.acquire_i64(at)
        if page <= memory.ALLOCATING:
            return
        word = atomics.acquire_i64(page + 8 * PAGE.reserved)
        open_here = word >> memory.TAG_AT == get(owner, OWNER.number) and word_tuples(word) > 0
        step(ctx, thread)
        if (
            open_here
            and atomics.swap_i64(page + 8 * PAGE.reserved, word, word | memory.CLOSED) == word
        ):
            atomics.release_i64(at, NO_PAGE)
            close(ctx, thread, page, word_tuples(word))
        return
    if manager != memory.EXCLUSIVE:
        memory.acquire_lock(thread, lock)
    page = get(owner, OWNER.page)
    if page != NO_PAGE:
        word = get(page, PAGE.reserved)
        put(page, PAGE.reserved, word | memory.CLOSED)
        put(owner, OWNER.page, NO_PAGE)
    if manager != memory.EXCLUSIVE:
        step(ctx, thread)
        atomics.release_i64(lock, 0)
    if page != NO_PAGE:
        close(ctx, thread, page, word_tuples(word))
