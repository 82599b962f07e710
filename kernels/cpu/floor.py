"""The window join's floor: the memory accesses that no join of that shape can do without.

A fixed program against which `edged bench join` measures the members.  It joins nothing; it touches
what a hash join over two windows must touch, in the order in which the members work: beat by beat,
in a beat partition by partition (64), in a partition first the left's records, then the right's.

For every tuple
  1. its 16-byte record is read, sequentially;
  2. one 64-byte line of the partition's heads is read and written, at a place that the record's tag
     chooses: the probe and the insert share that line;
  3. a 16-byte entry is written to the side's ring, sequentially;
  4. an entry that leaves is read (its 8-byte time), sequentially, after the partition's records.
For every match (`rate` of them a tuple, evenly)
  5. 16 bytes of a random entry of the other side's ring are read;
  6. 8 + 8 bytes are written to two output arrays, sequentially, over and over the same memory.

Footprint, which the caller lays out: for each side a ring of 16 bytes a row that is live in a beat
(window plus batch), and 32 bytes of heads for each of those rows (four chains, two heads of 4 bytes
each), a 64th of both in each partition, or what share of the rows falls into it.

What it leaves out: comparisons, chains that are walked for nothing, growing, looking after late
rows, row numbers kept outside the ring, calls from Python and barriers between beats: one call does
any number of beats, and threads, each with partitions of its own, never wait for each other.

Heads are prefetched `ahead` records, entries that match `ahead` matches before they are needed; 0
is without prefetching.  The caller takes the distance that is fastest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.registry import device, kernel

HEADS, LINES = 0, 1
RING, ENTRIES, NEXT, TAIL = 2, 4, 6, 8
FIELDS = 16
"""A partition's row: address and number of its lines of heads; then, for the left and, one further,
for the right: address and size (entries) of the ring, the slot to write next, the oldest slot."""

SHARE, MATCHES, PLACE, PLACES, OUT_MINE, OUT_MET = range(6)
LANE_FIELDS = 8
"""What `lane` (int64[8]) holds: what is left of `rate` below 2^32; matches so far; where the next
goes of so many places; the addresses of the output arrays."""

LINE, ENTRY = 64, 16
ONE = 1 << 32
"""`rate` of one match a tuple."""


@device
def mixed(number: int) -> Any:
    """32 random bits for a match's number."""
    x = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(x >> np.uint64(32))


@device
def entry_of(ring: int, entries: int, number: int) -> Any:
    """The address of a random entry for a match's number."""
    return ring + ENTRY * ((mixed(number) * entries) >> 32)


@device
def side_pass(mine: Any, side: int, at: int, end: int, ahead: int, rate: int, lane: Any) -> Any:
    """The records at addresses at..end: (1) to (3), and (5) and (6) for their matches."""
    seen = np.uint64(0)
    heads, lines = mine[HEADS], mine[LINES]
    ring, entries, slot = mine[RING + side], mine[ENTRIES + side], mine[NEXT + side]
    other, others = mine[RING + 1 - side], mine[ENTRIES + 1 - side]
    share, number, place, places = lane[SHARE], lane[MATCHES], lane[PLACE], lane[PLACES]
    out_mine, out_met = lane[OUT_MINE], lane[OUT_MET]
    while at < end:
        if ahead:
            coming = np.int64(mem.load_u32(at + ENTRY * ahead + 8))
            mem.prefetch(heads + LINE * ((coming * lines) >> 32))
        time, tag = mem.load_i64(at), np.int64(mem.load_u32(at + 8))
        head = heads + LINE * ((tag * lines) >> 32)
        seen += np.uint64(mem.load_u32(head + 4 * (1 - side)))
        mem.store_u32(head + 4 * side, np.uint32(slot))
        mem.store_i64(ring + ENTRY * slot, time)
        mem.store_i64(ring + ENTRY * slot + 8, tag)
        slot += 1
        if slot == entries:
            slot = 0
        share += rate
        while share >= ONE:
            share -= ONE
            if ahead:
                mem.prefetch(entry_of(other, others, number + ahead))
            entry = entry_of(other, others, number)
            seen += mem.load_u64(entry) + mem.load_u64(entry + 8)
            mem.store_i64(out_mine + 8 * place, tag)
            mem.store_i64(out_met + 8 * place, number)
            number += 1
            place += 1
            if place == places:
                place = 0
        at += ENTRY
    mine[NEXT + side] = slot
    lane[SHARE], lane[MATCHES], lane[PLACE] = share, number, place
    return seen


@device
def leave(mine: Any, side: int, rows: int) -> Any:
    """Read the times of the oldest entries: (4)."""
    seen = np.uint64(0)
    ring, entries, slot = mine[RING + side], mine[ENTRIES + side], mine[TAIL + side]
    for _ in range(rows):
        seen += mem.load_u64(ring + ENTRY * slot)
        slot += 1
        if slot == entries:
            slot = 0
    mine[TAIL + side] = slot
    return seen


@kernel(
    "uint64(int64, int64, int64, int64, int64[:, ::1], int64[:, :, ::1], int64[:, ::1],"
    " int64[::1])",
    twin="tests.naive.floor.touch",
)
def touch(
    first: int,
    last: int,
    ahead: int,
    rate: int,
    records: Any,
    edges: Any,
    state: Any,
    lane: Any,
) -> Any:
    """All beats of the partitions first..last; returns the sum of what was read, mod 2^64.

    `records` (int64[beats, 2]) are the addresses of each beat's records, left and right, readable
    for `ahead` records past their end; `edges` (int64[beats, 2, 65]) where in them each partition
    begins; `state` (int64[64, FIELDS]) the partitions; `rate` is in 2^-32 matches a tuple.
    """
    seen = np.uint64(0)
    for beat in range(records.shape[0]):
        for p in range(first, last):
            mine = state[p]
            for side in range(2):
                at = records[beat, side] + ENTRY * edges[beat, side, p]
                end = records[beat, side] + ENTRY * edges[beat, side, p + 1]
                seen += side_pass(mine, side, at, end, ahead, rate, lane)
            for side in range(2):
                rows = edges[beat, side, p + 1] - edges[beat, side, p]
                seen += leave(mine, side, rows)
    return seen
