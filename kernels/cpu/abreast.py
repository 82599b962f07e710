"""Walking chains eight at a time (`kernels.cpu.eight`): to the pairs of `kernels.cpu.walk`.

The chains of a chunk's candidates are walked side by side, a link each a round; those of two chunks
in turn, a round each, so that the next entries of one come while the other's are looked at.

Where candidates have few partners, what matches is logged as `int64 candidate | row << 32`: along
the log, the pairs of each candidate come newest partner first.  At last it is counted how many each
has, which says where they lie in the output, and each pair is written to its place.  Where they
have many, each has a list of its own instead, to which rows go with an end behind them, a number
that no row has, so that nobody has to count: with ten matches a tuple at 10^5 19.4 -> 22.3 M
tuples/s; with one it would be 93 -> 82 (10^4), since lists are written row by row.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import eight, mem
from kernels.cpu.eight import BEFORE, ENTRIES, FEW, LANES, LOWS, NOBODY, PLACE, WALKS_BYTES
from kernels.cpu.rings import DISORDER_NEW, DISORDER_OLD, LOW, RING, RING_MASK, TAIL, get, put
from kernels.cpu.walk import CHUNK, NEAR, PLAIN, SOON, SUSPECT, WALK_FIELDS, seek, suspect
from kernels.registry import device

ENDS = CHUNK
ROWS = ENDS + eight.ROWS // 8
WALKS = ROWS + CHUNK
LISTS = WALKS + (WALKS_BYTES + BEFORE) // 8
ROOM = SUSPECT - LISTS - LANES
STATE = WALK_FIELDS
STAGE = STATE + 16
"""The scratch memory (int64s) of a chunk's walks: candidates; for each how many pairs it has, then
where its next one goes; for each its row, as in the output; walks; some that are nobody's; lists,
with ROOM for all of them, or the log, with room for so many pairs; what else is known of them."""
(OTHER, WIDTH, DISORDER, ASKED, STRIDE, END, CANDIDATES, LEFT, MINE, MET, GOING, PAIRS, BEGUN,
 ROUNDS) = range(14)  # fmt: skip
"""That is: the row of the partition that is walked; how much later than its earliest the latest
time is that a record matches; how far behind others times are; whether lines are asked for (see
`kernels.cpu.eight`); the length of a list (0: there is a log), and what is written at its end; how
many candidates there are, and how many of them match their first entry or go on behind it; where
pairs will be written; how many walks go on; how many pairs were found, and how many of them before
`go_on`; rounds that lists have room for, or since a walk became alone."""
FAR = 1 << 14
"""Slots of a ring from which on lists' next entries are asked for into the second cache only: with
10 matches 1.03 to 1.13 times as fast at 10^6, 1.08 at 10^7, but 0.94 at 3 * 10^5 and 0.89 at 10^5;
with one match, logged, 1.00 and 0.95 (10^6, 10^7)."""
NO_ROOM = -2
"""Pairs, where a list or the log has no room."""


@device
def stride_of(candidates: int, rows: int) -> int:
    """The length (uint32) of lists for so many candidates that are to have room for so many `rows`,
    ends among them, as far as there is: an odd number of int64, so that they begin in different
    lines of the first cache."""
    most = ROOM // ((max(candidates, 1) + LANES - 1) & -LANES) - 1 | 1
    return 2 * min(most, rows // 2 | 1)


@device
def longest(walks: int, going: int, stride: int) -> int:
    """How long the longest list of so many walks is, with its end."""
    length = 0
    for k in range(going):
        length = max(length, np.int64(mem.load_u32(walks + 8 * k + PLACE)) % stride + 1)
    return length


@device
def begin(
    stage: int, records: int, other: int, back: int, forth: int, base: int, named: int, at: int,
    candidates: int, stride: int, end: int, mine: int, met: int,
) -> bool:  # fmt: skip
    """Look at the first entries of so many candidates from `at` on.  What matches goes to lists of
    `stride` with `end` at their ends, or to the log (0).  False where times are too large to be
    done so.

    Pairs will be written from `mine` and `met` on: room for those found is asked for, or the
    writing would wait for it (10 matches at 10^5: 20 -> 17 of 49 ns a tuple)."""
    state, disorder = stage + 8 * STATE, max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    walks, to, width = stage + 8 * WALKS, stage + 8 * LISTS, back + forth
    far, going, left, pairs = eight.NEARER if mask >= NEAR else 0, 0, 0, 0
    if stride and mask >= FAR:
        far = eight.FARTHER
    if np.uint64(back | forth | disorder) >= np.uint64(PLAIN):
        return False
    for name in range(0, candidates, LANES):
        first, known, kept = at + 8 * name, stage + 8 * (ENDS + name), walks + 8 * going
        if stride:
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
            return False
        pairs += found & 255
        going += found >> 8 & 255
        left += found >> 16
    eight.fill(walks + ENTRIES + 8 * going, ring)  # steps look at eight
    put(state, OTHER, other)
    put(state, WIDTH, width)
    put(state, DISORDER, disorder)
    put(state, ASKED, far)
    put(state, STRIDE, stride)
    put(state, END, end)
    put(state, CANDIDATES, candidates)
    put(state, LEFT, left)
    put(state, MINE, mine)
    put(state, MET, met)
    put(state, GOING, going)
    put(state, PAIRS, pairs)
    put(state, BEGUN, pairs)
    put(state, ROUNDS, max(0, stride - 2))
    return True


@device
def go_on(stages: int, count: int) -> None:
    """Follow what goes on, of `count` chunks, to the ends of chains: a link of each, chunk by
    chunk, and again."""
    going = True
    while going:
        going = False
        for stage in range(stages, stages + 8 * STAGE * count, 8 * STAGE):
            state = stage + 8 * STATE
            if get(state, GOING):
                if get(state, STRIDE):
                    round_of_lists(stage)
                else:
                    round_of_log(stage)
                going |= get(state, GOING) > 0


@device
def round_of_lists(stage: int) -> None:
    """A link more of each walk that goes on, to lists."""
    state, walks, to, gone_on = stage + 8 * STATE, stage + 8 * WALKS, stage + 8 * LISTS, 0
    other, width, disorder = get(state, OTHER), get(state, WIDTH), get(state, DISORDER)
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    going, pairs, rounds = get(state, GOING), get(state, PAIRS), get(state, ROUNDS)
    mine, met, end, far = get(state, MINE), get(state, MET), get(state, END), get(state, ASKED)
    if rounds == 0:
        rounds = get(state, STRIDE) - longest(walks, going, get(state, STRIDE))
    if rounds == 0:
        put(state, PAIRS, NO_ROOM)
        put(state, GOING, 0)
        return
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
    put(state, ROUNDS, rounds - 1)
    put(state, PAIRS, pairs)
    put(state, GOING, gone_on)


@device
def round_of_log(stage: int) -> None:
    """The same to the log.  A walk that is alone goes on to the next entry of its tag."""
    state, walks, log, gone_on = stage + 8 * STATE, stage + 8 * WALKS, stage + 8 * LISTS, 0
    other, width, disorder = get(state, OTHER), get(state, WIDTH), get(state, DISORDER)
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    going, pairs, rounds = get(state, GOING), get(state, PAIRS), get(state, ROUNDS) + 1
    mine, met, end, far = get(state, MINE), get(state, MET), get(state, END), get(state, ASKED)
    put(state, GOING, 0)
    if pairs + going > ROOM:
        put(state, PAIRS, NO_ROOM)
        return
    if going == 1 and rounds >= SOON:
        tag, stop = mem.load_u32(walks), mem.load_i64(walks + LOWS) - disorder
        suspect(stage, mem.load_i64(walks + ENTRIES), ring, mask, tail)
        entry = seek(mem.load_i64(walks + ENTRIES), tag, stop, ring, mask, tail)
        if entry == 0:
            return
        mem.store_i64(walks + ENTRIES, entry)
        rounds = 0
    for k in range(0, going, LANES):
        mem.prefetch_to_write(mine + 8 * pairs)
        mem.prefetch_to_write(met + 8 * pairs)
        found = eight.step_log(
            walks + 8 * k, going - k, walks + 8 * gone_on,
            log + 8 * pairs, end, ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        pairs += found & 255
        gone_on += found >> 8
    put(state, ROUNDS, rounds)
    put(state, PAIRS, pairs)
    put(state, GOING, gone_on)


@device
def write(stage: int, met_base: int, mine: int, met: int) -> None:
    """Write the pairs found: both rows, the partner's counted from `met_base`.  The output has room
    for a block more."""
    if get(stage + 8 * STATE, STRIDE):
        write_lists(stage, met_base, mine, met)
    else:
        write_log(stage, met_base, mine, met)


@device
def write_log(stage: int, met_base: int, mine: int, met: int) -> None:
    """The same of a log: it is counted how many each candidate has, then each is written to its
    place."""
    state, ends, rows = stage + 8 * STATE, stage + 8 * ENDS, stage + 8 * ROWS
    log, after = stage + 8 * LISTS, 0
    end = log + 8 * get(state, PAIRS)
    for pair in range(log + 8 * get(state, BEGUN), end, 8):
        place = ends + 8 * np.int64(mem.load_u32(pair))
        mem.store_i64(place, mem.load_i64(place) + 1)
    for place in range(ends, ends + 8 * get(state, CANDIDATES), 8):
        size = mem.load_i64(place)
        mem.store_i64(place, after)
        after += 8 * size
    for pair in range(log, end, 8):
        by = 8 * np.int64(mem.load_u32(pair))
        to = mem.load_i64(ends + by)
        mem.store_i64(mine + to, mem.load_i64(rows + by))
        mem.store_i64(met + to, (np.int64(mem.load_u32(pair + 4)) - met_base) & LOW)
        mem.store_i64(ends + by, to + 8)


@device
def write_lists(stage: int, met_base: int, mine: int, met: int) -> None:
    """The same of lists."""
    state, row_at, rows = stage + 8 * STATE, stage + 8 * ROWS, stage + 8 * LISTS
    stride, end = 4 * get(state, STRIDE), get(state, END)
    for _ in range(get(state, CANDIDATES)):
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
