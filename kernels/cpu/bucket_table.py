"""The tables of ecoJoin's bucket join: their layout, insertion and cleanup (see `bucket`).

A row of `int64[FIELDS]` describes a side's table:

    HEADS    address of int64[64 << BITS]: the newest chunk of each bucket, 0 for none
    BITS     log2 of the buckets of a partition; a row's is partition << BITS | (tag's low BITS)
    MARKS    address of the bitmap, uint64 words, a bit a bucket
    FREE     address of int64: a stack of chunks that are not in use;  FREE_COUNT their number
    SPARES   address of int64: a chunk kept by each lane, 0 for none

A chunk of 1600 bytes, aligned to 64:

    int64 next (older chunk, 0 none) | int64 fill | int64 depth | int64 limit | 32 bytes unused
    int64 expiry[64] | int64 time[64] | uint32 tag[64] | uint32 row[64]

An entry's `expiry` is the largest time of its partition's rows up to its own: rows leave oldest
first, so a row has left when its expiry is below the bound, which never falls.  That makes the
window the same, row for row, as the chain join's.

Invariants.
  1. Only a bucket's newest chunk may have room.  A fill above 64 means full: a lane that finds
     no slot prepends a fresh chunk by compare-and-swap, and keeps the chunk if that fails.
  2. Within a phase the stack of free chunks is only popped (build) or only pushed (cleanup), and a
     chunk leaves a bucket in cleanup alone, so that compare-and-swap has no ABA problem.
  3. A table is built and probed in different phases; a bucket is cleaned by one lane.
  4. An entry whose expiry is at least the bound is in the table exactly once.

`depth` counts a bucket's chunks from this one on.  A bucket that no probe reads would never
be marked; one that grows deeper than `limit`, twice its depth at its last cleanup, is marked too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import atomics, compare, mem
from kernels.registry import device, kernel

HEADS, BITS, MARKS, FREE, SPARES, FREE_COUNT = 0, 1, 2, 3, 4, 8
FIELDS = 16
"""A table's row; FREE_COUNT, which all lanes write, has a cache line of its own."""

NEXT, FILL, DEPTH, LIMIT = 0, 8, 16, 24
EXPIRIES, TIMES, TAGS, ROWS = 64, 576, 1088, 1344
CHUNK_BYTES = 1600
SLOTS = 64


@device
def bucket_of(table: Any, partition: int, tag: Any) -> Any:
    """The bucket of a key."""
    bits = table[BITS]
    return partition << bits | (np.int64(tag) & ((1 << bits) - 1))


@device
def mark(table: Any, bucket: int) -> None:
    """Set the bucket's bit for the cleanup."""
    word = table[MARKS] + 8 * (bucket >> 6)
    bit = np.uint64(1) << np.uint64(bucket & 63)
    if mem.load_u64(word) & bit == np.uint64(0):
        atomics.or_u64(word, bit)


@device
def filled(chunk: int) -> Any:
    """Entries of a chunk."""
    return min(mem.load_i64(chunk + FILL), SLOTS)


@device
def valid(chunk: int) -> Any:
    """A mask of the chunk's entries."""
    fill = filled(chunk)
    if fill == SLOTS:
        return np.uint64(0xFFFFFFFFFFFFFFFF)
    return (np.uint64(1) << np.uint64(fill)) - np.uint64(1)


@device
def put(chunk: int, slot: int, expiry: int, time: int, tag: Any, row: Any) -> None:
    """Write an entry."""
    mem.store_i64(chunk + EXPIRIES + 8 * slot, expiry)
    mem.store_i64(chunk + TIMES + 8 * slot, time)
    mem.store_u32(chunk + TAGS + 4 * slot, tag)
    mem.store_u32(chunk + ROWS + 4 * slot, row)


@device
def fresh(table: Any, lane: int) -> Any:
    """A chunk that is in no bucket: the lane's spare one, or the top of the free stack."""
    spare = table[SPARES] + 8 * lane
    chunk = mem.load_i64(spare)
    if chunk != 0:
        mem.store_i64(spare, 0)
        return chunk
    counter = np.int64(table.ctypes.data) + 8 * FREE_COUNT
    return mem.load_i64(table[FREE] + 8 * (atomics.add_i64(counter, -1) - 1))


@device
def insert(table: Any, bucket: int, expiry: int, time: int, tag: Any, row: Any, lane: int) -> None:
    """Insert an entry into a bucket; other lanes may insert concurrently."""
    head = table[HEADS] + 8 * bucket
    while True:
        chunk = atomics.acquire_i64(head)
        if chunk != 0:
            slot = atomics.add_i64(chunk + FILL, 1)
            if slot < SLOTS:
                put(chunk, slot, expiry, time, tag, row)
                return
        new = fresh(table, lane)
        depth, limit = 1, 1
        if chunk != 0:
            depth, limit = mem.load_i64(chunk + DEPTH) + 1, mem.load_i64(chunk + LIMIT)
        mem.store_i64(new + NEXT, chunk)
        mem.store_i64(new + FILL, 1)
        mem.store_i64(new + DEPTH, depth)
        mem.store_i64(new + LIMIT, limit)
        put(new, 0, expiry, time, tag, row)
        if atomics.swap_i64(head, chunk, new) == chunk:
            if depth > limit:
                mark(table, bucket)
            return
        mem.store_i64(table[SPARES] + 8 * lane, new)


