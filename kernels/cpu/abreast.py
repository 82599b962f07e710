"""Walking chains eight at a time (`kernels.cpu.eight`): to the pairs of `kernels.cpu.walk`.

The chains of a chunk's candidates are walked side by side, a link each a round.

Where candidates have few partners, what matches is logged as `int64 candidate | row << 32`: along
the log, the pairs of each candidate come newest partner first.  At last it is counted how many each
has, which says where they lie in the output, and each pair is written to its place.  Where they
have many, each has a list of its own instead, to which rows go with an end behind them, a number
that no row has, so that nobody has to count: with ten matches a tuple at 10^5 19.4 -> 22.3 M
tuples/s; with one it would be 93 -> 82 (10^4), since lists are written row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import eight, mem
from kernels.cpu.eight import BEFORE, ENTRIES, FEW, LANES, LOWS, NOBODY, PLACE, WALKS_BYTES
from kernels.cpu.rings import DISORDER_NEW, DISORDER_OLD, LOW, RING, RING_MASK, TAIL, get
from kernels.cpu.walk import CHUNK, NEAR, PLAIN, SOON, WALK_FIELDS, seek
from kernels.registry import device

ENDS = CHUNK
ROWS = ENDS + eight.ROWS // 8
WALKS = ROWS + CHUNK
LISTS = WALKS + (WALKS_BYTES + BEFORE) // 8
ROOM = WALK_FIELDS - LISTS - LANES
"""Scratch memory (int64s): candidates; for each how many pairs it has, then where its next one
goes; for each its row, as in the output; walks; some that are nobody's; lists, with ROOM for all of
them, or the log, with room for so many pairs."""
FAR = 1 << 14
"""Slots of a ring from which on lists' next entries are asked for into the second cache only: with
10 matches 1.03 to 1.13 times as fast at 10^6, 1.08 at 10^7, but 0.94 at 3 * 10^5 and 0.89 at 10^5;
with one match, logged, 1.00 and 0.95 (10^6, 10^7)."""
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
        length = max(length, np.int64(mem.load_u32(walks + 8 * k + PLACE)) % stride + 1)
    return length


@device
def walk(
    records: int, other: int, back: int, forth: int, base: int, named: int, at: int,
    candidates: int, scratch: int, listed: bool, end: int, mine: int, met: int,
) -> Any:  # fmt: skip
    """Walk the chains of so many candidates from `at` on, to lists with `end` at their ends or to
    the log; returns how many pairs these hold, or why they hold none, and how many candidates match
    their first entry or go on behind it.

    Pairs will be written from `mine` and `met` on: room for those found is asked for, or the
    writing would wait for it (10 matches at 10^5: 20 -> 17 of 49 ns a tuple)."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    walks, to, stride = scratch + 8 * WALKS, scratch + 8 * LISTS, stride_of(candidates)
    width, going, left, pairs = back + forth, 0, 0, 0
    far = eight.NEARER if mask >= NEAR else 0
    if listed and mask >= FAR:
        far = eight.FARTHER
    if np.uint64(back | forth | disorder) >= np.uint64(PLAIN):
        return WILD, 0
    for name in range(0, candidates, LANES):
        first, known = at + 8 * name, scratch + 8 * (ENDS + name)
        kept = walks + 8 * going
        if listed:
            found = eight.begin_lists(
                first, name * stride, stride, candidates - name, records, base, named, back, known,
                kept, to, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
        else:
            found = eight.begin_log(
                first, name, 1, candidates - name, records, base, named, back, known, kept,
                to + 8 * pairs, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
        if found >> 24:
            return WILD, 0
        pairs += found & 255
        going += found >> 8 & 255
        left += found >> 16
    eight.fill(walks + ENTRIES + 8 * going, ring)  # steps look at eight
    if listed:
        pairs = walk_lists(
            scratch, going, pairs, stride, end, ring, mask, tail, width, disorder, far, mine, met
        )
    else:
        pairs = walk_log(
            scratch, going, pairs, end, ring, mask, tail, width, disorder, far, mine, met
        )
    return pairs, left


@device
def walk_lists(
    scratch: int, going: int, pairs: int, stride: int, end: int, ring: int, mask: int, tail: int,
    width: int, disorder: int, far: int, mine: int, met: int,
) -> Any:  # fmt: skip
    """Follow what goes on to the ends of chains; how many pairs, with those found before."""
    walks, to, rounds = scratch + 8 * WALKS, scratch + 8 * LISTS, stride - 2
    while going:
        if rounds == 0:
            rounds = stride - longest(walks, going, stride)
        if rounds == 0:
            return NO_ROOM
        rounds -= 1
        gone_on = 0
        eight.fill(walks + 8 * going, NOBODY)
        for k in range(0, going, LANES):
            mem.prefetch_to_write(mine + 8 * pairs)
            mem.prefetch_to_write(met + 8 * pairs)
            found = eight.step_lists(
                walks + 8 * k, going - k, walks + 8 * gone_on,
                to, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
            pairs += found & 255
            gone_on += found >> 8
        going = gone_on
    return pairs


@device
def walk_log(
    scratch: int, going: int, pairs: int, end: int, ring: int, mask: int, tail: int, width: int,
    disorder: int, far: int, mine: int, met: int,
) -> Any:  # fmt: skip
    """The same where there is a log; and it is counted how many pairs each candidate has."""
    walks, log, begun, rounds = scratch + 8 * WALKS, scratch + 8 * LISTS, pairs, 0
    ends = scratch + 8 * ENDS
    while going:
        if pairs + going > ROOM:
            return NO_ROOM
        rounds += 1
        if going == 1 and rounds >= SOON:
            tag, stop = mem.load_u32(walks), mem.load_i64(walks + LOWS) - disorder
            entry = seek(mem.load_i64(walks + ENTRIES), tag, stop, ring, mask, tail)
            if entry == 0:
                break
            mem.store_i64(walks + ENTRIES, entry)
            rounds = 0
        gone_on = 0
        for k in range(0, going, LANES):
            mem.prefetch_to_write(mine + 8 * pairs)
            mem.prefetch_to_write(met + 8 * pairs)
            found = eight.step_log(
                walks + 8 * k, going - k, walks + 8 * gone_on,
                log + 8 * pairs, end, ring, mask, tail, width, disorder, far,
            )  # fmt: skip
            pairs += found & 255
            gone_on += found >> 8
        going = gone_on
    for pair in range(log + 8 * begun, log + 8 * pairs, 8):
        place = ends + 8 * np.int64(mem.load_u32(pair))
        mem.store_i64(place, mem.load_i64(place) + 1)
    return pairs


@device
def write_log(
    scratch: int, candidates: int, logged: int, met_base: int, mine: int, met: int
) -> None:
    """Write the `logged` pairs of so many candidates: both rows, the partner's counted from
    `met_base`."""
    ends, rows, log, after = scratch + 8 * ENDS, scratch + 8 * ROWS, scratch + 8 * LISTS, 0
    for place in range(ends, ends + 8 * candidates, 8):
        size = mem.load_i64(place)
        mem.store_i64(place, after)
        after += 8 * size
    for pair in range(log, log + 8 * logged, 8):
        by = 8 * np.int64(mem.load_u32(pair))
        to = mem.load_i64(ends + by)
        mem.store_i64(mine + to, mem.load_i64(rows + by))
        mem.store_i64(met + to, (np.int64(mem.load_u32(pair + 4)) - met_base) & LOW)
        mem.store_i64(ends + by, to + 8)


@device
def write_lists(
    scratch: int, candidates: int, end: int, met_base: int, mine: int, met: int
) -> None:
    """The same of lists with `end` at their ends.  The output has room for a block more."""
    stride, row_at, rows = 4 * stride_of(candidates), scratch + 8 * ROWS, scratch + 8 * LISTS
    for _ in range(candidates):
        row, at = mem.load_i64(row_at), rows
        count = eight.write_few(mine, met, row, at, met_base, end)
        more = count == FEW
        while True:
            mine += 8 * count
            met += 8 * count
            if not more:
                break
            at += 4 * count
            count = eight.write(mine, met, row, at, met_base, end)
            more = count == LANES
        row_at += 8
        rows += stride
