"""Short beats of the chain join: a straight way, without the pipeline of `kernels.cpu.chain`.

With few records a partition, what is done for each partition and pass costs more than what is done
for each record.  So the whole beat goes through each stage at once: all records are found and
inserted; all candidates are looked at, whatever partition they belong to; those that are left (with
few matches hardly any) are walked, pass by pass; at last all partitions let go.  The pairs and
their order are the pipeline's.

A candidate is `int64 record | pass << 16 | link << 32`: the record counted from its pass' first,
the pass 2 x partition + side.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.chunk import (
    CANDIDATES,
    CHUNK_FIELDS,
    DONE,
    FOUND,
    JOB,
    LAST_PARTITION,
    LEFT_ALL,
    LEFT_BOUND,
    LEFT_TABLE,
    OTHER,
    PARTITION,
    RECORDS,
    RIGHT_ALL,
    RIGHT_BOUND,
    RIGHT_TABLE,
    SCRATCH_AT,
    SWAPPED,
    finish,
)  # fmt: skip
from kernels.cpu.insert import evict, note_disorder
from kernels.cpu.rings import (
    AHEAD,
    BATCH,
    BATCH_ROWS,
    ENTRY,
    HEAD,
    HEADS,
    HEADS_MASK,
    LOW,
    NEWEST_NEW,
    NEWEST_OLD,
    NEXT,
    PAIR,
    PART,
    RECORD_BYTES,
    RING,
    RING_MASK,
    TAIL,
    get,
    put,
)
from kernels.cpu.walk import CHUNK
from kernels.registry import device

RECORDS_MAX = 4096
"""Records of both sides that a beat may have to be done in this way: where partitions have more
than some 64 records, the pipeline is as fast."""
FIELDS = RECORDS_MAX + CHUNK_FIELDS + CHUNK
"""Scratch memory (int64s): the candidates; the chunk at hand."""
LINES = 8
"""Lines of a ring that are asked for where a pass writes, and where its side lets go: 24 records,
as many as there are with beats of 1 000."""


@device
def ask(mine: int) -> None:
    """Ask for all that a pass will need: heads, where it writes, what leaves."""
    at, heads, mask = get(mine, BATCH), get(mine, HEADS), get(mine, HEADS_MASK)
    end = at + RECORD_BYTES * get(mine, BATCH_ROWS)
    if at == end:
        return
    ring, slots, head = get(mine, RING), get(mine, RING_MASK), get(mine, HEAD)
    for i in range(LINES):
        mem.prefetch(ring + ENTRY * (head & slots) + 64 * i)
    tail = get(mine, TAIL)
    for i in range(LINES):
        mem.prefetch(ring + ENTRY * (tail & slots) + 64 * i)
    while at < end:
        mem.prefetch(heads + PAIR * (np.int64(mem.load_u32(at + 8)) & mask))
        at += RECORD_BYTES


@device
def find(mine: int, other: int, swapped: bool, name: int, found: int) -> int:
    """Insert a pass's records, and write the candidates among them to `found`; returns their end.
    `name` is the pass as a candidate has it."""
    at, count = get(mine, BATCH), get(mine, BATCH_ROWS)
    heads, heads_mask, met_tail = get(mine, HEADS), get(mine, HEADS_MASK), get(other, TAIL)
    ring, mask = get(mine, RING), get(mine, RING_MASK)
    position, backward = get(mine, HEAD), 0
    newest = max(get(mine, NEWEST_OLD), get(mine, NEWEST_NEW))
    end, other_head = at + RECORD_BYTES * count, -4 if swapped else 4
    while at < end:
        slot = position & mask
        entry = ring + ENTRY * slot
        stop = min(end, at + RECORD_BYTES * (mask + 1 - slot))  # where the ring wraps
        while at < stop:
            time, word = mem.load_i64(at), mem.load_u64(at + 8)
            tag = np.int64(word & np.uint64(LOW))
            pair = heads + PAIR * (tag & heads_mask)
            link = np.int64(mem.load_u32(pair + other_head))
            following = mem.load_u32(pair)
            mem.store_i64(found, name | link << 32)
            found += 8 * np.int64(link >= met_tail)
            mem.store_i64(entry, time)
            mem.store_u64(entry + 8, word)
            mem.store_u32(entry + NEXT, following)
            mem.store_u32(pair, np.uint32(position))
            backward |= np.int64(time < newest)
            newest = time
            position += 1
            name += 1
            entry += ENTRY
            at += RECORD_BYTES
    put(mine, HEAD, position)
    if backward:
        note_disorder(mine, end - RECORD_BYTES * count, end)
    elif count:
        put(mine, NEWEST_NEW, newest)
    return found


@device
def find_all(job: int, first: int, last: int, found: int) -> int:
    """Insert all records of the partitions first..last; returns the candidates' end."""
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    asked, coming = first, 0
    for p in range(first, last):
        left, right = lefts + PART * p, rights + PART * p
        while asked < last and (coming <= AHEAD or asked == p):
            ask(lefts + PART * asked)
            ask(rights + PART * asked)
            coming += get(lefts + PART * asked, BATCH_ROWS) + get(rights + PART * asked, BATCH_ROWS)
            asked += 1
        coming -= get(left, BATCH_ROWS) + get(right, BATCH_ROWS)
        found = find(left, right, False, p << 17, found)
        found = find(right, left, True, p << 17 | 1 << 16, found)
    return found


