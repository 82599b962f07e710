"""Short beats of the chain join: a straight way, without the pipeline of `kernels.cpu.chain`.

With few records a partition, what is done for each partition and pass costs more than what is done
for each record.  So the whole beat goes through each stage at once: all of the left's records are
inserted, then all of the right's; all candidates are looked at, whatever partition they belong to;
those that are left (with few matches hardly any) are walked, pass by pass; at last all partitions
let go.  The pairs and their order are the pipeline's.

A table that is made beforehand names each record's partition, so that heads can be asked for ahead
without a look at where passes end.  The loop that inserts writes the link that each record met to
the record's own place; which of them live is seen afterwards, 64 at a time.  Written where the last
candidate ended, as the pipeline does, a link's address is known only when the head before has come,
and everything behind waits for it: 6.5 us for 2 000 records instead of 4.5.

A candidate is `int64 record | link << 32`: the record counted from its side's first in the beat.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import hot, mem
from kernels.cpu.chunk import (
    CANDIDATES,
    CHUNK_FIELDS,
    FOUND,
    HOT,
    JOB,
    LEFT_ALL,
    LEFT_BOUND,
    LEFT_TABLE,
    MINE,
    OTHER,
    RECORDS,
    RIGHT_ALL,
    RIGHT_BOUND,
    RIGHT_TABLE,
    ROWS_IN,
    SCRATCH_AT,
    SWAPPED,
    finish,
)  # fmt: skip
from kernels.cpu.insert import note_disorder
from kernels.cpu.leave import evict_eight
from kernels.cpu.rings import (
    AHEAD,
    BATCH,
    BATCH_ROWS,
    ENTRY,
    HEAD,
    HEADS,
    HEADS_MASK,
    LINE,
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

ALL = 64 * PART
"""Bytes of the rows of all partitions."""
RECORDS_MAX = 4096
"""Records of both sides that a beat may have to be done in this way: where partitions have more
than some 64 records, the pipeline is as fast."""
FAR_RING = 512
"""Slots of a ring from which on its lines are asked for: 50 -> 65 and 69 -> 77 M tuples/s with 10^5
rows a side (2048 slots); with 10^4 (256 slots), in the second cache, no difference."""
FAR = 2048
"""Bytes ahead that records are asked for."""
AT_ONCE, LINKS_AT_ONCE = 32, 64
"""Records whose partition is written, and whose links are read, at a time."""
ROUNDS = 4
"""Links that candidates are followed for before they are walked."""
LEFT_AT, LEFT_END, RIGHT_AT, RIGHT_END = range(4)
LISTS = 8
LISTED = 2 * RECORDS_MAX
WHOSE = LISTS + 2 * LISTED
WHOSE_BYTES = 2 * (RECORDS_MAX + AHEAD + AT_ONCE)
LINKS = WHOSE + 2 * WHOSE_BYTES // 8
CHUNK_AT = LINKS + (RECORDS_MAX + LINKS_AT_ONCE) // 2
FIELDS = CHUNK_AT + CHUNK_FIELDS + CHUNK
"""Scratch memory (int64s): where the candidates of both sides are that are still to be walked; for
each side its candidates, and the addresses of their entries; for each side its records' partitions
(uint16, PART x partition); links (uint32); the chunk at hand."""


@device
def prepare(table: int, whose: int, lines: int) -> int:
    """Note each record's partition at `whose`, and ask for `lines` lines where a large ring will be
    written and let go of; returns how many records there are."""
    start = 0
    for p in range(0, ALL, PART):
        mine = table + p
        ring, mask = get(mine, RING), get(mine, RING_MASK)
        if mask >= FAR_RING - 1:
            head, tail = ENTRY * (get(mine, HEAD) & mask), ENTRY * (get(mine, TAIL) & mask)
            for by in range(ring, ring + LINE * lines, LINE):
                mem.prefetch(head + by)
                mem.prefetch(tail + by)
        to = whose + 2 * start
        start += get(mine, BATCH_ROWS)
        while True:  # what is written too much is the next partition's
            mem.fill_u16(to, p)
            to += 2 * AT_ONCE
            if to >= whose + 2 * start:
                break
    for i in range(0, AHEAD, AT_ONCE):
        mem.fill_u16(whose + 2 * (start + i), 0)
    return start


@device
def ask(mines: int, whose: int, at: int) -> None:
    """Ask for the head of the record at `at`, whose partition stands at `whose`."""
    mine = mines + np.int64(mem.load_u16(whose))
    tag = np.int64(mem.load_u32(at + 8))
    mem.prefetch(get(mine, HEADS) + PAIR * (tag & get(mine, HEADS_MASK)))


@device
def find(mines: int, others: int, swapped: bool, whose: int, links: int, hot_at: int) -> None:
    """Insert a side's records, and write for each the link that it meets to `links`, 0 where that
    is dead.  The bytes from `hot_at` on say which partitions have chains for hot keys."""
    other_head = -4 if swapped else 4
    for p in range(0, ALL, PART):
        mine = mines + p
        at, count, tail = get(mine, BATCH), get(mine, BATCH_ROWS), get(others + p, TAIL)
        heads, heads_mask = get(mine, HEADS), get(mine, HEADS_MASK)
        ring, mask, position = get(mine, RING), get(mine, RING_MASK), get(mine, HEAD)
        newest, backward = max(get(mine, NEWEST_OLD), get(mine, NEWEST_NEW)), 0
        names = hot.names_of(mine) if mem.load_u8(hot_at) else 0
        end = at + RECORD_BYTES * count
        while at < end:
            ask(mines, whose + 2 * AHEAD, at + RECORD_BYTES * AHEAD)
            mem.prefetch(at + FAR)
            tag = np.int64(mem.load_u32(at + 8))
            pair = heads + PAIR * hot.chain_of(tag, heads_mask, names)
            link, following = np.int64(mem.load_u32(pair + other_head)), mem.load_u32(pair)
            entry = ring + ENTRY * (position & mask)
            mem.store_u32(links, np.uint32(link if link >= tail else 0))
            mem.copy_16(entry, at)
            mem.store_u32(entry + NEXT, following)
            mem.store_u32(pair, np.uint32(position))
            time = mem.load_i64(at)
            backward |= np.int64(time < newest)
            newest = time
            position += 1
            links += 4
            whose += 2
            at += RECORD_BYTES
        put(mine, HEAD, position)
        if backward:
            note_disorder(mine, end - RECORD_BYTES * count, end)
        elif count:
            put(mine, NEWEST_NEW, newest)
        hot_at += 1


@device
def list_candidates(others: int, whose: int, links: int, count: int, found: int) -> int:
    """Write the records that met a live link to `found`, ask for the first entries of their chains,
    and note where those are; returns the candidates' end."""
    for i in range(LINKS_AT_ONCE):
        mem.store_u32(links + 4 * (count + i), np.uint32(0))
    for start in range(0, count, LINKS_AT_ONCE):
        live = mem.set_of_64(links + 4 * start)
        while live:
            record = start + mem.lowest_bit(live)
            live &= live - np.uint64(1)
            other = others + np.int64(mem.load_u16(whose + 2 * record))
            link = np.int64(mem.load_u32(links + 4 * record))
            entry = get(other, RING) + ENTRY * (link & get(other, RING_MASK))
            mem.prefetch(entry)
            mem.store_i64(found, record | link << 32)
            mem.store_i64(found + 8 * RECORDS_MAX, entry)
            found += 8
    return found


