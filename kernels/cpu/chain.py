"""The chained-ring interval join: R ⋈ S on equal keys and −before ≤ s.time − r.time ≤ after.

`kernels.cpu.rings` has the state, `kernels.cpu.probe` walks the chains, `kernels.cpu.beat` decides
which thread joins which partitions.

A beat joins partitions one after the other.  Left records probe the right ring and are inserted;
right records probe the left ring, the new entries included, and are inserted.  Each pair is found
once.  Then both tails move over rows that no later row can match.  Pairs are rows of the two stores
in the order (partition, side, probing row, newest partner first).

A side's records of a partition go by chunks of 256 records, and chunks go through a pipeline that
requests every cache line long before it is read:

    prefetch  64 records ahead, across partitions and sides: their heads
    insert    read the head that a record probes and insert the record at the head beside it; a
              record whose chain lives is a candidate: prefetch the chain's first entry
    decode    DEPTH chunks later: walk the candidates' chains and write the pairs

Short beats, and beats with few matches, are joined in pools instead (`kernels.cpu.pooled`).

FULL is answered where the output is full.  The lane keeps its progress: the caller makes room and
calls again.

Tags are 32 bits of the key's hash (`kernels.cpu.partition`).  For keys of up to 32 bits equal tags
are equal keys; for others `keys` names the key columns of both stores, which are compared for each
pair (`kernels.cpu.keys`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import heavy_hitters, mem, pooled, probe
from kernels.cpu.chunk import CHUNK, CHUNK_FIELDS, FULL, JOB, LANE, finish
from kernels.cpu.evict import evict, foresee
from kernels.cpu.insert import LOOKAHEAD, LOOKAHEAD_FIELDS, ask, find_and_insert, insert_entry
from kernels.cpu.probe import CHUNK_ROWS
from kernels.cpu.records import get, put
from kernels.cpu.rings import AHEAD, ENTRY, LOW, PART, RECORD_BYTES, RING, point_ring
from kernels.registry import device, kernel, task

DEPTH = 4
"""Chunks between insertion and decoding."""
QUEUED = 8 * (CHUNK_FIELDS + CHUNK_ROWS)
SCRATCH = probe.FIELDS + max(DEPTH * (CHUNK_FIELDS + CHUNK_ROWS) + LOOKAHEAD_FIELDS, pooled.FIELDS)
"""Size of the scratch array (int64s)."""


@device
def find_chunk(
    mine: int, other: int, swapped: bool, start: int, chunk: int, ahead: int, hot_at: int
) -> Any:
    """Insert the next records of a pass, write their candidates to the chunk, and prefetch the
    first entries of their chains; returns the number of records.  The byte at `hot_at` is 1 if the
    partition has chains of heavy hitters."""
    n = get(mine, RING.batch_rows)
    count, first, end = (
        min(CHUNK_ROWS, n - start),
        chunk + 8 * CHUNK_FIELDS,
        chunk + 8 * CHUNK_FIELDS,
    )
    if count:
        tail = get(other, RING.tail)
        names = heavy_hitters.names_of(mine) if mem.load_u8(hot_at) else 0
        end = find_and_insert(mine, swapped, tail, start, start + count, first, ahead, names)
    put(chunk, CHUNK.mine, mine)
    put(chunk, CHUNK.other, other)
    put(chunk, CHUNK.swapped, swapped)
    put(chunk, CHUNK.records, get(mine, RING.batch) + RECORD_BYTES * start)
    put(chunk, CHUNK.candidates, (end - first) >> 3)
    put(chunk, CHUNK.last, swapped and start + count == n)
    ring, mask = get(other, RING.entries), get(other, RING.mask)
    while first < end:
        entry = ring + ENTRY * (np.int64(mem.load_u32(first + 4)) & mask)
        mem.prefetch(entry)
        mem.prefetch(entry + ENTRY - 1)
        first += 8
    return count


@device
def let_go(chunk: int, job: int) -> None:
    """Evict from both rings of a chunk's partition, if the chunk is its last."""
    if get(chunk, CHUNK.last):
        evict(get(chunk, CHUNK.other), get(job, JOB.left_bound), get(job, JOB.left_all) != 0)
        evict(get(chunk, CHUNK.mine), get(job, JOB.right_bound), get(job, JOB.right_all) != 0)


