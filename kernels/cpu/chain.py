"""The chained-ring interval join: R ⋈ S on equal keys and −before ≤ s.time − r.time ≤ after.

State.  Each side keeps, for each of 64 logical partitions, a ring of its rows in arrival order and
the heads of hash chains through it.  One row of `int64[64, FIELDS]` describes a partition:

    RING       address of `capacity` entries of 16 bytes:
               int64 time (µs) | uint32 tag | uint32 next (position of the chain's next older entry)
    ROWS       address of uint32[capacity]: the entry's row number
    HEADS      address of chain 0's head: uint32 position of the chain's newest entry
    RING_MASK  capacity - 1;  HEADS_MASK  chains - 1  (both sizes are powers of two)
    TAIL, HEAD positions of the oldest live entry and of the next one to be written
    NEWEST_*, DISORDER_*, GENERATION   see below
    BATCH, BATCH_ROWS   address of this beat's records (see `partition`) and their count

An entry at position p lies in slot p & RING_MASK and hangs in chain tag & HEADS_MASK.  Both sides
have the same number of chains, and the two heads of a chain lie beside each other (8 bytes a pair,
left then right): a row probes one and is inserted at the other, at the cost of one cache line.

Invariants.
  1. Positions grow by one an entry; 1 <= TAIL <= HEAD < 2^32 and HEAD - TAIL <= capacity.
     `rebuild` numbers the live entries from 1 again before HEAD can reach 2^32.
  2. Entries at TAIL..HEAD are intact: a live entry is never overwritten.  A head or `next` below
     TAIL is the end of its chain (0 always is), so that eviction touches neither.
  3. Along a chain positions fall.  Times may not: for each live entry, every older live entry of
     the partition has time <= its own + max(DISORDER_OLD, DISORDER_NEW).  A walk may stop at the
     first entry below the probe's lower bound less that disorder.
  4. Rows of equal key meet in the same order whatever the sizes of rings and tables are: newest
     arrival first.  Growth, renumbering and restoring change no output.

Disorder is what was really seen, so a single stray row would lengthen walks for ever; therefore it
is kept in two generations.  Positions below GENERATION are the old one; when the last of them is
evicted the new generation becomes the old.  NEWEST_* is the largest time seen in each.

A beat.  `join` does partitions first..last, for each of them: left records probe the right side,
then are inserted; right records probe the left side, the new ones included, then are inserted: each
pair is seen exactly once.  Then both tails move over rows that nothing to come can match.  Output
pairs are rows of the two sides' stores in the order (partition, pass, probing row, newest partner
first).  Where the output is full, `join` undoes the probe in hand and returns 0: call it again with
more room.

Tags are the low 32 bits of the key's hash.  For keys of up to 32 bits equal tags are equal keys;
for others `keys` names the key columns of both stores (see `keys`), which are compared for each
candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.keys import same_key
from kernels.registry import device, kernel

RING, ROWS, HEADS, RING_MASK, HEADS_MASK, TAIL, HEAD = range(7)
NEWEST_OLD, NEWEST_NEW, DISORDER_OLD, DISORDER_NEW, GENERATION = range(7, 12)
BATCH, BATCH_ROWS = 12, 13
FIELDS = 16
"""Width of a partition's row: 128 bytes, so that two workers never share a cache line."""

BEFORE, AFTER, LEFT_BASE, RIGHT_BASE, LEFT_BOUND, RIGHT_BOUND, LEFT_ALL, RIGHT_ALL = range(8)
JOB_FIELDS = 8
"""What `job` (int64[8]) holds: the bounds (µs); the row number (mod 2^32) of each store's first
row; the time below which each side's rows are dead; 1 where all of that side's are."""

PARTITION, PASS, RECORD, PAIRS = range(4)
"""What `progress` (int64[4]) holds: where to go on, and the pairs written so far."""

ENTRY, RECORD_BYTES, PAIR = 16, 16, 8
AHEAD = 64
"""How many records ahead heads are prefetched; `BATCH` must be readable so far past its end."""
CHUNK = 256
"""Records of which a pass looks up all heads, walks all chains and then inserts all."""
TOGETHER = 4096
"""Pairs of a chunk that are sorted here."""
CANDIDATES = CHUNK + 2 * TOGETHER
"""Size of the scratch array: a chunk's candidates, later its counters, and its raw pairs."""
POSITION_MAX = 2**32 - 1
TIME_MIN, TIME_MAX = np.int64(-(2**63)), np.int64(2**63 - 1)