@device
def sieve(others: int, whose: int, records: int, first: int, end: int) -> int:
    """Leave out the candidates first..end whose chains have no entry of their tag, as far as a few
    links show, and move others on to an entry that has it; returns the end of those left."""
    for _ in range(ROUNDS):
        at = kept = first
        unmet = 0
        while at < end:
            candidate, entry = mem.load_i64(at), mem.load_i64(at + 8 * RECORDS_MAX)
            record = candidate & LOW
            other = others + np.int64(mem.load_u16(whose + 2 * record))
            met = mem.load_u32(entry + 8) == mem.load_u32(records + RECORD_BYTES * record + 8)
            following = np.int64(mem.load_u32(entry + NEXT))
            behind = following >= get(other, TAIL)
            coming = get(other, RING) + ENTRY * (following & get(other, RING_MASK))
            coming = entry if met else coming
            mem.store_i64(kept, candidate if met else record | following << 32)
            mem.store_i64(kept + 8 * RECORDS_MAX, coming)
            mem.prefetch(coming if behind else entry)
            unmet += np.int64(behind) & ~np.int64(met)
            kept += 8 * (np.int64(met) | np.int64(behind))
            at += 8
        end = kept
        if 16 * unmet < (end - first) >> 3:
            break
    return end


@device
def gather(
    mines: int, others: int, swapped: bool, whose: int, records: int, at: int, end: int, chunk: int
) -> int:
    """Make a chunk of the next candidates that belong to one pass; returns where they end."""
    p = mem.load_u16(whose + 2 * np.int64(mem.load_u32(at)))
    to, most = chunk + 8 * CHUNK_FIELDS, min(end, at + 8 * CHUNK)
    while at < most:
        record = np.int64(mem.load_u32(at))
        if mem.load_u16(whose + 2 * record) != p:
            break
        mem.store_u32(to, np.uint32(records + RECORD_BYTES * record))
        mem.store_u32(to + 4, mem.load_u32(at + 4))
        to += 8
        at += 8
    put(chunk, MINE, mines + np.int64(p))
    put(chunk, OTHER, others + np.int64(p))
    put(chunk, SWAPPED, swapped)
    put(chunk, RECORDS, records)
    put(chunk, CANDIDATES, (to - chunk) // 8 - CHUNK_FIELDS)
    return at


@device
def find_all(lane: int) -> None:
    """Insert all records, and list the candidates that are to be walked."""
    job, known = get(lane, JOB), get(lane, SCRATCH_AT)
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    left, right = get(lefts, BATCH), get(rights, BATCH)
    ours, theirs = known + 8 * LISTS, known + 8 * (LISTS + LISTED)
    whose, links = known + 8 * WHOSE, known + 8 * LINKS
    lines = 1 + 3 * ENTRY * get(job, ROWS_IN) // (256 * LINE)  # half as many again as on average
    count, more = prepare(lefts, whose, lines), prepare(rights, whose + WHOSE_BYTES, lines)
    for i in range(AHEAD):
        ask(lefts, whose + 2 * i, left + RECORD_BYTES * i)
        ask(rights, whose + WHOSE_BYTES + 2 * i, right + RECORD_BYTES * i)
    find(lefts, rights, False, whose, links, get(job, HOT))
    ours_end = list_candidates(rights, whose, links, count, ours)
    find(rights, lefts, True, whose + WHOSE_BYTES, links, get(job, HOT))
    theirs_end = list_candidates(lefts, whose + WHOSE_BYTES, links, more, theirs)
    put(known, LEFT_AT, ours)
    put(known, LEFT_END, sieve(rights, whose, left, ours, ours_end))
    put(known, RIGHT_AT, theirs)
    put(known, RIGHT_END, sieve(lefts, whose + WHOSE_BYTES, right, theirs, theirs_end))


@device
def pass_of(whose: int, at: int, end: int) -> int:
    """The pass of the candidate at `at`, past all where there is none."""
    return ALL if at == end else np.int64(mem.load_u16(whose + 2 * np.int64(mem.load_u32(at))))


@device
def run(lane: int) -> bool:
    """The whole beat; False: the output is full, call it again with more room."""
    job, known = get(lane, JOB), get(lane, SCRATCH_AT)
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    left, right = get(lefts, BATCH), get(rights, BATCH)
    whose, chunk = known + 8 * WHOSE, known + 8 * CHUNK_AT
    rest = chunk + 8 * (CHUNK_FIELDS + CHUNK)
    if get(lane, FOUND) == 0:
        find_all(lane)
        put(lane, FOUND, 1)
    while True:
        at, end = get(known, LEFT_AT), get(known, LEFT_END)
        more, last = get(known, RIGHT_AT), get(known, RIGHT_END)
        if at == end and more == last:
            break
        if pass_of(whose, at, end) <= pass_of(whose + WHOSE_BYTES, more, last):
            at = gather(lefts, rights, False, whose, left, at, end, chunk)
        else:
            more = gather(rights, lefts, True, whose + WHOSE_BYTES, right, more, last, chunk)
        if not finish(chunk, lane, rest):
            return False
        put(known, LEFT_AT, at)
        put(known, RIGHT_AT, more)
    for p in range(0, ALL, 8 * PART):
        evict_eight(lefts + p, get(job, LEFT_BOUND), get(job, LEFT_ALL) != 0)
        evict_eight(rights + p, get(job, RIGHT_BOUND), get(job, RIGHT_ALL) != 0)
    return True
