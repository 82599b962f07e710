"""A chunk of the chain join: from its candidates to pairs of store rows, and what a beat is about.

`kernels.cpu.chain` says where chunks come from, `kernels.cpu.walk` how chains are walked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import abreast, eight, hot, mem, pool, walk
from kernels.cpu.rings import DISORDER_NEW, DISORDER_OLD, LOG, LOW, PART, RING_MASK, get, put
from kernels.cpu.walk import CHUNK, SUSPECT
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
chains for hot keys (see `kernels.cpu.hot`)."""

(PARTITION, PASS, RECORD, FOUND, DONE, CANDIDATE, PAIRS, BEGUN, LAST_PARTITION, TAKE, APART,
 SIEVED, WAY, LIST_ROWS, BEAT, NUMBER) = range(16)  # fmt: skip
JOB, SCRATCH_AT, OUT_LEFT, OUT_RIGHT, ROOM = range(16, 21)
LANE_FIELDS = 24
"""What `lane` (int64[24]) holds.  Where to find the next chunk: partition, pass (0 left, 1
right), record.  How many chunks were found, and how many of them are done; the next candidate of
the oldest of the others.  The pairs written so far; where those of the oldest chunk begin.  The
partition to stop before.  How candidates are walked: how many together; for how many times yet
without sharing walks (below 0: without lists, too); 1 where most fall out before; in which way
(below); how many rows lists should have room for, if that is known.  Which beat it was begun for,
where it has a pool, and the lane's, and that pool's, number.  The addresses of the job, of the
scratch memory, and of the two arrays for pairs; how many these have room for, apart from a block.
Two more are `kernels.cpu.beat`'s."""

NO_ROOM, FULL, SPREAD, GATHER = -1, -2, -3, -4
"""What a beat is answered that was not joined: the rings have no room; the output has none; it
cannot be joined in a pool (see `kernels.cpu.pool`); it had better be."""
AS_SUITS, IN_LISTS, IN_EIGHTS, IN_TWOS = range(4)
"""Walks that are not shared: as suits the CPU and the ring; to lists (`kernels.cpu.walk`); eight at
a time (`kernels.cpu.abreast`); or those of two chunks in turn where they are logged."""
MINE, OTHER, SWAPPED, RECORDS, CANDIDATES, LAST = range(6)
CHUNK_FIELDS = 8
"""What the queue knows of a chunk: the rows of its partition, its own and the other side's, by
address; its pass; the address of its records; the number of its candidates, which follow; 1 where
it is the partition's last."""
WILD = -3
"""What `walk_eights` answers where times are too large to be done so."""
NAMED = 1 << 32
"""What a partition is multiplied with above the rows that pairs of a pool begin with."""
SOME = 4
"""Pairs a candidate, from which on records may share a walk."""
AGAIN = 64
"""After so many times it is tried once more whether they do, which takes twice as long."""
LIST_ROWS_MIN = 62
"""Rows, an end among them, that lists have room for at first."""


@device
def begin(lane: int, first: int, last: int) -> None:
    """Set a lane to the first of its partitions."""
    for field in range(PARTITION, LAST_PARTITION):
        put(lane, field, 0)
    put(lane, PARTITION, first)
    put(lane, LAST_PARTITION, last)
    put(lane, TAKE, CHUNK)


@device
def walk_some(
    chunk: int, lane: int, scratch: int, first: int, take: int, mine: int, met: int, room: int
) -> Any:
    """Walk `take` candidates together and write their pairs; returns how many, -1 where there may
    be no room for them, -2 where one has too many for its list."""
    records, other = get(chunk, RECORDS), get(chunk, OTHER)
    back, forth, base, met_base = terms(lane, get(chunk, SWAPPED) != 0)
    ordered = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW)) == 0
    named = NAMED if get(get(get(lane, JOB), LEFT_TABLE), LOG) else 0
    if named:
        ordered = get(get(other, LOG), pool.FALLS) == 0
    at, end, walkers, shared = first, first + 8 * take, -1, False
    if get(lane, SIEVED):
        at, end = scratch, walk.sieve(records, other, first, end, scratch)
    n, way = (end - at) >> 3, get(lane, WAY)
    if way == AS_SUITS:
        way = IN_EIGHTS if eight.FAST and n >= eight.LANES else IN_LISTS
    apart = get(lane, APART)
    if apart and way != IN_LISTS:
        pairs = walk_eights(chunk, lane, scratch, at, n, take, mine, met, room)
        if pairs != WILD:
            return pairs
    elif apart:
        stride = walk.stride_of(n)
        end, walkers = walk.step_first(records, other, back, forth, at, end, scratch, stride)
    if walkers < 0:
        end = walk.sieve(records, other, first, first + 8 * take, scratch)
        stride = walk.stride_of((end - scratch) >> 3)
        walkers = walk.open_windows(records, other, back, forth, scratch, end, stride)
        shared = True
    kept, walks = (end - scratch) >> 3, (walkers - scratch) // 8 - walk.WALKERS
    if not walk.walk_together(other, scratch, walkers, stride, shared):
        return -2
    pairs = walk.write(
        scratch, end, shared, ordered, records, back, forth, base, met_base, named, mine, met, room,
    )  # fmt: skip
    if shared:
        apart = 0 if 2 * walks < kept else AGAIN + 1
    judge_ways(lane, take, kept, pairs, apart)
    return pairs


