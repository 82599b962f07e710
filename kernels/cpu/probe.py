"""Probing: from the candidates of a chunk to pairs of rows.

A candidate is a record whose chain on the other side has a live head: `int64 record | link << 32`,
where `record` is the low half of the record's address.  The chains of all candidates are walked
together, one link each a round, so that their cache misses overlap.  A match is appended to a log
as `candidate | partner's row << 32`.  A round keeps the order of the candidates, so that the log
holds each candidate's partners newest first.  A counting sort by candidate then writes each pair to
its place in the output.

A round runs on vectors of eight walks (`kernels.cpu.simd_probe`) where the CPU compresses vectors
in one instruction (AVX-512), and on one walk after the other elsewhere; both give the same pairs.
A walk that is left alone for SOON rounds skips entries of other keys in a loop of its own, and
reports the key that it skips as a heavy hitter (`kernels.cpu.heavy_hitters`).

Pairs come in the order of candidates.  Differences of times are plain subtractions: where times,
bounds or disorder reach 2^61 us, `probe` answers NO_ROOM and the caller uses `probe_one`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem, rings, simd_probe
from kernels.cpu.keys import same_key
from kernels.cpu.records import put
from kernels.cpu.rings import ENTRY, LOW, NEXT, TIME_MAX, TIME_MIN, disorder_of
from kernels.cpu.simd_probe import ENTRIES, FARTHER, LANES, LOWS, NEARER, PLAIN, ROWS, WALKS
from kernels.registry import device

CHUNK_ROWS = simd_probe.CHUNK_ROWS
BLOCK = LANES
"""Pairs that `simd_probe.lay` writes at a time: the output has room for so many more."""
ROOM = 1 << 15
"""Matches that the log has room for."""
COUNTS = 0
WALKS_AT = COUNTS + 2 * CHUNK_ROWS
LOG = WALKS_AT + simd_probe.WALKS_BYTES // 8
SUSPECT = LOG + ROOM + LANES
SIEVED = SUSPECT + 1
FIELDS = SIEVED + CHUNK_ROWS
"""Scratch memory (int64s): for each candidate the number of its pairs, then the place of its next
pair; for each candidate its row, as in the output; walks; the log; SUSPECTED and the tag of a heavy
hitter that a walk met, or 0; candidates that passed the sieve."""
SUSPECTED = 1 << 32
"""Above a suspect's tag, which may be 0."""
NEAR, FAR = 512, 1 << 14
"""Slots of a ring from which on next entries are prefetched to the first cache, and to the second
cache only."""
SOON = 8
"""Rounds after which a walk that is alone goes on by itself."""
OUTPUT_FULL, NO_ROOM = -1, -2


@device
def probe(
    scratch: int, records: int, other: int, back: int, forth: int, base: int, met_base: int,
    named: int, at: int, candidates: int, vectors: bool, mine: int, met: int, room: int,
) -> Any:  # fmt: skip
    """Write the pairs of the candidates at `at`: the record's row, counted from `base`, to `mine`,
    the partner's, counted from `met_base`, to `met`; `named` is multiplied with the partition and
    added to the record's row.  Returns their number; OUTPUT_FULL where there are more than `room`;
    NO_ROOM where the log is too short or times are too large for it."""
    disorder, width, (ring, mask, tail, _) = disorder_of(other), back + forth, rings.span(other)
    if np.uint64(back | forth | disorder) >= np.uint64(PLAIN):
        return NO_ROOM
    counts, walks, log = scratch + 8 * COUNTS, scratch + 8 * WALKS_AT, scratch + 8 * LOG
    far = FARTHER if mask >= FAR else (NEARER if mask >= NEAR else 0)
    if vectors:
        pairs, going = begin_vectors(
            at, candidates, records, base, named, back, counts, walks, log,
            ring, mask, tail, width, disorder, far,
        )  # fmt: skip
    else:
        pairs, going = begin_scalar(
            at, candidates, records, base, named, back, counts, walks, log,
            ring, mask, tail, width, disorder, far,
        )  # fmt: skip
    if pairs < 0:
        return NO_ROOM
    for lane in range(LANES):  # a vector of walks is read whole
        mem.store_i64(walks + ENTRIES + 8 * (going + lane), ring)
    begun, rounds = pairs, 0
    while going:
        if pairs + going > ROOM:
            return NO_ROOM
        rounds += 1
        if going == 1 and rounds >= SOON:
            rounds, entry = 0, seek(scratch, walks, ring, mask, tail, disorder)
            if entry == 0:
                break
            mem.store_i64(walks + ENTRIES, entry)
        to, to_mine, to_met = log + 8 * pairs, mine + 8 * pairs, met + 8 * pairs
        if vectors:
            more, going = step_vectors(
                walks, going, to, to_mine, to_met, ring, mask, tail, width, disorder, far
            )
        else:
            more, going = step_scalar(
                walks, going, to, to_mine, to_met, ring, mask, tail, width, disorder, far
            )
        pairs += more
    if pairs > room:
        return OUTPUT_FULL
    write(counts, candidates, log, begun, pairs, met_base, mine, met)
    return pairs


