"""The nested-loop join: every new tuple is compared with the whole opposite window.

This is the ecoJoin paper's naive baseline ("state-of-the-art stream joins are based on nested loops
because the time interval is typically a range predicate", section 2.2), and what the handshake join
does within each segment.  It needs no index.  A window is four arrays in arrival order
(`ScannedWindow`), and 32 tags are compared at a time (`compare`).  Where one agrees, time and, if
necessary, key columns decide.

Tuples are distributed evenly over lanes.  A lane goes through the window in tiles that stay in the
first-level cache while all of its tuples are compared with them.  Pairs come in no order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import compare, mem
from kernels.cpu.keys import same_key
from kernels.cpu.partition import RECORD_BYTES
from kernels.cpu.records import ADDRESS, I64, field, words
from kernels.cpu.rings import earlier, later
from kernels.registry import device, kernel


class ScannedWindow(NamedTuple):
    """A window, or a segment of one."""

    tags: ADDRESS = field("uint32 tags, readable `compare.WIDTH` past the last")
    times: ADDRESS = field("int64 times (us)")
    rows: ADDRESS = field("uint32 row numbers")
    parts: ADDRESS = field("uint8 partitions")
    start: I64 = field("first entry that is held")
    stop: I64 = field("end of the entries that are held")
    visible: I64 = field("end of the entries that can match (of the handshake join)")


class ScanJob(NamedTuple):
    """What a beat's comparisons have in common."""

    before: I64 = field("how much earlier than the left row the right one may be (us)")
    after: I64 = field("how much later (us)")
    left_base: I64 = field("number (mod 2^32) of the left store's first row")
    right_base: I64 = field("number (mod 2^32) of the right store's first row")


class ScanProgress(NamedTuple):
    """Where `probe` goes on after its output was full."""

    tile: I64 = field("first entry of the tile")
    record: I64 = field("record")
    pairs: I64 = field("pairs so far")


WINDOW, JOB, PROGRESS = words(ScannedWindow), words(ScanJob), words(ScanProgress)
WINDOW_FIELDS = 16
"""Length of a window's row: 128 bytes, so that two lanes never share a cache line."""
TILE_ENTRIES = 4096


@device
def pair_up(
    row: int, met: int, swapped: bool, keys: Any, pairs: int, out_left: Any, out_right: Any
) -> Any:
    """Write a pair of rows of the stores if their keys are equal; -1 for no room."""
    left, right = (met, row) if swapped else (row, met)
    columns = keys.shape[0]
    if columns != 0 and not same_key(np.int64(keys.ctypes.data), columns, left, right):
        return pairs
    if pairs == out_left.size:
        return -1
    out_left[pairs], out_right[pairs] = left, right
    return pairs + 1


@device
def scan(
    record: int,
    window: Any,
    first: int,
    last: int,
    swapped: bool,
    job: Any,
    keys: Any,
    pairs: int,
    out_left: Any,
    out_right: Any,
) -> Any:
    """Compare a record (of the right where `swapped`) with the entries first..last of a window.

    Returns the end of the pairs, which are written from `pairs` on; -1 for no room.
    """
    back, ahead = (
        (job[JOB.after], job[JOB.before]) if swapped else (job[JOB.before], job[JOB.after])
    )
    base, met_base = (
        (job[JOB.right_base], job[JOB.left_base])
        if swapped
        else (job[JOB.left_base], job[JOB.right_base])
    )
    time, tag = mem.load_i64(record), mem.load_u32(record + 8)
    low, high = earlier(time, back), later(time, ahead)
    row = np.int64(np.uint32(mem.load_u32(record + 12) - np.uint32(base)))
    for at in range(first, last, compare.WIDTH):
        hits = compare.equal_u32(window[WINDOW.tags] + 4 * at, tag)
        if at + compare.WIDTH > last:
            hits &= (np.uint64(1) << np.uint64(last - at)) - np.uint64(1)
        while hits != np.uint64(0):
            entry = at + compare.lowest(hits)
            hits &= hits - np.uint64(1)
            when = mem.load_i64(window[WINDOW.times] + 8 * entry)
            if low <= when and when <= high:
                number = mem.load_u32(window[WINDOW.rows] + 4 * entry)
                met = np.int64(np.uint32(number - np.uint32(met_base)))
                pairs = pair_up(row, met, swapped, keys, pairs, out_left, out_right)
                if pairs < 0:
                    return pairs
    return pairs


@kernel(
    "int64(int64, int64, int64, int64[::1], int64, int64[::1], int64[:, ::1], int64[::1],"
    " int64[::1], int64[::1])",
    reference="tests.naive.nested_loop.probe",
)
def probe(
    records: int,
    first: int,
    last: int,
    window: Any,
    swapped: int,
    job: Any,
    keys: Any,
    progress: Any,
    out_left: Any,
    out_right: Any,
) -> int:
    """Compare records first..last with a window, from `progress` on; 0: output full, call again
    with more room."""
    pairs = progress[PROGRESS.pairs]
    while progress[PROGRESS.tile] < window[WINDOW.stop]:
        tile = progress[PROGRESS.tile]
        end = min(window[WINDOW.stop], tile + TILE_ENTRIES)
        for i in range(progress[PROGRESS.record], last):
            at = records + RECORD_BYTES * i
            right = swapped != 0
            more = scan(at, window, tile, end, right, job, keys, pairs, out_left, out_right)
            if more < 0:
                progress[PROGRESS.record], progress[PROGRESS.pairs] = i, pairs
                return 0
            pairs = more
        progress[PROGRESS.tile], progress[PROGRESS.record] = end, first
    progress[PROGRESS.pairs] = pairs
    return 1


@device
def add(window: Any, records: int, edges: Any, first: int, last: int) -> None:
    """Append records first..last to a window that has room."""
    stop = window[WINDOW.stop]
    for p in range(edges.size - 1):
        for i in range(max(first, edges[p]), min(last, edges[p + 1])):
            at = records + RECORD_BYTES * i
            mem.store_u32(window[WINDOW.tags] + 4 * stop, mem.load_u32(at + 8))
            mem.store_i64(window[WINDOW.times] + 8 * stop, mem.load_i64(at))
            mem.store_u32(window[WINDOW.rows] + 4 * stop, mem.load_u32(at + 12))
            mem.store_u8(window[WINDOW.parts] + stop, np.uint8(p))
            stop += 1
    window[WINDOW.stop] = stop


@kernel("void(int64[::1], int64, int64[::1])", reference="tests.naive.nested_loop.append")
def append(window: Any, records: int, edges: Any) -> None:
    """Append a batch to a window; partition p's records are edges[p]..edges[p + 1]."""
    add(window, records, edges, 0, edges[edges.size - 1])


@kernel("void(int64[::1], int64, int64)", reference="tests.naive.nested_loop.evict")
def evict(window: Any, bound: int, everything: int) -> None:
    """Evict the oldest arrivals while they are below `bound`."""
    start = window[WINDOW.stop] if everything != 0 else window[WINDOW.start]
    while start < window[WINDOW.stop] and mem.load_i64(window[WINDOW.times] + 8 * start) < bound:
        start += 1
    window[WINDOW.start] = start
