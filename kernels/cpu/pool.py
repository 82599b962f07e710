"""Pools: partitions of a side share a ring, where windows are small and beats short.

With a few records a partition, what a beat does for each of 64 partitions and two sides costs as
much as the records: fields are loaded, a loop's end is guessed wrong, an entry or two leave.  In a
pool it is done once a side.  A record's partition is the top of its tag, so that entries need not
say it, and chains of different partitions meet in one table of heads.

There is one pool for each thread that joins: pool k of n has the partitions from 64 k / n on.  A
table with n pools has n rows of `kernels.cpu.rings`, the others are empty; LOG of each is the
address of what is kept here.  The ring is in the order of beats, in a beat in that of partitions.
So times fall within it, by DISORDER at the most, and what leaves is not seen in the ring.  Instead
the log has a slot for every few beats: the latest time in it, and where it ends.  A slot leaves as
a whole, when all of it is dead, which costs the same whatever leaves.

Rows that are dead but held must not be met where a join without a pool would not meet them.  They
are not, if no row of a beat is so late that they lie in its window.  That is seen when the beat's
records were inserted; where it is not so `undo` takes back what was done, and the beat is joined
without, by `spread`.  `gather` makes a pool; both keep, of each key, the order of arrival.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.insert import insert_entry
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.rings import (
    BATCH,
    BATCH_ROWS,
    DISORDER_NEW,
    DISORDER_OLD,
    ENTRY,
    GENERATION,
    HEAD,
    LOG,
    LOW,
    NEWEST_OLD,
    PART,
    RECORD_BYTES,
    RING,
    RING_MASK,
    TAIL,
    TIME_MAX,
    TIME_MIN,
    earlier,
    get,
    partition_of,
    point_ring,
    put,
)
from kernels.registry import device, kernel

SHORT = 4096
"""Records of both sides of a beat that is pooled however many of them match."""
SLOTS = 64
"""Slots of a log.  Where all are taken, beats are put to the last."""
FINE = 32
"""Beats are put to the last slot while that has less than one in so many of the rows held."""
SPAN_MAX = np.uint64(2**62)
"""No pool is made of rows that lie so far apart (µs) or farther: differences could overflow."""

(FIRST, COUNT, LAST_ROWS, REACHED, BOUND, DESCENTS, NEWEST, OLDEST, ROW, OLD_TAIL, OLD_HEAD,
 OLD_BOUND, POOLS, FALLS) = range(14)  # fmt: skip
NEWEST_OF = 16
SLOTS_AT = NEWEST_OF + PARTITIONS
SLOT_NEWEST, SLOT_ROW, SLOT_DISORDER, SLOT_END = range(4)
SLOT_FIELDS = 4
LOG_FIELDS = SLOTS_AT + SLOTS * SLOT_FIELDS
"""A side's log (int64[LOG_FIELDS]): the number of the oldest slot (mod SLOTS), and how many there
are; rows in the last; the latest time ever seen; the time below which rows were let go.  Of the
beat at hand: how often times fall from one partition to the next; its latest and earliest time, and
its first row's number; what tail, head and BOUND were before.  How many pools a side has.  Whether
times may fall within a partition.  Then for each partition the latest time.

