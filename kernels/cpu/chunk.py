"""A chunk of the chain join: from its candidates to pairs of store rows, and what a beat is about.

`kernels.cpu.chain` says where chunks come from, `kernels.cpu.probe` how chains are walked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import heavy_hitters, mem, probe
from kernels.cpu.probe import CHUNK
from kernels.cpu.rings import LOG, LOW, PART, get, put
from kernels.registry import device

(LEFT_BATCH, LEFT_COUNTS, LEFT_BASE, LEFT_BOUND, RIGHT_BATCH, RIGHT_COUNTS, RIGHT_BASE, RIGHT_BOUND,
 BEATS, LEFT_ALL, RIGHT_ALL, ROWS_IN, KEYS, KEY_COLUMNS, BEFORE, AFTER, LEFT_TABLE, RIGHT_TABLE,
 HOT) = range(19)  # fmt: skip
JOB_FIELDS = 24
"""What `job` (int64[24]) holds.  Of the beat at hand, in as few lines as can be: the addresses of
each side's records and of their counts (int64[64]), the row number (mod 2^32) of its store's first
row, and the time below which its rows are dead; the number of the beat; 1 where all of a side's
rows are dead; how many records both have.  Of all beats: the address of the table of keys and how
many rows it has (see `kernels.cpu.keys`); the bounds (µs); the addresses of both sides' rows of
partitions (see `kernels.cpu.rings`); the address of a byte for each partition, 1 where it has
chains for hot keys (see `kernels.cpu.heavy_hitters`)."""

(PARTITION, PASS, RECORD, FOUND, DONE, CANDIDATE, PAIRS, BEGUN, LAST_PARTITION, VECTORS, SIEVED,
 BEAT, NUMBER) = range(13)  # fmt: skip
JOB, SCRATCH_AT, OUT_LEFT, OUT_RIGHT, ROOM = range(16, 21)
LANE_FIELDS = 24
"""What `lane` (int64[24]) holds.  Where to find the next chunk: partition, pass (0 left, 1
right), record.  How many chunks were found, and how many of them are done; the next candidate of
the oldest of the others.  The pairs written so far; where those of the oldest chunk begin.  The
partition to stop before.  Whether walks are probed in vectors; whether few of
the last candidates matched, so that the next pass a sieve before.  Which beat it was begun for,
where it has a pool, and the lane's, and that pool's, number.  The addresses of the job, of the
scratch memory, and of the two arrays for pairs; how many these have room for, apart from a block.
Two more are `kernels.cpu.beat`'s."""

NO_ROOM, FULL, SPREAD, GATHER = -1, -2, -3, -4
"""What a beat is answered that was not joined: the rings have no room; the output has none; it
cannot be joined in a pool (see `kernels.cpu.pool`); it had better be."""
MINE, OTHER, SWAPPED, RECORDS, CANDIDATES, LAST = range(6)
CHUNK_FIELDS = 8
"""What the queue knows of a chunk: the rows of its partition, its own and the other side's, by
address; its pass; the address of its records; the number of its candidates, which follow; 1 where
it is the partition's last."""
FEW = 4
"""Candidates a pair from which on candidates pass a sieve before they are probed."""
NAMED = 1 << 32
"""What a partition is multiplied with above the rows that pairs of a pool begin with."""


@device
def begin(lane: int, first: int, last: int) -> None:
    """Set a lane to the first of its partitions."""
    for field in range(PARTITION, LAST_PARTITION):
        put(lane, field, 0)
    put(lane, PARTITION, first)
    put(lane, LAST_PARTITION, last)


@device
def terms(lane: int, swapped: bool) -> Any:
    """How far back and forth of a record its partners' times are, the numbers of row 0 of its
    side's store and of the other's, and what a partition is multiplied with above its row."""
    job = get(lane, JOB)
    named = NAMED if get(get(job, LEFT_TABLE), LOG) else 0
    if swapped:
        return get(job, AFTER), get(job, BEFORE), get(job, RIGHT_BASE), get(job, LEFT_BASE), named
    return get(job, BEFORE), get(job, AFTER), get(job, LEFT_BASE), get(job, RIGHT_BASE), named