@device
def give_back(table: Any, chunk: int) -> None:
    """Push a chunk onto the free stack."""
    counter = np.int64(table.ctypes.data) + 8 * FREE_COUNT
    mem.store_i64(table[FREE] + 8 * atomics.add_i64(counter, 1), chunk)


@device
def drop_back(table: Any, head: int, bound: int) -> Any:
    """Remove invalid entries and empty chunks from the back of a bucket (its newest chunk's end).

    Returns the newest chunk that is left, whose last entry is valid; 0 for none.
    """
    while head != 0:
        fill = filled(head)
        while fill > 0 and mem.load_i64(head + EXPIRIES + 8 * (fill - 1)) < bound:
            fill -= 1
        mem.store_i64(head + FILL, fill)
        if fill > 0:
            break
        older = mem.load_i64(head + NEXT)
        give_back(table, head)
        head = older
    return head


@device
def entries(chunk: int) -> Any:
    """The number of entries of a bucket's chunks."""
    count = 0
    while chunk != 0:
        count += filled(chunk)
        chunk = mem.load_i64(chunk + NEXT)
    return count


@device
def clean_bucket(table: Any, bucket: int, bound: int) -> Any:
    """Replace each invalid entry by the one at the back; returns the number of entries removed.

    Entries taken from the back are valid, and so are those before the current slot: the back never
    passes it.
    """
    at = table[HEADS] + 8 * bucket
    before = entries(mem.load_i64(at))
    head = drop_back(table, mem.load_i64(at), bound)
    chunk = head
    while chunk != 0:
        slot = 0
        while slot < filled(chunk):
            if mem.load_i64(chunk + EXPIRIES + 8 * slot) < bound:
                last = filled(head) - 1
                expiry = mem.load_i64(head + EXPIRIES + 8 * last)
                time = mem.load_i64(head + TIMES + 8 * last)
                tag = mem.load_u32(head + TAGS + 4 * last)
                put(chunk, slot, expiry, time, tag, mem.load_u32(head + ROWS + 4 * last))
                mem.store_i64(head + FILL, last)
                head = drop_back(table, head, bound)
            slot += 1
        chunk = mem.load_i64(chunk + NEXT)
    mem.store_i64(at, head)
    if head != 0:
        mem.store_i64(head + LIMIT, 2 * mem.load_i64(head + DEPTH))
    return before - entries(head)


@kernel("int64(int64[::1], int64, int64, int64)", reference="tests.naive.bucket.clean")
def clean(table: Any, bound: int, first: int, last: int) -> Any:
    """Clean the marked buckets of the bitmap's words first..last; returns the number of entries
    removed."""
    gone = 0
    for word in range(first, last):
        marks = mem.load_u64(table[MARKS] + 8 * word)
        mem.store_u64(table[MARKS] + 8 * word, np.uint64(0))
        while marks != np.uint64(0):
            gone += clean_bucket(table, 64 * word + compare.lowest(marks), bound)
            marks &= marks - np.uint64(1)
    return gone


@kernel("int64(int64[::1], int64, int64[::1])", reference="tests.naive.bucket.rebuild")
def rebuild(old: Any, bound: int, new: Any) -> Any:
    """Insert the valid entries of `old` into the empty table `new`; returns their number."""
    kept = 0
    for bucket in range(64 << old[BITS]):
        chunk = mem.load_i64(old[HEADS] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                expiry = mem.load_i64(chunk + EXPIRIES + 8 * slot)
                if expiry < bound:
                    continue
                time, tag = (
                    mem.load_i64(chunk + TIMES + 8 * slot),
                    mem.load_u32(chunk + TAGS + 4 * slot),
                )
                row = mem.load_u32(chunk + ROWS + 4 * slot)
                into = bucket_of(new, bucket >> old[BITS], tag)
                insert(new, into, expiry, time, tag, row, 0)
                kept += 1
            chunk = mem.load_i64(chunk + NEXT)
    return kept


@kernel("int64(int64[::1], int64)", reference="tests.naive.bucket.count")
def count(table: Any, bound: int) -> Any:
    """The number of valid entries."""
    found = 0
    for bucket in range(64 << table[BITS]):
        chunk = mem.load_i64(table[HEADS] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                found += mem.load_i64(chunk + EXPIRIES + 8 * slot) >= bound
            chunk = mem.load_i64(chunk + NEXT)
    return found


@kernel(
    "void(int64[::1], int64, int64, uint64[::1], uint8[::1])", reference="tests.naive.bucket.live"
)
def live(table: Any, bound: int, base: int, hashes: Any, alive: Any) -> None:
    """For each valid entry, at its store row: partition (top 6 bits) and tag, and alive = 1."""
    for bucket in range(64 << table[BITS]):
        top = np.uint64(bucket >> table[BITS]) << np.uint64(58)
        chunk = mem.load_i64(table[HEADS] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                if mem.load_i64(chunk + EXPIRIES + 8 * slot) >= bound:
                    row = np.uint32(mem.load_u32(chunk + ROWS + 4 * slot) - np.uint32(base))
                    hashes[row] = top | np.uint64(mem.load_u32(chunk + TAGS + 4 * slot))
                    alive[row] = 1
            chunk = mem.load_i64(chunk + NEXT)