@device
def sieve(records: int, other: int, at: int, end: int, kept: int) -> int:
    """Copy to `kept` the candidates whose first entry has their tag or a live entry behind it;
    returns their number.  Where few records match, most candidates are dropped here."""
    to, (ring, mask, tail, _) = kept, rings.span(other)
    while at < end:
        name, link = np.int64(mem.load_u32(at)), np.int64(mem.load_u32(at + 4))
        record, entry = records + ((name - records) & LOW), ring + ENTRY * (link & mask)
        same = mem.load_u32(entry + 8) == mem.load_u32(record + 8)
        mem.store_i64(to, mem.load_i64(at))
        to += 8 * (np.int64(same) | np.int64(np.int64(mem.load_u32(entry + NEXT)) >= tail))
        at += 8
    return (to - kept) >> 3


@device
def begin_vectors(
    at: int, candidates: int, records: int, base: int, named: int, back: int, counts: int,
    walks: int, log: int, ring: int, mask: int, tail: int, width: int, disorder: int, far: int,
) -> Any:  # fmt: skip
    """Begin all walks, with their first entries; returns how many match, or -1 where differences of
    times may overflow, and how many go on."""
    pairs = going = 0
    for name in range(0, candidates, LANES):
        found = simd_probe.begin(
            at + 8 * name, name, candidates - name, records, base, named, back, counts + 8 * name,
            walks + 8 * going, log + 8 * pairs, ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        if found >> 16:
            return -1, 0
        pairs += found & 255
        going += found >> 8
    return pairs, going


@device
def step_vectors(
    walks: int, going: int, log: int, mine: int, met: int, ring: int, mask: int, tail: int,
    width: int, disorder: int, far: int,
) -> Any:  # fmt: skip
    """The next link of all walks; returns how many match and how many go on."""
    pairs = kept = 0
    for k in range(0, going, LANES):
        mem.prefetch_to_write(mine + 8 * pairs)
        mem.prefetch_to_write(met + 8 * pairs)
        found = simd_probe.step(
            walks + 8 * k, going - k, walks + 8 * kept, log + 8 * pairs,
            ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        pairs += found & 255
        kept += found >> 8
    return pairs, kept


@device
def look(
    entry: int, walk: int, low: int, kept: int, log: int, ring: int, mask: int, tail: int,
    width: int, disorder: int, far: int,
) -> Any:  # fmt: skip
    """Look at a walk's next entry: log it if it matches, and keep the walk if it goes on.  Returns
    for both whether that is so, as 0 or 1."""
    when, behind = mem.load_i64(entry), mem.load_u64(entry + 8)
    following = np.int64(mem.load_u32(entry + NEXT))
    meets = np.int64(np.uint32(behind) == np.uint32(walk)) & np.int64(
        np.uint64(when) - np.uint64(low) <= np.uint64(width)
    )
    mem.store_u32(log, np.uint32(walk >> 32))
    mem.store_u32(log + 4, np.uint32(behind >> np.uint64(32)))
    goes_on = np.int64(when >= low - disorder) & np.int64(following >= tail)
    coming = ring + ENTRY * (following & mask)
    mem.store_i64(kept + WALKS, walk)
    mem.store_i64(kept + LOWS, low)
    mem.store_i64(kept + ENTRIES, coming)
    if far:
        coming = coming if goes_on else entry
        if far == NEARER:
            mem.prefetch(coming)
            mem.prefetch(coming + ENTRY - 1)
        else:
            mem.prefetch_far(coming)
            mem.prefetch_far(coming + ENTRY - 1)
    return meets, goes_on


@device
def begin_scalar(
    at: int, candidates: int, records: int, base: int, named: int, back: int, counts: int,
    walks: int, log: int, ring: int, mask: int, tail: int, width: int, disorder: int, far: int,
) -> Any:  # fmt: skip
    """`begin_vectors`, one walk after the other."""
    pairs = going = wild = 0
    for name in range(candidates):
        record = records + ((np.int64(mem.load_u32(at + 8 * name)) - records) & LOW)
        entry = ring + ENTRY * (np.int64(mem.load_u32(at + 8 * name + 4)) & mask)
        time = mem.load_i64(record)
        wild |= time + PLAIN
        meets, goes_on = look(
            entry, np.int64(mem.load_u32(record + 8)) | name << 32, time - back,
            walks + 8 * going, log + 8 * pairs, ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        mem.store_i64(counts + 8 * name, meets)
        mem.store_i64(counts + 8 * name + ROWS, row_of(record, base, named))
        pairs += meets
        going += goes_on
    return -1 if np.uint64(wild) >= np.uint64(2 * PLAIN) else pairs, going


@device
def step_scalar(
    walks: int, going: int, log: int, mine: int, met: int, ring: int, mask: int, tail: int,
    width: int, disorder: int, far: int,
) -> Any:  # fmt: skip
    """`step_vectors`, one walk after the other."""
    pairs = kept = 0
    for walk in range(walks, walks + 8 * going, 8):
        meets, goes_on = look(
            mem.load_i64(walk + ENTRIES), mem.load_i64(walk + WALKS), mem.load_i64(walk + LOWS),
            walks + 8 * kept, log + 8 * pairs, ring, mask, tail, width, disorder, far,
        )  # fmt: skip
        pairs += meets
        kept += goes_on
    return pairs, kept


@device
def seek(scratch: int, walks: int, ring: int, mask: int, tail: int, disorder: int) -> Any:
    """Follow the only walk down its chain to the next entry of its tag; returns that entry's
    address, 0 where the chain ends before.

    Two entries of one other tag in a row make that tag a suspected heavy hitter."""
    tag, stop = mem.load_u32(walks), mem.load_i64(walks + LOWS) - disorder
    entry = mem.load_i64(walks + ENTRIES)
    met, link = mem.load_u32(entry + 8), np.int64(mem.load_u32(entry + NEXT))
    if link >= tail and mem.load_u32(ring + ENTRY * (link & mask) + 8) == met:
        mem.store_i64(scratch + 8 * SUSPECT, SUSPECTED | np.int64(met))
    while mem.load_u32(entry + 8) != tag:
        link = np.int64(mem.load_u32(entry + NEXT))
        if mem.load_i64(entry) < stop or link < tail:
            return 0
        entry = ring + ENTRY * (link & mask)
    return entry


@device
def row_of(record: int, base: int, named: int) -> Any:
    """The row of a record, counted from `base`; above it `named` times its partition."""
    return rings.row_of(record, base) | named * rings.partition_of(record)


@device
def write(
    counts: int, candidates: int, log: int, begun: int, pairs: int, met_base: int, mine: int,
    met: int,
) -> None:  # fmt: skip
    """Write the pairs of the log, sorted by candidate.  The first `begun` are counted already."""
    rows, after, end = counts + ROWS, 0, log + 8 * pairs
    for pair in range(log + 8 * begun, end, 8):
        place = counts + 8 * np.int64(mem.load_u32(pair))
        mem.store_i64(place, mem.load_i64(place) + 1)
    for place in range(counts, counts + 8 * candidates, 8):
        size = mem.load_i64(place)
        mem.store_i64(place, after)
        after += 8 * size
    for pair in range(log, end, 8):
        by = 8 * np.int64(mem.load_u32(pair))
        to = mem.load_i64(counts + by)
        mem.store_i64(mine + to, mem.load_i64(rows + by))
        mem.store_i64(met + to, (np.int64(mem.load_u32(pair + 4)) - met_base) & LOW)
        mem.store_i64(counts + by, to + 8)


@device
def probe_one(
    record: int, link: int, other: int, back: int, forth: int, base: int, met_base: int,
    named: int, mine: int, met: int, room: int,
) -> Any:  # fmt: skip
    """Walk one record's chain to its end and write its pairs as `probe` does; returns their number,
    or OUTPUT_FULL.  Any times will do."""
    ring, mask, tail, _ = rings.span(other)
    time, tag, pairs = mem.load_i64(record), mem.load_u32(record + 8), 0
    row = row_of(record, base, named)
    low, high, disorder = rings.earlier(time, back), rings.later(time, forth), disorder_of(other)
    stop = rings.earlier(low, disorder) if disorder < TIME_MAX else TIME_MIN
    while link >= tail:
        entry = ring + ENTRY * (link & mask)
        when = mem.load_i64(entry)
        if when < stop:
            break
        if mem.load_u32(entry + 8) == tag and low <= when and when <= high:
            if pairs == room:
                return OUTPUT_FULL
            put(mine, pairs, row)
            put(met, pairs, rings.row_of(entry, met_base))
            pairs += 1
        link = np.int64(mem.load_u32(entry + NEXT))
    return pairs


@device
def without_others(keys: int, columns: int, swapped: bool, mine: int, met: int, pairs: int) -> Any:
    """Remove pairs of equal tags and different keys; returns the number of pairs left."""
    kept = 0
    for k in range(pairs):
        a, b = mem.load_i64(mine + 8 * k), mem.load_i64(met + 8 * k)
        left, right = (b, a & LOW) if swapped else (a & LOW, b)
        if same_key(keys, columns, left, right):
            mem.store_i64(mine + 8 * kept, a)
            mem.store_i64(met + 8 * kept, b)
            kept += 1
    return kept
