"""The roofline of a window join: its unavoidable memory accesses, without the join.

`edged bench join` measures members against this program.  It touches what a hash join over two
windows must touch, in the members' order: beat by beat, in a beat partition by partition (64), in a
partition first the left records, then the right.

For every tuple
  1. its 16-byte record is read, sequentially;
  2. one 64-byte line of the partition's heads, chosen by the record's tag, is read and written: the
     head that is probed and the head that is replaced share that line;
  3. a 20-byte entry is written to the side's ring, sequentially: time, tag, link and row number;
  4. the 8-byte time of an entry that leaves is read, sequentially, after the partition's records.
For every match (`rate` of them a tuple, evenly)
  5. the 20 bytes of a random entry of the other side's ring are read;
  6. 8 + 8 bytes, the row numbers, are written to two output arrays, sequentially, over and over the
     same memory.

Footprint, which the caller lays out: for each side a ring of 20 bytes for each row that is live in
a beat (window plus batch), and 32 bytes of heads for each of those rows (four chains, two heads of
4 bytes), distributed over partitions as the rows are.

Left out: comparisons, false candidates, growth, late rows, calls from Python, and barriers between
beats.  One call does any number of beats; threads, each with its own partitions, never wait for
each other.

A record's head line and the entries that it matches are prefetched `ahead` records before, across
passes and beats; with a pass's first record, where the pass will write and what will leave.  0 is
without prefetching.  The caller uses the fastest distance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.partition import RECORD_BYTES
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.cpu.rings import ENTRY, LINE, LOW
from kernels.registry import device, kernel


class RooflinePart(NamedTuple):
    """A partition; of each pair of fields the left's comes first."""

    heads: ADDRESS = field("lines of heads")
    lines: I64 = field("number of these lines")
    rings: ADDRESS = field("ring of each side", length=2)
    entries: I64 = field("size of each side's ring", length=2)
    next: I64 = field("slot that each side writes next", length=2)
    tail: I64 = field("each side's oldest slot", length=2)


class RooflineLane(NamedTuple):
    """A thread.  From `look_pass` on the fields are set by each call: the lookahead, which runs
    `ahead` records before the work, and the call's arguments."""

    share: I64 = field("what is left of `rate` below 2^32")
    matches: I64 = field("matches so far")
    place: I64 = field("where the next match goes")
    places: I64 = field("places of each output array")
    out_mine: ADDRESS = field("row numbers of the records")
    out_met: ADDRESS = field("row numbers of their matches")
    look_pass: I64 = field("next pass of the lookahead")
    look_last: I64 = field("end of its passes")
    look_first: I64 = field("first partition")
    look_width: I64 = field("passes a beat")
    look_part: ADDRESS = field("partition of the lookahead's pass; 0 before the first")
    look_side: I64 = field("side of that pass")
    look_at: ADDRESS = field("next record of the lookahead")
    look_count: I64 = field("records that are left in its pass")
    records: ADDRESS = field("`records`")
    edges: ADDRESS = field("`edges`")
    state: ADDRESS = field("`state`")
    parts: I64 = field("number of partitions")


PART, LANE = words(RooflinePart), words(RooflineLane)
PART_FIELDS = 16
"""Length of a partition's row: 128 bytes, so that two threads never share a cache line."""
LANE_FIELDS = 24

ONE = 1 << 32
"""`rate` of one match a tuple."""
SPREAD = 26
"""The tag's low bits that choose a line.  The other six are the partition's where a key has 32 bits
or fewer: by them a partition would use one in 64 of its lines."""
STEP = 64
"""Records whose matches are read together, after their insertion."""
LEAVING = 64
"""Leaving entries of a pass that are prefetched with its first record."""


@device
def line_of(heads: int, lines: int, tag: int) -> Any:
    """The address of the line of heads that a tag chooses."""
    return heads + LINE * (((tag & ((1 << SPREAD) - 1)) * lines) >> SPREAD)


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
def edge(lane: int, beat: int, side: int, partition: int) -> Any:
    """Where in a beat's records a partition begins."""
    return get(get(lane, LANE.edges), (2 * beat + side) * (get(lane, LANE.parts) + 1) + partition)