@device
def decode(chunk: int, lane: int, scratch: int, mine: int, met: int) -> bool:
    """Write the pairs of a chunk's candidates; False: the output is full.

    TAKE candidates are probed together, fewer where the log was too short for their pairs."""
    records, other, n = get(chunk, RECORDS), get(chunk, OTHER), get(chunk, CANDIDATES)
    back, forth, base, met_base, named = terms(lane, get(chunk, SWAPPED) != 0)
    at, pairs, room, take = get(lane, CANDIDATE), get(lane, PAIRS), get(lane, ROOM), CHUNK
    while at < n:
        first, some = chunk + 8 * (CHUNK_FIELDS + at), min(take, n - at)
        to_mine, to_met, left = mine + 8 * pairs, met + 8 * pairs, room - pairs
        if take > 1:
            probed, from_at = some, first
            if get(lane, SIEVED):
                from_at = scratch + 8 * probe.SIEVED
                probed = probe.sieve(records, other, first, first + 8 * some, from_at)
            more = probe.probe(
                scratch, records, other, back, forth, base, met_base, named, from_at, probed,
                get(lane, VECTORS) != 0, to_mine, to_met, left,
            )  # fmt: skip
        else:
            record = records + ((np.int64(mem.load_u32(first)) - records) & LOW)
            more = probe.probe_one(
                record, np.int64(mem.load_u32(first + 4)), other, back, forth, base, met_base,
                named, to_mine, to_met, left,
            )  # fmt: skip
        if more == probe.NO_ROOM:
            take = max(1, some >> 2)
            continue
        if more < 0:
            put(lane, CANDIDATE, at)
            put(lane, PAIRS, pairs)
            return False
        put(lane, SIEVED, FEW * more < some)
        take = min(CHUNK, 2 * take)
        pairs += more
        at += some
    put(lane, CANDIDATE, 0)
    put(lane, PAIRS, pairs)
    return True


@device
def name_hot(chunk: int, lane: int, scratch: int) -> None:
    """Give the key that held up a walk of the chunk's, if one did, a chain of its own, where
    partitions have rings of their own (see `kernels.cpu.heavy_hitters`)."""
    job, met = get(lane, JOB), get(scratch, probe.SUSPECT)
    if met and get(get(job, LEFT_TABLE), LOG) == 0:
        other = get(chunk, OTHER)
        if heavy_hitters.names_of(other) and heavy_hitters.take_name(
            other, get(chunk, MINE), met & LOW
        ):
            table = get(job, LEFT_TABLE if get(chunk, SWAPPED) else RIGHT_TABLE)
            mem.store_u8(get(job, HOT) + (other - table) // PART, np.uint8(1))


@device
def compare_keys(chunk: int, lane: int) -> None:
    """Leave out those of a chunk's pairs whose keys differ, where tags do not say all."""
    keys, columns = get(get(lane, JOB), KEYS), get(get(lane, JOB), KEY_COLUMNS)
    if columns != 0:
        mine, met, swapped = get(lane, OUT_LEFT), get(lane, OUT_RIGHT), get(chunk, SWAPPED) != 0
        if swapped:
            mine, met = met, mine
        begun = get(lane, BEGUN)
        mine, met, pairs = mine + 8 * begun, met + 8 * begun, get(lane, PAIRS) - begun
        put(lane, PAIRS, begun + probe.without_others(keys, columns, swapped, mine, met, pairs))


@device
def finish(chunk: int, lane: int, scratch: int) -> bool:
    """The pairs of the next chunk in turn; False: the output is full, and the same chunk has to be
    given again."""
    swapped = get(chunk, SWAPPED)
    mine, met = get(lane, OUT_LEFT), get(lane, OUT_RIGHT)
    if swapped:
        mine, met = met, mine
    if get(lane, CANDIDATE) == 0:
        put(lane, BEGUN, get(lane, PAIRS))
    put(scratch, probe.SUSPECT, 0)
    if not decode(chunk, lane, scratch, mine, met):
        return False
    compare_keys(chunk, lane)
    name_hot(chunk, lane, scratch)
    return True