A slot: its latest time; the number (mod 2^32) of a row before which it and those behind it have
none; how far times fall within it or behind those before; the position of its end."""


@device
def fall(high: int, low: int) -> int:
    """By how much times fall from `high` to `low`: 0 where they do not, at most TIME_MAX."""
    behind = np.uint64(high) - np.uint64(low)
    return np.int64(min(behind, np.uint64(TIME_MAX))) if high > low else 0


@device
def slot_at(log: int, number: int) -> int:
    """The address of a slot, by its number."""
    return log + 8 * (SLOTS_AT + SLOT_FIELDS * (number % SLOTS))


@device
def count_of(side: int) -> int:
    """How many pools a side has."""
    return get(get(side, LOG), POOLS) if get(side, LOG) else 0


@device
def first_of(number: int, pools: int) -> int:
    """The first partition of a pool, and where those of the one before it end."""
    return PARTITIONS * number // pools


@device
def point_at(mine: int, begin_at: int, end_at: int, records: int, counts: int) -> Any:
    """Tell a pool of partitions from the one up to the other where its records of the beat at hand
    are, among those of all partitions at `records`, `counts` of each; whether it has room for
    them."""
    before, count = 0, 0
    for p in range(begin_at):
        before += get(counts, p)
    for p in range(begin_at, end_at):
        count += get(counts, p)
    return point_ring(mine, records + RECORD_BYTES * before, count)


@device
def look(mine: int, begin_at: int, end_at: int, counts: int, base: int) -> None:
    """Note what is to be known of a pool's records before they are inserted: their first row; their
    times, as far as first and last records show; and the pool's state, for `undo`.

    `base` is the number of the store's row 0.
    """
    log, at, newest, oldest, last = get(mine, LOG), get(mine, BATCH), TIME_MIN, TIME_MAX, TIME_MIN
    first, descents = LOW, 0
    put(log, OLD_TAIL, get(mine, TAIL))
    put(log, OLD_HEAD, get(mine, HEAD))
    put(log, OLD_BOUND, get(log, BOUND))
    for p in range(begin_at, end_at):
        count = get(counts, p)
        if count:
            begin, end = mem.load_i64(at), mem.load_i64(at + RECORD_BYTES * (count - 1))
            if begin < get(log, NEWEST_OF + p):
                put(log, FALLS, 1)
            descents += np.int64(begin < last)
            first = min(first, (np.int64(mem.load_u32(at + 12)) - base) & LOW)
            newest, oldest, last = max(newest, end), min(oldest, begin), end
            put(log, NEWEST_OF + p, max(end, get(log, NEWEST_OF + p)))
            at += RECORD_BYTES * count
    put(log, DESCENTS, descents)
    put(log, NEWEST, newest)
    put(log, OLDEST, oldest)
    put(log, ROW, (first + base) & LOW)


@device
def look_again(mine: int) -> None:
    """Note the times of a beat's records where they fall within a partition."""
    log, at, newest, oldest = get(mine, LOG), get(mine, BATCH), TIME_MIN, TIME_MAX
    for record in range(at, at + RECORD_BYTES * get(mine, BATCH_ROWS), RECORD_BYTES):
        time = mem.load_i64(record)
        newest, oldest = max(newest, time), min(oldest, time)
    put(log, FALLS, 1)
    put(log, NEWEST, newest)
    put(log, OLDEST, oldest)


@device
def judge_times(mine: int, other: int, back: int, descents: int) -> Any:
    """Note how far the records just inserted, whose times fell so often, are behind others; whether
    none of them can meet what the other side has let go of.  `back`: how far behind a record its
    window begins."""
    log = get(mine, LOG)
    if descents != get(log, DESCENTS):
        look_again(mine)
    newest, oldest = get(log, NEWEST), get(log, OLDEST)
    if newest < oldest:  # there is none
        return True
    put(log, REACHED, max(newest, get(log, REACHED)))
    put(mine, DISORDER_NEW, max(get(mine, DISORDER_NEW), fall(get(log, REACHED), oldest)))
    return earlier(oldest, back) >= get(get(other, LOG), BOUND)


@device
def undo(mine: int) -> None:
    """Take back what was inserted, and what left, since `look`: nothing was written over yet.  What
    else is known of the pool is not, so that it has to be spread."""
    log = get(mine, LOG)
    put(mine, TAIL, get(log, OLD_TAIL))
    put(mine, HEAD, get(log, OLD_HEAD))
    put(log, BOUND, get(log, OLD_BOUND))