@device
def look_on(lane: int) -> None:
    """Move the lookahead to the next pass that has records, and prefetch what that writes and what
    leaves; after the last pass it runs on behind its end."""
    while get(lane, LANE.look_pass) < get(lane, LANE.look_last):
        k, width = get(lane, LANE.look_pass), get(lane, LANE.look_width)
        put(lane, LANE.look_pass, k + 1)
        beat, p, side = k // width, get(lane, LANE.look_first) + k % width // 2, k & 1
        start = edge(lane, beat, side, p)
        count = edge(lane, beat, side, p + 1) - start
        if count:
            part = get(lane, LANE.state) + 8 * PART_FIELDS * p
            put(lane, LANE.look_part, part)
            put(lane, LANE.look_side, side)
            put(
                lane,
                LANE.look_at,
                get(get(lane, LANE.records), 2 * beat + side) + RECORD_BYTES * start,
            )
            put(lane, LANE.look_count, count)
            ring = get(part, PART.rings + side)
            mem.prefetch(ring + ENTRY * get(part, PART.next + side))
            tail = ring + ENTRY * get(part, PART.tail + side)
            for by in range(0, ENTRY * min(count, LEAVING), LINE):
                mem.prefetch(tail + by)
            return
    put(lane, LANE.look_count, LOW)


@device
def begin(lane: int, ahead: int) -> None:
    """Move the lookahead `ahead` records before the work."""
    for _ in range(ahead):
        if get(lane, LANE.look_count) == 0:
            look_on(lane)
        part, at = get(lane, LANE.look_part), get(lane, LANE.look_at)
        if part == 0:
            return
        tag = np.int64(mem.load_u32(at + 8))
        mem.prefetch(line_of(get(part, PART.heads), get(part, PART.lines), tag))
        put(lane, LANE.look_at, at + RECORD_BYTES)
        put(lane, LANE.look_count, get(lane, LANE.look_count) - 1)


@device
def pass_through(part: int, side: int, at: int, count: int, ahead: int, lane: int) -> Any:
    """(1) to (3) of the next `count` records; neither the ring nor the lookahead's pass ends before
    them."""
    seen, slot = np.uint64(0), get(part, PART.next + side)
    heads, lines = get(part, PART.heads), get(part, PART.lines)
    mine, other = 4 * side, 4 - 4 * side
    entry = get(part, PART.rings + side) + ENTRY * slot
    look, look_by = get(lane, LANE.look_part), get(lane, LANE.look_at) - at
    look_heads, look_lines = get(look, PART.heads), get(look, PART.lines)
    end = at + RECORD_BYTES * count
    while at < end:
        if ahead:
            coming = np.int64(mem.load_u32(at + look_by + 8))
            mem.prefetch(line_of(look_heads, look_lines, coming))
        time, name = mem.load_i64(at), mem.load_u64(at + 8)
        tag = np.int64(name & np.uint64(LOW))
        head = line_of(heads, lines, tag)
        seen += np.uint64(mem.load_u32(head + other))
        link = np.int64(mem.load_u32(head + mine))
        mem.store_u32(head + mine, np.uint32(slot))
        mem.store_i64(entry, time)
        mem.store_i64(entry + 8, tag | link << 32)
        mem.store_u32(entry + 16, np.uint32(name >> np.uint64(32)))
        slot += 1
        entry += ENTRY
        at += RECORD_BYTES
    put(part, PART.next + side, slot if slot < get(part, PART.entries + side) else 0)
    put(lane, LANE.look_at, at + look_by)
    put(lane, LANE.look_count, get(lane, LANE.look_count) - count)
    return seen


