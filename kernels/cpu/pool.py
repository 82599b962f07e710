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
joined with rings of 64 partitions (`chain.rebuild`).  `gather` makes pools.  Both keep each key's
arrival order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem, rings
from kernels.cpu.insert import insert_entry
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import I64, field, get, put, words
from kernels.cpu.rings import ENTRY, LOW, RECORD_BYTES, RING, TIME_MAX, TIME_MIN, address_of, row_of
from kernels.registry import device, kernel

SHORT = 4096
"""Records of both sides up to which a beat is pooled, whatever its matches."""
SLOTS = 64
"""Slots of a log.  If all are in use, a beat is added to the last."""
FINE = 32
"""A beat is added to the last slot while that has less than one in so many of the rows held."""


class Log(NamedTuple):
    """A pool's log: 16 words, then the slots."""

    first: I64 = field("number of the oldest slot (mod SLOTS)")
    slots: I64 = field("slots in use")
    last_rows: I64 = field("rows in the last slot")
    reached: I64 = field("latest time ever seen")
    bound: I64 = field("time below which rows have left")
    newest: I64 = field("this beat: latest time")
    oldest: I64 = field("this beat: earliest time")
    row: I64 = field("this beat: number of its first row")
    old_tail: I64 = field("tail before this beat")
    old_head: I64 = field("head before this beat")
    old_bound: I64 = field("`bound` before this beat")
    pools: I64 = field("pools of a side")


class Slot(NamedTuple):
    """The rows of one beat, or of several."""

    newest: I64 = field("latest time")
    row: I64 = field("row number (mod 2^32) that neither it nor later slots go below")
    disorder: I64 = field("how far times fall within it or behind those before")
    end: I64 = field("position of its end")


LOG, SLOT = words(Log), words(Slot)
SLOTS_AT = 16
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
def take_in(mine: int, first: int, last: int, records: int, counts: int, base: int) -> Any:
    """Set a pool's records of this beat, those of partitions first..last - 1 among all at
    `records`, `counts` in each; note their first row, and the pool's state for `undo`.  Returns
    whether the ring has room for them.  `base` is the number of row 0 of the store."""
    log, rows, row = get(mine, RING.log), 0, LOW
    for p in range(last):
        count = get(counts, p)
        if p < first:
            records += RECORD_BYTES * count
        elif count:
            row = min(row, row_of(records + RECORD_BYTES * rows, base))
            rows += count
    put(log, LOG.row, (row + base) & LOW)
    put(log, LOG.old_tail, get(mine, RING.tail))
    put(log, LOG.old_head, get(mine, RING.head))
    put(log, LOG.old_bound, get(log, LOG.bound))
    return rings.point_ring(mine, records, rows)


@device
def note_times(mine: int, newest: int, oldest: int) -> None:
    """Note the latest and the earliest time of the records just inserted, of which there are
    some."""
    log, disorder = get(mine, RING.log), get(mine, RING.disorder_new)
    put(log, LOG.newest, newest)
    put(log, LOG.oldest, oldest)
    put(log, LOG.reached, max(newest, get(log, LOG.reached)))
    put(mine, RING.disorder_new, max(disorder, fall(get(log, LOG.reached), oldest)))


@device
def undo(mine: int) -> None:
    """Take back the insertions and evictions since `look`: no entry was overwritten.  Other notes
    on the pool are not taken back, so that it must be spread."""
    log = get(mine, RING.log)
    put(mine, RING.tail, get(log, LOG.old_tail))
    put(mine, RING.head, get(log, LOG.old_head))
    put(log, LOG.bound, get(log, LOG.old_bound))


