"""A beat where partitions of a side share a ring (`kernels.cpu.pool`), for one pool of each side.

All of it goes through each stage at once: all of the left's records are inserted, then all of
the right's; then what met a live chain is walked, 256 candidates together whatever their
partitions, first all of the left's, then all of the right's.  The pairs' order is (partition, side,
record), so that at last those of the two sides are laid together, partition by partition.  Until
then the row that each pair begins with has the partition above its 32 bits (NAMED).

Records are inserted as in `kernels.cpu.short`, which says why links go to the records' own places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem, pool, simd_probe
from kernels.cpu.chunk import (
    AFTER,
    BEAT,
    BEATS,
    BEFORE,
    CANDIDATE,
    CANDIDATES,
    CHUNK_FIELDS,
    FULL,
    JOB,
    LEFT_ALL,
    LEFT_BASE,
    LEFT_BATCH,
    LEFT_BOUND,
    LEFT_COUNTS,
    LEFT_TABLE,
    NO_ROOM,
    NUMBER,
    OTHER,
    OUT_LEFT,
    OUT_RIGHT,
    PAIRS,
    RECORDS,
    RIGHT_ALL,
    RIGHT_BASE,
    RIGHT_BATCH,
    RIGHT_BOUND,
    RIGHT_COUNTS,
    RIGHT_TABLE,
    ROOM,
    SCRATCH_AT,
    SPREAD,
    SWAPPED,
    begin,
    finish,
)  # fmt: skip
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.probe import BLOCK, CHUNK
from kernels.cpu.rings import (
    AHEAD,
    BATCH,
    BATCH_ROWS,
    ENTRY,
    HEAD,
    HEADS,
    HEADS_MASK,
    NEXT,
    PAIR,
    PART,
    RECORD_BYTES,
    RING,
    RING_MASK,
    TAIL,
    TIME_MIN,
    get,
    put,
)
from kernels.registry import device

RECORDS_MAX = 1 << 15
"""Records of both sides that a beat may have to be done in this way."""
LINKS_AT_ONCE = 64
"""Links that are read at a time."""
FAR = 2048
"""Bytes ahead that records are asked for."""
NEAR = RECORD_BYTES * AHEAD
"""How many bytes ahead of a record that is whose head is asked for."""
LISTS = 8
LINKS = LISTS + 2 * RECORDS_MAX
CHUNK_AT = LINKS + (RECORDS_MAX + LINKS_AT_ONCE) // 2
FIELDS = CHUNK_AT + CHUNK_FIELDS + CHUNK
LEFT_FOUND, RIGHT_FOUND = range(2)
"""Scratch memory (int64s): how many candidates each side has; each side's candidates, as in
`kernels.cpu.walk`; links (uint32); the chunk at hand."""


@device
def ask(mine: int, count: int) -> None:
    """Ask for the heads of a side's first so many records, at most."""
    at, heads, mask = get(mine, BATCH), get(mine, HEADS), get(mine, HEADS_MASK)
    for _ in range(min(count, get(mine, BATCH_ROWS))):
        mem.prefetch(heads + PAIR * (np.int64(mem.load_u32(at + 8)) & mask))
        at += RECORD_BYTES


