"""Pools: partitions of a side that share one ring, for small windows and short beats.

With few records a partition, the cost of a beat is dominated by what is done for each of 64
partitions and two sides.  In a pool it is done once a side.  A record's partition is the top of its
tag, so that entries need no more bytes, and chains of several partitions share one table of heads.

There is a pool for each thread: pool k of n has the partitions from 64 k / n on.  A table with n
pools has n rings (`kernels.cpu.rings`), the others are empty.  A ring is in the order of beats, and
within a beat in the order of partitions, so that times fall within it by at most its disorder.

**Eviction.**  A log has a slot for every few beats: its latest time, and its end.  A slot leaves as
a whole once all of it is dead.  Rows that are dead but still held are never matched: if a row of a
beat is so late that it could match one, `undo` takes back what the pools did, and the beat is
joined with rings of 64 partitions (`spread`).  `gather` makes pools.  Both keep each key's arrival
order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.insert import insert_entry
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import I64, field, get, put, words
from kernels.cpu.rings import (
    ENTRY,
    LOW,
    PART,
    RECORD_BYTES,
    RING,
    TIME_MAX,
    TIME_MIN,
    earlier,
    partition_of,
    point_ring,
)
from kernels.registry import device, kernel

SHORT = 4096
"""Records of both sides up to which a beat is pooled, whatever its matches."""
SLOTS = 64
"""Slots of a log.  If all are in use, a beat is added to the last."""
FINE = 32
"""A beat is added to the last slot while that has less than one in so many of the rows held."""
SPAN_MAX = np.uint64(2**62)
"""Rows that lie so far apart (us) are not pooled: differences could overflow."""


class Log(NamedTuple):
    """A pool's log: 16 words, then the latest time of each partition, then the slots."""

    first: I64 = field("number of the oldest slot (mod SLOTS)")
    slots: I64 = field("slots in use")
    last_rows: I64 = field("rows in the last slot")
    reached: I64 = field("latest time ever seen")
    bound: I64 = field("time below which rows have left")
    descents: I64 = field("this beat: how often times fall from one partition to the next")
    newest: I64 = field("this beat: latest time")
    oldest: I64 = field("this beat: earliest time")
    row: I64 = field("this beat: number of its first row")
    old_tail: I64 = field("tail before this beat")
    old_head: I64 = field("head before this beat")
    old_bound: I64 = field("`bound` before this beat")
    pools: I64 = field("pools of a side")
    falls: I64 = field("1 if times may fall within a partition")


class Slot(NamedTuple):
    """The rows of one beat, or of several."""

    newest: I64 = field("latest time")
    row: I64 = field("row number (mod 2^32) that neither it nor later slots go below")
    disorder: I64 = field("how far times fall within it or behind those before")
    end: I64 = field("position of its end")


LOG, SLOT = words(Log), words(Slot)
NEWEST_OF = 16
SLOTS_AT = NEWEST_OF + PARTITIONS
SLOT_FIELDS = 4
LOG_FIELDS = SLOTS_AT + SLOTS * SLOT_FIELDS


@device
def fall(high: int, low: int) -> int:
    """How far times fall from `high` to `low`: 0 where they rise, at most TIME_MAX."""
    behind = np.uint64(high) - np.uint64(low)
    return np.int64(min(behind, np.uint64(TIME_MAX))) if high > low else 0


@device
def slot_at(log: int, number: int) -> int:
    """The address of a slot, by its number."""
    return log + 8 * (SLOTS_AT + SLOT_FIELDS * (number % SLOTS))


@device
def count_of(side: int) -> int:
    """The number of pools of a side; 0 where each partition has a ring."""
    return get(get(side, RING.log), LOG.pools) if get(side, RING.log) else 0


@device
def first_of(number: int, pools: int) -> int:
    """The first partition of a pool."""
    return PARTITIONS * number // pools


@device
def point_at(mine: int, begin_at: int, end_at: int, records: int, counts: int) -> Any:
    """Set a pool's records of this beat, those of partitions begin_at..end_at - 1 among all at
    `records`, `counts` in each; returns whether the ring has room for them."""
    before, count = 0, 0
    for p in range(begin_at):
        before += get(counts, p)
    for p in range(begin_at, end_at):
        count += get(counts, p)
    return point_ring(mine, records + RECORD_BYTES * before, count)


@device
def look(mine: int, begin_at: int, end_at: int, counts: int, base: int) -> None:
    """Note, before the records are inserted, their first row, their times as far as the first and
    last record of each partition show, and the pool's state for `undo`.

    `base` is the number of row 0 of the store.
    """
    log, at, newest, oldest, last = (
        get(mine, RING.log),
        get(mine, RING.batch),
        TIME_MIN,
        TIME_MAX,
        TIME_MIN,
    )
    first, descents = LOW, 0
    put(log, LOG.old_tail, get(mine, RING.tail))
    put(log, LOG.old_head, get(mine, RING.head))
    put(log, LOG.old_bound, get(log, LOG.bound))
    for p in range(begin_at, end_at):
        count = get(counts, p)
        if count:
            begin, end = mem.load_i64(at), mem.load_i64(at + RECORD_BYTES * (count - 1))
            if begin < get(log, NEWEST_OF + p):
                put(log, LOG.falls, 1)
            descents += np.int64(begin < last)
            first = min(first, (np.int64(mem.load_u32(at + 12)) - base) & LOW)
            newest, oldest, last = max(newest, end), min(oldest, begin), end
            put(log, NEWEST_OF + p, max(end, get(log, NEWEST_OF + p)))
            at += RECORD_BYTES * count
    put(log, LOG.descents, descents)
    put(log, LOG.newest, newest)
    put(log, LOG.oldest, oldest)
    put(log, LOG.row, (first + base) & LOW)


