"""A beat that is joined in pools (`kernels.cpu.pool`): one pool of each side, by one thread.

Each stage handles all records at once.  All left records are inserted, then all right records.
Then the candidates are walked, 256 at a time whatever their partitions: all of the left's, then all
of the right's.  The order of pairs is (partition, side, record), so that at last the pairs of both
sides are laid together, partition by partition.  Until then the first row of each pair has the
partition above its 32 bits (NAMED).

The loop that inserts writes the link that each record met to the record's own place, and candidates
are selected afterwards, 64 at a time.  If links were appended, the address of each store would
depend on the head before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem, pool, rings, simd_probe
from kernels.cpu.chunk import CHUNK, CHUNK_FIELDS, FULL, JOB, LANE, NO_ROOM, SPREAD, begin, finish
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.probe import BLOCK, CHUNK_ROWS
from kernels.cpu.records import get, put
from kernels.cpu.rings import AHEAD, ENTRY, NEXT, PAIR, PART, RECORD_BYTES, RING, TIME_MAX, TIME_MIN
from kernels.registry import device, task

RECORDS_MAX = 1 << 15
"""Records of both sides that a pooled beat has at most."""
LINKS_AT_ONCE = 64
"""Links that are tested at a time."""
FAR = 2048
"""Bytes ahead of which records are prefetched."""
NEAR = RECORD_BYTES * AHEAD
"""Bytes between a record and the record whose head is prefetched."""
LISTS = 8
LINKS = LISTS + 2 * RECORDS_MAX
CHUNK_AT = LINKS + (RECORDS_MAX + LINKS_AT_ONCE) // 2
FIELDS = CHUNK_AT + CHUNK_FIELDS + CHUNK_ROWS
FOUND = 0
"""Scratch memory (int64s): how many candidates each side has; each side's candidates, as in
`kernels.cpu.probe`; links (uint32); the chunk at hand."""


@device
def ask(mine: int, count: int) -> None:
    """Prefetch the heads of a side's first records, `count` at most."""
    at, heads, mask = get(mine, RING.batch), get(mine, RING.heads), get(mine, RING.heads_mask)
    for record in range(
        at, at + RECORD_BYTES * min(count, get(mine, RING.batch_rows)), RECORD_BYTES
    ):
        mem.prefetch(heads + PAIR * (np.int64(mem.load_u32(record + 8)) & mask))


@device
def find(mine: int, other: int, swapped: bool, links: int, following: int) -> Any:
    """Insert a side's records, and write for each the link that it met to `links`, 0 where that is
    dead; returns the latest and the earliest of their times.

    Heads are prefetched AHEAD records ahead, records FAR bytes ahead; where the side ends, those at
    `following` instead.  Up to NEAR bytes are read there: a side without a successor gives its own
    last records."""
    at, tail, other_head = get(mine, RING.batch), get(other, RING.tail), -4 if swapped else 4
    heads, heads_mask = get(mine, RING.heads), get(mine, RING.heads_mask)
    ring, mask, position = get(mine, RING.entries), get(mine, RING.mask), get(mine, RING.head)
    end, newest, oldest = at + RECORD_BYTES * get(mine, RING.batch_rows), TIME_MIN, TIME_MAX
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
            newest, oldest = max(newest, time), min(oldest, time)
            position += 1
            entry += ENTRY
            links += 4
            at += RECORD_BYTES
    put(mine, RING.head, position)
    return newest, oldest


@device
def list_candidates(mine: int, other: int, links: int, found: int) -> int:
    """Write the records that met a live link to `found`, and prefetch the first entries of their
    chains; returns their number."""
    records, count, begun = get(mine, RING.batch), get(mine, RING.batch_rows), found
    ring, mask = get(other, RING.entries), get(other, RING.mask)
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
def find_side(mine: int, other: int, back: int, swapped: bool, known: int, following: int) -> Any:
    """Insert a side's records and list its candidates.  False where a record may match a row that
    has left the other side: its window begins `back` before it."""
    links, found = known + 8 * LINKS, known + 8 * (LISTS + RECORDS_MAX * swapped)
    newest, oldest = find(mine, other, swapped, links, following)
    put(known, FOUND + swapped, list_candidates(mine, other, links, found))
    if newest < oldest:  # there is none
        return True
    pool.note_times(mine, newest, oldest)
    return rings.earlier(oldest, back) >= pool.bound_of(other)