@device
def terms(lane: int, swapped: bool) -> Any:
    """How far back and forth of a record its partners' times are, and which numbers its side's
    row 0 and the other's have."""
    job = get(lane, JOB)
    if swapped:
        return get(job, AFTER), get(job, BEFORE), get(job, RIGHT_BASE), get(job, LEFT_BASE)
    return get(job, BEFORE), get(job, AFTER), get(job, LEFT_BASE), get(job, RIGHT_BASE)


@device
def begin_eights(chunk: int, lane: int, stage: int, at: int, n: int, mine: int, met: int) -> Any:
    """Begin to walk the n candidates at `at` eight at a time; False where that cannot be."""
    back, forth, base, met_base = terms(lane, get(chunk, SWAPPED) != 0)
    named, stride = NAMED if get(get(get(lane, JOB), LEFT_TABLE), LOG) else 0, 0
    if get(lane, APART) > 1:
        stride = abreast.stride_of(n, max(LIST_ROWS_MIN, get(lane, LIST_ROWS)))
    none = (met_base - 1) & LOW  # no row of the other store's is this
    return abreast.begin(
        stage, get(chunk, RECORDS), get(chunk, OTHER), back, forth, base, named, at, n, stride,
        none, mine, met,
    )  # fmt: skip


@device
def end_eights(chunk: int, lane: int, stage: int, take: int, mine: int, met: int, room: int) -> Any:
    """Write what the walks of `take` candidates found; returns how many pairs, -1 where there is no
    room for them, `abreast.NO_ROOM` where there was none to note them."""
    state = stage + 8 * abreast.STATE
    pairs = get(state, abreast.PAIRS)
    if pairs > room:
        return -1
    if pairs >= 0:
        abreast.write(stage, terms(lane, get(chunk, SWAPPED) != 0)[3], mine, met)
        judge_ways(lane, take, get(state, abreast.LEFT), pairs, get(lane, APART))
    return pairs


@device
def walk_eights(
    chunk: int, lane: int, stage: int, at: int, n: int, take: int, mine: int, met: int, room: int
) -> Any:
    """Walk n candidates, those left of `take`, eight at a time; returns as `end_eights`, or WILD.

    Where a list is too short, all get more room, for good.  Where there is none it is a log, until
    it is tried again whether walks are shared: with zipf keys few have most of the pairs."""
    while True:
        if not begin_eights(chunk, lane, stage, at, n, mine, met):
            return WILD
        abreast.go_on(stage, 1)
        pairs, apart = end_eights(chunk, lane, stage, take, mine, met, room), get(lane, APART)
        if pairs != abreast.NO_ROOM or apart <= 1:
            return pairs
        rows = max(LIST_ROWS_MIN, get(lane, LIST_ROWS))
        if abreast.stride_of(n, 2 * rows) > abreast.stride_of(n, rows):
            put(lane, LIST_ROWS, 2 * rows)
        else:
            put(lane, APART, -apart)


@device
def suit(lane: int, first: int, second: int) -> Any:
    """How many of two chunks had better be walked eight at a time, whole, and together."""
    way, few = get(lane, WAY), 1
    if get(lane, APART) == 0 or get(lane, SIEVED) or get(lane, TAKE) < CHUNK:
        return 0
    if way == AS_SUITS and eight.FAST:
        large = min(get(get(first, OTHER), RING_MASK), get(get(second, OTHER), RING_MASK))
        way, few = IN_TWOS if large >= abreast.FAR else IN_EIGHTS, eight.LANES
    if way < IN_EIGHTS or get(lane, CANDIDATE) or get(first, CANDIDATES) < few:
        return 0
    logged = get(lane, APART) <= 1
    return 2 if way == IN_TWOS and logged and get(second, CANDIDATES) >= few else 1