@device
def met_by(lefts: int, rights: int, candidate: int) -> int:
    """The row of the partition whose chain a candidate's is."""
    return (lefts if candidate >> 16 & 1 else rights) + PART * (candidate >> 17 & 63)


@device
def sieve_all(job: int, at: int, end: int) -> int:
    """`walk.sieve` for the candidates at..end of all passes, in place; returns the end of those
    that are left."""
    lefts, rights, kept = get(job, LEFT_TABLE), get(job, RIGHT_TABLE), at
    for coming in range(at, end, 8):
        candidate = mem.load_i64(coming)
        other = met_by(lefts, rights, candidate)
        slot = np.int64(mem.load_u32(coming + 4)) & get(other, RING_MASK)
        mem.prefetch(get(other, RING) + ENTRY * slot)
    while at < end:
        candidate = mem.load_i64(at)
        other = met_by(lefts, rights, candidate)
        mine = met_by(rights, lefts, candidate)
        slot = np.int64(mem.load_u32(at + 4)) & get(other, RING_MASK)
        entry = get(other, RING) + ENTRY * slot
        tag = mem.load_u32(get(mine, BATCH) + RECORD_BYTES * (candidate & 0xFFFF) + 8)
        following = np.int64(mem.load_u32(entry + NEXT))
        met, behind = mem.load_u32(entry + 8) == tag, following >= get(other, TAIL)
        mem.store_i64(kept, candidate)
        kept += 8 * (np.int64(met) | np.int64(behind))
        following = get(other, RING) + ENTRY * (following & get(other, RING_MASK))
        mem.prefetch(following if behind else entry)
        at += 8
    return kept


@device
def gather(job: int, at: int, end: int, chunk: int) -> int:
    """Make a chunk of the candidates from `at` on that belong to CHUNK records of one pass; returns
    where they end."""
    group = np.int64(mem.load_u32(at)) // CHUNK
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    mine = met_by(rights, lefts, group * CHUNK)
    start = group * CHUNK & 0xFFFF
    to, batch = chunk + 8 * CHUNK_FIELDS, get(mine, BATCH)
    while at < end and np.int64(mem.load_u32(at)) // CHUNK == group:
        record = batch + RECORD_BYTES * (mem.load_i64(at) & 0xFFFF)
        mem.store_u32(to, np.uint32(record))
        mem.store_u32(to + 4, mem.load_u32(at + 4))
        to += 8
        at += 8
    put(chunk, OTHER, met_by(lefts, rights, group * CHUNK))
    put(chunk, SWAPPED, group * CHUNK >> 16 & 1)
    put(chunk, RECORDS, batch + RECORD_BYTES * start)
    put(chunk, CANDIDATES, (to - chunk) // 8 - CHUNK_FIELDS)
    return at


@device
def run(lane: int, keys: Any) -> bool:
    """The whole beat; False: the output is full, call it again with more room.

    FOUND counts the candidates that are left, plus one; DONE those that have been walked.
    """
    job, candidates = get(lane, JOB), get(lane, SCRATCH_AT)
    first, last = get(lane, PARTITION), get(lane, LAST_PARTITION)
    chunk = candidates + 8 * RECORDS_MAX
    rest = chunk + 8 * (CHUNK_FIELDS + CHUNK)
    if get(lane, FOUND) == 0:
        end = sieve_all(job, candidates, find_all(job, first, last, candidates))
        put(lane, FOUND, (end - candidates) // 8 + 1)
    at, end = candidates + 8 * get(lane, DONE), candidates + 8 * (get(lane, FOUND) - 1)
    while at < end:
        at = gather(job, at, end, chunk)
        if not finish(chunk, lane, rest, keys):
            return False
        put(lane, DONE, (at - candidates) // 8)
    for p in range(first, last):
        evict(get(job, LEFT_TABLE) + PART * p, get(job, LEFT_BOUND), get(job, LEFT_ALL) != 0)
        evict(get(job, RIGHT_TABLE) + PART * p, get(job, RIGHT_BOUND), get(job, RIGHT_ALL) != 0)
    return True
