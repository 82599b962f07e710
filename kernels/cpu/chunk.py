"""A chunk of the chain join: from its candidates to pairs of store rows, and what a beat is about.

`kernels.cpu.chain` says where chunks come from, `kernels.cpu.walk` how chains are walked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem, walk
from kernels.cpu.rings import RECORD_BYTES, ROWS, get, put
from kernels.cpu.walk import CHUNK, FEW, TOGETHER
from kernels.registry import device

(BEFORE, AFTER, LEFT_BASE, RIGHT_BASE, LEFT_BOUND, RIGHT_BOUND, LEFT_ALL, RIGHT_ALL, LEFT_TABLE,
 RIGHT_TABLE) = range(10)  # fmt: skip
JOB_FIELDS = 16
"""What `job` (int64[16]) holds: the bounds (µs); the row number (mod 2^32) of each store's first
row; the time below which each side's rows are dead; 1 where all of that side's are; the addresses
of both sides' rows of partitions (see `kernels.cpu.rings`)."""

(PARTITION, PASS, RECORD, FOUND, DONE, CANDIDATE, PAIRS, BEGUN, LOOKED, LOOKED_PASS, LAST_PARTITION,
 SHORTLY, TAKE) = range(13)  # fmt: skip
JOB, SCRATCH_AT, OUT_LEFT, OUT_RIGHT, ROOM, ROWS_IN = range(16, 22)
LANE_FIELDS = 24
"""What `lane` (int64[24]) holds.  Where to find the next chunk: partition, pass (0 left, 1
right), record.  How many chunks were found, and how many of them are done; the next candidate of
the oldest of the others.  The pairs written so far; where those of the oldest chunk begin; how many
are looked up, and the pass of those before the oldest chunk that are not.  The partition to stop
before; 1 where the beat is done in the short way; how many candidates are walked together.  The
addresses of the job, of the scratch memory, and of the two arrays for pairs; how many these have
room for; how many records the beat has."""

MINE, OTHER, SWAPPED, RECORDS, CANDIDATES, LAST, LOOKED_UP = range(7)
CHUNK_FIELDS = 8
"""What the queue knows of a chunk: the rows of its partition, its own and the other side's, by
address; its pass; the address of its records; the number of its candidates, which follow; 1 where
it is the partition's last; 1 where its partners are looked up already."""


@device
def decode(chunk: int, lane: int, scratch: int, mine: int, met: int) -> bool:
    """Walk the chains of a chunk's candidates and write their pairs; False: the output is full.

    Candidates are walked TAKE at a time, which follows from how many pairs they had, and one by one
    where one alone has too many to be sorted.  Few partners are looked up with the next chunk, when
    their rows are near.
    """
    records, other, swapped = get(chunk, RECORDS), get(chunk, OTHER), get(chunk, SWAPPED) != 0
    job, room = get(lane, JOB), get(lane, ROOM)
    back, forth = get(job, AFTER if swapped else BEFORE), get(job, BEFORE if swapped else AFTER)
    base = get(job, RIGHT_BASE if swapped else LEFT_BASE)
    met_base = get(job, LEFT_BASE if swapped else RIGHT_BASE)
    at, pairs, n = get(lane, CANDIDATE), get(lane, PAIRS), get(chunk, CANDIDATES)
    put(chunk, LOOKED_UP, n > get(lane, TAKE) or at > 0)
    while at < n:
        first, step = chunk + 8 * (CHUNK_FIELDS + at), get(lane, TAKE)
        take, left = min(step, n - at), room - pairs
        to_mine, to_met = mine + 8 * pairs, met + 8 * pairs
        if step <= 1:
            record = records + RECORD_BYTES * np.int64(mem.load_u32(first))
            link = np.int64(mem.load_u32(first + 4))
            put(chunk, LOOKED_UP, 1)
            more = walk.walk_one(
                record, link, other, back, forth, base, met_base, to_mine, to_met, left
            )
        else:
            end = walk.sieve(records, other, first, first + 8 * take, scratch)
            walk.open_windows(records, other, back, forth, scratch, end)
            more = walk.walk_together(other, scratch, end, min(left, TOGETHER))
            if more < 0 and left >= TOGETHER:
                put(lane, TAKE, max(1, take >> 2))
                put(chunk, LOOKED_UP, 1)
                continue
            if more > FEW or get(chunk, LOOKED_UP):
                put(chunk, LOOKED_UP, 1)
                walk.arrange(
                    scratch, more, (end - scratch) >> 3, records + 12, base, get(other, ROWS),
                    met_base, to_mine, to_met,
                )  # fmt: skip
            elif more > 0:
                walk.arrange_few(
                    scratch, more, records + 12, base, get(other, ROWS), to_mine, to_met
                )
        if more < 0:
            put(lane, CANDIDATE, at)
            put(lane, PAIRS, pairs)
            return False
        if more < TOGETHER >> 3:
            put(lane, TAKE, min(CHUNK, 2 * step))
        pairs += more
        at += take
    put(lane, CANDIDATE, 0)
    put(lane, PAIRS, pairs)
    return True


@device
def look_up(lane: int, upto: int) -> None:
    """Turn the pairs that are not looked up yet, those before `upto`, into pairs of store rows."""
    swapped, first = get(lane, LOOKED_PASS) != 0, get(lane, LOOKED)
    met = get(lane, OUT_LEFT if swapped else OUT_RIGHT)
    base = get(get(lane, JOB), LEFT_BASE if swapped else RIGHT_BASE)
    walk.look_up(met + 8 * first, upto - first, base)
    put(lane, LOOKED, upto)


@device
def finish(chunk: int, lane: int, scratch: int, keys: Any) -> bool:
    """The pairs of the next chunk in turn, and the row numbers of the one before it, which were
    asked for; False: the output is full, and the same chunk has to be given again."""
    swapped = get(chunk, SWAPPED)
    mine, met = get(lane, OUT_LEFT), get(lane, OUT_RIGHT)
    if swapped:
        mine, met = met, mine
    if get(lane, CANDIDATE) == 0:
        put(lane, BEGUN, get(lane, PAIRS))
    if not decode(chunk, lane, scratch, mine, met):
        return False
    begun = get(lane, BEGUN)
    look_up(lane, begun)
    put(lane, LOOKED_PASS, swapped)
    if get(chunk, LOOKED_UP):
        put(lane, LOOKED, get(lane, PAIRS))
    if keys.shape[0] != 0:
        look_up(lane, get(lane, PAIRS))
        mine, met, pairs = mine + 8 * begun, met + 8 * begun, get(lane, PAIRS) - begun
        left_over = walk.without_others(keys, swapped != 0, mine, met, pairs)
        put(lane, PAIRS, begun + left_over)
        put(lane, LOOKED, begun + left_over)
    return True
