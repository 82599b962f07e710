"""Chunks of records: from candidates to pairs of store rows; and the records that lanes work with.

`kernels.cpu.chain` makes chunks, `kernels.cpu.probe` walks the chains of their candidates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import heavy_hitters, known_chains, mem, probe
from kernels.cpu.probe import CHUNK_ROWS
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.cpu.rings import LOW, PART, RING
from kernels.registry import device


class JoinJob(NamedTuple):
    """What holds for all lanes of a join; first what changes with each beat, in few cache lines."""

    left_batch: ADDRESS = field("the left side's records in this beat")
    left_counts: ADDRESS = field("int64[64]: the left's records in each partition")
    left_base: I64 = field("row number (mod 2^32) of row 0 of the left store")
    left_bound: I64 = field("time below which the left's rows leave after this beat (us)")
    right_batch: ADDRESS = field("the same of the right side")
    right_counts: ADDRESS = field("the same of the right side")
    right_base: I64 = field("the same of the right side")
    right_bound: I64 = field("the same of the right side")
    beats: I64 = field("number of this beat")
    left_all: I64 = field("1 if all of the left's rows leave after this beat")
    right_all: I64 = field("1 if all of the right's rows leave after this beat")
    rows: I64 = field("records of both sides in this beat")
    keys: ADDRESS = field("the key columns to compare (`kernels.cpu.keys`)")
    key_columns: I64 = field("their number, 0 where equal tags are equal keys")
    before: I64 = field("how far a partner lies before a left record, at most (us)")
    after: I64 = field("how far a partner lies after a left record, at most (us)")
    left_table: ADDRESS = field("the left's 64 rings, or pools")
    right_table: ADDRESS = field("the right's 64 rings, or pools")
    heavy: ADDRESS = field("a byte a partition: 1 if it has chains of heavy hitters")


class LaneState(NamedTuple):
    """The join of a range of partitions, or of a pool, by one thread: progress and buffers."""

    partition: I64 = field("partition of the next chunk to be found")
    side: I64 = field("side of the next chunk: 0 left, 1 right")
    record: I64 = field("first record of the next chunk")
    found: I64 = field("chunks found")
    done: I64 = field("chunks of which all pairs are written")
    candidate: I64 = field("next candidate of the oldest chunk that is not done")
    pairs: I64 = field("pairs written")
    begun: I64 = field("pairs written before the oldest chunk that is not done")
    last_partition: I64 = field("partition to stop before")
    vectors: I64 = field("1 if chains are walked in vectors (`kernels.cpu.simd_probe`)")
    sieved: I64 = field("1 if few candidates matched lately, so that they pass a sieve first")
    many: I64 = field("1 if candidates had many matches lately, so that chains are listed")
    beat: I64 = field("the beat that the lane's pool has begun")
    number: I64 = field("number of the lane, and of its pool")
    job: ADDRESS = field("the JoinJob")
    scratch: ADDRESS = field("scratch memory")
    out_left: ADDRESS = field("rows of the left store, pair by pair")
    out_right: ADDRESS = field("rows of the right store, pair by pair")
    room: I64 = field("pairs that both have room for, a block apart")
    lay_left: ADDRESS = field("where `beat.lay` copies the left rows to")
    lay_right: ADDRESS = field("where `beat.lay` copies the right rows to")


class Chunk(NamedTuple):
    """Up to 256 records of a partition and side; their candidates follow."""

    mine: ADDRESS = field("ring that the records are inserted in")
    other: ADDRESS = field("ring that they probe")
    swapped: I64 = field("1 if the records are the right side's")
    records: ADDRESS = field("first record")
    candidates: I64 = field("number of candidates")
    last: I64 = field("1 if the chunk is the partition's last")


JOB, LANE, CHUNK = words(JoinJob), words(LaneState), words(Chunk)
JOB_FIELDS = LANE_FIELDS = 24
CHUNK_FIELDS = 8
NO_ROOM, FULL, SPREAD, GATHER = -1, -2, -3, -4
"""Answers for a beat that is not joined: the rings have no room; the output has none; the beat
cannot be joined in pools; it would be joined better in (another number of) pools."""
FEW = 4
"""Candidates a pair from which on candidates pass a sieve before they are probed."""
NAMED = 1 << 32
"""Multiplied with the partition and added to the first row of a pool's pairs."""


@device
def begin(lane: int, first: int, last: int) -> None:
    """Set a lane to the partitions first..last - 1."""
    for place in range(LANE.last_partition):
        put(lane, place, 0)
    put(lane, LANE.partition, first)
    put(lane, LANE.last_partition, last)


