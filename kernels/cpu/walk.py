"""Walking the chains of `kernels.cpu.chain`: from candidates to pairs.

A candidate is a record whose chain has a live head: `int64 record | link << 32`, the record counted
from its chunk's first.  A chunk's candidates are walked side by side, a link each a round, so that
their misses overlap.  What a walk meets goes to a list of its own; when all have ended, the lists
are written out record by record, so that the order of pairs does not show how they were found.

Records of one key, close together, would walk the same chain one after the other.  Where records
have many partners, those of a chunk that have the same tag and begin at the same link are walked
once, over all their windows, and each takes from the list what lies in its own.
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
    LINE,
    LOW,
    NEXT,
    RING,
    RING_MASK,
    TAIL,
    TIME_MAX,
    TIME_MIN,
    earlier,
    get,
    later,
    partition_of,
)
from kernels.registry import device

CHUNK = 256
"""Records whose candidates are found together."""
BLOCK = 8
"""Pairs that are written at a time: the output has room for so many more than are found."""
WINDOW = 48
LOWEST, WIDTH, STOP, TAG, END, SHARED = 0, 8, 16, 24, 32, 40
"""A walk's window: the earliest time that matches; how much later the latest is; where the walk
stops; its tag and, in the next four bytes, its first link; where its list ends so far; whether
several records share it.  Its list follows: row numbers (uint32)."""
KNOWN = 512
"""Places where a walk with a first link is looked for."""
WINDOWS_BYTES = 7 * WINDOW * CHUNK
"""Memory for all windows and lists; that of times is twice as large."""
CANDIDATES, WALKERS, PLACES = 0, CHUNK, 2 * CHUNK
WINDOWS = PLACES + KNOWN // 2
TIMES = WINDOWS + WINDOWS_BYTES // 8 + BLOCK
SUSPECT = TIMES + WINDOWS_BYTES // 4 + BLOCK
WALK_FIELDS = SUSPECT + 1
"""Scratch memory (int64s): candidates, each `record | window << 32`; what is still walking, each
`window | entry << 32` in units of 4 bytes; places; windows; lists of times; and SUSPECT, what a
walk that was long alone met, `SUSPECTED | tag`."""
SUSPECTED = 1 << 32
"""Above a suspect's tag, which may be 0."""
NEAR = 512
"""Rings of up to so many slots are not asked for entry by entry: a nearer cache has them, and with
10 matches a tuple at 10^4 asking took an eighth of the time."""
SOON = 8
"""Rounds after which a walk that is alone goes on by itself."""
AHEAD_BYTES = 1024
"""How far ahead lines are asked for that pairs will be written to: with 10 matches at 10^4 1.03,
1.05, 1.03 and 0.99 times as fast in four pairs of processes; no difference at 10^5 and 10^6."""
PLAIN = np.int64(1) << 61
"""Times and bounds smaller than this need no care for overflow."""


