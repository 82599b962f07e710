"""Putting records into the rings of `kernels.cpu.chain`, and finding those that have to be walked.

Every record needs one line at random, that of its chain's two heads.  It is asked for AHEAD records
before, in the order in which `join` will come to them, over the ends of partitions and passes.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import mem
from kernels.cpu.evict import ask_for_marks
from kernels.cpu.heavy_hitters import chain_of
from kernels.cpu.rings import (
    BATCH,
    BATCH_ROWS,
    DISORDER_NEW,
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
    TIME_MAX,
    get,
    put,
)
from kernels.registry import device

(AHEAD_LEFT, AHEAD_RIGHT, AHEAD_PASS, AHEAD_END, AHEAD_AT, AHEAD_COUNT, AHEAD_HEADS,
 AHEAD_MASK) = range(8)  # fmt: skip
AHEAD_FIELDS = 8
"""What is known of the records whose heads are asked for: the rows of both sides' partitions; the
next pass (2 x partition + side) and the last; address and number of the records of the pass at
hand, and its heads (0: nothing is left)."""


@device
def look_ahead(ahead: int) -> None:
    """Move on to the next pass that has records, and ask for where it will write, and for
    the marks of what leaves."""
    while get(ahead, AHEAD_PASS) < get(ahead, AHEAD_END):
        k = get(ahead, AHEAD_PASS)
        put(ahead, AHEAD_PASS, k + 1)
        mine = get(ahead, AHEAD_RIGHT if k & 1 else AHEAD_LEFT) + PART * (k >> 1)
        count = get(mine, BATCH_ROWS)
        if count:
            put(ahead, AHEAD_AT, get(mine, BATCH))
            put(ahead, AHEAD_COUNT, count)
            put(ahead, AHEAD_HEADS, get(mine, HEADS))
            put(ahead, AHEAD_MASK, get(mine, HEADS_MASK))
            ring, mask, head = get(mine, RING), get(mine, RING_MASK), get(mine, HEAD)
            mem.prefetch(ring + ENTRY * (head & mask))
            ask_for_marks(mine)
            return
    put(ahead, AHEAD_COUNT, LOW)  # nothing is left
    put(ahead, AHEAD_HEADS, 0)


@device
def ask(ahead: int, count: int) -> None:
    """Ask for the heads of the next `count` records."""
    while count > 0:
        if get(ahead, AHEAD_COUNT) == 0:
            look_ahead(ahead)
        at, heads, mask = get(ahead, AHEAD_AT), get(ahead, AHEAD_HEADS), get(ahead, AHEAD_MASK)
        if heads == 0:
            return
        n = min(count, get(ahead, AHEAD_COUNT))
        for i in range(n):
            tag = np.int64(mem.load_u32(at + RECORD_BYTES * i + 8))
            mem.prefetch(heads + PAIR * (tag & mask))
        put(ahead, AHEAD_AT, at + RECORD_BYTES * n)
        put(ahead, AHEAD_COUNT, get(ahead, AHEAD_COUNT) - n)
        count -= n


@device
def find_and_insert(
    mine: int, swapped: bool, met_tail: int, first: int, last: int, found: int, ahead: int,
    names: int,
) -> int:  # fmt: skip
    """Put records first..last into the partition's ring, and write those whose chain on the other
    side has a live head to `found`, as (low half of the record's address, link); returns their
    end.  `names` is where the partition's names of chains are, 0 where nothing is named.

    The caller has made room.  The two heads of a record lie beside each other.  The loop is cut
    where the ring wraps and where the records end whose heads are asked for: it has no branch.
    """
    records, heads, heads_mask = get(mine, BATCH), get(mine, HEADS), get(mine, HEADS_MASK)
    ring, mask, position = get(mine, RING), get(mine, RING_MASK), get(mine, HEAD)
    at, begun, backward = records + RECORD_BYTES * first, first, 0
    newest = max(get(mine, NEWEST_OLD), get(mine, NEWEST_NEW))
    while first < last:
        if get(ahead, AHEAD_COUNT) == 0:
            look_ahead(ahead)
        coming, coming_heads = get(ahead, AHEAD_AT), get(ahead, AHEAD_HEADS)
        coming_mask, slot = get(ahead, AHEAD_MASK), position & mask
        if coming_heads == 0:
            coming, coming_heads, coming_mask = at, heads, heads_mask
        count = min(last - first, get(ahead, AHEAD_COUNT), mask + 1 - slot)
        entry, ahead_by, end = ring + ENTRY * slot, coming - at, at + RECORD_BYTES * count
        while at < end:
            tag = np.int64(mem.load_u32(at + ahead_by + 8)) & coming_mask
            mem.prefetch(coming_heads + PAIR * tag)
            time, name = mem.load_i64(at), mem.load_u64(at + 8)
            tag = np.int64(name & np.uint64(LOW))
            pair = heads + PAIR * chain_of(tag, heads_mask, names)
            link = mem.load_u32(pair - 4 if swapped else pair + 4)
            following = mem.load_u32(pair)
            mem.store_u32(found, np.uint32(at))
            mem.store_u32(found + 4, link)
            found += 8 * np.int64(np.int64(link) >= met_tail)
            mem.store_i64(entry, time)
            mem.store_u64(entry + 8, name)
            mem.store_u32(entry + NEXT, following)
            mem.store_u32(pair, np.uint32(position))
            backward |= np.int64(time < newest)
            newest = time
            position += 1
            entry += ENTRY
            at += RECORD_BYTES
        coming = at + ahead_by
        first += count
        put(ahead, AHEAD_AT, coming)
        put(ahead, AHEAD_COUNT, get(ahead, AHEAD_COUNT) - count)
    put(mine, HEAD, position)
    if backward:
        note_disorder(mine, records + RECORD_BYTES * begun, at)
    else:
        put(mine, NEWEST_NEW, newest)
    return found


@device
def insert_entry(mine: int, entry: int) -> None:
    """Put an entry of another ring into this one, which has room: it gets a link of its own."""
    position = get(mine, HEAD)
    head = get(mine, HEADS) + PAIR * (np.int64(mem.load_u32(entry + 8)) & get(mine, HEADS_MASK))
    fresh = get(mine, RING) + ENTRY * (position & get(mine, RING_MASK))
    mem.copy_16(fresh, entry)
    mem.store_u32(fresh + NEXT, mem.load_u32(head))
    mem.store_u32(head, np.uint32(position))
    put(mine, HEAD, position + 1)


@device
def note_disorder(mine: int, at: int, end: int) -> None:
    """How far records are out of order, among themselves and behind those that came before."""
    newest = max(get(mine, NEWEST_OLD), get(mine, NEWEST_NEW))
    newest_new, disorder = get(mine, NEWEST_NEW), get(mine, DISORDER_NEW)
    while at < end:
        time = mem.load_i64(at)
        if time < newest:
            # Unsigned, since LLVM takes it that a signed difference does not overflow.
            behind = np.uint64(newest) - np.uint64(time)
            disorder = max(disorder, np.int64(min(behind, np.uint64(TIME_MAX))))
            newest_new = max(newest_new, time)
        else:
            newest = newest_new = time
        at += RECORD_BYTES
    put(mine, NEWEST_NEW, newest_new)
    put(mine, DISORDER_NEW, disorder)
