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
    decode    DEPTH chunks later: walk the candidates' chains and write the pairs, in large rings
              those of two chunks in turn

Short beats take another way to the same pairs (`kernels.cpu.short`), and where windows are small
enough a third, with a ring a side for each thread (`kernels.cpu.pooled`).  Which way, and which
thread joins which partitions, is for `kernels.cpu.beat` to say.

Where the output is full, all answer FULL, and the lane knows where it is: give it more room and
call them again.

Tags are 32 bits of the key's hash (`kernels.cpu.partition`).  For keys of up to 32 bits equal tags
are equal keys; for others `keys` names the key columns of both stores (see `keys`), which are
compared for each candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import heavy_hitters, mem, pooled, probe
from kernels.cpu.chunk import (
    CANDIDATES,
    CHUNK_FIELDS,
    DONE,
    FOUND,
    FULL,
    HOT,
    JOB,
    LAST,
    LAST_PARTITION,
    LEFT_ALL,
    LEFT_BOUND,
    LEFT_TABLE,
    MINE,
    OTHER,
    PAIRS,
    PARTITION,
    PASS,
    RECORD,
    RECORDS,
    RIGHT_ALL,
    RIGHT_BOUND,
    RIGHT_TABLE,
    SCRATCH_AT,
    SWAPPED,
    finish,
)  # fmt: skip
from kernels.cpu.evict import evict, foresee
from kernels.cpu.insert import (
    AHEAD_COUNT,
    AHEAD_END,
    AHEAD_FIELDS,
    AHEAD_LEFT,
    AHEAD_PASS,
    AHEAD_RIGHT,
    ask,
    find_and_insert,
    insert_entry,
)
from kernels.cpu.probe import CHUNK
from kernels.cpu.rings import (
    AHEAD,
    BATCH,
    BATCH_ROWS,
    ENTRY,
    GENERATION,
    HEAD,
    LOW,
    NEWEST_OLD,
    PART,
    RECORD_BYTES,
    RING,
    RING_MASK,
    TAIL,
    get,
    point_ring,
    put,
)
from kernels.registry import device, kernel, task

PARTITIONS = 64
DEPTH = 4
"""Chunks whose candidates wait for the first entries of their chains."""
QUEUED = 8 * (CHUNK_FIELDS + CHUNK)
SCRATCH = probe.FIELDS + max(DEPTH * (CHUNK_FIELDS + CHUNK) + AHEAD_FIELDS, pooled.FIELDS)
"""Size of the scratch array (int64s)."""


@device
def find_chunk(
    mine: int, other: int, swapped: bool, start: int, chunk: int, ahead: int, hot_at: int
) -> Any:
    """Insert a pass's next records, note their candidates in the queue, and ask for the first
    entries of these; returns how many records.  The byte at `hot_at` says whether the partition has
    chains for hot keys (see `kernels.cpu.heavy_hitters`)."""
    n = get(mine, BATCH_ROWS)
    count, first, end = min(CHUNK, n - start), chunk + 8 * CHUNK_FIELDS, chunk + 8 * CHUNK_FIELDS
    if count:
        tail = get(other, TAIL)
        names = heavy_hitters.names_of(mine) if mem.load_u8(hot_at) else 0
        end = find_and_insert(mine, swapped, tail, start, start + count, first, ahead, names)
    put(chunk, MINE, mine)
    put(chunk, OTHER, other)
    put(chunk, SWAPPED, swapped)
    put(chunk, RECORDS, get(mine, BATCH) + RECORD_BYTES * start)
    put(chunk, CANDIDATES, (end - first) >> 3)
    put(chunk, LAST, swapped and start + count == n)
    ring, mask = get(other, RING), get(other, RING_MASK)
    while first < end:
        entry = ring + ENTRY * (np.int64(mem.load_u32(first + 4)) & mask)
        mem.prefetch(entry)
        mem.prefetch(entry + ENTRY - 1)
        first += 8
    return count


@device
def let_go(chunk: int, job: int) -> None:
    """Move the tails of a chunk's partition on, if the chunk was its last."""
    if get(chunk, LAST):
        evict(get(chunk, OTHER), get(job, LEFT_BOUND), get(job, LEFT_ALL) != 0)
        evict(get(chunk, MINE), get(job, RIGHT_BOUND), get(job, RIGHT_ALL) != 0)


