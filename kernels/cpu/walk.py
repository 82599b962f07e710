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
"""Records whose candidates are walked together."""
TOGETHER = 4096
"""Pairs that are sorted at a time."""
FEW = 16
"""So many are sorted by insertion."""
LIVE, WINDOWS, STARTS, RAW = 0, CHUNK, 5 * CHUNK, 6 * CHUNK
WALK_FIELDS = RAW + TOGETHER
"""Scratch memory (int64s): candidates that are still walking; for each record its window (low,
high, where a walk stops, tag); counters; raw pairs."""
WINDOW = 32


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
    """For each record that still walks: which times match, where its walk may stop, its tag."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    at = scratch
    while at < end:
        i = np.int64(mem.load_u32(at))
        time = mem.load_i64(records + RECORD_BYTES * i)
        low = earlier(time, back)
        window = scratch + 8 * WINDOWS + WINDOW * i
        mem.store_i64(window, low)
        mem.store_i64(window + 8, later(time, forth))
        mem.store_i64(window + 16, earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN)
        mem.store_u32(window + 24, mem.load_u32(records + RECORD_BYTES * i + 8))
        at += 8


@device
def walk_together(other: int, scratch: int, end: int, room: int) -> Any:
    """Walk all that is in `scratch` to `end` to the ends of their chains.

    Writes raw pairs (record, partner's slot), newest first for each record; returns how many, or -1
    where there may be more than `room`.  What goes on after a round moves up without a branch.
    """
    ring, mask, rows, tail = (
        get(other, RING),
        get(other, RING_MASK),
        get(other, ROWS),
        get(other, TAIL),
    )
    windows, raw = scratch + 8 * WINDOWS, scratch + 8 * RAW
    pairs = 0
    while scratch < end:
        if pairs + ((end - scratch) >> 3) > room:
            return -1
        at = kept = scratch
        while at < end:
            i, slot = np.int64(mem.load_u32(at)), np.int64(mem.load_u32(at + 4)) & mask
            entry, window = ring + ENTRY * slot, windows + WINDOW * i
            when, following = mem.load_i64(entry), np.int64(mem.load_u32(entry + 12))
            meets = (
                np.int64(mem.load_u32(entry + 8) == mem.load_u32(window + 24))
                & np.int64(when >= mem.load_i64(window))
                & np.int64(when <= mem.load_i64(window + 8))
            )
            mem.store_i64(raw + 8 * pairs, i | slot << 32)
            mem.prefetch(rows + 4 * slot if meets else entry)
            pairs += meets
            goes_on = np.int64(when >= mem.load_i64(window + 16)) & np.int64(following >= tail)
            mem.store_i64(kept, i | following << 32)
            mem.prefetch(ring + ENTRY * (following & mask) if goes_on else entry)
            kept += 8 * goes_on
            at += 8
        end = kept
    return pairs


@device
def arrange(
    scratch: int, pairs: int, count: int, numbers: int, base: int, rows: int, mine: int, met: int
) -> None:
    """Write raw pairs of `count` records, sorted by record (stably): the record's row, counted from
    `base`, and the address of its partner's."""
    starts, raw = scratch + 8 * STARTS, scratch + 8 * RAW
    if pairs <= FEW:
        for k in range(1, pairs):
            pair, j = mem.load_i64(raw + 8 * k), raw + 8 * k
            while j > raw and mem.load_u32(j - 8) > np.uint32(pair):
                mem.store_i64(j, mem.load_i64(j - 8))
                j -= 8
            mem.store_i64(j, pair)
        for k in range(pairs):
            pair = raw + 8 * k
            row = np.int64(mem.load_u32(numbers + RECORD_BYTES * np.int64(mem.load_u32(pair))))
            mem.store_i64(mine + 8 * k, (row - base) & LOW)
            mem.store_i64(met + 8 * k, rows + 4 * np.int64(mem.load_u32(pair + 4)))
        return
    for i in range(count):
        mem.store_i64(starts + 8 * i, 0)
    for k in range(pairs):
        at = starts + 8 * np.int64(mem.load_u32(raw + 8 * k))
        mem.store_i64(at, mem.load_i64(at) + 8)
    total = 0
    for i in range(count):
        size = mem.load_i64(starts + 8 * i)
        mem.store_i64(starts + 8 * i, total)
        total += size
    for k in range(pairs):
        pair = raw + 8 * k
        i = np.int64(mem.load_u32(pair))
        row, at = np.int64(mem.load_u32(numbers + RECORD_BYTES * i)), starts + 8 * i
        to = mem.load_i64(at)
        mem.store_i64(at, to + 8)
        mem.store_i64(mine + to, (row - base) & LOW)
        mem.store_i64(met + to, rows + 4 * np.int64(mem.load_u32(pair + 4)))


@device
def walk_one(
    record: int,
    link: int,
    other: int,
    back: int,
    forth: int,
    base: int,
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
            mem.store_i64(met + 8 * pairs, rows + 4 * slot)
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
