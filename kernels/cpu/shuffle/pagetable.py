"""Pages of a shuffle: allocated at their first tuple, handed on when complete, and reused.

A page is handed on by exactly one thread: all writers add the tuples that they have written to
`written`, the thread that closes it adds COMPLETE less the tuples reserved, and the addition that
makes COMPLETE of it hands the page on.  Its two pieces, slots and data, stay where they were
written; whatever seals the page or writes it somewhere closes the gap between them.

In memory a page begins 32 bytes behind a cache line, so that its rows or slots begin with one.
"""

from __future__ import annotations

from typing import Any

from kernels.cpu import atomics, mem
from kernels.cpu.pages import HEADER
from kernels.cpu.records import get, put
from kernels.cpu.shuffle import memory, vectors
from kernels.cpu.shuffle.memory import COMPLETE, CTX, OWNER, PAGE, SLOT, THREAD, bump, word_tuples
from kernels.registry import device

SKEW = 32


@device
def fits(ctx: int, word: int, capacity: int, want: int, size: int, lengths: int) -> Any:
    """How many of the next `want` tuples, with `size` bytes of data, fit into a page of which
    `word` is reserved, and their bytes of data.  `lengths` is the address of the rows' uint32
    lengths, 0 where all have one width."""
    width, most = get(ctx, CTX.width), get(ctx, CTX.fixed_max)
    if lengths == 0:
        if most == 0 or capacity != get(ctx, CTX.page_bytes):
            slots = get(ctx, CTX.stride) + get(ctx, CTX.slotted) * width
            most = (capacity - HEADER) // slots
        count = min(want, max(0, most - word_tuples(word)))
        return count, count * width * get(ctx, CTX.slotted)
    free = capacity - HEADER - SLOT * word_tuples(word) - memory.word_data(word)
    if SLOT * want + size <= free:
        return want, size
    count, data = 0, 0
    while count < want:
        row = mem.load_u32(lengths + 4 * count) + 0
        free -= SLOT + row
        if free < 0:
            break
        data += row
        count += 1
    return count, data


@device
def is_full(ctx: int, word: int, capacity: int) -> Any:
    """Whether not even an empty row fits."""
    width, most = get(ctx, CTX.width), get(ctx, CTX.fixed_max)
    if width != 0 and most != 0 and capacity == get(ctx, CTX.page_bytes):
        return word_tuples(word) >= most
    slots = get(ctx, CTX.stride) + get(ctx, CTX.slotted) * width
    used = HEADER + get(ctx, CTX.stride) * word_tuples(word) + memory.word_data(word)
    return capacity - used < slots


@device
def need_of(ctx: int, lengths: int) -> Any:
    """The least capacity of a page for the next tuple."""
    size = get(ctx, CTX.slotted) * get(ctx, CTX.width)
    if lengths != 0:
        size = mem.load_u32(lengths) + 0
    return HEADER + get(ctx, CTX.stride) + size


@device
def new_number(ctx: int, thread: int, common: bool) -> Any:
    """A number in the page table, of a page that may be reused if `common`; -1 without room."""
    spins, pool, lock = 0, get(ctx, CTX.pool), ctx + 8 * CTX.ring_lock
    while common and pool != 0 and atomics.acquire_i64(ctx + 8 * CTX.page_count) >= pool:
        memory.acquire_lock(thread, lock)
        head = get(ctx, CTX.ring_head)
        if head != get(ctx, CTX.ring_tail):
            at = get(ctx, CTX.ring) + 8 * (head % get(ctx, CTX.pages_max))
            put(ctx, CTX.ring_head, head + 1)
            number = mem.load_i64(at)
            atomics.release_i64(lock, 0)
            return number
        atomics.release_i64(lock, 0)
        memory.back_off(thread, spins)
        spins += 1
    number = atomics.add_i64(ctx + 8 * CTX.page_count, 1)
    if number >= get(ctx, CTX.pages_max):
        put(ctx, CTX.failed, 1)
        return -1
    return number


@device
def count_live(ctx: int) -> None:
    """Count an allocated page, and the most at once."""
    live = atomics.add_i64(ctx + 8 * CTX.live, 1) + 1
    peak = atomics.acquire_i64(ctx + 8 * CTX.peak)
    while live > peak:
        seen = atomics.swap_i64(ctx + 8 * CTX.peak, peak, live)
        if seen == peak:
            return
        peak = seen


