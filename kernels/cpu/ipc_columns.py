"""From a table of scanned Arrow messages to staged columns: place, copy, admit, finish.

`kernels.cpu.ipc` defines the passes, regions, messages and layouts.  These passes touch values:
bits become bytes, int32 string offsets become int64 offsets into the target's bytes, text is
checked to be UTF-8, times are bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.ipc import (
    DROPPED,
    E_OFFSETS,
    E_UTF8,
    FILTERED,
    M_AT,
    M_BODY,
    M_BUFFERS,
    M_COLUMN,
    M_ERROR,
    M_KEPT,
    M_LIMIT,
    M_NODES,
    M_REGION,
    M_ROWS,
    M_SEQ,
    M_STATE,
    M_TIME_MAX,
    M_TIME_MIN,
    R_COLUMN,
    R_END,
    R_ERROR,
    R_LAYOUT,
    R_MESSAGES,
    R_PRODUCER,
    R_SEQ,
    SLOW,
)
from kernels.cpu.mem import (
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    load_u64,
    store_i64,
    store_u8,
    store_u64,
)
from kernels.cpu.staging import copy_value, fill_ones
from kernels.registry import device, kernel

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1

NO_BITS, SEVEN = np.uint64(0), np.uint64(7)
LOW_BITS, HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
BELOW_HIGH = np.uint64(0x7F7F7F7F7F7F7F7F)
DIAGONAL = np.uint64(0x8040201008040201)


@kernel(
    "void(int64[:, ::1], int64, int64[:, ::1], int64[:, ::1], int64[::1])",
    reference="tests.naive.ipc.place",
)
def place(messages: Any, count: int, sizes: Any, places: Any, totals: Any) -> None:
    """Positions of each message relative to the first: M_AT (rows) and `places` (bytes).

    `totals` becomes rows, chunks, and then bytes by ordinal.
    """
    totals[:] = 0
    for i in range(count):
        m = messages[i]
        if m[M_STATE] >= DROPPED:
            continue
        m[M_AT] = totals[0]
        totals[0] += m[M_KEPT]
        totals[1] += m[M_KEPT] > 0
        for v in range(sizes.shape[1]):
            places[i, v] = totals[2 + v]
            totals[2 + v] += sizes[i, v]


@device
def spread_bits(bits: int, target: int, rows: int) -> None:
    """Expand `rows` bits, lowest first, to bytes 0 and 1."""
    for i in range(rows // 8):
        one_each = (np.uint64(load_u8(bits + i)) * LOW_BITS) & DIAGONAL
        store_u64(target + 8 * i, ((one_each + BELOW_HIGH) >> SEVEN) & LOW_BITS)
    for i in range(rows - rows % 8, rows):
        store_u8(target + i, (load_u8(bits + i // 8) >> (i % 8)) & 1)


@device
def is_ascii(address: int, size: int) -> Any:
    """Whether all bytes are below 128."""
    whole = size - size % 8
    high, rest = NO_BITS, 0
    for i in range(0, whole, 8):
        high |= load_u64(address + i)
    for i in range(whole, size):
        rest |= load_u8(address + i)
    return (high & HIGH_BITS) == NO_BITS and rest < 128


@device
def continues(address: int, count: int) -> Any:
    """Whether `count` bytes at `address` are UTF-8 continuation bytes."""
    for i in range(count):  # noqa: SIM110 - numba has no all()
        if load_u8(address + i) & 0xC0 != 0x80:
            return False
    return True


@device
def is_utf8(address: int, size: int) -> Any:
    """Whether the bytes are well-formed UTF-8 (no overlong forms, no surrogates)."""
    i = 0
    while i < size:
        lead = load_u8(address + i)
        if lead < 0x80:
            i += 1
            continue
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if lead < 0xC2 or lead > 0xF4 or i + more >= size:
            return False
        second = load_u8(address + i + 1)
        if lead == 0xE0 and second < 0xA0:
            return False
        if lead == 0xED and second > 0x9F:
            return False
        if lead == 0xF0 and second < 0x90:
            return False
        if lead == 0xF4 and second > 0x8F:
            return False
        if not continues(address + i + 1, more):
            return False
        i += more + 1
    return True


@device
def check_strings(offsets: int, data: int, rows: int, text: bool) -> Any:
    """0, or the error number of decreasing offsets or of text that is not UTF-8."""
    last = load_i32(offsets)
    first = last
    for i in range(1, rows + 1):
        offset = load_i32(offsets + 4 * i)
        if offset < last:
            return E_OFFSETS
        last = offset
    if not text or is_ascii(data + first, last - first):
        return 0
    for i in range(rows):
        start = load_i32(offsets + 4 * i)
        if not is_utf8(data + start, load_i32(offsets + 4 * i + 4) - start):
            return E_UTF8
    return 0


@device
def copy_column(m: Any, layout: Any, target: Any, row: int, end: int) -> Any:
    """Copy one column of a whole message to row `row` (bytes at `end`); 0 or an error number."""
    rows, kind = m[M_ROWS], layout[2]
    buffers = m[M_BUFFERS] + 16 * layout[1]
    if target[2] != 0:
        if load_i64(m[M_NODES] + 16 * layout[0] + 8) > 0:
            spread_bits(m[M_BODY] + load_i64(buffers), target[2] + row, rows)
        else:
            fill_ones(target[2] + row, rows)
    values = m[M_BODY] + load_i64(buffers + 16)
    if kind > 0:
        copy_bytes(target[1] + row * kind, values, rows * kind)
    elif kind == 0:
        spread_bits(values, target[1] + row, rows)
    else:
        data = m[M_BODY] + load_i64(buffers + 32)
        problem = check_strings(values, data, rows, kind == -1)
        if problem:
            return problem
        first = load_i32(values)
        for i in range(rows + 1):
            store_i64(target[3] + 8 * (row + i), end + (load_i32(values + 4 * i) - first))
        copy_bytes(target[1] + end, data + first, load_i32(values + 4 * rows) - first)
    return 0


@device
def copy_kept(m: Any, layout: Any, target: Any, row: int, end: int, times: int) -> None:
    """Copy one column's rows whose time is at most M_LIMIT; the message was checked before."""
    kind = layout[2]
    buffers = m[M_BUFFERS] + 16 * layout[1]
    bits = m[M_BODY] + load_i64(buffers)
    nulls = load_i64(m[M_NODES] + 16 * layout[0] + 8)
    values = m[M_BODY] + load_i64(buffers + 16)
    if kind < 0:
        store_i64(target[3] + 8 * row, end)
    for i in range(m[M_ROWS]):
        if load_i64(times + 8 * i) > m[M_LIMIT]:
            continue
        if target[2] != 0:
            valid = 1
            if nulls > 0:
                valid = (load_u8(bits + i // 8) >> (i % 8)) & 1
            store_u8(target[2] + row, valid)
        if kind > 0:
            copy_value(values + i * kind, target[1] + row * kind, kind)
        elif kind == 0:
            store_u8(target[1] + row, (load_u8(values + i // 8) >> (i % 8)) & 1)
        else:
            first = load_i32(values + 4 * i)
            size = load_i32(values + 4 * i + 4) - first
            copy_bytes(target[1] + end, m[M_BODY] + load_i64(buffers + 32) + first, size)
            end += size
            store_i64(target[3] + 8 * (row + 1), end)
        row += 1


@device
def times_of(m: Any, layout: Any) -> Any:
    """Address of the message's time column."""
    return m[M_BODY] + load_i64(m[M_BUFFERS] + 16 * (layout[1] + 1))


@kernel(
    "void(int64[:, ::1], int64, int64, int64[:, ::1], int64[:, :, ::1], int64,"
    " int64[:, ::1], int64[:, ::1], int64, int64[::1], int64[::1])",
    reference="tests.naive.ipc.copy",
)
def copy(
    messages: Any, first: int, last: int, regions: Any, layouts: Any, time_column: int,
    places: Any, target: Any, row: int, bytes_at: Any, times: Any,
) -> None:  # fmt: skip
    """Copy messages `first:last` to `target` from row `row` and bytes `bytes_at[column]` on.

    Sets M_ERROR and M_COLUMN for refused values, and M_TIME_MIN and _MAX.  `times` is the
    target's time column, by absolute row.
    """
    for i in range(first, last):
        m = messages[i]
        if m[M_STATE] >= DROPPED or m[M_ROWS] == 0:
            continue
        k = regions[m[M_REGION], R_LAYOUT]
        at = row + m[M_AT]
        for c in range(layouts.shape[1]):
            v = layouts[k, c, 4]
            end = bytes_at[c] + places[i, v] if v >= 0 else 0
            if m[M_STATE] == FILTERED:
                copy_kept(
                    m, layouts[k, c], target[c], at, end, times_of(m, layouts[k, time_column])
                )
                continue
            problem = copy_column(m, layouts[k, c], target[c], at, end)
            if problem:
                m[M_ERROR], m[M_COLUMN] = problem, c
                break
        low, high = TIME_MAX, TIME_MIN
        for j in range(at, at + m[M_KEPT]):
            low, high = min(low, times[j]), max(high, times[j])
        m[M_TIME_MIN], m[M_TIME_MAX] = low, high


@device
def keep_admitted(m: Any, layouts: Any, k: int, time_column: int, sizes: Any, limit: int) -> None:
    """Make `m` FILTERED: count the rows and bytes of those whose time is at most `limit`."""
    times = times_of(m, layouts[k, time_column])
    m[M_STATE], m[M_LIMIT], m[M_KEPT] = FILTERED, limit, 0
    low, high = TIME_MAX, TIME_MIN
    for i in range(m[M_ROWS]):
        time = load_i64(times + 8 * i)
        if time <= limit:
            m[M_KEPT] += 1
            low, high = min(low, time), max(high, time)
    m[M_TIME_MIN], m[M_TIME_MAX] = low, high
    for c in range(layouts.shape[1]):
        if layouts[k, c, 4] < 0:
            continue
        offsets = m[M_BODY] + load_i64(m[M_BUFFERS] + 16 * (layouts[k, c, 1] + 1))
        total = 0
        for i in range(m[M_ROWS]):
            if load_i64(times + 8 * i) <= limit:
                total += load_i32(offsets + 4 * i + 4) - load_i32(offsets + 4 * i)
        sizes[layouts[k, c, 4]] = total


@kernel(
    "void(int64[:, ::1], int64, int64[:, ::1], int64[:, :, ::1], int64, int64[:, ::1], int64[::1])",
    reference="tests.naive.ipc.admit",
)
def admit(
    messages: Any, count: int, regions: Any, layouts: Any, time_column: int, sizes: Any, facts: Any
) -> None:
    """Remove messages and rows that may not be staged, after `copy`.

    `facts` in: wall limit (TIME_MAX: none, go by the latest time), latest time staged (TIME_MIN:
    none), largest distance ahead of it.  Out: [1] the latest time, [3] rows refused, [4] 1 if
    `place` and `copy` must run again.  A refused message refuses its region's later ones.
    """
    facts[3] = facts[4] = 0
    for i in range(count):
        m = messages[i]
        r = m[M_REGION]
        if m[M_STATE] == SLOW:
            continue
        if m[M_ERROR] and regions[r, R_MESSAGES] >= 0:
            regions[r, R_ERROR], regions[r, R_COLUMN] = m[M_ERROR], m[M_COLUMN]
            regions[r, R_END] = 0
            regions[r, R_MESSAGES] = -1
        if regions[r, R_MESSAGES] < 0:
            m[M_STATE], m[M_KEPT], facts[4] = DROPPED, 0, 1
            continue
        if m[M_SEQ] > 0:
            regions[r, R_SEQ] = m[M_SEQ]
        if m[M_ROWS] == 0:
            continue
        limit = facts[0]
        if limit == TIME_MAX:
            k = regions[r, R_LAYOUT]
            latest = facts[1]
            if latest == TIME_MIN:
                latest = load_i64(times_of(m, layouts[k, time_column]))
            limit = latest + facts[2] if latest <= TIME_MAX - facts[2] else TIME_MAX
        if m[M_TIME_MAX] > limit:
            keep_admitted(m, layouts, regions[r, R_LAYOUT], time_column, sizes[i], limit)
            facts[3] += m[M_ROWS] - m[M_KEPT]
            facts[4] = 1
        if m[M_KEPT] > 0:
            facts[1] = max(facts[1], m[M_TIME_MAX])


@kernel(
    "int64(int64[:, ::1], int64, int64[:, ::1], int64, int64, int32[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], uint8[::1])",
    reference="tests.naive.ipc.finish",
)
def finish(
    messages: Any, count: int, regions: Any, row: int, chunk: int, chunk_producer: Any,
    chunk_stop: Any, chunk_min: Any, chunk_max: Any, seq: Any, latest_us: Any, ended: Any,
) -> Any:  # fmt: skip
    """Write a chunk entry, from entry `chunk` on, for each message with rows, and update the
    producers.  `row` is the row of message place 0.  Returns the number of entries."""
    start = chunk
    for i in range(count):
        m = messages[i]
        if m[M_STATE] >= DROPPED:
            continue
        p = regions[m[M_REGION], R_PRODUCER]
        if m[M_SEQ] > 0:
            seq[p] = m[M_SEQ]
        ended[p] = 0
        if m[M_KEPT] == 0:
            continue
        chunk_producer[chunk] = p
        chunk_stop[chunk] = row + m[M_AT] + m[M_KEPT]
        chunk_min[chunk], chunk_max[chunk] = m[M_TIME_MIN], m[M_TIME_MAX]
        latest_us[p] = max(latest_us[p], m[M_TIME_MAX])
        chunk += 1
    return chunk - start