@device
def meet(part: int, side: int, at: int, count: int, ahead: int, rate: int, lane: int) -> Any:
    """(5) and (6) for the matches of the next `count` records."""
    seen, end = np.uint64(0), at + RECORD_BYTES * count
    other, others = get(part, PART.rings + 1 - side), get(part, PART.entries + 1 - side)
    share, number = get(lane, LANE.share), get(lane, LANE.matches)
    place, places = get(lane, LANE.place), get(lane, LANE.places)
    out_mine, out_met = get(lane, LANE.out_mine), get(lane, LANE.out_met)
    look, look_other = get(lane, LANE.look_part), 1 - get(lane, LANE.look_side)
    look_ring, look_entries = (
        get(look, PART.rings + look_other),
        get(look, PART.entries + look_other),
    )
    later = (ahead * rate) >> 32
    while rate:
        if share + rate < ONE:  # records without a match
            without = min((ONE - share - 1) // rate, (end - at) // RECORD_BYTES)
            share += rate * without
            at += RECORD_BYTES * without
        if at == end:
            break
        share += rate
        row = np.int64(mem.load_u32(at + 12))
        while share >= ONE:
            share -= ONE
            if ahead:
                coming = entry_of(look_ring, look_entries, number + later)
                mem.prefetch(coming)
                mem.prefetch(coming + ENTRY - 1)  # a quarter of them lie in two lines
            entry = entry_of(other, others, number)
            seen += mem.load_u64(entry) + mem.load_u64(entry + 8)
            mem.store_i64(out_mine + 8 * place, row)
            mem.store_i64(out_met + 8 * place, np.int64(mem.load_u32(entry + 16)))
            number += 1
            place += 1
            if place == places:
                place = 0
        at += RECORD_BYTES
    put(lane, LANE.share, share)
    put(lane, LANE.matches, number)
    put(lane, LANE.place, place)
    return seen


@device
def leave(part: int, side: int, rows: int) -> Any:
    """(4): read the times of the oldest entries."""
    seen = np.uint64(0)
    ring, entries, slot = (
        get(part, PART.rings + side),
        get(part, PART.entries + side),
        get(part, PART.tail + side),
    )
    for _ in range(rows):
        seen += mem.load_u64(ring + ENTRY * slot)
        slot += 1
        if slot == entries:
            slot = 0
    put(part, PART.tail + side, slot)
    return seen


@kernel(
    "uint64(int64, int64, int64, int64, int64[:, ::1], int64[:, :, ::1], int64[:, ::1],"
    " int64[::1])",
    reference="tests.naive.floor.touch",
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
    for `ahead` records past their end; `edges` (int64[beats, 2, partitions + 1]) where in them each
    partition begins; `state` (int64[partitions, PART_FIELDS]) the partitions; `rate` is in 2^-32
    matches a tuple.
    """
    seen, me = np.uint64(0), np.int64(lane.ctypes.data)
    put(me, LANE.records, np.int64(records.ctypes.data))
    put(me, LANE.edges, np.int64(edges.ctypes.data))
    put(me, LANE.state, np.int64(state.ctypes.data))
    put(me, LANE.parts, state.shape[0])
    put(me, LANE.look_first, first)
    put(me, LANE.look_width, 2 * (last - first))
    put(me, LANE.look_pass, 0)
    put(me, LANE.look_last, 2 * (last - first) * records.shape[0])
    put(me, LANE.look_part, 0 if ahead else get(me, LANE.state))
    put(me, LANE.look_count, 0 if ahead else LOW)
    begin(me, ahead)
    for beat in range(records.shape[0]):
        for p in range(first, last):
            part = get(me, LANE.state) + 8 * PART_FIELDS * p
            for side in range(2):
                start, end = edge(me, beat, side, p), edge(me, beat, side, p + 1)
                base = get(get(me, LANE.records), 2 * beat + side)
                while start < end:
                    if get(me, LANE.look_count) == 0:
                        look_on(me)
                    room = get(part, PART.entries + side) - get(part, PART.next + side)
                    count = min(end - start, get(me, LANE.look_count), room, STEP)
                    at = base + RECORD_BYTES * start
                    seen += pass_through(part, side, at, count, ahead, me)
                    seen += meet(part, side, at, count, ahead, rate, me)
                    start += count
            # not a loop: LLVM 22 unrolls that for aarch64, and stores poison for the left's tail
            seen += leave(part, 0, edge(me, beat, 0, p + 1) - edge(me, beat, 0, p))
            seen += leave(part, 1, edge(me, beat, 1, p + 1) - edge(me, beat, 1, p))
    return seen
