"""Eviction from the rings of the chain join: the tail moves on.

Where times are in order, entries below the bound are found eight at a time.  After a long beat that
would read every entry that leaves, memory that was last touched a window ago.  Each BLOCK of a ring
therefore has a mark, the time of its last entry.  `foresee` finds by marks the block in which the
tail will lie, and prefetches it; `evict` reads it when it has arrived.
"""

from __future__ import annotations

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import get, put
from kernels.cpu.rings import BLOCK, ENTRY, LINE, MARK, RING, TIME_MIN, disorder_of, span
from kernels.registry import device

LEAP = 8
"""Entries that leave at a time, where times are in order."""
ASKED = 8
"""Blocks whose marks are prefetched; the hardware prefetches those behind."""


@device
def mark_of(ring: int, mask: int, position: int) -> int:
    """The address of the mark of the block in which an entry lies."""
    return ring + ENTRY * (mask + 1) + MARK * ((position & mask) // BLOCK)


@device
def ask_for_marks(mine: int) -> None:
    """Prefetch the marks of the entries that leave next."""
    at = mark_of(get(mine, RING.entries), get(mine, RING.mask), get(mine, RING.tail))
    mem.prefetch(at)
    mem.prefetch(at + MARK * ASKED)


@device
def foresee(mine: int, bound: int) -> None:
    """Note how far entries below `bound` leave, by their marks, and prefetch the block that decides
    it exactly."""
    if disorder_of(mine):
        return
    ring, mask, tail, head = span(mine)
    last = max(tail, get(mine, RING.marked)) | BLOCK - 1
    while last < head:
        mem.store_i64(mark_of(ring, mask, last), mem.load_i64(ring + ENTRY * (last & mask)))
        last += BLOCK
    put(mine, RING.marked, head)
    while (tail | BLOCK - 1) < head and mem.load_i64(mark_of(ring, mask, tail)) < bound:
        tail = (tail | BLOCK - 1) + 1
    put(mine, RING.leaving, tail)
    entry = ring + ENTRY * (tail & mask)
    for by in range(0, ENTRY * BLOCK, LINE):
        mem.prefetch(entry + by)


@device
def evict(mine: int, bound: int, everything: bool) -> None:
    """Move the tail over entries below `bound`, or over all entries, and advance generations."""
    ring, mask, tail, head = span(mine)
    if everything:
        tail = head
    if disorder_of(mine) == 0:  # in order: leap
        tail = max(tail, get(mine, RING.leaving))
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
    put(mine, RING.tail, tail)
    turn(mine)


@device
def turn(mine: int) -> None:
    """Advance the generations, if the old one has left."""
    tail, head = get(mine, RING.tail), get(mine, RING.head)
    if tail >= get(mine, RING.generation):
        put(mine, RING.newest_old, get(mine, RING.newest_new))
        put(mine, RING.disorder_old, get(mine, RING.disorder_new))
        put(mine, RING.newest_new, TIME_MIN)
        put(mine, RING.disorder_new, 0)
        put(mine, RING.generation, head)
    if tail == head:
        put(mine, RING.newest_old, TIME_MIN)
        put(mine, RING.newest_new, TIME_MIN)
        put(mine, RING.disorder_old, 0)
        put(mine, RING.disorder_new, 0)
