"""The memory of a shuffle: one context, a record for each thread, partition and page.

All records are of 8-byte words (`kernels.cpu.records`), at addresses that the caller provides and
has zeroed.  Fields that several threads write lie 128 bytes from all others.

A page's `reserved` is one word, so that one compare-and-exchange takes a slot and its data space:

    bits 0..22   tuples    bits 23..47   bytes of data    bits 48..59   partition    bit 60   closed

The partition keeps a thread that has read the address of a page that was handed on and reused since
from reserving there: its exchange expects another partition, or a page of its own partition that
is open.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernels.cpu import atomics, team
from kernels.cpu.records import ADDRESS, I64, field, get, put, size_of, words
from kernels.cpu.shuffle import vectors
from kernels.registry import device

LOCK, LOCK_MINIMAL, LOCK_FREE, EXCLUSIVE = 0, 1, 2, 3
"""Page managers: lock held while tuples are written, lock held for reserving alone, compare and
exchange, and none for partitions that one thread writes."""
SLOT = 12
DATA_AT, TAG_AT = 23, 48
TUPLES_MASK, DATA_MASK, CLOSED = (1 << 23) - 1, (1 << 25) - 1, 1 << 60
COMPLETE = 1 << 40
"""`written` of a page that is closed and has all reserved tuples."""
NO_PAGE, ALLOCATING = 0, 1
"""States of a partition without a page."""
FREED = -1
"""State of a page that merging has emptied."""
SPINS = 64
"""Looks at a lock before the thread yields."""
BUFFER_EXCESS = 128
"""Bytes before the rows of a slotted buffer."""
LATENCY_BUCKETS = 512
"""Eight for each power of two of nanoseconds."""


class ShuffleContext(NamedTuple):
    """What all threads of a shuffle share."""

    partitions: I64 = field("number of partitions")
    threads: I64 = field("number of threads")
    manager: I64 = field("page manager")
    alone: I64 = field("1: one thread at a time writes to a page")
    slotted: I64 = field("1: slotted pages; 0: dense")
    stride: I64 = field("bytes of a slot, or of a dense row")
    width: I64 = field("bytes of a row; 0: it varies")
    fixed_max: I64 = field("tuples of a full page; 0: rows of any size, or larger than a page")
    end_at: I64 = field("where the data of a page of the common capacity ends")
    page_bytes: I64 = field("common capacity of pages")
    page_region: I64 = field("distance of two pages in memory")
    arena: ADDRESS = field("memory of pages")
    pages: ADDRESS = field("the page table: a SharedPage each")
    pages_max: I64 = field("its length")
    pool: I64 = field("pages after which the memory of pages is reused; 0: never")
    ring: ADDRESS = field("int64[pages_max + 1]: numbers of pages that may be reused")
    owners: ADDRESS = field("the partitions: a PartitionOwner each")
    owner_bytes: I64 = field("distance of two partitions")
    threads_at: ADDRESS = field("the threads: a ShuffleThread each")
    two_step: I64 = field("1: all slots of a batch are written before its data")
    batch_insert: I64 = field("1: a buffer is inserted at once")
    stream: I64 = field("1: buffers are written with non-temporal stores")
    yields: I64 = field("a thread yields once in so many steps; 0: never")
    flushes: I64 = field("a thread flushes a partition once in so many batches; 0: never")
    hashed: I64 = field("1: the partition comes of the key's hash; 0: of the key")
    mask: I64 = field("1: partition by mask; 0: by modulo")
    buffer_tuples: I64 = field("tuples of a software managed buffer")
    buffer_data: I64 = field("bytes of rows in it")
    buffer_bytes: I64 = field("distance of two buffers")
    batch: I64 = field("tuples of a batch")
    tuples: I64 = field("tuples of the input")
    seed: I64 = field("of the generator")
    data_min: I64 = field("generator, rows of any size: least bytes of data")
    data_span: I64 = field("and by how many they vary, 1 for none")
    fresh: I64 = field("generator: 1 if each tuple gets new data")
    key_table: ADDRESS = field("generator: uint32 keys to draw from; 0: all are equally likely")
    key_mask: I64 = field("number of those keys, a power of two, less 1")
    columns: ADDRESS = field("the input's columns (`kernels.cpu.columns`); 0: generator")
    column_count: I64 = field("their number")
    places: ADDRESS = field("their places in a tuple (`kernels.cpu.pages.TuplePlace`)")
    shape: ADDRESS = field("the layout of rows (`kernels.cpu.pages.TupleShape`)")
    order: ADDRESS = field("int64 row numbers")
    row_hashes: ADDRESS = field("uint64 hash of each row's key, by row number")
    widths: I64 = field("sixteen uint32 that are `width`", length=8)
    ticket: I64 = field("batches that are claimed", at=512)
    page_count: I64 = field("pages ever allocated from the arena", at=640)
    arena_used: I64 = field("bytes of the arena in use")
    live: I64 = field("pages that are not handed on or freed", at=768)
    peak: I64 = field("most of them at once")
    ring_lock: I64 = field("lock of the ring", at=896)
    ring_head: I64 = field("pages ever taken from the ring")
    ring_tail: I64 = field("pages ever put into it")
    arrived: I64 = field("threads at the barrier", at=1024)
    failed: I64 = field("1: there was no room for a page", at=1152)


class PartitionOwner(NamedTuple):
    """A partition's open page.  A page manager with thread-local pages has one for each thread."""

    lock: I64 = field("1 while a thread holds it")
    page: ADDRESS = field("SharedPage that is open, NO_PAGE or ALLOCATING")
    seq: I64 = field("pages ever opened")
    number: I64 = field("the partition's number")


