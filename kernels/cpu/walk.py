"""Walking the chains of `kernels.cpu.chain`: from candidates to pairs.

A candidate is a record whose chain has a live head: `int64 record | link << 32`, the record counted
from its chunk's first.  A chunk's candidates are walked side by side, a link each a round, so that
their misses overlap.  That finds pairs in the order of rounds; they are sorted by record before
they are written, so that the order of the output does not show how they were found.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.keys import same_key
from kernels.cpu.rings import (
    DISORDER_NEW,
    DISORDER_OLD,
    ENTRY,
    LOW,
    RECORD_BYTES,
    RING,
    RING_MASK,
    ROWS,
    TAIL,
    TIME_MAX,
    TIME_MIN,
    earlier,
    get,
    later,
)
from kernels.registry import device

CHUNK = 256
"""Records whose candidates are found together."""
TOGETHER = 4096
"""Pairs that are sorted at a time, at most."""
FEW = 16
"""So many are sorted by insertion."""
LIVE, OPENED, WINDOWS, RAW = 0, CHUNK, 2 * CHUNK, 6 * CHUNK
WALK_FIELDS = RAW + TOGETHER
"""Scratch memory (int64s): candidates that are still walking, and the windows of all of them, as
offsets; each record's window; raw pairs."""
NEAR = 512
"""Rings of up to so many slots are not asked for entry by entry: a nearer cache has them, and with
10 matches a tuple at 10^4 asking took an eighth of the time."""
WINDOW = 32
"""Size of a record's window: that of two records, so that half of its offset is the record's."""
LOWEST, WIDTH, STOP, TAG, COUNT = 0, 8, 16, 24, 28
"""A record's window: the earliest time that matches; how much later the latest is; where a walk
stops; the record's tag (uint32), and its pairs so far (uint32).  When these are placed, the first
two are where its next pair goes, and its row number."""


@device
def sieve(records: int, other: int, at: int, end: int, kept: int) -> int:
    """Copy to `kept` the candidates whose first entry has their tag or a live one behind it;
    returns their end.  With few matches hardly any are left, and no walk is begun."""
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    while at < end:
        i, link = np.int64(mem.load_u32(at)), np.int64(mem.load_u32(at + 4))
        entry = ring + ENTRY * (link & mask)
        same = mem.load_u32(entry + 8) == mem.load_u32(records + RECORD_BYTES * i + 8)
        mem.store_i64(kept, i | link << 32)
        kept += 8 * (np.int64(same) | np.int64(np.int64(mem.load_u32(entry + 12)) >= tail))
        at += 8
    return kept