@device
def close_slot(mine: int, rows: int, newest: int, row: int, disorder: int) -> None:
    """Put `rows` that were just inserted into a slot: into the last, or one of their own."""
    log, held = get(mine, LOG), get(mine, HEAD) - get(mine, TAIL)
    count = get(log, COUNT)
    if count and (count == SLOTS or FINE * get(log, LAST_ROWS) < held):
        slot = slot_at(log, get(log, FIRST) + count - 1)
        newest, disorder = (
            max(newest, get(slot, SLOT_NEWEST)),
            max(disorder, get(slot, SLOT_DISORDER)),
        )
        row = get(slot, SLOT_ROW)
        rows += get(log, LAST_ROWS)
    else:
        slot = slot_at(log, get(log, FIRST) + count)
        put(log, COUNT, count + 1)
    put(slot, SLOT_NEWEST, newest)
    put(slot, SLOT_ROW, row)
    put(slot, SLOT_DISORDER, disorder)
    put(slot, SLOT_END, get(mine, HEAD))
    put(log, LAST_ROWS, rows)


@device
def settle(mine: int, bound: int, everything: bool) -> None:
    """After a beat: note it in the log, and let go of what is below `bound`, as far as whole slots
    are, or of everything."""
    log, disorder = get(mine, LOG), 0
    if get(mine, BATCH_ROWS):
        fallen = fall(get(log, REACHED), get(log, OLDEST))
        close_slot(mine, get(mine, BATCH_ROWS), get(log, NEWEST), get(log, ROW), fallen)
    first, end = get(log, FIRST), get(log, FIRST) + get(log, COUNT)
    while first < end and (everything or get(slot_at(log, first), SLOT_NEWEST) < bound):
        put(mine, TAIL, get(slot_at(log, first), SLOT_END))
        first += 1
    put(log, FIRST, first % SLOTS)
    put(log, COUNT, end - first)
    put(log, BOUND, max(bound, get(log, BOUND)))
    for number in range(first, end):
        disorder = max(disorder, get(slot_at(log, number), SLOT_DISORDER))
    put(mine, DISORDER_NEW, disorder)


@kernel("int64(int64[:, ::1], int64, int64)", reference="tests.naive.chain.oldest")
def oldest(pools: Any, base: int, rows: int) -> Any:
    """A row of the store before which none is held; `rows` where nothing is."""
    first = rows
    for k in range(pools.shape[0]):
        log = pools[k, LOG]
        if get(log, COUNT):
            row = (get(slot_at(log, get(log, FIRST)), SLOT_ROW) - base) & LOW
            first = min(first, row)
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", reference="tests.naive.chain.live")
def live(pools: Any, base: int, hashes: Any, alive: Any) -> None:
    """For the store row of every entry held that should be: its partition (top 6 bits) and tag, and
    alive = 1.  Of each partition what is dead has gone, up to the first that is not."""
    for k in range(pools.shape[0]):
        stays, bound = np.uint64(0), get(pools[k, LOG], BOUND)
        for position in range(pools[k, TAIL], pools[k, HEAD]):
            entry = pools[k, RING] + ENTRY * (position & pools[k, RING_MASK])
            stays |= np.uint64(mem.load_i64(entry) >= bound) << np.uint64(partition_of(entry))
            if stays >> np.uint64(partition_of(entry)) & np.uint64(1):
                row = np.uint32(mem.load_u32(entry + 12) - np.uint32(base))
                tag = np.uint64(mem.load_u32(entry + 8))
                hashes[row] = np.uint64(partition_of(entry)) << np.uint64(58) | tag
                alive[row] = 1