class SharedPage(NamedTuple):
    """A page that threads fill.  Reserved and written are counted apart: it is handed on when it is
    closed and both are equal."""

    base: ADDRESS = field("its bytes, header included")
    capacity: I64 = field("number of its bytes")
    end_at: I64 = field("where its data ends")
    partition: I64 = field("its partition")
    seq: I64 = field("1, 2, 3, … within the partition")
    first_ns: I64 = field("arrival of the batch of its oldest tuple, or earlier")
    handed_ns: I64 = field("when it was handed on; 0: not yet")
    tuples: I64 = field("its tuples, once handed on")
    data: I64 = field("its bytes of data, once handed on")
    number: I64 = field("its place in the page table")
    reserved: I64 = field("tuples and data reserved; see the module", at=128)
    written: I64 = field("tuples written; COMPLETE less all reserved is added on closing", at=192)


class ShuffleThread(NamedTuple):
    """What belongs to a thread."""

    batch: ADDRESS = field("its batch; a BatchMemory")
    owners: ADDRESS = field("partitions with its own open pages; 0: the shared ones")
    buffers: ADDRESS = field("its software managed buffers")
    lines: ADDRESS = field("instead of buffers: LineCursors (`lines`)")
    fill: ADDRESS = field("uint32 tuples in each buffer")
    used: ADDRESS = field("uint32 bytes of data in each buffer")
    since: ADDRESS = field("int64 when each buffer was last empty")
    selected: ADDRESS = field("uint32 tuples of a batch that are this thread's")
    first: I64 = field("first partition of its range")
    last: I64 = field("end of that range")
    chunks: ADDRESS = field("histograms: PageChunks that this thread has assigned")
    chunk_count: I64 = field("their number")
    cursors: ADDRESS = field("histograms: a ChunkCursor for each partition")
    counts: ADDRESS = field("histograms: int64 tuples of each partition")
    sizes: ADDRESS = field("histograms: int64 bytes of data of each partition")
    starts: ADDRESS = field("histograms: int64 place of each partition's row lengths")
    lengths: ADDRESS = field("histograms: uint32 row lengths, by partition")
    store: ADDRESS = field("radix: BatchMemory of the materialised tuples")
    unit: ADDRESS = field("groups: the ring of batches of its processing unit")
    unit_threads: I64 = field("groups: threads of that unit")
    one_length: I64 = field("uint32 length of a tuple that is inserted alone")
    rng: I64 = field("state of its random numbers")
    clock: I64 = field("16 bytes for clock_gettime", length=2)
    unsettled_page: ADDRESS = field("page with tuples that are written and not counted yet")
    unsettled: I64 = field("their number")
    got_page: ADDRESS = field("reservation: the page")
    got_first: I64 = field("reservation: the first slot")
    got_offset: I64 = field("reservation: bytes of data before it")
    got_bytes: I64 = field("reservation: bytes of data")
    began_ns: I64 = field("when the thread began")
    ended_ns: I64 = field("when it ended")
    accesses: I64 = field("tuples read, wherever they lay")
    scanned: I64 = field("groups: tuples read to compare their partition with a range")
    inserted: I64 = field("tuples inserted")
    row_bytes: I64 = field("bytes of rows inserted")
    moved: I64 = field("tuples merged into another page")
    reservations: I64 = field("reservations that succeeded")
    retries: I64 = field("exchanges that failed")
    waits: I64 = field("yields for a lock, an allocation or a free page")
    looks: I64 = field("looks at one that was not to be had")
    batches: I64 = field("batches asked for")
    handed: I64 = field("pages handed on")
    latencies: I64 = field("pages by logarithm of latency", length=LATENCY_BUCKETS)