@device
def later(time: int, us: int) -> int:
    """`time + us` for us >= 0, at most TIME_MAX."""
    return time + us if time <= TIME_MAX - us else TIME_MAX


@device
def earlier(time: int, us: int) -> int:
    """`time - us` for us >= 0, at least TIME_MIN."""
    return time - us if time >= TIME_MIN + us else TIME_MIN


@device
def warm(side: Any, records: int, count: int) -> None:
    """Ask for the heads of a partition's first records: its turn comes soon."""
    heads, mask = side[HEADS], side[HEADS_MASK]
    for i in range(min(count, AHEAD)):
        tag = np.int64(mem.load_u32(records + RECORD_BYTES * i + 8))
        mem.prefetch(heads + PAIR * (tag & mask))


@device
def find_candidates(
    records: int, first: int, last: int, n: int, heads: int, mask: int, tail: int, candidates: int
) -> int:
    """Records first..last (of n) whose chain has a live head: (record, head) pairs."""
    found = candidates
    end = records + RECORD_BYTES * last
    at = records + RECORD_BYTES * first
    ahead = min(end, records + RECORD_BYTES * (n - AHEAD))
    i = np.uint32(first)
    while at < end:
        if at < ahead:
            tag = np.int64(mem.load_u32(at + RECORD_BYTES * AHEAD + 8))
            mem.prefetch(heads + PAIR * (tag & mask))
        tag = np.int64(mem.load_u32(at + 8))
        head = mem.load_u32(heads + PAIR * (tag & mask))
        mem.store_u32(found, i)
        mem.store_u32(found + 4, head)
        found += 8 * np.int64(np.int64(head) >= tail)
        at += RECORD_BYTES
        i = np.uint32(i + 1)
    return (found - candidates) >> 3


@device
def resolve(
    mine: Any, met: Any, base: Any, met_base: Any, swapped: bool, keys: Any, first: int, last: int
) -> int:
    """Turn raw pairs first..last into pairs of store rows; those whose keys differ are left out.

    A raw pair is the probing row's number and the address of its partner's.  They are looked up
    here, after the walks, so that the misses overlap.  Returns the number of pairs there are now.
    """
    pairs = first
    for i in range(first, last):
        row = np.int64(np.uint32(np.uint32(mine[i]) - np.uint32(base)))
        other = np.int64(np.uint32(mem.load_u32(met[i]) - np.uint32(met_base)))
        left, right = (other, row) if swapped else (row, other)
        if keys.shape[0] != 0 and not same_key(keys, left, right):
            continue
        mine[pairs] = row
        met[pairs] = other
        pairs += 1
    return pairs


@device
def walk_together(
    mine: Any,
    other: Any,
    reach: Any,
    first_record: int,
    found: int,
    scratch: int,
    pairs: Any,
    out_mine: Any,
    out_met: Any,
) -> Any:
    """Walk the chains of all candidates side by side, a link each a round, so that their misses
    overlap; what is left of a chain after a round moves up in the list, without a branch.

    Writes raw pairs (record less `first_record`, address of the partner's row number) from
    `pairs` on, newest first for each record.  Returns their end; -1 where there is no room, or
    more than TOGETHER of them.
    """
    records, tail = mine[BATCH], other[TAIL]
    ring, mask, rows = other[RING], other[RING_MASK], other[ROWS]
    back, ahead, disorder = reach
    room = min(out_mine.size, pairs + TOGETHER)
    for c in range(found):
        mem.prefetch(ring + ENTRY * (np.int64(mem.load_u32(scratch + 8 * c + 4)) & mask))
    while found > 0:
        kept = scratch
        for c in range(found):
            record = mem.load_u32(scratch + 8 * c)
            slot = np.int64(mem.load_u32(scratch + 8 * c + 4)) & mask
            entry, at = ring + ENTRY * slot, records + RECORD_BYTES * np.int64(record)
            when, time = mem.load_i64(entry), mem.load_i64(at)
            low, high = earlier(time, back), later(time, ahead)
            stop = earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
            if mem.load_u32(entry + 8) == mem.load_u32(at + 8) and low <= when and when <= high:
                if pairs == room:
                    return -1
                mem.prefetch(rows + 4 * slot)
                out_mine[pairs] = np.int64(record) - first_record
                out_met[pairs] = rows + 4 * slot
                pairs += 1
            following = mem.load_u32(entry + 12)
            goes_on = np.int64(when >= stop) & np.int64(np.int64(following) >= tail)
            mem.store_u32(kept, record)
            mem.store_u32(kept + 4, following)
            mem.prefetch(ring + ENTRY * (np.int64(following) & mask) if goes_on else entry)
            kept += 8 * goes_on
        found = (kept - scratch) >> 3
    return pairs


