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

from kernels.cpu import heavy_hitters, insert, mem, pool, pooled, probe, rings
from kernels.cpu.chunk import CHUNK, CHUNK_FIELDS, FULL, JOB, LANE, finish
from kernels.cpu.evict import evict, foresee
from kernels.cpu.insert import LOOKAHEAD, LOOKAHEAD_FIELDS, ask, insert_entry
from kernels.cpu.probe import CHUNK_ROWS
from kernels.cpu.records import get, put
from kernels.cpu.rings import AHEAD, ENTRY, PAIR, PART, RECORD_BYTES, RING, address_of
from kernels.registry import device, kernel, task

DEPTH = 4
"""Chunks between insertion and decoding."""
QUEUED = 8 * (CHUNK_FIELDS + CHUNK_ROWS)
SCRATCH = probe.FIELDS + max(DEPTH * (CHUNK_FIELDS + CHUNK_ROWS) + LOOKAHEAD_FIELDS, pooled.FIELDS)
"""Size of the scratch array (int64s)."""


@device
def find_chunk(
    mine: int, other: int, swapped: int, start: int, chunk: int, ahead: int, hot_at: int
) -> Any:
    """Insert the next records of a pass, write their candidates to the chunk, and prefetch the
    first entries of their chains; returns the number of records.  The byte at `hot_at` is 1 if the
    partition has chains of heavy hitters."""
    n, end = get(mine, RING.batch_rows), chunk + 8 * CHUNK_FIELDS
    count, first = min(CHUNK_ROWS, n - start), end
    ring, mask, tail, _ = rings.span(other)
    if count:
        names = heavy_hitters.names_of(mine) if mem.load_u8(hot_at) else 0
        end = insert.find_and_insert(mine, swapped, tail, start, start + count, first, ahead, names)
    put(chunk, CHUNK.mine, mine)
    put(chunk, CHUNK.other, other)
    put(chunk, CHUNK.swapped, swapped)
    put(chunk, CHUNK.records, get(mine, RING.batch) + RECORD_BYTES * start)
    put(chunk, CHUNK.candidates, (end - first) >> 3)
    put(chunk, CHUNK.last, swapped & np.int64(start + count == n))
    while first < end:
        entry = ring + ENTRY * (np.int64(mem.load_u32(first + 4)) & mask)
        mem.prefetch(entry)
        mem.prefetch(entry + ENTRY - 1)
        first += 8
    return count


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
        if p < last and queued < DEPTH:
            ours, theirs, side = lefts + PART * p, rights + PART * p, get(lane, LANE.side)
            mine, other = (theirs, ours) if side else (ours, theirs)
            chunk, start = queue + QUEUED * (get(lane, LANE.found) % DEPTH), get(lane, LANE.record)
            hot_at = get(job, JOB.heavy) + p
            start += find_chunk(mine, other, side, start, chunk, ahead, hot_at)
            turned = np.int64(start == get(mine, RING.batch_rows))
            if turned & side:
                foresee(ours, get(job, JOB.left_bound))
                foresee(theirs, get(job, JOB.right_bound))
            put(lane, LANE.partition, p + (turned & side))
            put(lane, LANE.record, 0 if turned else start)
            put(lane, LANE.side, side ^ turned)
            put(lane, LANE.found, get(lane, LANE.found) + 1)
            continue
        if queued == 0:
            break
        oldest_chunk = queue + QUEUED * (get(lane, LANE.done) % DEPTH)
        if not finish(oldest_chunk, lane, rest):
            return False
        if get(oldest_chunk, CHUNK.last):
            ours, theirs = get(oldest_chunk, CHUNK.other), get(oldest_chunk, CHUNK.mine)
            evict(ours, get(job, JOB.left_bound), get(job, JOB.left_all) != 0)
            evict(theirs, get(job, JOB.right_bound), get(job, JOB.right_all) != 0)
        put(lane, LANE.done, get(lane, LANE.done) + 1)
    return True


@task(reference="tests.naive.chain.join")
def join(lane: int) -> int:
    """Join the lane's partitions of a beat, from where the lane stands; returns the number of
    pairs, or FULL."""
    return get(lane, LANE.pairs) if run(lane) else FULL


@kernel("int64(int64[:, ::1], int64, int64[::1])", reference="tests.naive.chain.point")
def point(side: Any, records: int, counts: Any) -> Any:
    """`insert.point_all` of arrays."""
    return insert.point_all(address_of(side, 0), records, np.int64(counts.ctypes.data))


@kernel("void(int64[:, ::1])", reference="tests.naive.chain.insert")
def insert_all(side: Any) -> None:
    """Insert every partition's batch without probing, to restore a saved state."""
    for p in range(side.shape[0]):
        mine, at = address_of(side, p), side[p, RING.batch]
        end = at + RECORD_BYTES * side[p, RING.batch_rows]
        for record in range(at, end, RECORD_BYTES):
            coming = np.int64(mem.load_u32(record + RECORD_BYTES * AHEAD + 8))
            mem.prefetch(side[p, RING.heads] + PAIR * (coming & side[p, RING.heads_mask]))
            insert_entry(mine, record)
        insert.note_disorder(mine, at, end)


@kernel("void(int64[:, ::1], int64[:, ::1])", reference="tests.naive.chain.insert")
def rebuild(old: Any, new: Any) -> None:
    """Copy the entries of rings or pools, without those that are dead, into the 64 empty rings of
    `new`, which have room.  In `new`, tail = head, heads are below it, and no block is marked."""
    for k in range(old.shape[0]):
        bound = pool.bound_of(address_of(old, k))
        for position in range(old[k, RING.tail], old[k, RING.head]):
            entry = old[k, RING.entries] + ENTRY * (position & old[k, RING.mask])
            p, time = rings.partition_of(entry), mem.load_i64(entry)
            if time >= bound or new[p, RING.tail] < new[p, RING.head]:
                insert_entry(address_of(new, p), entry)
                disorder = pool.fall(new[p, RING.newest_old], time)
                new[p, RING.disorder_old] = max(new[p, RING.disorder_old], disorder)
                new[p, RING.newest_old] = max(new[p, RING.newest_old], time)
    for p in range(new.shape[0]):
        new[p, RING.generation] = new[p, RING.head]


@kernel("int64(int64[:, ::1], int64, int64)", reference="tests.naive.chain.oldest")
def oldest(side: Any, base: int, rows: int) -> int:
    """A store row before which no row is held; `rows` where none is held.  Without pools it is the
    first row that is held."""
    first = rows
    for k in range(side.shape[0]):
        first = min(first, pool.first_row(address_of(side, k), base))
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", reference="tests.naive.chain.live")
def live(side: Any, base: int, hashes: Any, alive: Any) -> None:
    """For each entry that is held and not dead, at its store row: partition (top 6 bits) and tag,
    and alive = 1.  Of each partition, what is dead has left up to the first that is not."""
    for k in range(side.shape[0]):
        stays, bound = np.uint64(0), pool.bound_of(address_of(side, k))
        for position in range(side[k, RING.tail], side[k, RING.head]):
            entry = side[k, RING.entries] + ENTRY * (position & side[k, RING.mask])
            p = np.uint64(rings.partition_of(entry))
            stays |= np.uint64(mem.load_i64(entry) >= bound) << p
            if stays >> p & np.uint64(1):
                row = rings.row_of(entry, base)
                hashes[row] = p << np.uint64(58) | np.uint64(mem.load_u32(entry + 8))
                alive[row] = 1