@device
def find(mine: int, other: int, swapped: bool, links: int, following: int) -> int:
    """Insert a side's records, and write for each the link that it meets to `links`, 0 where that
    is dead; returns how often times fall.

    Heads are asked for AHEAD records ahead, records FAR bytes ahead; where the side ends, those at
    `following` instead: what lies behind is of another pool, or of another beat.  Up to NEAR bytes
    are read there; a side that nothing follows gives its own last ones, which were asked for."""
    at, tail, other_head = get(mine, BATCH), get(other, TAIL), -4 if swapped else 4
    heads, heads_mask = get(mine, HEADS), get(mine, HEADS_MASK)
    ring, mask, position = get(mine, RING), get(mine, RING_MASK), get(mine, HEAD)
    end, newest, descents = at + RECORD_BYTES * get(mine, BATCH_ROWS), TIME_MIN, 0
    while at < end:
        slot, near, far = position & mask, NEAR, FAR
        entry, stop = ring + ENTRY * slot, min(end, at + RECORD_BYTES * (mask + 1 - slot))
        if at < end - FAR:
            stop = min(stop, end - FAR)
        else:
            far = following - (end - FAR)
        if at < end - NEAR:
            stop = min(stop, end - NEAR)
        else:
            near = following - (end - NEAR)
        while at < stop:
            coming = np.int64(mem.load_u32(at + near + 8)) & heads_mask
            mem.prefetch(heads + PAIR * coming)
            mem.prefetch(at + far)
            pair = heads + PAIR * (np.int64(mem.load_u32(at + 8)) & heads_mask)
            link, following_link = np.int64(mem.load_u32(pair + other_head)), mem.load_u32(pair)
            mem.store_u32(links, np.uint32(link if link >= tail else 0))
            mem.copy_16(entry, at)
            mem.store_u32(entry + NEXT, following_link)
            mem.store_u32(pair, np.uint32(position))
            time = mem.load_i64(at)
            descents += np.int64(time < newest)
            newest = time
            position += 1
            entry += ENTRY
            links += 4
            at += RECORD_BYTES
    put(mine, HEAD, position)
    return descents


@device
def list_candidates(mine: int, other: int, links: int, found: int) -> int:
    """Write the records that met a live link to `found`, and ask for the first entries of their
    chains; returns how many."""
    records, count, begun = get(mine, BATCH), get(mine, BATCH_ROWS), found
    ring, mask = get(other, RING), get(other, RING_MASK)
    for i in range(LINKS_AT_ONCE):
        mem.store_u32(links + 4 * (count + i), np.uint32(0))
    for start in range(0, count, LINKS_AT_ONCE):
        live = mem.set_of_64(links + 4 * start)
        while live:
            record = start + mem.lowest_bit(live)
            live &= live - np.uint64(1)
            link = mem.load_u32(links + 4 * record)
            entry = ring + ENTRY * (np.int64(link) & mask)
            mem.prefetch(entry)
            mem.prefetch(entry + ENTRY - 1)
            mem.store_u32(found, np.uint32(records + RECORD_BYTES * record))
            mem.store_u32(found + 4, link)
            found += 8
    return (found - begun) >> 3


@device
def find_all(job: int, lefts: int, rights: int, known: int) -> Any:
    """Insert all records, and list the candidates.  False where one may meet what has gone."""
    ours, theirs = known + 8 * LISTS, known + 8 * (LISTS + RECORDS_MAX)
    links = known + 8 * LINKS
    begin_at = get(rights, BATCH)
    descents = find(lefts, rights, False, links, begin_at)
    put(known, LEFT_FOUND, list_candidates(lefts, rights, links, ours))
    if not pool.judge_times(lefts, rights, get(job, BEFORE), descents):
        return False
    end = begin_at + RECORD_BYTES * get(rights, BATCH_ROWS)
    descents = find(rights, lefts, True, links, end - NEAR)
    put(known, RIGHT_FOUND, list_candidates(rights, lefts, links, theirs))
    return pool.judge_times(rights, lefts, get(job, AFTER), descents)


@device
def walk_side(lane: int, mine: int, other: int, swapped: bool, at: int, count: int) -> bool:
    """The pairs of a side's candidates, from `at` on; False: the output is full."""
    chunk = get(lane, SCRATCH_AT) + 8 * CHUNK_AT
    put(chunk, OTHER, other)
    put(chunk, SWAPPED, swapped)
    put(chunk, RECORDS, get(mine, BATCH))
    for first in range(0, count, CHUNK):
        some = min(CHUNK, count - first)
        put(chunk, CANDIDATES, some)
        mem.copy_bytes(chunk + 8 * CHUNK_FIELDS, at + 8 * first, 8 * some)
        if not finish(chunk, lane, chunk + 8 * (CHUNK_FIELDS + CHUNK)):
            return False
    return True


@device
def lay_run(to_mine: int, to_met: int, mine: int, met: int, end: int) -> Any:
    """Move pairs while those at `mine`, before `end`, have one partition; returns their bytes."""
    at, name = 0, np.int64(mem.load_u32(mine + 4))
    while True:
        moved = 8 * simd_probe.lay(to_mine + at, to_met + at, mine + at, met + at, name)
        if moved < 8 * BLOCK or mine + at + moved >= end:
            return min(at + moved, end - mine)
        at += 8 * BLOCK


