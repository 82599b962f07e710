"""The chained-ring interval join: R ⋈ S on equal keys and −before ≤ s.time − r.time ≤ after.

`kernels.cpu.rings` has the state: for each side and partition a ring in arrival order and the heads
of hash chains through it; `kernels.cpu.walk` follows the chains.

A beat.  `join` does partitions first..last, for each of them: left records probe the right side and
are inserted; right records probe the left side, the new ones included, and are inserted: each pair
is seen exactly once.  Then both tails move over rows that nothing to come can match.  Output pairs
are rows of the two sides' stores in the order (partition, pass, probing row, newest partner first).

A pass goes by chunks of 256 records, and a chunk through a pipeline, so that nothing waits for a
cache line that was not asked for long before:

    ask       64 records ahead, whatever partition and pass they belong to: their heads
    find      look up the head that a record probes and put the record before the head beside it;
              those whose chain lives are candidates: ask for the chain's first entry
    decode    DEPTH chunks later: walk the candidates' chains, sort what matches, write the pairs;
              ask for the partners' row numbers
    look up   with the next chunk's decoding: the row numbers

Where the output is full, `join` remembers where it is and returns 0: call it again with more room.

Tags are the low 32 bits of the key's hash.  For keys of up to 32 bits equal tags are equal keys;
for others `keys` names the key columns of both stores (see `keys`), which are compared for each
candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem, walk
from kernels.cpu.insert import (
    AHEAD_COUNT,
    AHEAD_END,
    AHEAD_FIELDS,
    AHEAD_LEFT,
    AHEAD_PASS,
    AHEAD_RIGHT,
    ask,
    evict,
    find_and_insert,
)
from kernels.cpu.rings import (
    AHEAD,
    BATCH,
    BATCH_ROWS,
    ENTRY,
    GENERATION,
    HEAD,
    HEADS,
    HEADS_MASK,
    LOW,
    NEWEST_OLD,
    PAIR,
    PART,
    RECORD_BYTES,
    RING,
    RING_MASK,
    ROWS,
    TAIL,
    get,
    put,
)
from kernels.cpu.walk import CHUNK, TOGETHER
from kernels.registry import device, kernel

BEFORE, AFTER, LEFT_BASE, RIGHT_BASE, LEFT_BOUND, RIGHT_BOUND, LEFT_ALL, RIGHT_ALL = range(8)
JOB_FIELDS = 8
"""What `job` (int64[8]) holds: the bounds (µs); the row number (mod 2^32) of each store's first
row; the time below which each side's rows are dead; 1 where all of that side's are."""

PARTITION, PASS, RECORD, FOUND, DONE, CANDIDATE, PAIRS, BEGUN, LOOKED, LOOKED_PASS = range(10)
PROGRESS_FIELDS = 16
"""What `progress` (int64[16]) holds.  Where to find the next chunk: partition, pass (0 left, 1
right), record.  How many chunks were found, and how many of them are done; the next candidate of
the oldest of the others.  The pairs written so far; where those of the oldest chunk begin; how many
are looked up, and the pass of those before the oldest chunk that are not."""

MINE, OTHER, SWAPPED, RECORDS, COUNT, CANDIDATES, LAST = range(7)
CHUNK_FIELDS = 8
"""What the queue knows of a chunk: the rows of its partition, its own and the other side's, by
address; its pass; the address of its records, and their count; its candidates, which follow; 1
where it is the partition's last."""
DEPTH = 4
"""Chunks whose candidates wait for the first entries of their chains."""
QUEUED = 8 * (CHUNK_FIELDS + CHUNK)
SCRATCH = DEPTH * (CHUNK_FIELDS + CHUNK) + AHEAD_FIELDS + walk.WALK_FIELDS
"""Size of the scratch array (int64s)."""


