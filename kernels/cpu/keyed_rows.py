"""What operators do with rows by key: the row before, how many there were, how often one passes.

Rows come with their slots (`kernels.cpu.key_slots`), in the order in which they are taken.  The
state of a key is in words of its slot from `word` on.  Each kernel does the rows of one lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.columns import COLUMN
from kernels.cpu.key_slots import is_mine
from kernels.cpu.keys import same_bytes, same_float
from kernels.registry import device, kernel

FETCH_ROWS, FETCH_BYTES = 24, 1 << 20
"""Rows ahead whose slots are prefetched, where all slots take more bytes."""
_STEP = "(uint64[::1], int64, int64, int32[::1], int64[::1], int64[:, ::1], int64"
INTEGER, FLOAT, BYTES = 0, 1, 2
"""Kinds of columns that are compared."""
LAST_WORDS, COUNT_WORDS, SPAN_WORDS, RING_WORDS = 2, 1, 2, 2
"""Words of a key's state: number and time of its last row; rows; span and rows of it; count and
place of a ring of times, which follows."""


@kernel(f"void{_STEP}, int64, int64, int64[::1])", reference="tests.naive.keyed.rows_before")
def rows_before(
    hashes: Any, lane: int, lanes: int, slots: Any, times: Any, groups: Any, word: int,
    number: int, keep: int, before: Any,
) -> None:  # fmt: skip
    """The number of the row of the same key before each row, -1 where there is none or it lies more
    than `keep` us back.  Row i has the number `number + i`."""
    ahead = FETCH_ROWS if groups.nbytes > FETCH_BYTES else times.size
    at, row_bytes = np.int64(groups.ctypes.data), 8 * groups.shape[1]
    for i in range(times.size):
        if i + ahead < times.size:
            mem.prefetch_to_write(at + row_bytes * np.int64(slots[i + ahead]) + 8 * word)
        if lanes > 1 and not is_mine(hashes[i], lane, lanes):
            continue
        g = slots[i]
        before[i] = -1
        if groups[g, word] > 0 and times[i] - groups[g, word + 1] <= keep:
            before[i] = groups[g, word] - 1
        groups[g, word] = number + i + 1
        groups[g, word + 1] = times[i]


@kernel(f"void{_STEP}, int64, uint8[::1])", reference="tests.naive.keyed.every_nth")
def every_nth(
    hashes: Any, lane: int, lanes: int, slots: Any, times: Any, groups: Any, word: int, n: int,
    flags: Any,
) -> None:  # fmt: skip
    """Flag the first row of each key and every n-th after it."""
    for i in range(times.size):
        if lanes > 1 and not is_mine(hashes[i], lane, lanes):
            continue
        count = groups[slots[i], word]
        flags[i] = count == 0
        groups[slots[i], word] = 0 if count + 1 == n else count + 1


@kernel(f"void{_STEP}, int64, int64, uint8[::1])", reference="tests.naive.keyed.first_of_spans")
def first_of_spans(
    hashes: Any, lane: int, lanes: int, slots: Any, times: Any, groups: Any, word: int, most: int,
    span: int, flags: Any,
) -> None:  # fmt: skip
    """Flag the first `most` rows of each key in each span of `span` us from 1970 on; a row of a
    span before the key's latest is not flagged."""
    for i in range(times.size):
        if lanes > 1 and not is_mine(hashes[i], lane, lanes):
            continue
        g, number = slots[i], times[i] // span
        if groups[g, word + 1] == 0 or number > groups[g, word]:
            groups[g, word], groups[g, word + 1] = number, 0
        flags[i] = number == groups[g, word] and groups[g, word + 1] < most
        groups[g, word + 1] += flags[i]


@kernel(f"void{_STEP}, int64, int64, uint8[::1])", reference="tests.naive.keyed.at_most")
def at_most(
    hashes: Any, lane: int, lanes: int, slots: Any, times: Any, groups: Any, word: int, most: int,
    span: int, flags: Any,
) -> None:  # fmt: skip
    """Flag a row where fewer than `most` flagged rows of its key lie less than `span` us back.

    The times of the last `most` are in a ring.  A row `span` or more before the oldest of them, as
    a late one may be, is flagged and changes nothing.
    """
    for i in range(times.size):
        if lanes > 1 and not is_mine(hashes[i], lane, lanes):
            continue
        group, time = groups[slots[i]], times[i]
        count, place = group[word], group[word + 1]
        ring = word + RING_WORDS + place
        passes = count < most or time - group[ring] >= span
        flags[i] = passes or group[ring] - time >= span
        if passes:
            group[ring] = time
            group[word] = min(count + 1, most)
            group[word + 1] = 0 if place + 1 == most else place + 1


@device
def is_null(valid: int, row: int) -> Any:
    """Whether a value is null; `valid` is 0 for columns without nulls."""
    return valid != 0 and mem.load_u8(valid + row) == 0


@device
def is_same(a: Any, row: int, b: Any, other: int, kind: int) -> Any:
    """Whether two values of one type are equal as keys are, by rows of column tables."""
    width, at, to = a[COLUMN.width], a[COLUMN.values], b[COLUMN.values]
    if kind == INTEGER:
        if width == 1:
            return mem.load_u8(at + row) == mem.load_u8(to + other)
        if width == 8:
            return mem.load_u64(at + 8 * row) == mem.load_u64(to + 8 * other)
        return same_bytes(at + width * row, to + width * other, width)
    if kind == FLOAT:
        return same_float(at + width * row, to + width * other, width)
    begin = mem.load_i64(a[COLUMN.offsets] + 8 * row)
    start = mem.load_i64(b[COLUMN.offsets] + 8 * other)
    size = mem.load_i64(a[COLUMN.offsets] + 8 * row + 8) - begin
    if mem.load_i64(b[COLUMN.offsets] + 8 * other + 8) - start != size:
        return False
    return same_bytes(at + begin, to + start, size)


@kernel(
    "void(int64[:, ::1], int64[:, ::1], uint8[::1], int64[::1], uint8, uint8[::1])",
    reference="tests.naive.keyed.changes",
)
def changes(rows: Any, others: Any, kinds: Any, before: Any, first: int, flags: Any) -> None:
    """Flag rows of which a value is distinct from that of the row `before`, by number in `others`:
    null is no value's equal but null's, NaN is NaN's.  A row with none before is flagged `first`.

    `kinds` has INTEGER, FLOAT or BYTES for each column.
    """
    for i in range(before.size):
        flags[i] = first if before[i] < 0 else 0
    for c in range(rows.shape[0]):
        a, b, kind = rows[c], others[c], kinds[c]
        valid, other_valid = a[COLUMN.valid], b[COLUMN.valid]
        for i in range(before.size):
            at = before[i]
            if at < 0 or flags[i] != 0:
                continue
            absent, other_absent = is_null(valid, i), is_null(other_valid, at)
            if absent or other_absent:
                flags[i] = absent != other_absent
            else:
                flags[i] = not is_same(a, i, b, at, kind)