@device
def allocate(ctx: int, thread: int, owner: int, capacity: int, since: int) -> Any:
    """An open page for a partition; the caller alone may open one.  It is not published yet."""
    common = capacity == get(ctx, CTX.page_bytes)
    number = new_number(ctx, thread, common)
    if number < 0:
        number = get(ctx, CTX.pages_max)  # a spare page, so that nothing else is overwritten
    page = get(ctx, CTX.pages) + memory.PAGE_BYTES * number
    if get(page, PAGE.base) == 0:
        region = get(ctx, CTX.page_region)
        if not common:
            region = (capacity + 127) // 64 * 64
        used = atomics.add_i64(ctx + 8 * CTX.arena_used, region)
        put(page, PAGE.base, get(ctx, CTX.arena) + SKEW + used)
    put(page, PAGE.number, number)
    put(page, PAGE.capacity, capacity)
    put(page, PAGE.end_at, get(ctx, CTX.end_at) if common else capacity)
    put(page, PAGE.partition, get(owner, OWNER.number))
    seq = get(owner, OWNER.seq) + 1
    put(owner, OWNER.seq, seq)
    put(page, PAGE.seq, seq)
    put(page, PAGE.first_ns, since)
    put(page, PAGE.handed_ns, 0)
    atomics.release_i64(page + 8 * PAGE.written, 0)
    atomics.release_i64(page + 8 * PAGE.reserved, get(owner, OWNER.number) << memory.TAG_AT)
    count_live(ctx)
    return page


@device
def count_latency(thread: int, ns: int) -> None:
    """Count a page in the bucket of its latency: eight buckets for each power of two."""
    power = 0
    while (ns >> power) >= 16:
        power += 1
    bucket = min(memory.LATENCY_BUCKETS - 1, 8 * power + (ns >> power))
    bump(thread, THREAD.latencies + bucket, 1)


@device
def free(ctx: int, thread: int, page: int) -> None:
    """Give a page's memory back."""
    atomics.add_i64(ctx + 8 * CTX.live, -1)
    if get(ctx, CTX.pool) == 0 or get(page, PAGE.capacity) != get(ctx, CTX.page_bytes):
        return
    memory.acquire_lock(thread, ctx + 8 * CTX.ring_lock)
    tail = get(ctx, CTX.ring_tail)
    at = get(ctx, CTX.ring) + 8 * (tail % get(ctx, CTX.pages_max))
    mem.store_i64(at, get(page, PAGE.number))
    put(ctx, CTX.ring_tail, tail + 1)
    atomics.release_i64(ctx + 8 * CTX.ring_lock, 0)


@device
def hand_over(ctx: int, thread: int, page: int) -> None:
    """Hand a complete page on: nothing writes to it any more."""
    word = atomics.acquire_i64(page + 8 * PAGE.reserved)
    now = memory.now_ns(thread)
    if get(thread, THREAD.owners) != 0:  # thread-local pages are numbered now
        shared = get(ctx, CTX.owners) + get(page, PAGE.partition) * get(ctx, CTX.owner_bytes)
        put(page, PAGE.seq, atomics.add_i64(shared + 8 * OWNER.seq, 1) + 1)
    put(page, PAGE.tuples, word_tuples(word))
    put(page, PAGE.data, memory.word_data(word))
    put(page, PAGE.handed_ns, now)
    count_latency(thread, max(0, now - get(page, PAGE.first_ns)))
    bump(thread, THREAD.handed, 1)
    if get(ctx, CTX.pool) != 0:
        free(ctx, thread, page)


@device
def add_written(ctx: int, thread: int, page: int, count: int) -> None:
    """Count tuples as written, and hand the page on if that makes it complete."""
    memory.step(ctx, thread)
    if get(ctx, CTX.alone) != 0:
        written = get(page, PAGE.written) + count
        put(page, PAGE.written, written)
        if written == COMPLETE:
            vectors.drain_stores()
            hand_over(ctx, thread, page)
        return
    if get(ctx, CTX.stream) != 0:
        vectors.drain_stores()
    if atomics.add_i64(page + 8 * PAGE.written, count) + count == COMPLETE:
        memory.step(ctx, thread)
        hand_over(ctx, thread, page)


@device
def settle(ctx: int, thread: int) -> None:
    """Count as written what this thread has put off.  A thread does so before it reserves, waits or
    asks for a batch."""
    count = get(thread, THREAD.unsettled)
    if count != 0:
        put(thread, THREAD.unsettled, 0)
        add_written(ctx, thread, get(thread, THREAD.unsettled_page), count)


@device
def put_off(thread: int, page: int, count: int) -> None:
    """Put off counting tuples as written, until `settle`: a locked instruction would wait for the
    non-temporal stores just made."""
    put(thread, THREAD.unsettled_page, page)
    put(thread, THREAD.unsettled, count)


@device
def close(ctx: int, thread: int, page: int, reserved: int) -> None:
    """Count a page as closed, by the thread whose exchange or lock has closed it, with the tuples
    that are reserved in all."""
    add_written(ctx, thread, page, COMPLETE - reserved)
