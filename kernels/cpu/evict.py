"""Letting go of what is dead in a ring of `kernels.cpu.chain`: its tail moves on.

Where times are in order, entries below the bound are found eight at a time.  After a long beat that
would be to read all that leaves, memory that was touched a whole window ago: at 10^6 rows a side a
tenth of the time.  So each BLOCK of a ring has a mark, the time of its last entry; by marks it is
seen in which block the tail comes to lie (`foresee`), which is then asked for, and read when it has
come (`evict`).  69 -> 75 M tuples/s with beats of 10 000 at 10^6.

Marks are made when somebody wants to see them, MARKED says how far: short beats do without.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import mem
from kernels.cpu.rings import (
    BLOCK,
    DISORDER_NEW,
    DISORDER_OLD,
    ENTRY,
    GENERATION,
    HEAD,
    LEAVING,
    LINE,
    MARK,
    MARKED,
    NEWEST_NEW,
    NEWEST_OLD,
    RING,
    RING_MASK,
    TAIL,
    TIME_MIN,
    get,
    put,
)
from kernels.registry import device

LEAP = 8
"""Entries at a time that leave a ring whose times are in order."""
ASKED = 8
"""Blocks whose marks are asked for: those behind lie in line."""


@device
def mark_of(ring: int, mask: int, position: int) -> int:
    """The address of the mark of the block in which an entry lies."""
    return ring + ENTRY * (mask + 1) + MARK * ((position & mask) // BLOCK)


@device
def ask_for_marks(mine: int) -> None:
    """Ask for the marks of what leaves next."""
    at = mark_of(get(mine, RING), get(mine, RING_MASK), get(mine, TAIL))
    mem.prefetch(at)
    mem.prefetch(at + MARK * ASKED)


@device
def foresee(mine: int, bound: int) -> None:
    """Note how far entries below `bound` leave, as far as marks show, and ask for what has to be
    read to see it exactly."""
    if max(get(mine, DISORDER_OLD), get(mine, DISORDER_NEW)):
        return
    ring, mask, tail, head = get(mine, RING), get(mine, RING_MASK), get(mine, TAIL), get(mine, HEAD)
    last = max(tail, get(mine, MARKED)) | BLOCK - 1
    while last < head:
        mem.store_i64(mark_of(ring, mask, last), mem.load_i64(ring + ENTRY * (last & mask)))
        last += BLOCK
    put(mine, MARKED, head)
    while (tail | BLOCK - 1) < head and mem.load_i64(mark_of(ring, mask, tail)) < bound:
        tail = (tail | BLOCK - 1) + 1
    put(mine, LEAVING, tail)
    entry = ring + ENTRY * (tail & mask)
    for by in range(0, ENTRY * BLOCK, LINE):
        mem.prefetch(entry + by)


@device
def evict(mine: int, bound: int, everything: bool) -> None:
    """Move the tail over entries below `bound`, all where it is said so, and the generations on."""
    ring, mask, tail, head = get(mine, RING), get(mine, RING_MASK), get(mine, TAIL), get(mine, HEAD)
    if everything:
        tail = head
    if max(get(mine, DISORDER_OLD), get(mine, DISORDER_NEW)) == 0:  # in order: leap
        tail = max(tail, get(mine, LEAVING))
        while (
            tail + LEAP <= head and mem.load_i64(ring + ENTRY * ((tail + LEAP - 1) & mask)) < bound
        ):
            tail += LEAP
        for step in (LEAP // 2, LEAP // 4, LEAP // 8):
            last = mem.load_i64(ring + ENTRY * ((tail + step - 1) & mask))
            tail += step * (np.int64(tail + step <= head) & np.int64(last < bound))
    else:
        while tail < head and mem.load_i64(ring + ENTRY * (tail & mask)) < bound:
            tail += 1
    put(mine, TAIL, tail)
    turn(mine)


@device
def turn(mine: int) -> None:
    """Move the generations on, where the tail has."""
    tail, head = get(mine, TAIL), get(mine, HEAD)
    if tail >= get(mine, GENERATION):
        put(mine, NEWEST_OLD, get(mine, NEWEST_NEW))
        put(mine, DISORDER_OLD, get(mine, DISORDER_NEW))
        put(mine, NEWEST_NEW, TIME_MIN)
        put(mine, DISORDER_NEW, 0)
        put(mine, GENERATION, head)
    if tail == head:
        put(mine, NEWEST_OLD, TIME_MIN)
        put(mine, NEWEST_NEW, TIME_MIN)
        put(mine, DISORDER_OLD, 0)
        put(mine, DISORDER_NEW, 0)
