"""Walking chains eight at a time (`kernels.cpu.eight`): to the pairs of `kernels.cpu.walk`, with a
log instead of lists.

The chains of a chunk's candidates are walked side by side, a link each a round.  What matches is
logged as `int64 candidate | row << 32`: along the log, the pairs of each candidate come newest
partner first.  At last it is counted how many each has, rows are sorted by candidate within the
first cache, and written to the output one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import eight, mem
from kernels.cpu.eight import LANES, LOWS, WALKS_BYTES
from kernels.cpu.rings import DISORDER_NEW, DISORDER_OLD, LOW, RING, RING_MASK, TAIL, get
from kernels.cpu.walk import CHUNK, NEAR, PLAIN, WALK_FIELDS
from kernels.registry import device

ENDS = CHUNK
WALKS = ENDS + CHUNK
LOG = WALKS + WALKS_BYTES // 8
LOGGED = (WALK_FIELDS - LOG - 2 * LANES) * 2 // 3
SORTED = LOG + LOGGED + LANES
"""Scratch memory (int64s): candidates; for each how many pairs it has, then where its next row
goes; walks; the log, with room for LOGGED pairs; their rows (uint32), sorted."""
NO_ROOM, WILD = -2, -3
"""What `walk` answers where the log has no room; where times are too large to be done so."""


@device
def walk(
    records: int, other: int, back: int, forth: int, at: int, candidates: int, scratch: int,
    mine: int, met: int,
) -> Any:  # fmt: skip
    """Walk the chains of so many candidates from `at` on; returns how many pairs are logged, or why
    none are, and how many candidates match their first entry or go on behind it.

    Pairs will be written from `mine` and `met` on: room for what is logged is asked for, or the
    writing would wait for it (10 matches at 10^5: 20 -> 17 of 49 ns a tuple)."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    walks, log = scratch + 8 * WALKS, scratch + 8 * LOG
    lows, to, far, width = walks + LOWS, log, mask >= NEAR, back + forth
    going, left, mine_by, met_by = 0, 0, mine - log, met - log
    if np.uint64(back | forth | disorder) >= np.uint64(PLAIN):
        return WILD, 0
    for name in range(0, candidates, LANES):
        found = eight.begin(
            at + 8 * name, name, candidates - name, records, back, walks + 4 * going,
            lows + 8 * going, to, ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        if found >> 24:
            return WILD, 0
        to += 8 * (found & 255)
        going += found >> 8 & 255
        left += found >> 16
    while going:
        if to + 8 * going > log + 8 * LOGGED:
            return NO_ROOM, left
        kept = 0
        for first in range(0, going, LANES):
            mem.prefetch_to_write(to + mine_by)
            mem.prefetch_to_write(to + met_by)
            found = eight.step(
                walks + 4 * first, lows + 8 * first, going - first, walks + 4 * kept,
                lows + 8 * kept, to, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
            to += 8 * (found & 255)
            kept += found >> 8
        going = kept
    return (to - log) >> 3, left


@device
def write(
    records: int, at: int, candidates: int, scratch: int, logged: int, base: int, met_base: int,
    mine: int, met: int,
) -> None:  # fmt: skip
    """Write the `logged` pairs of so many candidates from `at` on: both rows, counted from `base`
    and `met_base`.  The output has room for a block more."""
    ends, log, rows = scratch + 8 * ENDS, scratch + 8 * LOG, scratch + 8 * SORTED
    for k in range(0, candidates, LANES):
        eight.fill(ends + 8 * k, 0)
    for pair in range(log, log + 8 * logged, 8):
        to = ends + 8 * np.int64(mem.load_u32(pair))
        mem.store_i64(to, mem.load_i64(to) + 4)
    for k in range(candidates):
        record = records + ((np.int64(mem.load_u32(at + 8 * k)) - records) & LOW)
        row = (np.int64(mem.load_u32(record + 12)) - base) & LOW
        size, to = mem.load_i64(ends + 8 * k), mine
        mem.store_i64(ends + 8 * k, rows)
        rows += size
        mine += 2 * size
        while True:
            eight.fill(to, row)
            to += 8 * LANES
            if to >= mine:
                break
    for pair in range(log, log + 8 * logged, 8):
        place = ends + 8 * np.int64(mem.load_u32(pair))
        to = mem.load_i64(place)
        mem.store_u32(to, mem.load_u32(pair + 4))
        mem.store_i64(place, to + 4)
    for by in range(0, 4 * logged, 4 * LANES):
        eight.widen(met + 2 * by, scratch + 8 * SORTED + by, met_base)