class BatchMemory(NamedTuple):
    """A batch, where its source has put it."""

    tuples: I64 = field("how many; 0: the input has ended")
    number: I64 = field("0, 1, 2, … of the input")
    rows: ADDRESS = field("rows as a page holds them, one behind the other")
    offsets: ADDRESS = field("int64[count + 1] into them; 0: fixed width")
    keys: ADDRESS = field("uint32 keys (generator)")
    hashes: ADDRESS = field("uint32 keys of slots")
    targets: ADDRESS = field("uint32 partitions")
    arrived_ns: I64 = field("when it was asked for")
    filled: I64 = field("1: a generator without fresh data has made its data")
    claimed: I64 = field("groups: use of this batch that is claimed", at=128)
    made: I64 = field("groups: use that is ready", at=256)
    done: I64 = field("groups: threads that are done with it, over all uses", at=384)


class PageChunk(NamedTuple):
    """Slots and data space of a page that belong to one thread."""

    page: ADDRESS = field("the page")
    slot: I64 = field("the first slot")
    offset: I64 = field("bytes of data before it")
    slots: I64 = field("how many")


class ChunkCursor(NamedTuple):
    """Where a thread writes in a partition; it begins like the current PageChunk."""

    page: ADDRESS = field("the page of the current chunk")
    slot: I64 = field("the next slot")
    offset: I64 = field("bytes of data before it")
    slots: I64 = field("slots of the chunk")
    left: I64 = field("slots left")
    next: ADDRESS = field("the next PageChunk; those of a thread and partition follow each other")


class LineCursor(NamedTuple):
    """Where a thread writes in a partition whose rows go straight to the page."""

    page: ADDRESS = field("the page; NO_PAGE: none")
    top: ADDRESS = field("where the page's data ends")
    at: ADDRESS = field("where the next row begins in a dense page, or ends in a slotted one")
    slot: ADDRESS = field("the first slot that is not written")
    offset: I64 = field("bytes of data before its tuple")
    held: I64 = field("tuples whose slots are not written")
    left: I64 = field("tuples, or bytes where rows vary, until the page is full")


CTX, OWNER, PAGE = words(ShuffleContext), words(PartitionOwner), words(SharedPage)
THREAD, BATCH = words(ShuffleThread), words(BatchMemory)
CHUNK, CURSOR, LINE = words(PageChunk), words(ChunkCursor), words(LineCursor)
BATCH_BYTES, PAGE_BYTES, CHUNK_BYTES, CURSOR_BYTES, LINE_BYTES = 512, 256, 32, 64, 256
THREAD_BYTES = (size_of(ShuffleThread) + 383) // 128 * 128


@device
def now_ns(thread: int) -> Any:
    """CLOCK_MONOTONIC."""
    return team.now_ns(thread + 8 * THREAD.clock - team.CLOCK)


@device
def bump(record: int, place: int, by: int) -> None:
    """Add to a field that one thread writes."""
    put(record, place, get(record, place) + by)


@device
def step(ctx: int, thread: int) -> None:
    """A place where tests let another thread run."""
    every = get(ctx, CTX.yields)
    if every != 0:
        state = get(thread, THREAD.rng) * 6364136223846793005 + 1442695040888963407
        put(thread, THREAD.rng, state)
        if ((state >> 33) & 0x7FFFFFFF) % every == 0:
            vectors.sched_yield()


@device
def back_off(thread: int, spins: int) -> None:
    """Wait a little for another thread; yield after SPINS looks."""
    bump(thread, THREAD.looks, 1)
    if spins % SPINS == SPINS - 1:
        bump(thread, THREAD.waits, 1)
        vectors.sched_yield()
    else:
        team.pause()


@device
def acquire_lock(thread: int, lock: int) -> None:
    """Take a lock.  A thread that spins yields."""
    spins = 0
    while atomics.acquire_i64(lock) != 0 or atomics.swap_i64(lock, 0, 1) != 0:
        back_off(thread, spins)
        spins += 1


@device
def barrier(ctx: int, thread: int, number: int) -> None:
    """Wait until all threads have come to barrier 1, 2, 3, …"""
    at = ctx + 8 * CTX.arrived
    atomics.add_i64(at, 1)
    spins = 0
    while atomics.acquire_i64(at) < number * get(ctx, CTX.threads):
        back_off(thread, spins)
        spins += 1


@device
def owner_of(ctx: int, thread: int, partition: int) -> Any:
    """The partition's open page, this thread's own where pages are thread-local."""
    owners = get(thread, THREAD.owners)
    if owners == 0:
        owners = get(ctx, CTX.owners)
    return owners + partition * get(ctx, CTX.owner_bytes)


@device
def word_tuples(word: int) -> Any:
    """The tuples of a `reserved` word."""
    return word & TUPLES_MASK


@device
def word_data(word: int) -> Any:
    """The bytes of data of a `reserved` word."""
    return (word >> DATA_AT) & DATA_MASK