@device
def find_chunk(mine: int, other: int, swapped: bool, start: int, chunk: int, ahead: int) -> Any:
    """Insert a pass's next records, note their candidates in the queue, and ask for the first
    entries of these; returns how many records."""
    n = get(mine, BATCH_ROWS)
    count, first, end = min(CHUNK, n - start), chunk + 8 * CHUNK_FIELDS, chunk + 8 * CHUNK_FIELDS
    if count:
        tail = get(other, TAIL)
        end = find_and_insert(mine, swapped, tail, start, start + count, first, ahead)
    put(chunk, MINE, mine)
    put(chunk, OTHER, other)
    put(chunk, SWAPPED, swapped)
    put(chunk, RECORDS, get(mine, BATCH) + RECORD_BYTES * start)
    put(chunk, COUNT, count)
    put(chunk, CANDIDATES, (end - first) >> 3)
    put(chunk, LAST, swapped and start + count == n)
    ring, mask = get(other, RING), get(other, RING_MASK)
    while first < end:
        mem.prefetch(ring + ENTRY * (np.int64(mem.load_u32(first + 4)) & mask))
        first += 8
    return count


@device
def decode(
    chunk: int, job: int, progress: int, scratch: int, mine: int, met: int, room: int
) -> bool:
    """Walk the chains of a chunk's candidates and write their pairs; False: the output is full.

    Candidates are walked fewer at a time where they have too many pairs to be sorted together, and
    one by one where one alone has.  The partners are looked up with the next chunk, when their rows
    are near.
    """
    records, other, swapped = get(chunk, RECORDS), get(chunk, OTHER), get(chunk, SWAPPED) != 0
    back, forth = get(job, AFTER if swapped else BEFORE), get(job, BEFORE if swapped else AFTER)
    base = get(job, RIGHT_BASE if swapped else LEFT_BASE)
    at, pairs = get(progress, CANDIDATE), get(progress, PAIRS)
    n = get(chunk, CANDIDATES)
    step = n
    while at < n:
        first = chunk + 8 * (CHUNK_FIELDS + at)
        take, left = min(step, n - at), room - pairs
        if step <= 1:
            record = records + RECORD_BYTES * np.int64(mem.load_u32(first))
            link = np.int64(mem.load_u32(first + 4))
            more = walk.walk_one(
                record, link, other, back, forth, base, mine + 8 * pairs, met + 8 * pairs, left
            )
        else:
            end = walk.sieve(records, other, first, first + 8 * take, scratch)
            walk.open_windows(records, other, back, forth, scratch, end)
            more = walk.walk_together(other, scratch, end, min(left, TOGETHER))
            if more < 0 and left >= TOGETHER:
                step = max(1, take >> 2)
                continue
            if more > 0:
                walk.arrange(
                    scratch, more, get(chunk, COUNT), records + 12, base, get(other, ROWS),
                    mine + 8 * pairs, met + 8 * pairs,
                )  # fmt: skip
        if more < 0:
            put(progress, CANDIDATE, at)
            put(progress, PAIRS, pairs)
            return False
        if more < TOGETHER >> 3:
            step = 2 * step
        pairs += more
        at += take
    put(progress, CANDIDATE, 0)
    put(progress, PAIRS, pairs)
    return True