@device
def find_all(job: int, lefts: int, rights: int, known: int) -> Any:
    """Insert all records and list the candidates.  False where one may match a row that has
    left."""
    at = get(rights, RING.batch)
    end = at + RECORD_BYTES * get(rights, RING.batch_rows)
    return find_side(lefts, rights, get(job, JOB.before), False, known, at) and find_side(
        rights, lefts, get(job, JOB.after), True, known, end - NEAR
    )


@device
def walk_side(lane: int, mine: int, other: int, swapped: bool) -> bool:
    """Write the pairs of a side's candidates; False: the output is full."""
    known, chunk = get(lane, LANE.scratch), get(lane, LANE.scratch) + 8 * CHUNK_AT
    at, count = known + 8 * (LISTS + RECORDS_MAX * swapped), get(known, FOUND + swapped)
    put(chunk, CHUNK.other, other)
    put(chunk, CHUNK.swapped, swapped)
    put(chunk, CHUNK.records, get(mine, RING.batch))
    for first in range(0, count, CHUNK_ROWS):
        some = min(CHUNK_ROWS, count - first)
        put(chunk, CHUNK.candidates, some)
        mem.copy_bytes(chunk + 8 * CHUNK_FIELDS, at + 8 * first, 8 * some)
        if not finish(chunk, lane, chunk + 8 * (CHUNK_FIELDS + CHUNK_ROWS)):
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
    """Move the `pairs` pairs at the output's begin by `to` bytes: of each partition first those of
    the left's records, the first `ours`, then those of the right's."""
    left, right = get(lane, LANE.out_left), get(lane, LANE.out_right)
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
    """Find all pairs, in the second half of the output, and lay them together; False: it is
    full."""
    whole = get(lane, LANE.room)
    half = whole // 2 + BLOCK
    if half > whole:
        return False
    for field in (LANE.out_left, LANE.out_right):
        put(lane, field, get(lane, field) + 8 * half)
    put(lane, LANE.room, whole - half)
    put(lane, LANE.pairs, 0)
    fits = walk_side(lane, lefts, rights, False)
    found = get(lane, LANE.pairs)
    fits = fits and walk_side(lane, rights, lefts, True)
    if fits:
        lay_together(lane, -8 * half, found, get(lane, LANE.pairs))
    else:
        put(lane, LANE.candidate, 0)  # the next call begins with the first candidate
    for field in (LANE.out_left, LANE.out_right):
        put(lane, field, get(lane, field) - 8 * half)
    put(lane, LANE.room, whole)
    return fits


@device
def take_in(job: int, number: int, lefts: int, rights: int) -> Any:
    """Set the records of this beat in both sides' pools; returns whether they have room."""
    pools = pool.count_of(get(job, JOB.left_table))
    first, last = pool.first_of(number, pools), pool.first_of(number + 1, pools)
    fits = pool.take_in(
        lefts, first, last, get(job, JOB.left_batch), get(job, JOB.left_counts),
        get(job, JOB.left_base),
    )  # fmt: skip
    fits &= pool.take_in(
        rights, first, last, get(job, JOB.right_batch), get(job, JOB.right_counts),
        get(job, JOB.right_base),
    )  # fmt: skip
    ask(lefts, AHEAD)
    ask(rights, AHEAD - get(lefts, RING.batch_rows))
    return fits


@task(reference="tests.naive.chain.join")
def join(lane: int) -> Any:
    """Join the lane's pool; returns the number of pairs; FULL: call again with more room; NO_ROOM
    where the rings have none; SPREAD where the beat cannot be joined in a pool.  After the last two
    `pool.undo` restores the pool."""
    job, number = get(lane, LANE.job), get(lane, LANE.number)
    lefts = get(job, JOB.left_table) + PART * number
    rights = get(job, JOB.right_table) + PART * number
    if get(lane, LANE.beat) != get(job, JOB.beats):
        put(lane, LANE.beat, get(job, JOB.beats))
        begin(lane, number, number + 1)
        if not take_in(job, number, lefts, rights):
            return NO_ROOM
        if not find_all(job, lefts, rights, get(lane, LANE.scratch)):
            return SPREAD
    if not walk_all(lane, lefts, rights):
        return FULL
    pool.settle(lefts, get(job, JOB.left_bound), get(job, JOB.left_all) != 0)
    pool.settle(rights, get(job, JOB.right_bound), get(job, JOB.right_all) != 0)
    return get(lane, LANE.pairs)