@device
def stride_of(walks: int) -> int:
    """Bytes of each of so many windows with their lists."""
    return WINDOW * (WINDOWS_BYTES // (WINDOW * max(walks, 1)))


@device
def sieve(records: int, other: int, at: int, end: int, kept: int) -> int:
    """Copy to `kept` the candidates whose first entry has their tag or a live one behind it;
    returns their end.  With few matches hardly any are left, and no walk is begun."""
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    while at < end:
        name, link = np.int64(mem.load_u32(at)), np.int64(mem.load_u32(at + 4))
        record, entry = records + ((name - records) & LOW), ring + ENTRY * (link & mask)
        same = mem.load_u32(entry + 8) == mem.load_u32(record + 8)
        mem.store_i64(kept, mem.load_i64(at))
        kept += 8 * (np.int64(same) | np.int64(np.int64(mem.load_u32(entry + NEXT)) >= tail))
        at += 8
    return kept


@device
def open_windows(
    records: int, other: int, back: int, forth: int, scratch: int, end: int, stride: int
) -> int:
    """Open a window for each candidate, or one for all of the same tag and first link, and begin a
    walk for each window; returns the end of the walkers."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    windows, places, mask = scratch + 8 * WINDOWS, scratch + 8 * PLACES, get(other, RING_MASK)
    at, walker, name = scratch, scratch + 8 * WALKERS, 0
    while at < end:
        link = np.int64(mem.load_u32(at + 4))
        record = records + ((np.int64(mem.load_u32(at)) - records) & LOW)
        time, tag = mem.load_i64(record), np.int64(mem.load_u32(record + 8))
        low, high = earlier(time, back), later(time, forth)
        place = places + 4 * (link & (KNOWN - 1))
        known = stride * np.int64(mem.load_u32(place))
        window = windows + known
        old = known < name and mem.load_i64(window + TAG) == tag | link << 32
        if old:
            lowest = mem.load_i64(window + LOWEST)
            high = max(high, np.int64(np.uint64(lowest) + mem.load_u64(window + WIDTH)))
            low = min(low, lowest)
            mem.store_u32(at + 4, np.uint32(known))
        else:
            window = windows + name
            mem.store_u32(place, np.uint32((walker - scratch - 8 * WALKERS) >> 3))
            mem.store_i64(window + TAG, tag | link << 32)
            mem.store_i64(window + END, window + WINDOW)
            mem.store_i64(walker, name | (ENTRY // 4 * (link & mask)) << 32)
            mem.store_u32(at + 4, np.uint32(name))
            walker += 8
            name += stride
        mem.store_i64(window + LOWEST, low)
        mem.store_u64(window + WIDTH, np.uint64(high) - np.uint64(low))
        mem.store_i64(window + STOP, earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN)
        mem.store_i64(window + SHARED, np.int64(old))
        at += 8
    return walker


@device
def step_first(
    records: int, other: int, back: int, forth: int, at: int, end: int, scratch: int, stride: int
) -> Any:
    """`sieve`, `open_windows` and the first link of each walk in one; returns where the candidates
    that are left end, and the walkers, or -1 where times are too large to be done so."""
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    windows, walker, kept, name = scratch + 8 * WINDOWS, scratch + 8 * WALKERS, scratch, 0
    far, width, wild = mask >= NEAR, np.uint64(back + forth), (back | forth | disorder) << 1
    while at < end:
        mine, link = mem.load_u32(at), np.int64(mem.load_u32(at + 4))
        record = records + ((np.int64(mine) - records) & LOW)
        entry = ring + ENTRY * (link & mask)
        time, when, behind = mem.load_i64(record), mem.load_i64(entry), mem.load_u64(entry + 8)
        following, tag = np.int64(mem.load_u32(entry + NEXT)), mem.load_u32(record + 8)
        low, window = time - back, windows + name
        wild |= time + PLAIN
        meets = np.int64(np.uint32(behind) == tag) & np.int64(
            np.uint64(when) - np.uint64(low) <= width
        )
        goes_on = np.int64(when >= low - disorder) & np.int64(following >= tail)
        coming = ENTRY // 4 * (following & mask)
        mem.store_i64(window + LOWEST, low)
        mem.store_u64(window + WIDTH, width)
        mem.store_i64(window + STOP, low - disorder)
        mem.store_u32(window + TAG, tag)
        mem.store_u32(window + WINDOW, np.uint32(behind >> np.uint64(32)))
        mem.store_i64(window + END, window + WINDOW + 4 * meets)
        mem.store_u32(walker, np.uint32(name))
        mem.store_u32(walker + 4, np.uint32(coming))
        mem.store_u32(kept, mine)
        mem.store_u32(kept + 4, np.uint32(name))
        if far:
            coming = ring + 4 * coming if goes_on else entry
            mem.prefetch(coming)
            mem.prefetch(coming + ENTRY - 1)
        walker += 8 * goes_on
        kept += 8 * (meets | goes_on)
        name += stride & -(meets | goes_on)
        at += 8
    return kept, -1 if np.uint64(wild) >= np.uint64(2 * PLAIN) else walker


@device
def fullest(windows: int, at: int, end: int) -> int:
    """The most that one of the walkers at..end has in its list."""
    most = 0
    while at < end:
        window = windows + np.int64(mem.load_u32(at))
        most = max(most, mem.load_i64(window + END) - window)
        at += 8
    return (most - WINDOW) // 4


@device
def suspect(scratch: int, entry: int, ring: int, mask: int, tail: int) -> None:
    """Note the tag of an entry that a walk comes to which is long alone, if the next one's is the
    same: it is a hot key's.  (Were it not, its name would be lost to the hot key for a window.)"""
    tag, link = mem.load_u32(entry + 8), np.int64(mem.load_u32(entry + NEXT))
    if link >= tail and mem.load_u32(ring + ENTRY * (link & mask) + 8) == tag:
        mem.store_i64(scratch + 8 * SUSPECT, SUSPECTED | np.int64(tag))


@device
def seek(entry: int, tag: int, stop: int, ring: int, mask: int, tail: int) -> int:
    """From an entry, by its address, down its chain to the first of `tag`; 0 where the chain ends
    before, or comes to one that is earlier than `stop`.

    For a walk that is alone: a record whose chain is full of another, hot key's entries."""
    while mem.load_u32(entry + 8) != tag:
        link = np.int64(mem.load_u32(entry + NEXT))
        if mem.load_i64(entry) < stop or link < tail:
            return 0
        entry = ring + ENTRY * (link & mask)
    return entry


@device
def walk_together(other: int, scratch: int, end: int, stride: int, shared: bool) -> bool:
    """Walk all walkers up to `end` to the ends of their chains; False where a list has no room.

    Writes lists of row numbers, newest first, and where windows are `shared` lists of times.  What
    goes on after a round moves up without a branch.
    """
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    windows, first, rounds = scratch + 8 * WINDOWS, scratch + 8 * WALKERS, 0
    far, times_by, turns = mask >= NEAR, scratch + 8 * TIMES - 2 * windows, 0
    while first < end:
        turns += 1
        if turns >= SOON and end == first + 8:
            window, turns = windows + np.int64(mem.load_u32(first)), 0
            entry = ring + 4 * np.int64(mem.load_u32(first + 4))
            tag, stop = mem.load_u32(window + TAG), mem.load_i64(window + STOP)
            suspect(scratch, entry, ring, mask, tail)
            entry = seek(entry, tag, stop, ring, mask, tail)
            if entry == 0:
                break
            mem.store_u32(first + 4, np.uint32((entry - ring) >> 2))
        if rounds == 0:
            rounds = (stride - WINDOW) // 4 - fullest(windows, first, end)
            if rounds == 0:
                return False
        rounds -= 1
        at = kept = first
        while at < end:
            name, place = mem.load_u32(at), np.int64(mem.load_u32(at + 4))
            entry, window = ring + 4 * place, windows + np.int64(name)
            when, behind = mem.load_i64(entry), mem.load_u64(entry + 8)
            following = np.int64(mem.load_u32(entry + NEXT))
            after = np.uint64(when) - np.uint64(mem.load_i64(window + LOWEST))
            meets = np.int64(np.uint32(behind) == mem.load_u32(window + TAG)) & np.int64(
                after <= mem.load_u64(window + WIDTH)
            )
            to = mem.load_i64(window + END)
            mem.store_u32(to, np.uint32(behind >> np.uint64(32)))
            if shared:
                mem.store_i64(times_by + 2 * to, when)
            mem.store_i64(window + END, to + 4 * meets)
            goes_on = np.int64(when >= mem.load_i64(window + STOP)) & np.int64(following >= tail)
            coming = ENTRY // 4 * (following & mask)
            mem.store_u32(kept, name)
            mem.store_u32(kept + 4, np.uint32(coming))
            if far:
                coming = ring + 4 * (coming if goes_on else place)
                mem.prefetch(coming)
                mem.prefetch(coming + ENTRY - 1)
            kept += 8 * goes_on
            at += 8
        end = kept
    return True


@device
def row_of(record: int, base: int, named: int) -> Any:
    """The row of a record, counted from `base`; above it `named` times its partition."""
    return (np.int64(mem.load_u32(record + 12)) - base) & LOW | named * partition_of(record)


@device
def write(
    scratch: int, end: int, shared: bool, ordered: bool, records: int, back: int, forth: int,
    base: int, met_base: int, named: int, mine: int, met: int, room: int,
) -> int:  # fmt: skip
    """Write the pairs of the candidates up to `end`: both rows, counted from `base` and `met_base`,
    the first as `row_of` says; returns how many, or -1 where there may be more than `room`."""
    windows, times_by = scratch + 8 * WINDOWS, 8 * (TIMES - 2 * WINDOWS) - scratch
    at, first, full = scratch, mine, mine + 8 * room
    while at < end:
        record = records + ((np.int64(mem.load_u32(at)) - records) & LOW)
        window = windows + np.int64(mem.load_u32(at + 4))
        row = row_of(record, base, named)
        listed, stop = window + WINDOW, mem.load_i64(window + END)
        after = mine + 2 * (stop - listed)
        if after > full:
            return -1
        for by in (AHEAD_BYTES, AHEAD_BYTES + LINE):
            mem.prefetch_to_write(mine + by)
            mem.prefetch_to_write(met + by)
        if shared and mem.load_i64(window + SHARED):
            time = mem.load_i64(record)
            low, high = earlier(time, back), later(time, forth)
            if ordered and mem.load_i64(times_by + 2 * listed) <= high:
                while listed < stop:
                    mem.write_pairs(mine, met, row, listed, met_base)
                    more = 8 * mem.at_least(times_by + 2 * listed, low, (stop - listed) >> 2)
                    mine += more
                    met += more
                    listed += 4 * BLOCK
            else:
                while listed < stop:
                    when = mem.load_i64(times_by + 2 * listed)
                    mem.store_i64(mine, row)
                    mem.store_i64(met, (np.int64(mem.load_u32(listed)) - met_base) & LOW)
                    more = 8 * (np.int64(low <= when) & np.int64(when <= high))
                    mine += more
                    met += more
                    listed += 4
        else:
            to_met, to_mine = met, mine
            met += after - mine
            mine = after
            while True:
                mem.write_pairs(to_mine, to_met, row, listed, met_base)
                listed += 4 * BLOCK
                to_mine += 8 * BLOCK
                to_met += 8 * BLOCK
                if listed >= stop:
                    break
        at += 8
    return (mine - first) >> 3


@device
def walk_one(
    record: int,
    link: int,
    other: int,
    back: int,
    forth: int,
    base: int,
    met_base: int,
    named: int,
    mine: int,
    met: int,
    room: int,
) -> Any:
    """Walk one record's chain to its end and write its pairs as `write` does; returns how many,
    -1 where there is no room."""
    ring, mask, tail = get(other, RING), get(other, RING_MASK), get(other, TAIL)
    disorder = max(get(other, DISORDER_OLD), get(other, DISORDER_NEW))
    time, tag = mem.load_i64(record), mem.load_u32(record + 8)
    row = row_of(record, base, named)
    low, high = earlier(time, back), later(time, forth)
    stop = earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
    pairs = 0
    while link >= tail:
        entry = ring + ENTRY * (link & mask)
        when = mem.load_i64(entry)
        if when < stop:
            break
        if mem.load_u32(entry + 8) == tag and low <= when and when <= high:
            if pairs == room:
                return -1
            mem.store_i64(mine + 8 * pairs, row)
            partner = np.int64(mem.load_u32(entry + 12))
            mem.store_i64(met + 8 * pairs, (partner - met_base) & LOW)
            pairs += 1
        link = np.int64(mem.load_u32(entry + NEXT))
    return pairs


@device
def without_others(keys: int, columns: int, swapped: bool, mine: int, met: int, pairs: int) -> Any:
    """Leave out pairs whose keys differ although their tags agree; returns how many are left."""
    kept = 0
    for k in range(pairs):
        a, b = mem.load_i64(mine + 8 * k), mem.load_i64(met + 8 * k)
        left, right = (b, a & LOW) if swapped else (a & LOW, b)
        if same_key(keys, columns, left, right):
            mem.store_i64(mine + 8 * kept, a)
            mem.store_i64(met + 8 * kept, b)
            kept += 1
    return kept