@device
def close_slot(mine: int, rows: int) -> None:
    """Put `rows` that were just inserted and noted into the last slot or into one of their own."""
    log, held = get(mine, RING.log), get(mine, RING.head) - get(mine, RING.tail)
    count, newest, row = get(log, LOG.slots), get(log, LOG.newest), get(log, LOG.row)
    disorder = fall(get(log, LOG.reached), get(log, LOG.oldest))
    if count and (count == SLOTS or FINE * get(log, LOG.last_rows) < held):
        slot = slot_at(log, get(log, LOG.first) + count - 1)
        newest, row = max(newest, get(slot, SLOT.newest)), get(slot, SLOT.row)
        disorder = max(disorder, get(slot, SLOT.disorder))
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
        close_slot(mine, get(mine, RING.batch_rows))
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


@device
def bound_of(mine: int) -> Any:
    """The time below which entries of a ring are dead, though held: TIME_MIN without a pool."""
    log = get(mine, RING.log)
    return get(log, LOG.bound) if log else TIME_MIN


@device
def first_row(mine: int, base: int) -> Any:
    """A store row before which a ring holds none; LOW where it is empty."""
    ring, mask, tail, head = rings.span(mine)
    if tail == head:
        return LOW
    log = get(mine, RING.log)
    if log:
        return (get(slot_at(log, get(log, LOG.first)), SLOT.row) - base) & LOW
    return row_of(ring + ENTRY * (tail & mask), base)


@kernel("void(int64[:, ::1], int64[:, ::1], int64, int64, int64)",
        reference="tests.naive.chain.insert")  # fmt: skip
def gather(old: Any, new: Any, base: int, bound: int, number: int) -> None:
    """Copy the live entries of `old` into pool `number` of `new`, which is empty and has room, in
    the order of FINE ranges of rows, a slot each; the tails of `old` are moved.

    `base` is the number of row 0 of the store, `bound` the time below which rows have left.
    """
    pools, log, mine = new.shape[0], new[number, RING.log], address_of(new, number)
    begin, end, first, last = first_of(number, pools), first_of(number + 1, pools), LOW, 0
    for place in range(SLOTS_AT):
        put(log, place, 0)
    put(log, LOG.pools, pools)
    put(log, LOG.bound, bound)
    put(log, LOG.reached, TIME_MIN)
    for p in range(begin, end):
        newest_entry = old[p, RING.entries] + ENTRY * ((old[p, RING.head] - 1) & old[p, RING.mask])
        if old[p, RING.tail] < old[p, RING.head]:
            first = min(first, first_row(address_of(old, p), base))
            last = max(last, row_of(newest_entry, base))
    for k in range(FINE):
        put(log, LOG.row, (first + (last - first) * k // FINE + base) & LOW)
        gather_slot(old, mine, base, first + (last - first) * (k + 1) // FINE, begin, end)


@device
def gather_slot(old: Any, mine: int, base: int, upto: int, begin: int, end: int) -> None:
    """Copy the store rows up to `upto` of partitions begin..end - 1, and make a slot of them."""
    head, newest, oldest = get(mine, RING.head), TIME_MIN, TIME_MAX
    for p in range(begin, end):
        while old[p, RING.tail] < old[p, RING.head]:
            entry = old[p, RING.entries] + ENTRY * (old[p, RING.tail] & old[p, RING.mask])
            if row_of(entry, base) > upto:
                break
            newest, oldest = max(newest, mem.load_i64(entry)), min(oldest, mem.load_i64(entry))
            insert_entry(mine, entry)
            old[p, RING.tail] += 1
    if newest >= oldest:
        note_times(mine, newest, oldest)
        close_slot(mine, get(mine, RING.head) - head)
        put(get(mine, RING.log), LOG.last_rows, LOW)  # the next rows get a slot of their own


@kernel("void(int64[:, ::1], int64[::1])", reference="tests.naive.chain.live")
def shares(pools: Any, counts: Any) -> None:
    """Count the entries of each partition that pools hold (int64[64])."""
    counts[:] = 0
    for k in range(pools.shape[0]):
        ring, mask = pools[k, RING.entries], pools[k, RING.mask]
        for position in range(pools[k, RING.tail], pools[k, RING.head]):
            counts[rings.partition_of(ring + ENTRY * (position & mask))] += 1