@device
def arrange(
    mine: Any,
    first_record: int,
    count: int,
    scratch: int,
    first: int,
    last: int,
    out_mine: Any,
    out_met: Any,
) -> None:
    """Sort raw pairs first..last by their record (a stable counting sort), and name the record's
    row instead of its place among `count`."""
    numbers = mine[BATCH] + RECORD_BYTES * first_record + 12
    ordered = True
    for i in range(first + 1, last):
        ordered &= out_mine[i - 1] <= out_mine[i]
    if ordered:
        for i in range(first, last):
            out_mine[i] = mem.load_u32(numbers + RECORD_BYTES * out_mine[i])
        return
    ends, kept = scratch, scratch + 8 * CHUNK
    for r in range(count):
        mem.store_i64(ends + 8 * r, 0)
    for i in range(first, last):
        at = ends + 8 * out_mine[i]
        mem.store_i64(at, mem.load_i64(at) + 1)
        mem.store_i64(kept + 16 * (i - first), out_mine[i])
        mem.store_i64(kept + 16 * (i - first) + 8, out_met[i])
    total = first
    for r in range(count):
        size = mem.load_i64(ends + 8 * r)
        mem.store_i64(ends + 8 * r, total)
        total += size
    for i in range(last - first):
        r = mem.load_i64(kept + 16 * i)
        to = mem.load_i64(ends + 8 * r)
        mem.store_i64(ends + 8 * r, to + 1)
        out_mine[to] = mem.load_u32(numbers + RECORD_BYTES * r)
        out_met[to] = mem.load_i64(kept + 16 * i + 8)


@device
def walk_one(
    mine: Any,
    other: Any,
    reach: Any,
    record: int,
    position: int,
    pairs: Any,
    out_mine: Any,
    out_met: Any,
) -> Any:
    """Walk one record's chain to its end; returns the raw pairs' end, -1 where there is no room."""
    tail, ring, mask, rows = other[TAIL], other[RING], other[RING_MASK], other[ROWS]
    back, ahead, disorder = reach
    at = mine[BATCH] + RECORD_BYTES * record
    time, tag = mem.load_i64(at), mem.load_u32(at + 8)
    low, high = earlier(time, back), later(time, ahead)
    stop = earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
    while position >= tail:
        entry = ring + ENTRY * (position & mask)
        when = mem.load_i64(entry)
        if when < stop:
            break
        if mem.load_u32(entry + 8) == tag and low <= when and when <= high:
            if pairs == out_mine.size:
                return -1
            mem.prefetch(rows + 4 * (position & mask))
            out_mine[pairs] = mem.load_u32(at + 12)
            out_met[pairs] = rows + 4 * (position & mask)
            pairs += 1
        position = np.int64(mem.load_u32(entry + 12))
    return pairs