@device
def run(lane: int) -> bool:
    """The pipeline: chunks are found and inserted DEPTH ahead of the one whose candidates are
    walked, so that the first entries of chains come while other records are worked on."""
    job, queue, last = get(lane, JOB), get(lane, SCRATCH_AT), get(lane, LAST_PARTITION)
    lefts, rights = get(job, LEFT_TABLE), get(job, RIGHT_TABLE)
    ahead = queue + QUEUED * DEPTH
    rest = ahead + 8 * AHEAD_FIELDS
    if get(lane, FOUND) == 0:
        put(ahead, AHEAD_LEFT, lefts)
        put(ahead, AHEAD_RIGHT, rights)
        put(ahead, AHEAD_PASS, 2 * get(lane, PARTITION))
        put(ahead, AHEAD_END, 2 * last)
        put(ahead, AHEAD_COUNT, 0)
        ask(ahead, AHEAD)
    while True:
        p, queued = get(lane, PARTITION), get(lane, FOUND) - get(lane, DONE)
        hot_at = get(job, HOT) + p
        if p < last and queued < DEPTH:
            ours, theirs = lefts + PART * p, rights + PART * p
            chunk, start = queue + QUEUED * (get(lane, FOUND) % DEPTH), get(lane, RECORD)
            if get(lane, PASS) == 0:
                start += find_chunk(ours, theirs, False, start, chunk, ahead, hot_at)
                turned = np.int64(start == get(ours, BATCH_ROWS))
            else:
                start += find_chunk(theirs, ours, True, start, chunk, ahead, hot_at)
                turned = np.int64(start == get(theirs, BATCH_ROWS))
                put(lane, PARTITION, p + turned)
                if turned:
                    foresee(ours, get(job, LEFT_BOUND))
                    foresee(theirs, get(job, RIGHT_BOUND))
            put(lane, RECORD, 0 if turned else start)
            put(lane, PASS, get(lane, PASS) ^ turned)
            put(lane, FOUND, get(lane, FOUND) + 1)
            continue
        if queued == 0:
            break
        oldest_chunk = queue + QUEUED * (get(lane, DONE) % DEPTH)
        if not finish(oldest_chunk, lane, rest):
            return False
        let_go(oldest_chunk, job)
        put(lane, DONE, get(lane, DONE) + 1)
    return True


@task(reference="tests.naive.chain.join")
def join(lane: int) -> int:
    """One beat's join of the lane's partitions, which know where their records are, from where it
    stands; how many pairs, or FULL: call it again with more room."""
    return get(lane, PAIRS) if run(lane) else FULL


@task(reference="tests.naive.chain.join")
def join_pooled(lane: int) -> Any:
    """The same where they share a ring; SPREAD where they cannot, and nothing was done."""
    return pooled.run(lane)


@kernel("int64(int64[:, ::1], int64, int64[::1])", reference="tests.naive.chain.point")
def point(side: Any, records: int, counts: Any) -> int:
    """Tell a side's partitions where this beat's records (from address `records` on, `counts` in
    each) are; returns how many of them have no room for theirs."""
    full, mine = 0, np.int64(side.ctypes.data)
    for p in range(side.shape[0]):
        full += not point_ring(mine + PART * p, records, counts[p])
        records += RECORD_BYTES * counts[p]
    return full


@kernel("void(int64[:, ::1])", reference="tests.naive.chain.insert")
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
            count, names = side[p, BATCH_ROWS], heavy_hitters.names_of(mine)
            find_and_insert(mine, False, LOW + 1, 0, count, found, ahead, names)


@kernel("void(int64[:, ::1], int64[:, ::1])", reference="tests.naive.chain.insert")
def rebuild(old: Any, new: Any) -> None:
    """Move the live entries of `old` into the empty, larger or equal rings of `new`.

    Both describe all partitions; `new` has its addresses, masks, TAIL = HEAD = 1, no marks, and
    heads below 1.
    """
    for p in range(old.shape[0]):
        source, target = old[p], new[p]
        ring, mask = source[RING], source[RING_MASK]
        for position in range(source[TAIL], source[HEAD]):
            insert_entry(np.int64(new.ctypes.data) + PART * p, ring + ENTRY * (position & mask))
        for field in range(NEWEST_OLD, GENERATION):
            target[field] = source[field]
        target[GENERATION] = max(0, source[GENERATION] - source[TAIL]) + target[TAIL]


@kernel("int64(int64[:, ::1], int64, int64)", reference="tests.naive.chain.oldest")
def oldest(side: Any, base: int, rows: int) -> int:
    """The store's first row that a live entry names; `rows` where nothing is live."""
    first = rows
    for p in range(side.shape[0]):
        if side[p, TAIL] < side[p, HEAD]:
            slot = side[p, TAIL] & side[p, RING_MASK]
            row = mem.load_u32(side[p, RING] + ENTRY * slot + 12)
            first = min(first, np.int64(np.uint32(row - np.uint32(base))))
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", reference="tests.naive.chain.live")
def live(side: Any, base: int, hashes: Any, alive: Any) -> None:
    """For every live entry's store row: its partition (top 6 bits) and tag, and alive = 1."""
    for p in range(side.shape[0]):
        for position in range(side[p, TAIL], side[p, HEAD]):
            slot = position & side[p, RING_MASK]
            entry = side[p, RING] + ENTRY * slot
            row = np.uint32(mem.load_u32(entry + 12) - np.uint32(base))
            tag = np.uint64(mem.load_u32(entry + 8))
            hashes[row] = np.uint64(p) << np.uint64(58) | tag
            alive[row] = 1