@device
def look_again(mine: int) -> None:
    """Note the times of a beat's records where they fall within a partition."""
    log, at, newest, oldest = get(mine, RING.log), get(mine, RING.batch), TIME_MIN, TIME_MAX
    for record in range(at, at + RECORD_BYTES * get(mine, RING.batch_rows), RECORD_BYTES):
        time = mem.load_i64(record)
        newest, oldest = max(newest, time), min(oldest, time)
    put(log, LOG.falls, 1)
    put(log, LOG.newest, newest)
    put(log, LOG.oldest, oldest)


@device
def judge_times(mine: int, other: int, back: int, descents: int) -> Any:
    """Note how far the records just inserted, whose times fell `descents` times, lie behind others;
    returns whether none of them can match a row that has left the other side.  `back`: how far
    before a record its window begins."""
    log = get(mine, RING.log)
    if descents != get(log, LOG.descents):
        look_again(mine)
    newest, oldest = get(log, LOG.newest), get(log, LOG.oldest)
    if newest < oldest:  # there is none
        return True
    put(log, LOG.reached, max(newest, get(log, LOG.reached)))
    put(
        mine,
        RING.disorder_new,
        max(get(mine, RING.disorder_new), fall(get(log, LOG.reached), oldest)),
    )
    return earlier(oldest, back) >= get(get(other, RING.log), LOG.bound)


@device
def undo(mine: int) -> None:
    """Take back the insertions and evictions since `look`: no entry was overwritten.  Other notes
    on the pool are not taken back, so that it must be spread."""
    log = get(mine, RING.log)
    put(mine, RING.tail, get(log, LOG.old_tail))
    put(mine, RING.head, get(log, LOG.old_head))
    put(log, LOG.bound, get(log, LOG.old_bound))


@device
def close_slot(mine: int, rows: int, newest: int, row: int, disorder: int) -> None:
    """Put `rows` that were just inserted into the last slot or into one of their own."""
    log, held = get(mine, RING.log), get(mine, RING.head) - get(mine, RING.tail)
    count = get(log, LOG.slots)
    if count and (count == SLOTS or FINE * get(log, LOG.last_rows) < held):
        slot = slot_at(log, get(log, LOG.first) + count - 1)
        newest, disorder = (
            max(newest, get(slot, SLOT.newest)),
            max(disorder, get(slot, SLOT.disorder)),
        )
        row = get(slot, SLOT.row)
        rows += get(log, LOG.last_rows)
    else:
        slot = slot_at(log, get(log, LOG.first) + count)
        put(log, LOG.slots, count + 1)
    put(slot, SLOT.newest, newest)
    put(slot, SLOT.row, row)
    put(slot, SLOT.disorder, disorder)
    put(slot, SLOT.end, get(mine, RING.head))
    put(log, LOG.last_rows, rows)


@device
def settle(mine: int, bound: int, everything: bool) -> None:
    """After a beat: note it in the log, and evict the slots that lie below `bound`, or all."""
    log, disorder = get(mine, RING.log), 0
    if get(mine, RING.batch_rows):
        fallen = fall(get(log, LOG.reached), get(log, LOG.oldest))
        close_slot(
            mine, get(mine, RING.batch_rows), get(log, LOG.newest), get(log, LOG.row), fallen
        )
    first, end = get(log, LOG.first), get(log, LOG.first) + get(log, LOG.slots)
    while first < end and (everything or get(slot_at(log, first), SLOT.newest) < bound):
        put(mine, RING.tail, get(slot_at(log, first), SLOT.end))
        first += 1
    put(log, LOG.first, first % SLOTS)
    put(log, LOG.slots, end - first)
    put(log, LOG.bound, max(bound, get(log, LOG.bound)))
    for number in range(first, end):
        disorder = max(disorder, get(slot_at(log, number), SLOT.disorder))
    put(mine, RING.disorder_new, disorder)


@kernel("int64(int64[:, ::1], int64, int64)", reference="tests.naive.chain.oldest")
def oldest(pools: Any, base: int, rows: int) -> Any:
    """A store row before which no row is held; `rows` where none is held."""
    first = rows
    for k in range(pools.shape[0]):
        log = pools[k, RING.log]
        if get(log, LOG.slots):
            row = (get(slot_at(log, get(log, LOG.first)), SLOT.row) - base) & LOW
            first = min(first, row)
    return first