@device
def open_windows(records: int, other: int, back: int, forth: int, scratch: int, end: int) -> None:
    """Open a window for each candidate that walks, and name it by that from now on."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    at = scratch
    while at < end:
        i, link = np.int64(mem.load_u32(at)), np.int64(mem.load_u32(at + 4))
        time = mem.load_i64(records + RECORD_BYTES * i)
        low = earlier(time, back)
        window = scratch + 8 * WINDOWS + WINDOW * i
        mem.store_i64(window + LOWEST, low)
        mem.store_u64(window + WIDTH, np.uint64(later(time, forth)) - np.uint64(low))
        mem.store_i64(window + STOP, earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN)
        mem.store_i64(window + TAG, np.int64(mem.load_u32(records + RECORD_BYTES * i + 8)))
        mem.store_i64(at, WINDOW * i | link << 32)
        mem.store_i64(at + 8 * OPENED, WINDOW * i)
        at += 8


@device
def walk_together(other: int, scratch: int, end: int, room: int) -> Any:
    """Walk all that is in `scratch` to `end` to the ends of their chains.

    Writes raw pairs (window, partner's slot), newest first for each record; returns how many, or -1
    where there may be more than `room`.  What goes on after a round moves up without a branch.
    """
    ring, mask, rows, tail = (
        get(other, RING),
        get(other, RING_MASK),
        get(other, ROWS),
        get(other, TAIL),
    )
    windows, pair = scratch + 8 * WINDOWS, scratch + 8 * RAW
    full, far = pair + 8 * room, mask >= NEAR
    while scratch < end:
        if pair + (end - scratch) > full:
            return -1
        at = kept = scratch
        while at < end:
            walker = mem.load_u64(at)
            name, slot = np.int64(walker & np.uint64(LOW)), np.int64(walker >> np.uint64(32)) & mask
            entry, window = ring + ENTRY * slot, windows + name
            when, behind = mem.load_i64(entry), mem.load_u64(entry + 8)
            following = np.int64(behind >> np.uint64(32))
            after = np.uint64(when) - np.uint64(mem.load_i64(window + LOWEST))
            meets = np.int64(np.uint32(behind) == mem.load_u32(window + TAG)) & np.int64(
                after <= mem.load_u64(window + WIDTH)
            )
            mem.store_i64(pair, name | slot << 32)
            mem.store_u32(window + COUNT, mem.load_u32(window + COUNT) + np.uint32(meets))
            if far:
                mem.prefetch(rows + 4 * slot if meets else entry)
            pair += 8 * meets
            goes_on = np.int64(when >= mem.load_i64(window + STOP)) & np.int64(following >= tail)
            mem.store_i64(kept, name | following << 32)
            if far:
                mem.prefetch(ring + ENTRY * (following & mask) if goes_on else entry)
            kept += 8 * goes_on
            at += 8
        end = kept
    return (pair - windows) // 8 - (RAW - WINDOWS)


@device
def arrange_few(
    scratch: int, pairs: int, numbers: int, base: int, rows: int, mine: int, met: int
) -> None:
    """Write raw pairs, sorted by record (stably): the record's row, counted from `base`, and the
    address of its partner's."""
    raw = scratch + 8 * RAW
    for k in range(1, pairs):
        pair, j = mem.load_i64(raw + 8 * k), raw + 8 * k
        while j > raw and mem.load_u32(j - 8) > np.uint32(pair):
            mem.store_i64(j, mem.load_i64(j - 8))
            j -= 8
        mem.store_i64(j, pair)
    for k in range(pairs):
        name = np.int64(mem.load_u32(raw + 8 * k))
        row = np.int64(mem.load_u32(numbers + (name >> 1)))
        mem.store_i64(mine + 8 * k, (row - base) & LOW)
        mem.store_i64(met + 8 * k, rows + 4 * np.int64(mem.load_u32(raw + 8 * k + 4)))


@device
def arrange(
    scratch: int, pairs: int, opened: int, numbers: int, base: int, rows: int, met_base: int,
    mine: int, met: int,
) -> None:  # fmt: skip
    """Write raw pairs of `opened` windows, sorted by record (stably): both rows, counted from
    `base` and `met_base`."""
    windows, raw, total = scratch + 8 * WINDOWS, scratch + 8 * RAW, 0
    for k in range(opened):
        name = mem.load_i64(scratch + 8 * (OPENED + k))
        row = np.int64(mem.load_u32(numbers + (name >> 1)))
        size = np.int64(mem.load_u32(windows + name + COUNT))
        mem.store_i64(windows + name, total)
        mem.store_i64(windows + name + 8, (row - base) & LOW)
        total += 8 * size
    for at in range(raw, raw + 8 * pairs, 8):
        pair = mem.load_u64(at)
        window = windows + np.int64(pair & np.uint64(LOW))
        to = mem.load_i64(window)
        mem.store_i64(window, to + 8)
        mem.store_i64(mine + to, mem.load_i64(window + 8))
        row = np.int64(mem.load_u32(rows + 4 * np.int64(pair >> np.uint64(32))))
        mem.store_i64(met + to, (row - met_base) & LOW)


@device
def walk_one(
    record: int,
    link: int,
    other: int,
    back: int,
    forth: int,
    base: int,
    met_base: int,
    mine: int,
    met: int,
    room: int,
) -> Any:
    """Walk one record's chain to its end and write its pairs as `arrange` does; returns how many,
    -1 where there is no room."""
    ring, mask, rows, tail = (
        get(other, RING), get(other, RING_MASK), get(other, ROWS), get(other, TAIL),
    )  # fmt: skip
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    time, tag = mem.load_i64(record), mem.load_u32(record + 8)
    row = (np.int64(mem.load_u32(record + 12)) - base) & LOW
    low, high = earlier(time, back), later(time, forth)
    stop = earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
    pairs = 0
    while link >= tail:
        slot = link & mask
        entry = ring + ENTRY * slot
        when = mem.load_i64(entry)
        if when < stop:
            break
        if mem.load_u32(entry + 8) == tag and low <= when and when <= high:
            if pairs == room:
                return -1
            mem.store_i64(mine + 8 * pairs, row)
            partner = np.int64(mem.load_u32(rows + 4 * slot))
            mem.store_i64(met + 8 * pairs, (partner - met_base) & LOW)
            pairs += 1
        link = np.int64(mem.load_u32(entry + 12))
    return pairs


@device
def look_up(met: int, pairs: int, base: int) -> None:
    """Turn addresses of partners' rows into rows, counted from `base`."""
    for k in range(pairs):
        row = np.int64(mem.load_u32(mem.load_i64(met + 8 * k)))
        mem.store_i64(met + 8 * k, (row - base) & LOW)


@device
def without_others(keys: Any, swapped: bool, mine: int, met: int, pairs: int) -> Any:
    """Leave out pairs whose keys differ although their tags agree; returns how many are left."""
    kept = 0
    for k in range(pairs):
        a, b = mem.load_i64(mine + 8 * k), mem.load_i64(met + 8 * k)
        left, right = (b, a) if swapped else (a, b)
        if same_key(keys, left, right):
            mem.store_i64(mine + 8 * kept, a)
            mem.store_i64(met + 8 * kept, b)
            kept += 1
    return kept