@kernel(
    "boolean(int64[:, ::1], int64[:, ::1], int64, int64, int64)",
    reference="tests.naive.chain.insert",
)
def gather(old: Any, new: Any, base: int, bound: int, number: int) -> bool:
    """Move the live entries of `old`, whose tails are lost, into pool `number` of those of `new`,
    which is empty and has room; its log is cleared.  False where that cannot be: times are too far
    apart.

    `base` is the number of the store's row 0, `bound` the time below which rows have gone.
    """
    low, high, disorder, pools, log = TIME_MAX, TIME_MIN, 0, new.shape[0], new[number, LOG]
    begin, end = first_of(number, pools), first_of(number + 1, pools)
    for field in range(NEWEST_OF):
        put(log, field, 0)
    put(log, POOLS, pools)
    for p in range(begin, end):
        ring, mask, latest = old[p, RING], old[p, RING_MASK], TIME_MIN
        for position in range(old[p, TAIL], old[p, HEAD]):
            time = mem.load_i64(ring + ENTRY * (position & mask))
            low, disorder = min(low, time), max(disorder, fall(latest, time))
            latest = max(latest, time)
        high = max(high, latest)
        put(log, NEWEST_OF + p, latest)
    put(log, REACHED, high)
    put(log, BOUND, bound)
    put(log, FALLS, np.int64(disorder > 0))
    if low > high:
        return True
    if np.uint64(high) - np.uint64(low) >= SPAN_MAX or high > TIME_MAX - FINE:
        return False
    step, mine = (high - low) // FINE + 1, np.int64(new.ctypes.data) + PART * number
    for k in range(FINE):
        upto = low + step * (k + 1) - 1
        gather_slot(old, mine, base, upto, step + disorder, begin, end)
    new[number, DISORDER_NEW] = step + disorder
    note_first_rows(log, base)
    return True


@device
def note_first_rows(log: int, base: int) -> None:
    """Let each slot's first row be the first of those behind it, too: what is earlier in time may
    have come later, if not to the same partition."""
    first = LOW
    for number in range(get(log, COUNT) - 1, -1, -1):
        slot = slot_at(log, get(log, FIRST) + number)
        first = min(first, (get(slot, SLOT_ROW) - base) & LOW)
        put(slot, SLOT_ROW, (first + base) & LOW)


@device
def gather_slot(
    old: Any, mine: int, base: int, upto: int, disorder: int, begin: int, end: int
) -> None:
    """Move what is not later than `upto`, and was not moved before, of partitions from the one up
    to the other, and make a slot of it."""
    rows, first = 0, LOW
    for p in range(begin, end):
        ring, mask, head = old[p, RING], old[p, RING_MASK], old[p, HEAD]
        while old[p, TAIL] < head:
            entry = ring + ENTRY * (old[p, TAIL] & mask)
            if mem.load_i64(entry) > upto:
                break
            first = min(first, (np.int64(mem.load_u32(entry + 12)) - base) & LOW)
            insert_entry(mine, entry)
            old[p, TAIL] += 1
            rows += 1
    if rows:
        put(get(mine, LOG), LAST_ROWS, LOW)  # what follows gets a slot of its own
        close_slot(mine, rows, upto, (first + base) & LOW, disorder)


@kernel("void(int64[:, ::1], int64[::1])", reference="tests.naive.chain.live")
def shares(pools: Any, counts: Any) -> None:
    """How many entries of each partition pools hold (int64[64])."""
    counts[:] = 0
    for k in range(pools.shape[0]):
        ring, mask = pools[k, RING], pools[k, RING_MASK]
        for position in range(pools[k, TAIL], pools[k, HEAD]):
            counts[partition_of(ring + ENTRY * (position & mask))] += 1


@kernel("void(int64[:, ::1], int64[:, ::1])", reference="tests.naive.chain.insert")
def spread(pools: Any, new: Any) -> None:
    """Move what pools hold, and should, into the empty rings of 64 partitions."""
    at = np.int64(new.ctypes.data)
    for k in range(pools.shape[0]):
        ring, mask, bound = pools[k, RING], pools[k, RING_MASK], get(pools[k, LOG], BOUND)
        for position in range(pools[k, TAIL], pools[k, HEAD]):
            entry = ring + ENTRY * (position & mask)
            p, time = partition_of(entry), mem.load_i64(entry)
            if time >= bound or new[p, TAIL] < new[p, HEAD]:
                insert_entry(at + PART * p, entry)
                disorder = fall(new[p, NEWEST_OLD], time)
                new[p, DISORDER_OLD] = max(new[p, DISORDER_OLD], disorder)
                new[p, NEWEST_OLD] = max(new[p, NEWEST_OLD], time)
    for p in range(PARTITIONS):
        new[p, GENERATION] = new[p, HEAD]