@device
def probe(
    mine: Any,
    other: Any,
    swapped: bool,
    job: Any,
    keys: Any,
    progress: Any,
    scratch: int,
    out_mine: Any,
    out_met: Any,
) -> bool:
    """Probe `other` with the records of `mine` from progress[RECORD] on, and insert them.

    False: the output is full.  Work goes by chunks, so that a head is still near when its row
    comes to be inserted.  Chunks whose pairs are too many to be sorted here get smaller, and
    records that have too many by themselves are walked one by one.
    """
    n, pairs = mine[BATCH_ROWS], progress[PAIRS]
    heads, heads_mask, tail = other[HEADS], other[HEADS_MASK], other[TAIL]
    disorder = max(other[DISORDER_OLD], other[DISORDER_NEW])
    back, ahead = (job[AFTER], job[BEFORE]) if swapped else (job[BEFORE], job[AFTER])
    base, met_base = (
        (job[RIGHT_BASE], job[LEFT_BASE]) if swapped else (job[LEFT_BASE], job[RIGHT_BASE])
    )
    reach = (back, ahead, disorder)
    start, size = progress[RECORD], CHUNK
    while start < n:
        end = min(n, start + size)
        found = find_candidates(mine[BATCH], start, end, n, heads, heads_mask, tail, scratch)
        if size == 1 and found:
            head = np.int64(mem.load_u32(scratch + 4))
            last = walk_one(mine, other, reach, start, head, pairs, out_mine, out_met)
        else:
            last = walk_together(
                mine, other, reach, start, found, scratch, pairs, out_mine, out_met
            )
            if last < 0 and pairs + TOGETHER <= out_mine.size:
                size = max(1, size >> 2)
                continue
            arrange(mine, start, end - start, scratch, pairs, last, out_mine, out_met)
        if last < 0:
            progress[RECORD], progress[PAIRS] = start, pairs
            return False
        small = last - pairs < TOGETHER >> 3
        pairs = resolve(out_mine, out_met, base, met_base, swapped, keys, pairs, last)
        insert(mine, start, end)
        start = end
        size = min(CHUNK, 2 * size) if small else size
    progress[RECORD], progress[PAIRS] = 0, pairs
    return True


@device
def insert(mine: Any, first: int, last: int) -> None:
    """Put records first..last into the partition's ring; the caller has made room."""
    records, heads, heads_mask = mine[BATCH], mine[HEADS], mine[HEADS_MASK]
    ring, mask, rows, position = mine[RING], mine[RING_MASK], mine[ROWS], mine[HEAD]
    newest = max(mine[NEWEST_OLD], mine[NEWEST_NEW])
    newest_new, disorder = mine[NEWEST_NEW], mine[DISORDER_NEW]
    for i in range(first, last):
        at = records + RECORD_BYTES * i
        time, tag, row = mem.load_i64(at), mem.load_u32(at + 8), mem.load_u32(at + 12)
        head = heads + PAIR * (np.int64(tag) & heads_mask)
        slot = position & mask
        put(ring, rows, slot, time, tag, mem.load_u32(head), row)
        mem.store_u32(head, np.uint32(position))
        position += 1
        if time < newest:
            # Unsigned, since LLVM takes it that a signed difference does not overflow.
            behind = np.uint64(newest) - np.uint64(time)
            disorder = max(disorder, np.int64(min(behind, np.uint64(TIME_MAX))))
        else:
            newest = time
        newest_new = max(newest_new, time)
    mine[HEAD], mine[NEWEST_NEW], mine[DISORDER_NEW] = position, newest_new, disorder


@device
def put(ring: int, rows: int, slot: int, time: int, tag: Any, following: Any, row: Any) -> None:
    """Write one entry."""
    entry = ring + ENTRY * slot
    mem.store_i64(entry, time)
    mem.store_u32(entry + 8, tag)
    mem.store_u32(entry + 12, following)
    mem.store_u32(rows + 4 * slot, row)


@device
def evict(mine: Any, bound: int, everything: bool) -> None:
    """Move the tail over entries below `bound`, and the generations on."""
    ring, mask, tail, head = mine[RING], mine[RING_MASK], mine[TAIL], mine[HEAD]
    if everything:
        tail = head
    while tail < head and mem.load_i64(ring + ENTRY * (tail & mask)) < bound:
        tail += 1
    mine[TAIL] = tail
    if tail >= mine[GENERATION]:
        mine[NEWEST_OLD], mine[DISORDER_OLD] = mine[NEWEST_NEW], mine[DISORDER_NEW]
        mine[NEWEST_NEW], mine[DISORDER_NEW] = TIME_MIN, 0
        mine[GENERATION] = head
    if tail == head:
        mine[NEWEST_OLD] = mine[NEWEST_NEW] = TIME_MIN
        mine[DISORDER_OLD] = mine[DISORDER_NEW] = 0


