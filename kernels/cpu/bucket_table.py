"""The tables of ecoJoin's bucket join: their layout, insertion and cleanup (see `bucket`).

A `BucketTable` describes a side's table: buckets of chunks (`BucketChunk`), which are aligned to 64
bytes.  A row's bucket is partition << bits | (the tag's low bits).

An entry's expiry is the largest time of its partition's rows up to its own: rows leave oldest
first, so a row has left when its expiry is below the bound, which never falls.  That makes the
window the same, row for row, as the chain join's.

Invariants.
  1. Only a bucket's newest chunk may have room.  A fill above 64 means full: a lane that finds
     no slot prepends a fresh chunk by compare-and-swap, and keeps the chunk if that fails.
  2. Within a phase the stack of free chunks is only popped (build) or only pushed (cleanup), and a
     chunk leaves a bucket in cleanup alone, so that compare-and-swap has no ABA problem.
  3. A table is built and probed in different phases; a bucket is cleaned by one lane.
  4. An entry whose expiry is at least the bound is in the table exactly once.

A bucket that no probe reads would never
be marked; one that grows deeper than its limit, twice its depth at its last cleanup, is marked too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import atomics, compare, mem
from kernels.cpu.records import ADDRESS, I64, U32, field, offsets, size_of, words
from kernels.registry import device, kernel

SLOTS = 64
"""Entries of a chunk."""


class BucketTable(NamedTuple):
    """A side's table."""

    heads: ADDRESS = field("int64[64 << bits], the newest chunk of each bucket, 0 for none")
    bits: I64 = field("log2 of the buckets of a partition")
    marks: ADDRESS = field("bitmap of buckets to be cleaned, in uint64 words")
    free: ADDRESS = field("int64, a stack of chunks that are not in use")
    spares: ADDRESS = field("int64, a chunk kept by each lane, 0 for none")
    free_count: I64 = field("chunks on the stack; all lanes write it, on its own cache line", at=64)


class BucketChunk(NamedTuple):
    """A chunk of a bucket's entries."""

    next: ADDRESS = field("the bucket's next older chunk, 0 for none")
    fill: I64 = field("entries; above SLOTS it is full, too")
    depth: I64 = field("the bucket's chunks from this one on")
    limit: I64 = field("depth above which the bucket is marked")
    expiries: I64 = field("expiry of each entry", at=64, length=SLOTS)
    times: I64 = field("time of each entry (us)", length=SLOTS)
    tags: U32 = field("tag of each entry", length=SLOTS)
    rows: U32 = field("row number of each entry", length=SLOTS)


TABLE, CHUNK = words(BucketTable), offsets(BucketChunk)
TABLE_FIELDS = 16
"""Length of a table's row: 128 bytes, so that two tables never share a cache line."""
CHUNK_BYTES = size_of(BucketChunk)


@device
def bucket_of(table: Any, partition: int, tag: Any) -> Any:
    """The bucket of a key."""
    bits = table[TABLE.bits]
    return partition << bits | (np.int64(tag) & ((1 << bits) - 1))


@device
def mark(table: Any, bucket: int) -> None:
    """Set the bucket's bit for the cleanup."""
    word = table[TABLE.marks] + 8 * (bucket >> 6)
    bit = np.uint64(1) << np.uint64(bucket & 63)
    if mem.load_u64(word) & bit == np.uint64(0):
        atomics.or_u64(word, bit)


@device
def filled(chunk: int) -> Any:
    """Entries of a chunk."""
    return min(mem.load_i64(chunk + CHUNK.fill), SLOTS)


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
    mem.store_i64(chunk + CHUNK.expiries + 8 * slot, expiry)
    mem.store_i64(chunk + CHUNK.times + 8 * slot, time)
    mem.store_u32(chunk + CHUNK.tags + 4 * slot, tag)
    mem.store_u32(chunk + CHUNK.rows + 4 * slot, row)


@device
def fresh(table: Any, lane: int) -> Any:
    """A chunk that is in no bucket: the lane's spare one, or the top of the free stack."""
    spare = table[TABLE.spares] + 8 * lane
    chunk = mem.load_i64(spare)
    if chunk != 0:
        mem.store_i64(spare, 0)
        return chunk
    counter = np.int64(table.ctypes.data) + 8 * TABLE.free_count
    return mem.load_i64(table[TABLE.free] + 8 * (atomics.add_i64(counter, -1) - 1))


@device
def insert(table: Any, bucket: int, expiry: int, time: int, tag: Any, row: Any, lane: int) -> None:
    """Insert an entry into a bucket; other lanes may insert concurrently."""
    head = table[TABLE.heads] + 8 * bucket
    while True:
        chunk = atomics.acquire_i64(head)
        if chunk != 0:
            slot = atomics.add_i64(chunk + CHUNK.fill, 1)
            if slot < SLOTS:
                put(chunk, slot, expiry, time, tag, row)
                return
        new = fresh(table, lane)
        depth, limit = 1, 1
        if chunk != 0:
            depth, limit = mem.load_i64(chunk + CHUNK.depth) + 1, mem.load_i64(chunk + CHUNK.limit)
        mem.store_i64(new + CHUNK.next, chunk)
        mem.store_i64(new + CHUNK.fill, 1)
        mem.store_i64(new + CHUNK.depth, depth)
        mem.store_i64(new + CHUNK.limit, limit)
        put(new, 0, expiry, time, tag, row)
        if atomics.swap_i64(head, chunk, new) == chunk:
            if depth > limit:
                mark(table, bucket)
            return
        mem.store_i64(table[TABLE.spares] + 8 * lane, new)


