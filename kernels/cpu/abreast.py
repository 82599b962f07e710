"""Walking chains eight at a time (`kernels.cpu.eight`): to the pairs of `kernels.cpu.walk`.

The chains of a chunk's candidates are walked side by side, a link each a round.

Where candidates have few partners, what matches is logged as `int64 candidate | row << 32`: along
the log, the pairs of each candidate come newest partner first.  At last it is counted how many each
has, rows are sorted by candidate within the first cache, and written to the output one after the
other.  Where they have many, each has a list of its own instead, to which rows go with an end
behind them, a number that no row has, so that nobody has to count: with ten matches a tuple at 10^5
19.4 -> 22.3 M tuples/s; with one it would be 93 -> 82 (10^4), since lists are written row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import eight, mem
from kernels.cpu.eight import FEW, LANES, LOWS, PLACES, WALKS_BYTES
from kernels.cpu.rings import DISORDER_NEW, DISORDER_OLD, LOW, RING, RING_MASK, TAIL, get
from kernels.cpu.walk import CHUNK, NEAR, PLAIN, WALK_FIELDS, row_of
from kernels.registry import device

ENDS = CHUNK
WALKS = ENDS + CHUNK
LISTS = WALKS + WALKS_BYTES // 8 + 1
ROOM = WALK_FIELDS - LISTS - LANES
LOG, LOGGED = LISTS, (ROOM - LANES) * 2 // 3
SORTED = LOG + LOGGED + LANES
"""Scratch memory (int64s): candidates; for each how many pairs it has, then where its next row
goes; walks; one that is nobody's; lists, with ROOM for all of them, or the log, with room for
LOGGED pairs, and their rows (uint32), sorted."""
NO_ROOM, WILD = -2, -3
"""What `walk` answers where a list or the log has no room; where times are too large to be done
so."""


@device
def stride_of(candidates: int) -> int:
    """Rows (uint32) that the list of each of so many has room for: an odd number of int64, so that
    lists begin in different lines of the first cache."""
    return 2 * (ROOM // ((candidates + LANES - 1) & -LANES) - 1 | 1)


@device
def longest(walks: int, going: int, stride: int) -> int:
    """How long the longest list of so many walks is, with its end."""
    length = 0
    for k in range(going):
        length = max(length, np.int64(mem.load_u32(walks + PLACES + 4 * k)) % stride + 1)
    return length


@device
def walk(
    records: int, other: int, back: int, forth: int, at: int, candidates: int, scratch: int,
    listed: bool, end: int, mine: int, met: int,
) -> Any:  # fmt: skip
    """Walk the chains of so many candidates from `at` on, to lists with `end` at their ends or to
    the log; returns how many pairs these hold, or why they hold none, and how many candidates match
    their first entry or go on behind it.

    Pairs will be written from `mine` and `met` on: room for those found is asked for, or the
    writing would wait for it (10 matches at 10^5: 20 -> 17 of 49 ns a tuple)."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    walks, to, stride = scratch + 8 * WALKS, scratch + 8 * LISTS, stride_of(candidates)
    lows, far, width = walks + LOWS, mask >= NEAR, back + forth
    going, left, pairs, rounds = 0, 0, 0, stride - 2
    if np.uint64(back | forth | disorder) >= np.uint64(PLAIN):
        return WILD, 0
    for name in range(0, candidates, LANES):
        first, kept, kept_lows = at + 8 * name, walks + 4 * going, lows + 8 * going
        if listed:
            found = eight.begin_lists(
                first, name * stride, stride, candidates - name, records, back, kept, kept_lows,
                to, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
        else:
            found = eight.begin_log(
                first, name, 1, candidates - name, records, back, kept, kept_lows, to + 8 * pairs,
                end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
        if found >> 24:
            return WILD, 0
        pairs += found & 255
        going += found >> 8 & 255
        left += found >> 16
    while going and listed:
        if rounds == 0:
            rounds = stride - longest(walks, going, stride)
        if rounds == 0:
            return NO_ROOM, left
        rounds -= 1
        gone_on = 0
        for k in range(0, going, LANES):
            mem.prefetch_to_write(mine + 8 * pairs)
            mem.prefetch_to_write(met + 8 * pairs)
            found = eight.step_lists(
                walks + 4 * k, lows + 8 * k, going - k, walks + 4 * gone_on, lows + 8 * gone_on,
                to, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
            pairs += found & 255
            gone_on += found >> 8
        going = gone_on
    while going:  # one loop for both: 10 matches at 10^5 21.6 instead of 22.1 M tuples/s
        if pairs + going > LOGGED:
            return NO_ROOM, left
        gone_on = 0
        for k in range(0, going, LANES):
            mem.prefetch_to_write(mine + 8 * pairs)
            mem.prefetch_to_write(met + 8 * pairs)
            found = eight.step_log(
                walks + 4 * k, lows + 8 * k, going - k, walks + 4 * gone_on, lows + 8 * gone_on,
                to + 8 * pairs, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
            pairs += found & 255
            gone_on += found >> 8
        going = gone_on
    return pairs, left


@device
def row_at(records: int, candidate: int, base: int, named: int) -> Any:
    """The row of a candidate's record."""
    return row_of(records + ((np.int64(mem.load_u32(candidate)) - records) & LOW), base, named)


@device
def write_log(
    records: int, at: int, candidates: int, scratch: int, logged: int, base: int, met_base: int,
    named: int, mine: int, met: int,
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
        row, size, to = row_at(records, at + 8 * k, base, named), mem.load_i64(ends + 8 * k), mine
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


@device
def write_lists(
    records: int, at: int, candidates: int, scratch: int, end: int, base: int, met_base: int,
    named: int, mine: int, met: int,
) -> None:  # fmt: skip
    """The same of lists with `end` at their ends."""
    stride = 4 * stride_of(candidates)
    for k in range(candidates):
        row, rows = row_at(records, at + 8 * k, base, named), scratch + 8 * LISTS + stride * k
        count = eight.write_few(mine, met, row, rows, met_base, end)
        more = count == FEW
        while True:
            mine += 8 * count
            met += 8 * count
            if not more:
                break
            rows += 4 * count
            count = eight.write(mine, met, row, rows, met_base, end)
            more = count == LANES