@kernel(
    "int64(int64, int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1])",
    twin="tests.naive.chain.join",
)
def join(
    last: int,
    left: Any,
    right: Any,
    job: Any,
    keys: Any,
    progress: Any,
    candidates: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """One beat's join of the partitions from progress[PARTITION] to `last`; 0: output full."""
    scratch = np.int64(candidates.ctypes.data)
    while progress[PARTITION] < last:
        p = progress[PARTITION]
        ours, theirs = left[p], right[p]
        if progress[PASS] == 0:
            if p + 1 < last:
                warm(left[p + 1], left[p + 1, BATCH], left[p + 1, BATCH_ROWS])
                warm(right[p + 1], right[p + 1, BATCH], right[p + 1, BATCH_ROWS])
            if not probe(ours, theirs, False, job, keys, progress, scratch, out_left, out_right):
                return 0
            progress[PASS] = 1
        if not probe(theirs, ours, True, job, keys, progress, scratch, out_right, out_left):
            return 0
        evict(ours, job[LEFT_BOUND], job[LEFT_ALL] != 0)
        evict(theirs, job[RIGHT_BOUND], job[RIGHT_ALL] != 0)
        progress[PASS] = 0
        progress[PARTITION] = p + 1
    return 1


@kernel("int64(int64[:, ::1], int64, int64[::1])", twin="tests.naive.chain.point")
def point(side: Any, records: int, counts: Any) -> int:
    """Tell a side's partitions where this beat's records (from address `records` on, `counts` in
    each) are; returns how many of them have no room for theirs."""
    full = 0
    for p in range(side.shape[0]):
        mine, count = side[p], counts[p]
        mine[BATCH], mine[BATCH_ROWS] = records, count
        records += RECORD_BYTES * count
        capacity, head = mine[RING_MASK] + 1, mine[HEAD]
        full += head - mine[TAIL] + count > capacity or head + count > POSITION_MAX
    return full


@kernel("void(int64[:, ::1])", twin="tests.naive.chain.insert")
def insert_all(side: Any) -> None:
    """Insert every partition's batch without probing: how a saved state comes back."""
    for p in range(side.shape[0]):
        insert(side[p], 0, side[p, BATCH_ROWS])


@kernel("void(int64[:, ::1], int64[:, ::1])", twin="tests.naive.chain.insert")
def rebuild(old: Any, new: Any) -> None:
    """Move the live entries of `old` into the empty, larger or equal rings of `new`.

    Both describe all partitions; `new` has its addresses, masks, TAIL = HEAD = 1 and heads below 1.
    """
    for p in range(old.shape[0]):
        source, target = old[p], new[p]
        ring, mask = source[RING], source[RING_MASK]
        for position in range(source[TAIL], source[HEAD]):
            entry = ring + ENTRY * (position & mask)
            tag = mem.load_u32(entry + 8)
            slot = target[HEAD] & target[RING_MASK]
            head = target[HEADS] + PAIR * (np.int64(tag) & target[HEADS_MASK])
            time = mem.load_i64(entry)
            row = mem.load_u32(source[ROWS] + 4 * (position & mask))
            put(target[RING], target[ROWS], slot, time, tag, mem.load_u32(head), row)
            mem.store_u32(head, np.uint32(target[HEAD]))
            target[HEAD] += 1
        for field in range(NEWEST_OLD, GENERATION):
            target[field] = source[field]
        target[GENERATION] = max(0, source[GENERATION] - source[TAIL]) + target[TAIL]


@kernel("int64(int64[:, ::1], int64, int64)", twin="tests.naive.chain.oldest")
def oldest(side: Any, base: int, rows: int) -> int:
    """The store's first row that a live entry names; `rows` where nothing is live."""
    first = rows
    for p in range(side.shape[0]):
        if side[p, TAIL] < side[p, HEAD]:
            slot = side[p, TAIL] & side[p, RING_MASK]
            row = mem.load_u32(side[p, ROWS] + 4 * slot)
            first = min(first, np.int64(np.uint32(row - np.uint32(base))))
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", twin="tests.naive.chain.live")
def live(side: Any, base: int, hashes: Any, alive: Any) -> None:
    """For every live entry's store row: its partition (top 6 bits) and tag, and alive = 1."""
    for p in range(side.shape[0]):
        for position in range(side[p, TAIL], side[p, HEAD]):
            slot = position & side[p, RING_MASK]
            row = np.uint32(mem.load_u32(side[p, ROWS] + 4 * slot) - np.uint32(base))
            tag = np.uint64(mem.load_u32(side[p, RING] + ENTRY * slot + 8))
            hashes[row] = np.uint64(p) << np.uint64(58) | tag
            alive[row] = 1