@kernel("void(int64[:, ::1], int64, uint64[::1], uint8[::1])", reference="tests.naive.chain.live")
def live(pools: Any, base: int, hashes: Any, alive: Any) -> None:
    """For each entry that is held and not dead, at its store row: partition (top 6 bits) and tag,
    and alive = 1.  Of each partition, what is dead has left up to the first that is not."""
    for k in range(pools.shape[0]):
        stays, bound = np.uint64(0), get(pools[k, RING.log], LOG.bound)
        for position in range(pools[k, RING.tail], pools[k, RING.head]):
            entry = pools[k, RING.entries] + ENTRY * (position & pools[k, RING.mask])
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
    """Copy the live entries of `old` into pool `number` of `new`, which is empty and has room; the
    tails of `old` are moved.  False where times are too far apart for a pool.

    `base` is the number of row 0 of the store, `bound` the time below which rows have left.
    """
    low, high, disorder, pools, log = TIME_MAX, TIME_MIN, 0, new.shape[0], new[number, RING.log]
    begin, end = first_of(number, pools), first_of(number + 1, pools)
    for place in range(NEWEST_OF):
        put(log, place, 0)
    put(log, LOG.pools, pools)
    for p in range(begin, end):
        ring, mask, latest = old[p, RING.entries], old[p, RING.mask], TIME_MIN
        for position in range(old[p, RING.tail], old[p, RING.head]):
            time = mem.load_i64(ring + ENTRY * (position & mask))
            low, disorder = min(low, time), max(disorder, fall(latest, time))
            latest = max(latest, time)
        high = max(high, latest)
        put(log, NEWEST_OF + p, latest)
    put(log, LOG.reached, high)
    put(log, LOG.bound, bound)
    put(log, LOG.falls, np.int64(disorder > 0))
    if low > high:
        return True
    if np.uint64(high) - np.uint64(low) >= SPAN_MAX or high > TIME_MAX - FINE:
        return False
    step, mine = (high - low) // FINE + 1, np.int64(new.ctypes.data) + PART * number
    for k in range(FINE):
        upto = low + step * (k + 1) - 1
        gather_slot(old, mine, base, upto, step + disorder, begin, end)
    new[number, RING.disorder_new] = step + disorder
    note_first_rows(log, base)
    return True


@device
def note_first_rows(log: int, base: int) -> None:
    """Lower each slot's first row to that of the slots behind it: a row that is earlier in time may
    have arrived later in another partition."""
    first = LOW
    for number in range(get(log, LOG.slots) - 1, -1, -1):
        slot = slot_at(log, get(log, LOG.first) + number)
        first = min(first, (get(slot, SLOT.row) - base) & LOW)
        put(slot, SLOT.row, (first + base) & LOW)


@device
def gather_slot(
    old: Any, mine: int, base: int, upto: int, disorder: int, begin: int, end: int
) -> None:
    """Copy the rows not later than `upto`, of partitions begin..end - 1, and make a slot of
    them."""
    rows, first = 0, LOW
    for p in range(begin, end):
        ring, mask, head = old[p, RING.entries], old[p, RING.mask], old[p, RING.head]
        while old[p, RING.tail] < head:
            entry = ring + ENTRY * (old[p, RING.tail] & mask)
            if mem.load_i64(entry) > upto:
                break
            first = min(first, (np.int64(mem.load_u32(entry + 12)) - base) & LOW)
            insert_entry(mine, entry)
            old[p, RING.tail] += 1
            rows += 1
    if rows:
        put(get(mine, RING.log), LOG.last_rows, LOW)  # the next beat gets a slot of its own
        close_slot(mine, rows, upto, (first + base) & LOW, disorder)


@kernel("void(int64[:, ::1], int64[::1])", reference="tests.naive.chain.live")
def shares(pools: Any, counts: Any) -> None:
    """Count the entries of each partition that pools hold (int64[64])."""
    counts[:] = 0
    for k in range(pools.shape[0]):
        ring, mask = pools[k, RING.entries], pools[k, RING.mask]
        for position in range(pools[k, RING.tail], pools[k, RING.head]):
            counts[partition_of(ring + ENTRY * (position & mask))] += 1


@kernel("void(int64[:, ::1], int64[:, ::1])", reference="tests.naive.chain.insert")
def spread(pools: Any, new: Any) -> None:
    """Copy the entries that pools hold, without the dead ones, into empty rings of 64
    partitions."""
    at = np.int64(new.ctypes.data)
    for k in range(pools.shape[0]):
        ring, mask, bound = (
            pools[k, RING.entries],
            pools[k, RING.mask],
            get(pools[k, RING.log], LOG.bound),
        )
        for position in range(pools[k, RING.tail], pools[k, RING.head]):
            entry = ring + ENTRY * (position & mask)
            p, time = partition_of(entry), mem.load_i64(entry)
            if time >= bound or new[p, RING.tail] < new[p, RING.head]:
                insert_entry(at + PART * p, entry)
                disorder = fall(new[p, RING.newest_old], time)
                new[p, RING.disorder_old] = max(new[p, RING.disorder_old], disorder)
                new[p, RING.newest_old] = max(new[p, RING.newest_old], time)
    for p in range(PARTITIONS):
        new[p, RING.generation] = new[p, RING.head]
