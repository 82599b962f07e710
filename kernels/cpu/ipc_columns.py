"""From a table of scanned Arrow messages to staged columns: place, copy, admit, finish.

`kernels.cpu.ipc` defines the passes, regions, messages and layouts.  These passes touch values:
bits become bytes, int32 string offsets become int64 offsets into the target's bytes, text is
checked to be UTF-8, times are bounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu.columns import COLUMN
from kernels.cpu.ipc import (
    DROPPED,
    E_OFFSETS,
    E_UTF8,
    FILTERED,
    LAYOUT,
    MESSAGE,
    REGION,
    SLOW,
    WATERMARK_END,
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
from kernels.cpu.records import I64, field, words
from kernels.cpu.staging import copy_value, fill_ones
from kernels.registry import device, kernel

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1


class IpcFacts(NamedTuple):
    """What `admit` takes and gives."""

    limit: I64 = field("in: latest time by the wall clock; TIME_MAX: none, go by `latest`")
    latest: I64 = field("in and out: latest time staged; TIME_MIN: none")
    ahead: I64 = field("in: largest distance ahead of `latest` (us)")
    refused: I64 = field("out: rows refused")
    again: I64 = field("out: 1 if `place` and `copy` must run again")


class IpcTotals(NamedTuple):
    """What `place` counts; the bytes of the other columns follow."""

    rows: I64 = field("rows")
    chunks: I64 = field("messages with rows")
    bytes: I64 = field("bytes of the first column of variable size")


FACTS, TOTALS = words(IpcFacts), words(IpcTotals)
NO_BITS, SEVEN = np.uint64(0), np.uint64(7)
LOW_BITS, HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
BELOW_HIGH = np.uint64(0x7F7F7F7F7F7F7F7F)
DIAGONAL = np.uint64(0x8040201008040201)


@kernel(
    "void(int64[:, ::1], int64, int64[:, ::1], int64[:, ::1], int64[::1])",
    reference="tests.naive.ipc_columns.place",
)
def place(messages: Any, count: int, sizes: Any, places: Any, totals: Any) -> None:
    """Positions of each message relative to the first: `at` (rows) and `places` (bytes).

    `totals` is an `IpcTotals`.
    """
    totals[:] = 0
    for i in range(count):
        m = messages[i]
        if m[MESSAGE.state] >= DROPPED:
            continue
        m[MESSAGE.at] = totals[TOTALS.rows]
        totals[TOTALS.rows] += m[MESSAGE.kept]
        totals[TOTALS.chunks] += m[MESSAGE.kept] > 0
        for v in range(sizes.shape[1]):
            places[i, v] = totals[TOTALS.bytes + v]
            totals[TOTALS.bytes + v] += sizes[i, v]


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
    rows, kind = m[MESSAGE.rows], layout[LAYOUT.kind]
    buffers = m[MESSAGE.buffers] + 16 * layout[LAYOUT.buffer]
    if target[COLUMN.valid] != 0:
        if load_i64(m[MESSAGE.nodes] + 16 * layout[LAYOUT.node] + 8) > 0:
            spread_bits(m[MESSAGE.body] + load_i64(buffers), target[COLUMN.valid] + row, rows)
        else:
            fill_ones(target[COLUMN.valid] + row, rows)
    values = m[MESSAGE.body] + load_i64(buffers + 16)
    if kind > 0:
        copy_bytes(target[COLUMN.values] + row * kind, values, rows * kind)
    elif kind == 0:
        spread_bits(values, target[COLUMN.values] + row, rows)
    else:
        data = m[MESSAGE.body] + load_i64(buffers + 32)
        problem = check_strings(values, data, rows, kind == -1)
        if problem:
            return problem
        first = load_i32(values)
        for i in range(rows + 1):
            store_i64(
                target[COLUMN.offsets] + 8 * (row + i), end + (load_i32(values + 4 * i) - first)
            )
        copy_bytes(target[COLUMN.values] + end, data + first, load_i32(values + 4 * rows) - first)
    return 0


@device
def copy_kept(m: Any, layout: Any, target: Any, row: int, end: int, times: int) -> None:
    """Copy one column's rows whose time is at most `limit`; the message was checked before."""
    kind = layout[LAYOUT.kind]
    buffers = m[MESSAGE.buffers] + 16 * layout[LAYOUT.buffer]
    bits = m[MESSAGE.body] + load_i64(buffers)
    nulls = load_i64(m[MESSAGE.nodes] + 16 * layout[LAYOUT.node] + 8)
    values = m[MESSAGE.body] + load_i64(buffers + 16)
    if kind < 0:
        store_i64(target[COLUMN.offsets] + 8 * row, end)
    for i in range(m[MESSAGE.rows]):
        if load_i64(times + 8 * i) > m[MESSAGE.limit]:
            continue
        if target[COLUMN.valid] != 0:
            valid = 1
            if nulls > 0:
                valid = (load_u8(bits + i // 8) >> (i % 8)) & 1
            store_u8(target[COLUMN.valid] + row, valid)
        if kind > 0:
            copy_value(values + i * kind, target[COLUMN.values] + row * kind, kind)
        elif kind == 0:
            store_u8(target[COLUMN.values] + row, (load_u8(values + i // 8) >> (i % 8)) & 1)
        else:
            first = load_i32(values + 4 * i)
            size = load_i32(values + 4 * i + 4) - first
            copy_bytes(
                target[COLUMN.values] + end, m[MESSAGE.body] + load_i64(buffers + 32) + first, size
            )
            end += size
            store_i64(target[COLUMN.offsets] + 8 * (row + 1), end)
        row += 1


@device
def times_of(m: Any, layout: Any) -> Any:
    """Address of the message's time column."""
    return m[MESSAGE.body] + load_i64(m[MESSAGE.buffers] + 16 * (layout[LAYOUT.buffer] + 1))


@kernel(
    "void(int64[:, ::1], int64, int64, int64[:, ::1], int64[:, :, ::1], int64,"
    " int64[:, ::1], int64[:, ::1], int64, int64[::1], int64[::1])",
    reference="tests.naive.ipc_columns.copy",
)
def copy(
    messages: Any, first: int, last: int, regions: Any, layouts: Any, time_column: int,
    places: Any, target: Any, row: int, bytes_at: Any, times: Any,
) -> None:  # fmt: skip
    """Copy messages `first:last` to `target` from row `row` and bytes `bytes_at[column]` on.

    Sets `error` and `column` for refused values, and the messages' times.  `times` is the
    target's time column, by absolute row.
    """
    for i in range(first, last):
        m = messages[i]
        if m[MESSAGE.state] >= DROPPED or m[MESSAGE.rows] == 0:
            continue
        k = regions[m[MESSAGE.region], REGION.layout]
        at = row + m[MESSAGE.at]
        for c in range(layouts.shape[1]):
            v = layouts[k, c, LAYOUT.ordinal]
            end = bytes_at[c] + places[i, v] if v >= 0 else 0
            if m[MESSAGE.state] == FILTERED:
                copy_kept(
                    m, layouts[k, c], target[c], at, end, times_of(m, layouts[k, time_column])
                )
                continue
            problem = copy_column(m, layouts[k, c], target[c], at, end)
            if problem:
                m[MESSAGE.error], m[MESSAGE.column] = problem, c
                break
        low, high = TIME_MAX, TIME_MIN
        for j in range(at, at + m[MESSAGE.kept]):
            low, high = min(low, times[j]), max(high, times[j])
        m[MESSAGE.time_min], m[MESSAGE.time_max] = low, high


@device
def keep_admitted(m: Any, layouts: Any, k: int, time_column: int, sizes: Any, limit: int) -> None:
    """Make `m` FILTERED: count the rows and bytes of those whose time is at most `limit`."""
    times = times_of(m, layouts[k, time_column])
    m[MESSAGE.state], m[MESSAGE.limit], m[MESSAGE.kept] = FILTERED, limit, 0
    low, high = TIME_MAX, TIME_MIN
    for i in range(m[MESSAGE.rows]):
        time = load_i64(times + 8 * i)
        if time <= limit:
            m[MESSAGE.kept] += 1
            low, high = min(low, time), max(high, time)
    m[MESSAGE.time_min], m[MESSAGE.time_max] = low, high
    for c in range(layouts.shape[1]):
        if layouts[k, c, LAYOUT.ordinal] < 0:
            continue
        offsets = m[MESSAGE.body] + load_i64(
            m[MESSAGE.buffers] + 16 * (layouts[k, c, LAYOUT.buffer] + 1)
        )
        total = 0
        for i in range(m[MESSAGE.rows]):
            if load_i64(times + 8 * i) <= limit:
                total += load_i32(offsets + 4 * i + 4) - load_i32(offsets + 4 * i)
        sizes[layouts[k, c, LAYOUT.ordinal]] = total


@kernel(
    "void(int64[:, ::1], int64, int64[:, ::1], int64[:, :, ::1], int64, int64[:, ::1], int64[::1])",
    reference="tests.naive.ipc_columns.admit",
)
def admit(
    messages: Any, count: int, regions: Any, layouts: Any, time_column: int, sizes: Any, facts: Any
) -> None:
    """Remove messages and rows that may not be staged, after `copy`.

    `facts` is an `IpcFacts`.  A refused message refuses its region's later ones.
    """
    facts[FACTS.refused] = facts[FACTS.again] = 0
    for i in range(count):
        m = messages[i]
        r = m[MESSAGE.region]
        if m[MESSAGE.state] == SLOW:
            continue
        if m[MESSAGE.error] and regions[r, REGION.messages] >= 0:
            regions[r, REGION.error], regions[r, REGION.column] = (
                m[MESSAGE.error],
                m[MESSAGE.column],
            )
            regions[r, REGION.end] = 0
            regions[r, REGION.messages] = -1
        if regions[r, REGION.messages] < 0:
            m[MESSAGE.state], m[MESSAGE.kept], facts[FACTS.again] = DROPPED, 0, 1
            continue
        if m[MESSAGE.seq] > 0:
            regions[r, REGION.seq] = m[MESSAGE.seq]
        if m[MESSAGE.rows] == 0:
            continue
        limit = facts[FACTS.limit]
        if limit == TIME_MAX:
            k = regions[r, REGION.layout]
            latest = facts[FACTS.latest]
            if latest == TIME_MIN:
                latest = load_i64(times_of(m, layouts[k, time_column]))
            limit = (
                latest + facts[FACTS.ahead] if latest <= TIME_MAX - facts[FACTS.ahead] else TIME_MAX
            )
        if m[MESSAGE.time_max] > limit:
            keep_admitted(m, layouts, regions[r, REGION.layout], time_column, sizes[i], limit)
            facts[FACTS.refused] += m[MESSAGE.rows] - m[MESSAGE.kept]
            facts[FACTS.again] = 1
        if m[MESSAGE.kept] > 0:
            facts[FACTS.latest] = max(facts[FACTS.latest], m[MESSAGE.time_max])


@kernel(
    "int64(int64[:, ::1], int64, int64[:, ::1], int64, int64, int32[::1], int64[::1], int64[::1],"
    " int64[::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64[::1])",
    reference="tests.naive.ipc_columns.finish",
)
def finish(
    messages: Any, count: int, regions: Any, row: int, chunk: int, chunk_producer: Any,
    chunk_stop: Any, chunk_min: Any, chunk_max: Any, seq: Any, latest_us: Any, ended: Any,
    promised_us: Any, sums: Any,
) -> Any:  # fmt: skip
    """Write a chunk entry, from entry `chunk` on, for each message with rows, and update the
    producers.  `row` is the row of message place 0.  Returns the number of entries."""
    start = chunk
    for i in range(count):
        m = messages[i]
        if m[MESSAGE.state] >= DROPPED:
            continue
        p = regions[m[MESSAGE.region], REGION.producer]
        if m[MESSAGE.seq] > 0:
            seq[p], sums[p] = m[MESSAGE.seq], m[MESSAGE.sum]
        watermark = m[MESSAGE.watermark]
        ended[p] = watermark == WATERMARK_END
        if watermark != WATERMARK_END:
            promised_us[p] = max(promised_us[p], watermark)
            latest_us[p] = max(latest_us[p], watermark)
        if m[MESSAGE.kept] == 0:
            continue
        chunk_producer[chunk] = p
        chunk_stop[chunk] = row + m[MESSAGE.at] + m[MESSAGE.kept]
        chunk_min[chunk], chunk_max[chunk] = m[MESSAGE.time_min], m[MESSAGE.time_max]
        latest_us[p] = max(latest_us[p], m[MESSAGE.time_max])
        chunk += 1
    return chunk - start