@device
def look_up(job: int, progress: int, upto: int, left: int, right: int) -> None:
    """Turn the pairs that are not looked up yet, those before `upto`, into pairs of store rows."""
    swapped, first = get(progress, LOOKED_PASS) != 0, get(progress, LOOKED)
    met = left if swapped else right
    walk.look_up(met + 8 * first, upto - first, get(job, LEFT_BASE if swapped else RIGHT_BASE))
    put(progress, LOOKED, upto)


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
    scratch: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """One beat's join of the partitions from progress[PARTITION] to `last`; 0: output full.

    A pipeline: chunks are found and inserted DEPTH ahead of the one whose candidates are walked, so
    that the first entries of chains come while other records are worked on.
    """
    lefts, rights = np.int64(left.ctypes.data), np.int64(right.ctypes.data)
    asked, at = np.int64(job.ctypes.data), np.int64(progress.ctypes.data)
    queue, room = np.int64(scratch.ctypes.data), out_left.size
    outs, out_rights = np.int64(out_left.ctypes.data), np.int64(out_right.ctypes.data)
    ahead = queue + QUEUED * DEPTH
    rest = ahead + 8 * AHEAD_FIELDS
    if progress[FOUND] == 0:
        put(ahead, AHEAD_LEFT, lefts)
        put(ahead, AHEAD_RIGHT, rights)
        put(ahead, AHEAD_PASS, 2 * progress[PARTITION])
        put(ahead, AHEAD_END, 2 * last)
        put(ahead, AHEAD_COUNT, 0)
        ask(ahead, AHEAD)
    while True:
        p, queued = progress[PARTITION], progress[FOUND] - progress[DONE]
        if p < last and queued < DEPTH:
            ours, theirs = lefts + PART * p, rights + PART * p
            chunk, start = queue + QUEUED * (progress[FOUND] % DEPTH), progress[RECORD]
            if progress[PASS] == 0:
                start += find_chunk(ours, theirs, False, start, chunk, ahead)
                turned = start == get(ours, BATCH_ROWS)
            else:
                start += find_chunk(theirs, ours, True, start, chunk, ahead)
                turned = start == get(theirs, BATCH_ROWS)
                progress[PARTITION] += turned
            progress[RECORD] = 0 if turned else start
            progress[PASS] ^= turned
            progress[FOUND] += 1
            continue
        if queued == 0:
            break
        chunk = queue + QUEUED * (progress[DONE] % DEPTH)
        swapped = get(chunk, SWAPPED)
        mine, met = (out_rights, outs) if swapped else (outs, out_rights)
        if progress[CANDIDATE] == 0:
            progress[BEGUN] = progress[PAIRS]
        if not decode(chunk, asked, at, rest, mine, met, room):
            return 0
        begun = progress[BEGUN]
        look_up(asked, at, begun, outs, out_rights)
        progress[LOOKED_PASS] = swapped
        if keys.shape[0] != 0:
            look_up(asked, at, progress[PAIRS], outs, out_rights)
            mine, met = mine + 8 * begun, met + 8 * begun
            left_over = walk.without_others(keys, swapped != 0, mine, met, progress[PAIRS] - begun)
            progress[PAIRS] = progress[LOOKED] = begun + left_over
        if get(chunk, LAST):
            evict(get(chunk, OTHER), job[LEFT_BOUND], job[LEFT_ALL] != 0)
            evict(get(chunk, MINE), job[RIGHT_BOUND], job[RIGHT_ALL] != 0)
        progress[DONE] += 1
    look_up(asked, at, progress[PAIRS], outs, out_rights)
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
        full += head - mine[TAIL] + count > capacity or head + count > LOW
    return full


@kernel("void(int64[:, ::1])", twin="tests.naive.chain.insert")
def insert_all(side: Any) -> None:
    """Insert every partition's batch without probing: how a saved state comes back."""
    nowhere, lookout = np.zeros(1, np.int64), np.zeros(AHEAD_FIELDS, np.int64)
    other = np.zeros(side.size, np.int64)
    found, ahead = np.int64(nowhere.ctypes.data), np.int64(lookout.ctypes.data)
    put(ahead, AHEAD_LEFT, np.int64(side.ctypes.data))
    put(ahead, AHEAD_RIGHT, np.int64(other.ctypes.data))
    put(ahead, AHEAD_END, 2 * side.shape[0])
    ask(ahead, AHEAD)
    for p in range(side.shape[0]):
        mine = np.int64(side.ctypes.data) + PART * p
        if side[p, BATCH_ROWS]:
            find_and_insert(mine, False, LOW + 1, 0, side[p, BATCH_ROWS], found, ahead)


@kernel("void(int64[:, ::1], int64[:, ::1])", twin="tests.naive.chain.insert")
def rebuild(old: Any, new: Any) -> None:
    """Move the live entries of `old` into the empty, larger or equal rings of `new`.

    Both describe all partitions; `new` has its addresses, masks, TAIL = HEAD = 1 and heads below 1.
    """
    for p in range(old.shape[0]):
        source, target = old[p], new[p]
        ring, mask, rows = source[RING], source[RING_MASK], source[ROWS]
        for position in range(source[TAIL], source[HEAD]):
            entry = ring + ENTRY * (position & mask)
            tag = mem.load_u32(entry + 8)
            slot = target[HEAD] & target[RING_MASK]
            head = target[HEADS] + PAIR * (np.int64(tag) & target[HEADS_MASK])
            fresh = target[RING] + ENTRY * slot
            mem.store_i64(fresh, mem.load_i64(entry))
            mem.store_u32(fresh + 8, tag)
            mem.store_u32(fresh + 12, mem.load_u32(head))
            mem.store_u32(target[ROWS] + 4 * slot, mem.load_u32(rows + 4 * (position & mask)))
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
