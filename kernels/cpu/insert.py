"""Inserting records into rings, and finding the candidates among them.

Every record needs one random cache line, that of its chain's two heads.  It is prefetched AHEAD
records before, in the order in which the join comes to them, across the ends of partitions and
passes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.cpu import mem, rings
from kernels.cpu.evict import ask_for_marks
from kernels.cpu.heavy_hitters import chain_of
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.cpu.rings import ENTRY, LOW, NEXT, PAIR, PART, RECORD_BYTES, RING, TIME_MAX
from kernels.registry import device


class Lookahead(NamedTuple):
    """The records whose heads are prefetched next."""

    left: ADDRESS = field("the left's rings")
    right: ADDRESS = field("the right's rings")
    next_pass: I64 = field("next pass: 2 * partition + side")
    last_pass: I64 = field("pass to stop before")
    at: ADDRESS = field("next record of the current pass")
    remaining: I64 = field("its records from there on")
    heads: ADDRESS = field("its heads; 0 after the last pass")
    mask: I64 = field("its chains - 1")


LOOKAHEAD = words(Lookahead)
LOOKAHEAD_FIELDS = 8


@device
def point_all(side: int, records: int, counts: int) -> int:
    """Set each of 64 rings' records of this beat, which lie from `records` on, `counts` in each;
    returns how many rings have no room for them."""
    full = 0
    for p in range(PARTITIONS):
        full += not rings.point_ring(side + PART * p, records, get(counts, p))
        records += RECORD_BYTES * get(counts, p)
    return full


@device
def look_ahead(ahead: int) -> None:
    """Go to the next pass that has records; prefetch its first slot and the marks of the entries
    that leave."""
    while get(ahead, LOOKAHEAD.next_pass) < get(ahead, LOOKAHEAD.last_pass):
        k = get(ahead, LOOKAHEAD.next_pass)
        put(ahead, LOOKAHEAD.next_pass, k + 1)
        mine = get(ahead, LOOKAHEAD.right if k & 1 else LOOKAHEAD.left) + PART * (k >> 1)
        count = get(mine, RING.batch_rows)
        if count:
            put(ahead, LOOKAHEAD.at, get(mine, RING.batch))
            put(ahead, LOOKAHEAD.remaining, count)
            put(ahead, LOOKAHEAD.heads, get(mine, RING.heads))
            put(ahead, LOOKAHEAD.mask, get(mine, RING.heads_mask))
            ring, mask, head = get(mine, RING.entries), get(mine, RING.mask), get(mine, RING.head)
            mem.prefetch(ring + ENTRY * (head & mask))
            ask_for_marks(mine)
            return
    put(ahead, LOOKAHEAD.remaining, LOW)  # nothing is left
    put(ahead, LOOKAHEAD.heads, 0)


@device
def ask(ahead: int, count: int) -> None:
    """Prefetch the heads of the next `count` records."""
    while count > 0:
        if get(ahead, LOOKAHEAD.remaining) == 0:
            look_ahead(ahead)
        at, heads = get(ahead, LOOKAHEAD.at), get(ahead, LOOKAHEAD.heads)
        if heads == 0:
            return
        n = min(count, get(ahead, LOOKAHEAD.remaining))
        for record in range(at, at + RECORD_BYTES * n, RECORD_BYTES):
            tag = np.int64(mem.load_u32(record + 8)) & get(ahead, LOOKAHEAD.mask)
            mem.prefetch(heads + PAIR * tag)
        put(ahead, LOOKAHEAD.at, at + RECORD_BYTES * n)
        put(ahead, LOOKAHEAD.remaining, get(ahead, LOOKAHEAD.remaining) - n)
        count -= n


@device
def find_and_insert(
    mine: int, swapped: int, met_tail: int, first: int, last: int, found: int, ahead: int,
    names: int,
) -> int:  # fmt: skip
    """Insert records first..last - 1, and write those whose chain on the other side has a live head
    to `found`, as (low half of the record's address, link); returns the end of what is written.

    `names` is the address of the partition's names of heavy hitters, 0 where it has none.  The ring
    has room.  The loop is cut where the ring wraps and where the pass that is prefetched ends, so
    that it has no branch."""
    records, heads_mask = get(mine, RING.batch), get(mine, RING.heads_mask)
    heads, other_head = get(mine, RING.heads), -4 if swapped else 4
    ring, mask, _, position = rings.span(mine)
    at, begun, backward = records + RECORD_BYTES * first, first, 0
    newest = max(get(mine, RING.newest_old), get(mine, RING.newest_new))
    while first < last:
        if get(ahead, LOOKAHEAD.remaining) == 0:
            look_ahead(ahead)
        coming, coming_heads = get(ahead, LOOKAHEAD.at), get(ahead, LOOKAHEAD.heads)
        coming_mask, slot = get(ahead, LOOKAHEAD.mask), position & mask
        if coming_heads == 0:
            coming, coming_heads, coming_mask = at, heads, heads_mask
        count = min(last - first, get(ahead, LOOKAHEAD.remaining), mask + 1 - slot)
        entry, ahead_by, end = ring + ENTRY * slot, coming - at, at + RECORD_BYTES * count
        while at < end:
            tag = np.int64(mem.load_u32(at + ahead_by + 8)) & coming_mask
            mem.prefetch(coming_heads + PAIR * tag)
            time, name = mem.load_i64(at), mem.load_u64(at + 8)
            tag = np.int64(name & np.uint64(LOW))
            pair = heads + PAIR * chain_of(tag, heads_mask, names)
            link = mem.load_u32(pair + other_head)
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
        put(ahead, LOOKAHEAD.at, coming)
        put(ahead, LOOKAHEAD.remaining, get(ahead, LOOKAHEAD.remaining) - count)
    put(mine, RING.head, position)
    if backward:
        note_disorder(mine, records + RECORD_BYTES * begun, at)
    else:
        put(mine, RING.newest_new, newest)
    return found


@device
def insert_entry(mine: int, entry: int) -> None:
    """Copy an entry of another ring into this one, which has room, with a link of its own."""
    position = get(mine, RING.head)
    head = get(mine, RING.heads) + PAIR * (
        np.int64(mem.load_u32(entry + 8)) & get(mine, RING.heads_mask)
    )
    fresh = get(mine, RING.entries) + ENTRY * (position & get(mine, RING.mask))
    mem.copy_16(fresh, entry)
    mem.store_u32(fresh + NEXT, mem.load_u32(head))
    mem.store_u32(head, np.uint32(position))
    put(mine, RING.head, position + 1)


@device
def note_disorder(mine: int, at: int, end: int) -> None:
    """Measure how far records lie behind earlier ones, of this beat and of those before."""
    newest = max(get(mine, RING.newest_old), get(mine, RING.newest_new))
    newest_new, disorder = get(mine, RING.newest_new), get(mine, RING.disorder_new)
    while at < end:
        time = mem.load_i64(at)
        if time < newest:
            # unsigned: LLVM assumes that signed differences do not overflow
            behind = np.uint64(newest) - np.uint64(time)
            disorder = max(disorder, np.int64(min(behind, np.uint64(TIME_MAX))))
            newest_new = max(newest_new, time)
        else:
            newest = newest_new = time
        at += RECORD_BYTES
    put(mine, RING.newest_new, newest_new)
    put(mine, RING.disorder_new, disorder)