@device
def lay_together(lane: int, to: int, ours: int, pairs: int) -> None:
    """Move the `pairs` pairs at the output's begin `to` bytes on: of each partition first those
    found by the left's records, the first `ours`, then those found by the right's."""
    left, right = get(lane, OUT_LEFT), get(lane, OUT_RIGHT)
    at, stop, more, end = 0, 8 * ours, 8 * ours, 8 * pairs
    while at < stop or more < end:
        p = np.int64(mem.load_u32(left + at + 4)) if at < stop else PARTITIONS
        q = np.int64(mem.load_u32(right + more + 4)) if more < end else PARTITIONS
        if p <= q:
            moved = lay_run(left + to, right + to, left + at, right + at, left + stop)
            at += moved
        else:
            moved = lay_run(right + to, left + to, right + more, left + more, right + end)
            more += moved
        to += moved


@device
def walk_all(lane: int, lefts: int, rights: int) -> Any:
    """All pairs, to the output, in whose second half they are found; False: it is full."""
    known, whole = get(lane, SCRATCH_AT), get(lane, ROOM)
    ours, theirs = known + 8 * LISTS, known + 8 * (LISTS + RECORDS_MAX)
    half = whole // 2 + BLOCK
    if half > whole:
        return False
    for field in (OUT_LEFT, OUT_RIGHT):
        put(lane, field, get(lane, field) + 8 * half)
    put(lane, ROOM, whole - half)
    put(lane, PAIRS, 0)
    fits = walk_side(lane, lefts, rights, False, ours, get(known, LEFT_FOUND))
    found = get(lane, PAIRS)
    fits = fits and walk_side(lane, rights, lefts, True, theirs, get(known, RIGHT_FOUND))
    if fits:
        lay_together(lane, -8 * half, found, get(lane, PAIRS))
    else:
        put(lane, CANDIDATE, 0)  # when it is called again, from the first on
    for field in (OUT_LEFT, OUT_RIGHT):
        put(lane, field, get(lane, field) - 8 * half)
    put(lane, ROOM, whole)
    return fits


@device
def take_in(job: int, number: int, lefts: int, rights: int) -> Any:
    """Tell both sides' pools of a number where their records are; whether they have room."""
    pools = pool.count_of(get(job, LEFT_TABLE))
    first, last = pool.first_of(number, pools), pool.first_of(number + 1, pools)
    left, right = get(job, LEFT_COUNTS), get(job, RIGHT_COUNTS)
    fits = pool.point_at(lefts, first, last, get(job, LEFT_BATCH), left)
    fits &= pool.point_at(rights, first, last, get(job, RIGHT_BATCH), right)
    ask(lefts, AHEAD)
    ask(rights, AHEAD - get(lefts, BATCH_ROWS))
    pool.look(lefts, first, last, left, get(job, LEFT_BASE))
    pool.look(rights, first, last, right, get(job, RIGHT_BASE))
    return fits


@device
def run(lane: int) -> Any:
    """The whole beat for the pool that the lane says; returns how many pairs; FULL: call it again
    with more room; NO_ROOM where the rings have none, SPREAD where it cannot be joined in a pool:
    then `pool.undo` makes it as it was."""
    job, number = get(lane, JOB), get(lane, NUMBER)
    lefts = get(job, LEFT_TABLE) + PART * number
    rights = get(job, RIGHT_TABLE) + PART * number
    if get(lane, BEAT) != get(job, BEATS):
        put(lane, BEAT, get(job, BEATS))
        begin(lane, number, number + 1)
        if not take_in(job, number, lefts, rights):
            return NO_ROOM
        if not find_all(job, lefts, rights, get(lane, SCRATCH_AT)):
            return SPREAD
    if not walk_all(lane, lefts, rights):
        return FULL
    pool.settle(lefts, get(job, LEFT_BOUND), get(job, LEFT_ALL) != 0)
    pool.settle(rights, get(job, RIGHT_BOUND), get(job, RIGHT_ALL) != 0)
    return get(lane, PAIRS)
