"""Probing where matches are many and the ring lies in the cache: each chain is followed once.

Records of one key that begin at the same link have the same chain.  The first of them in a chunk
lists the chain's entries of its tag, as `int64 time | int64 row`, newest first.  Each of the other
records takes from that list what lies in its window.  The list reaches down to the first record's
lower bound; a record with an earlier bound makes a new list.

Pairs are the same, in the same order, as those of `kernels.cpu.probe`.  Ten matches a tuple in
windows of 10^4: 14 to 15 -> 16 to 20 M tuples/s (docs/measurements/joins.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem, rings
from kernels.cpu.partition import PARTITIONS
from kernels.cpu.records import ADDRESS, I64, field, get, put, words
from kernels.cpu.rings import ENTRY, LOW, NEXT, RING, TIME_MAX, TIME_MIN
from kernels.registry import device


class KnownChain(NamedTuple):
    """A chain that was followed in this chunk."""

    name: I64 = field("tag | first link << 32")
    low: I64 = field("earliest time that the list holds (us)")
    begin: ADDRESS = field("first entry of its list")
    end: ADDRESS = field("end of its list")


CHAIN = words(KnownChain)
CHAIN_BYTES, LISTED = 8 * len(CHAIN), 16
"""Bytes of a chain, and of an entry of a list."""
PLACES = 512
"""Places where a chain with a first link is looked for."""
MANY = 4
"""Matches a candidate from which on chains are worth a list."""
SLOTS_MAX = 1 << 15
"""Slots of a side up to which following one chain after the other is the faster way: 640 KiB of
entries.  In larger rings `kernels.cpu.probe` walks 256 chains at a time, so that their misses
overlap."""
NO_ROOM = 0


@device
def is_cached(other: int) -> Any:
    """Whether a ring, a pool's or one of the PARTITIONS of a side, is small enough for it."""
    return get(other, RING.mask) < (SLOTS_MAX if get(other, RING.log) else SLOTS_MAX // PARTITIONS)


@device
def follow(link: int, tag: int, low: int, other: int, base: int, to: int, end: int) -> Any:
    """Write the entries of a tag from a link on, down to the time `low`, to the list at `to`, with
    their rows counted from `base`; returns the list's end, or NO_ROOM where it reaches `end`."""
    ring, mask, tail, _ = rings.span(other)
    disorder = rings.disorder_of(other)
    stop = rings.earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
    while link >= tail:
        entry = ring + ENTRY * (link & mask)
        when = mem.load_i64(entry)
        if when < stop:
            break
        if to >= end:
            return NO_ROOM
        put(to, 0, when)
        put(to, 1, rings.row_of(entry, base))
        to += LISTED * (np.int64(mem.load_u32(entry + 8) == tag) & np.int64(when >= low))
        link = np.int64(mem.load_u32(entry + NEXT))
    return to


@device
def take(at: int, end: int, low: int, high: int, row: int, mine: int, met: int) -> int:
    """Write `row` to `mine` and the rows of the list at..end with times in low..high to `met`;
    returns their bytes.  As many pairs as the list holds may be written."""
    pairs = 0
    while at < end:
        when = get(at, 0)
        mem.store_i64(mine + pairs, row)
        mem.store_i64(met + pairs, get(at, 1))
        pairs += 8 * (np.int64(low <= when) & np.int64(when <= high))
        at += LISTED
    return pairs


@device
def probe(
    places: int, chains: int, lists_end: int, records: int, other: int, back: int,
    forth: int, base: int, met_base: int, named: int, at: int, candidates: int, mine: int,
    met: int, room: int,
) -> Any:  # fmt: skip
    """Write the pairs of the candidates as `kernels.cpu.probe.probe` does; returns their number, -1
    where they may be more than `room`, -2 where the lists have no room.

    `places` are PLACES uint32 of any content; from `chains` to `lists_end` is room for a KnownChain
    a candidate and for lists."""
    pairs, full, known = 0, 8 * room, chains
    free = chains + CHAIN_BYTES * candidates
    for candidate in range(at, at + 8 * candidates, 8):
        record = records + ((np.int64(mem.load_u32(candidate)) - records) & LOW)
        link, tag = np.int64(mem.load_u32(candidate + 4)), mem.load_u32(record + 8)
        name, time = np.int64(tag) | link << 32, mem.load_i64(record)
        low, high = rings.earlier(time, back), rings.later(time, forth)
        place = places + 4 * (link & (PLACES - 1))
        chain = chains + CHAIN_BYTES * np.int64(mem.load_u32(place))
        if chain >= known or get(chain, CHAIN.name) != name or low < get(chain, CHAIN.low):
            end = follow(link, tag, low, other, met_base, free, lists_end)
            if end == NO_ROOM:
                return -2
            mem.store_u32(place, np.uint32((known - chains) // CHAIN_BYTES))
            put(known, CHAIN.name, name)
            put(known, CHAIN.low, low)
            put(known, CHAIN.begin, free)
            put(known, CHAIN.end, end)
            chain, free = known, end
            known += CHAIN_BYTES
        begin, end = get(chain, CHAIN.begin), get(chain, CHAIN.end)
        if pairs + (end - begin) // (LISTED // 8) > full:
            return -1
        row = rings.row_of(record, base) | named * rings.partition_of(record)
        pairs += take(begin, end, low, high, row, mine + pairs, met + pairs)
    return pairs >> 3