@device
def run(lane: int) -> bool:
    """The pipeline: chunks are inserted DEPTH ahead of the one that is decoded.  False: the output
    is full."""
    job, queue, last = get(lane, LANE.job), get(lane, LANE.scratch), get(lane, LANE.last_partition)
    lefts, rights = get(job, JOB.left_table), get(job, JOB.right_table)
    ahead = queue + QUEUED * DEPTH
    rest = ahead + 8 * LOOKAHEAD_FIELDS
    if get(lane, LANE.found) == 0:
        put(ahead, LOOKAHEAD.left, lefts)
        put(ahead, LOOKAHEAD.right, rights)
        put(ahead, LOOKAHEAD.next_pass, 2 * get(lane, LANE.partition))
        put(ahead, LOOKAHEAD.last_pass, 2 * last)
        put(ahead, LOOKAHEAD.remaining, 0)
        ask(ahead, AHEAD)
    while True:
        p, queued = get(lane, LANE.partition), get(lane, LANE.found) - get(lane, LANE.done)
        hot_at = get(job, JOB.heavy) + p
        if p < last and queued < DEPTH:
            ours, theirs = lefts + PART * p, rights + PART * p
            chunk, start = queue + QUEUED * (get(lane, LANE.found) % DEPTH), get(lane, LANE.record)
            if get(lane, LANE.side) == 0:
                start += find_chunk(ours, theirs, False, start, chunk, ahead, hot_at)
                turned = np.int64(start == get(ours, RING.batch_rows))
            else:
                start += find_chunk(theirs, ours, True, start, chunk, ahead, hot_at)
                turned = np.int64(start == get(theirs, RING.batch_rows))
                put(lane, LANE.partition, p + turned)
                if turned:
                    foresee(ours, get(job, JOB.left_bound))
                    foresee(theirs, get(job, JOB.right_bound))
            put(lane, LANE.record, 0 if turned else start)
            put(lane, LANE.side, get(lane, LANE.side) ^ turned)
            put(lane, LANE.found, get(lane, LANE.found) + 1)
            continue
        if queued == 0:
            break
        oldest_chunk = queue + QUEUED * (get(lane, LANE.done) % DEPTH)
        if not finish(oldest_chunk, lane, rest):
            return False
        let_go(oldest_chunk, job)
        put(lane, LANE.done, get(lane, LANE.done) + 1)
    return True


@task(reference="tests.naive.chain.join")
def join(lane: int) -> int:
    """Join the lane's partitions of a beat, from where the lane stands; returns the number of
    pairs, or FULL."""
    return get(lane, LANE.pairs) if run(lane) else FULL


@task(reference="tests.naive.chain.join")
def join_pooled(lane: int) -> Any:
    """The same for a lane that has a pool; SPREAD or NO_ROOM where the pool cannot join the
    beat."""
    return pooled.run(lane)


@kernel("int64(int64[:, ::1], int64, int64[::1])", reference="tests.naive.chain.point")
def point(side: Any, records: int, counts: Any) -> int:
    """Set each partition's records of this beat, which lie from address `records` on, `counts` in
    each; returns how many rings have no room for them."""
    full, mine = 0, np.int64(side.ctypes.data)
    for p in range(side.shape[0]):
        full += not point_ring(mine + PART * p, records, counts[p])
        records += RECORD_BYTES * counts[p]
    return full


@kernel("void(int64[:, ::1])", reference="tests.naive.chain.insert")
def insert_all(side: Any) -> None:
    """Insert every partition's batch without probing, to restore a saved state."""
    nowhere, lookout = np.zeros(1, np.int64), np.zeros(LOOKAHEAD_FIELDS, np.int64)
    other = np.zeros(side.size, np.int64)
    found, ahead = np.int64(nowhere.ctypes.data), np.int64(lookout.ctypes.data)
    put(ahead, LOOKAHEAD.left, np.int64(side.ctypes.data))
    put(ahead, LOOKAHEAD.right, np.int64(other.ctypes.data))
    put(ahead, LOOKAHEAD.last_pass, 2 * side.shape[0])
    ask(ahead, AHEAD)
    for p in range(side.shape[0]):
        mine = np.int64(side.ctypes.data) + PART * p
        if side[p, RING.batch_rows]:
            count, names = side[p, RING.batch_rows], heavy_hitters.names_of(mine)
            find_and_insert(mine, False, LOW + 1, 0, count, found, ahead, names)


@kernel("void(int64[:, ::1], int64[:, ::1])", reference="tests.naive.chain.insert")
def rebuild(old: Any, new: Any) -> None:
    """Copy the live entries of `old` into the empty, larger or equal rings of `new`.

    Both describe all partitions.  In `new`, tail = head = 1, heads are below 1, and no block is
    marked.
    """
    for p in range(old.shape[0]):
        source, target = old[p], new[p]
        ring, mask = source[RING.entries], source[RING.mask]
        for position in range(source[RING.tail], source[RING.head]):
            insert_entry(np.int64(new.ctypes.data) + PART * p, ring + ENTRY * (position & mask))
        for place in range(RING.newest_old, RING.generation):
            target[place] = source[place]
        target[RING.generation] = (
            max(0, source[RING.generation] - source[RING.tail]) + target[RING.tail]
        )


@kernel("int64(int64[:, ::1], int64, int64)", reference="tests.naive.chain.oldest")
def oldest(side: Any, base: int, rows: int) -> int:
    """The first store row of a live entry; `rows` where none is live."""
    first = rows
    for p in range(side.shape[0]):
        if side[p, RING.tail] < side[p, RING.head]:
            slot = side[p, RING.tail] & side[p, RING.mask]
            row = mem.load_u32(side[p, RING.entries] + ENTRY * slot + 12)
            first = min(first, np.int64(np.uint32(row - np.uint32(base))))
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", reference="tests.naive.chain.live")
def live(side: Any, base: int, hashes: Any, alive: Any) -> None:
    """For each live entry, at its store row: partition (top 6 bits) and tag, and alive = 1."""
    for p in range(side.shape[0]):
        for position in range(side[p, RING.tail], side[p, RING.head]):
            slot = position & side[p, RING.mask]
            entry = side[p, RING.entries] + ENTRY * slot
            row = np.uint32(mem.load_u32(entry + 12) - np.uint32(base))
            tag = np.uint64(mem.load_u32(entry + 8))
            hashes[row] = np.uint64(p) << np.uint64(58) | tag
            alive[row] = 1