@device
def give_back(table: Any, chunk: int) -> None:
    """Push a chunk onto the free stack."""
    counter = np.int64(table.ctypes.data) + 8 * TABLE.free_count
    mem.store_i64(table[TABLE.free] + 8 * atomics.add_i64(counter, 1), chunk)


@device
def drop_back(table: Any, head: int, bound: int) -> Any:
    """Remove invalid entries and empty chunks from the back of a bucket (its newest chunk's end).

    Returns the newest chunk that is left, whose last entry is valid; 0 for none.
    """
    while head != 0:
        fill = filled(head)
        while fill > 0 and mem.load_i64(head + CHUNK.expiries + 8 * (fill - 1)) < bound:
            fill -= 1
        mem.store_i64(head + CHUNK.fill, fill)
        if fill > 0:
            break
        older = mem.load_i64(head + CHUNK.next)
        give_back(table, head)
        head = older
    return head


@device
def entries(chunk: int) -> Any:
    """The number of entries of a bucket's chunks."""
    count = 0
    while chunk != 0:
        count += filled(chunk)
        chunk = mem.load_i64(chunk + CHUNK.next)
    return count


@device
def clean_bucket(table: Any, bucket: int, bound: int) -> Any:
    """Replace each invalid entry by the one at the back; returns the number of entries removed.

    Entries taken from the back are valid, and so are those before the current slot: the back never
    passes it.
    """
    at = table[TABLE.heads] + 8 * bucket
    before = entries(mem.load_i64(at))
    head = drop_back(table, mem.load_i64(at), bound)
    chunk = head
    while chunk != 0:
        slot = 0
        while slot < filled(chunk):
            if mem.load_i64(chunk + CHUNK.expiries + 8 * slot) < bound:
                last = filled(head) - 1
                expiry = mem.load_i64(head + CHUNK.expiries + 8 * last)
                time = mem.load_i64(head + CHUNK.times + 8 * last)
                tag = mem.load_u32(head + CHUNK.tags + 4 * last)
                put(chunk, slot, expiry, time, tag, mem.load_u32(head + CHUNK.rows + 4 * last))
                mem.store_i64(head + CHUNK.fill, last)
                head = drop_back(table, head, bound)
            slot += 1
        chunk = mem.load_i64(chunk + CHUNK.next)
    mem.store_i64(at, head)
    if head != 0:
        mem.store_i64(head + CHUNK.limit, 2 * mem.load_i64(head + CHUNK.depth))
    return before - entries(head)


@kernel("int64(int64[::1], int64, int64, int64)", reference="tests.naive.bucket.clean")
def clean(table: Any, bound: int, first: int, last: int) -> Any:
    """Clean the marked buckets of the bitmap's words first..last; returns the number of entries
    removed."""
    gone = 0
    for word in range(first, last):
        marks = mem.load_u64(table[TABLE.marks] + 8 * word)
        mem.store_u64(table[TABLE.marks] + 8 * word, np.uint64(0))
        while marks != np.uint64(0):
            gone += clean_bucket(table, 64 * word + compare.lowest(marks), bound)
            marks &= marks - np.uint64(1)
    return gone


@kernel("int64(int64[::1], int64, int64[::1])", reference="tests.naive.bucket.rebuild")
def rebuild(old: Any, bound: int, new: Any) -> Any:
    """Insert the valid entries of `old` into the empty table `new`; returns their number."""
    kept = 0
    for bucket in range(64 << old[TABLE.bits]):
        chunk = mem.load_i64(old[TABLE.heads] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                expiry = mem.load_i64(chunk + CHUNK.expiries + 8 * slot)
                if expiry < bound:
                    continue
                time, tag = (
                    mem.load_i64(chunk + CHUNK.times + 8 * slot),
                    mem.load_u32(chunk + CHUNK.tags + 4 * slot),
                )
                row = mem.load_u32(chunk + CHUNK.rows + 4 * slot)
                into = bucket_of(new, bucket >> old[TABLE.bits], tag)
                insert(new, into, expiry, time, tag, row, 0)
                kept += 1
            chunk = mem.load_i64(chunk + CHUNK.next)
    return kept


@kernel("int64(int64[::1], int64)", reference="tests.naive.bucket.count")
def count(table: Any, bound: int) -> Any:
    """The number of valid entries."""
    found = 0
    for bucket in range(64 << table[TABLE.bits]):
        chunk = mem.load_i64(table[TABLE.heads] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                found += mem.load_i64(chunk + CHUNK.expiries + 8 * slot) >= bound
            chunk = mem.load_i64(chunk + CHUNK.next)
    return found


@kernel(
    "void(int64[::1], int64, int64, uint64[::1], uint8[::1])", reference="tests.naive.bucket.live"
)
def live(table: Any, bound: int, base: int, hashes: Any, alive: Any) -> None:
    """For each valid entry, at its store row: partition (top 6 bits) and tag, and alive = 1."""
    for bucket in range(64 << table[TABLE.bits]):
        top = np.uint64(bucket >> table[TABLE.bits]) << np.uint64(58)
        chunk = mem.load_i64(table[TABLE.heads] + 8 * bucket)
        while chunk != 0:
            for slot in range(filled(chunk)):
                if mem.load_i64(chunk + CHUNK.expiries + 8 * slot) >= bound:
                    row = np.uint32(mem.load_u32(chunk + CHUNK.rows + 4 * slot) - np.uint32(base))
                    hashes[row] = top | np.uint64(mem.load_u32(chunk + CHUNK.tags + 4 * slot))
                    alive[row] = 1
            chunk = mem.load_i64(chunk + CHUNK.next)