@device
def terms(lane: int, swapped: bool) -> Any:
    """How far partners lie before and after a record, row 0's number in its store and in the
    other's, and the factor of the partition above its row."""
    job = get(lane, LANE.job)
    named = NAMED if get(get(job, JOB.left_table), RING.log) else 0
    before, after = get(job, JOB.before), get(job, JOB.after)
    left, right = get(job, JOB.left_base), get(job, JOB.right_base)
    if swapped:
        return after, before, right, left, named
    return before, after, left, right, named


@device
def outputs(lane: int, chunk: int, pairs: int) -> Any:
    """Where pair number `pairs` goes: the row of the chunk's side, and the partner's."""
    left, right = get(lane, LANE.out_left) + 8 * pairs, get(lane, LANE.out_right) + 8 * pairs
    if get(chunk, CHUNK.swapped):
        return right, left
    return left, right


@device
def decode(chunk: int, lane: int, scratch: int) -> bool:
    """Write the pairs of a chunk's candidates, from the lane's next candidate on; False: the output
    is full.  Candidates are probed together, fewer where the log is too short for their pairs."""
    records, other = get(chunk, CHUNK.records), get(chunk, CHUNK.other)
    back, forth, base, met_base, named = terms(lane, get(chunk, CHUNK.swapped) != 0)
    at, pairs, take = get(lane, LANE.candidate), get(lane, LANE.pairs), CHUNK_ROWS
    while at < get(chunk, CHUNK.candidates):
        first, some = chunk + 8 * (CHUNK_FIELDS + at), min(take, get(chunk, CHUNK.candidates) - at)
        mine, met = outputs(lane, chunk, pairs)
        room = get(lane, LANE.room) - pairs
        if get(lane, LANE.many) and known_chains.is_cached(other):
            more = known_chains.probe(
                scratch + 8 * probe.COUNTS, scratch + 8 * probe.LOG,
                scratch + 8 * probe.SUSPECT, records, other, back, forth, base, met_base, named,
                first, some, mine, met, room,
            )  # fmt: skip
        elif take > 1:
            probed, from_at = some, first
            if get(lane, LANE.sieved):
                from_at = scratch + 8 * probe.SIEVED
                probed = probe.sieve(records, other, first, first + 8 * some, from_at)
            more = probe.probe(
                scratch, records, other, back, forth, base, met_base, named, from_at, probed,
                get(lane, LANE.vectors) != 0, mine, met, room,
            )  # fmt: skip
        else:
            record = records + ((np.int64(mem.load_u32(first)) - records) & LOW)
            more = probe.probe_one(
                record, np.int64(mem.load_u32(first + 4)), other, back, forth, base, met_base,
                named, mine, met, room,
            )  # fmt: skip
        if more == probe.NO_ROOM:
            take = max(1, some >> 2)
            put(lane, LANE.many, 0)
            continue
        if more < 0:
            put(lane, LANE.candidate, at)
            put(lane, LANE.pairs, pairs)
            return False
        put(lane, LANE.sieved, FEW * more < some)
        put(lane, LANE.many, more >= known_chains.MANY * some)
        take = min(CHUNK_ROWS, 2 * take)
        pairs += more
        at += some
    put(lane, LANE.candidate, 0)
    put(lane, LANE.pairs, pairs)
    return True


@device
def promote(chunk: int, lane: int, scratch: int) -> None:
    """Give a heavy hitter that a walk met a chain of its own, if the ring has such chains."""
    job, met = get(lane, LANE.job), get(scratch, probe.SUSPECT)
    if met and get(get(job, JOB.left_table), RING.log) == 0:
        mine, other = get(chunk, CHUNK.mine), get(chunk, CHUNK.other)
        if heavy_hitters.names_of(other) and heavy_hitters.take_name(other, mine, met & LOW):
            table = get(job, JOB.left_table if get(chunk, CHUNK.swapped) else JOB.right_table)
            mem.store_u8(get(job, JOB.heavy) + (other - table) // PART, np.uint8(1))


@device
def compare_keys(chunk: int, lane: int) -> None:
    """Remove the chunk's pairs whose keys differ, where equal tags do not decide."""
    job, begun = get(lane, LANE.job), get(lane, LANE.begun)
    keys, columns = get(job, JOB.keys), get(job, JOB.key_columns)
    if columns:
        mine, met = outputs(lane, chunk, begun)
        swapped, pairs = get(chunk, CHUNK.swapped) != 0, get(lane, LANE.pairs) - begun
        kept = probe.without_others(keys, columns, swapped, mine, met, pairs)
        put(lane, LANE.pairs, begun + kept)


@device
def finish(chunk: int, lane: int, scratch: int) -> bool:
    """Write a chunk's pairs; False: the output is full, call again with the same chunk."""
    if get(lane, LANE.candidate) == 0:
        put(lane, LANE.begun, get(lane, LANE.pairs))
    put(scratch, probe.SUSPECT, 0)
    if not decode(chunk, lane, scratch):
        return False
    compare_keys(chunk, lane)
    promote(chunk, lane, scratch)
    return True