@device
def finish_some(lane: int, first: int, second: int, stages: int) -> Any:
    """The pairs of the next two chunks in turn (one, if both are the same), as far as they suit and
    have room; how many were done."""
    count, pairs = suit(lane, first, second), 8 * get(lane, PAIRS)
    count = min(count, 1 + np.int64(first != second))
    for k in range(count):
        chunk, stage = second if k else first, stages + 8 * abreast.STAGE * k
        mine, met = get(lane, OUT_LEFT) + pairs, get(lane, OUT_RIGHT) + pairs
        if get(chunk, SWAPPED):
            mine, met = met, mine
        at, n = chunk + 8 * CHUNK_FIELDS, get(chunk, CANDIDATES)
        put(stage, SUSPECT, 0)
        if not begin_eights(chunk, lane, stage, at, n, mine, met):
            return 0
    abreast.go_on(stages, count)
    for k in range(count):
        chunk, stage = second if k else first, stages + 8 * abreast.STAGE * k
        begun = get(lane, PAIRS)
        mine, met = get(lane, OUT_LEFT) + 8 * begun, get(lane, OUT_RIGHT) + 8 * begun
        if get(chunk, SWAPPED):
            mine, met = met, mine
        n = get(chunk, CANDIDATES)
        more = end_eights(chunk, lane, stage, n, mine, met, get(lane, ROOM) - begun)
        if more < 0:
            return k
        put(lane, BEGUN, begun)
        put(lane, PAIRS, begun + more)
        compare_keys(chunk, lane)
        name_hot(chunk, lane, stage)
    return count


@device
def judge_ways(lane: int, take: int, kept: int, pairs: int, apart: int) -> None:
    """How the next candidates will be walked, where of `take` so many were left after their first
    entries, and had so many pairs; `apart`: the APART that these were walked with."""
    put(lane, SIEVED, 2 * kept < take)
    nearer = apart - np.int64(apart > 0) + np.int64(apart < 0)
    put(lane, APART, 1 if pairs < SOME * kept else nearer)


@device
def decode(chunk: int, lane: int, scratch: int, mine: int, met: int) -> bool:
    """Walk the chains of a chunk's candidates and write their pairs; False: the output is full.

    Candidates are walked TAKE at a time, fewer where one had too many pairs for its list, and one
    by one where one alone has.
    """
    at, pairs, n, room = (
        get(lane, CANDIDATE),
        get(lane, PAIRS),
        get(chunk, CANDIDATES),
        get(lane, ROOM),
    )
    while at < n:
        first, take = chunk + 8 * (CHUNK_FIELDS + at), min(get(lane, TAKE), n - at)
        to_mine, to_met = mine + 8 * pairs, met + 8 * pairs
        if get(lane, TAKE) <= 1:
            more = walk_alone(chunk, lane, first, to_mine, to_met, room - pairs)
        else:
            more = walk_some(chunk, lane, scratch, first, take, to_mine, to_met, room - pairs)
        if more == -2:
            put(lane, TAKE, max(1, take >> 2))
            continue
        if more < 0:
            put(lane, CANDIDATE, at)
            put(lane, PAIRS, pairs)
            return False
        put(lane, TAKE, min(CHUNK, 2 * get(lane, TAKE)))
        pairs += more
        at += take
    put(lane, CANDIDATE, 0)
    put(lane, PAIRS, pairs)
    return True


@device
def walk_alone(chunk: int, lane: int, candidate: int, mine: int, met: int, room: int) -> Any:
    """Walk one candidate's chain and write its pairs; returns how many, -1 where there is no room
    for them."""
    records = get(chunk, RECORDS)
    back, forth, base, met_base = terms(lane, get(chunk, SWAPPED) != 0)
    return walk.walk_one(
        records + ((np.int64(mem.load_u32(candidate)) - records) & LOW),
        np.int64(mem.load_u32(candidate + 4)), get(chunk, OTHER), back, forth, base, met_base,
        NAMED if get(get(get(lane, JOB), LEFT_TABLE), LOG) else 0, mine, met, room,
    )  # fmt: skip


@device
def name_hot(chunk: int, lane: int, scratch: int) -> None:
    """Give the key that held up a walk of the chunk's, if one did, a chain of its own, where
    partitions have rings of their own (see `kernels.cpu.hot`)."""
    job, met = get(lane, JOB), get(scratch, SUSPECT)
    if met and get(get(job, LEFT_TABLE), LOG) == 0:
        other = get(chunk, OTHER)
        if hot.names_of(other) and hot.take_name(other, get(chunk, MINE), met & LOW):
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
        put(lane, PAIRS, begun + walk.without_others(keys, columns, swapped, mine, met, pairs))


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
    put(scratch, SUSPECT, 0)
    if not decode(chunk, lane, scratch, mine, met):
        return False
    compare_keys(chunk, lane)
    name_hot(chunk, lane, scratch)
    return True
