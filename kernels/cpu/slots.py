"""Records by key: each row finds the number of its key's record in a hash table, or makes one.

Records are those of `kernels.cpu.window` with one window that begins at 0; their words after the
key are the user's.  New records are zero there: the caller fills in defaults.

Where records are kept for a time (`Keeping`), the first word after the key is the latest time of
the key's rows, at least the horizon when they came.  A row that lies more than `keep` behind it
makes a record that takes the old one's place in the table, and so does a row of a record that is
older than the horizon.  The old record is `SHUT`: rows of the same batch may still have its number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import VARIABLE
from kernels.cpu.columns import COLUMN
from kernels.cpu.records import I64, field, words
from kernels.cpu.window import (
    BLOCK,
    GROUP,
    KEY,
    PREFETCH_GROUPS,
    SETTINGS,
    SHUT,
    STATE,
    key_bytes,
    load_keys,
    make_group,
    pick_rows,
    probe,
    spread,
)
from kernels.registry import device, kernel


class KeepSettings(NamedTuple):
    """How long records are kept without rows."""

    keep: I64 = field("longest pause between two rows of a record (us); 0: records stay")
    horizon: I64 = field("time (us); records whose latest row is older are forgotten")
    time: I64 = field("number of the event-time column")
    word: I64 = field("the word of a record's latest time")


KEEP = words(KeepSettings)
GONE = -(2**63)
"""The latest time of a record that is SHUT."""


@device
def has_ended(group: Any, keeping: Any, time: Any) -> Any:
    """Whether a row at `time` is none of a record's, which is forgotten."""
    latest = group[keeping[KEEP.word]]
    return latest < keeping[KEEP.horizon] or time - latest > keeping[KEEP.keep]


@device
def fetch_records(hashes: Any, rows: Any, count: int, groups: Any, table: Any) -> None:
    """Prefetch a block's table entries and then their records."""
    mask = np.uint64(table.size - 1)
    table_at, groups_at = np.int64(table.ctypes.data), np.int64(groups.ctypes.data)
    places = np.empty(BLOCK, np.int64)
    for j in range(count):
        places[j] = np.int64(spread(hashes[rows[j]], 0) & mask)
        mem.prefetch(table_at + 4 * places[j])
    for j in range(count):
        g = table[places[j]]
        if g >= 0:
            mem.prefetch(groups_at + 8 * groups.shape[1] * g)


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64[::1], uint64[::1], int64, int64, int64[:, ::1],"
    " int32[::1], uint8[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64[::1])",
    reference="tests.naive.slots.find_slots",
)
def find_slots(
    columns: Any, keys: Any, settings: Any, hashes: Any, at: int, stop: int, groups: Any,
    table: Any, store: Any, state: Any, rows: Any, slots: Any, found: Any, keeping: Any,
) -> Any:  # fmt: skip
    """The lane's rows of `at..stop-1`, and the record of each, appended from place `found[0]` on.

    Returns the first row not done: `stop`, or less if records or store lack room (`need` store
    bytes, and one record).  Grow them and continue there.
    """
    width = GROUP.keys - GROUP.nulls
    for k in range(keys.shape[0]):
        width += 2 if keys[k, KEY.kind] == VARIABLE else 1
    key_words, kinds = np.empty((BLOCK, width), np.int64), np.zeros(width, np.uint8)
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            kinds[keys[k, KEY.word] - GROUP.nulls] = 1
    block = np.empty(BLOCK, np.int64)
    store_at, table_at = np.int64(store.ctypes.data), np.int64(table.ctypes.data)
    groups_at, row_bytes = np.int64(groups.ctypes.data), 8 * groups.shape[1]
    words_at, kinds_at = np.int64(key_words.ctypes.data), np.int64(kinds.ctypes.data)
    mask, capacity, n = np.uint64(table.size - 1), groups.shape[0], found[0]
    keep, time, times = keeping[KEEP.keep], np.int64(0), np.int64(0)
    if keep != 0:
        times = columns[keeping[KEEP.time], COLUMN.values]
    while at < stop:
        count, following = pick_rows(settings, hashes, at, stop, block)
        load_keys(columns, keys, block, count, key_words)
        if state[STATE.groups] > PREFETCH_GROUPS:
            fetch_records(hashes, block, count, groups, table)
        for j in range(count):
            row = block[j]
            place = probe(
                table_at, mask, groups_at, row_bytes, kinds_at, width, 0, hashes[row],
                words_at + 8 * width * j, store_at,
            )  # fmt: skip
            before = np.int64(table[place])
            if keep != 0:
                time = mem.load_i64(times + 8 * row)
            if before < 0 or (keep != 0 and has_ended(groups[before], keeping, time)):
                need = key_bytes(keys, key_words, j, 0)
                if state[STATE.groups] >= capacity or state[STATE.bytes] + need > store.size:
                    state[STATE.need] = need
                    found[0] = n
                    return row
                table[place] = make_group(
                    keys, 0, settings[SETTINGS.base] + row, hashes[row], key_words, j, groups,
                    store_at, state,
                )  # fmt: skip
                if keep != 0:
                    latest = max(time, keeping[KEEP.horizon])
                    groups[table[place], keeping[KEEP.word]] = latest
                    state[STATE.oldest] = min(state[STATE.oldest], latest)
                    if before >= 0:
                        groups[before, GROUP.start] = SHUT
                        groups[before, keeping[KEEP.word]] = state[STATE.oldest] = GONE
            elif keep != 0 and groups[before, keeping[KEEP.word]] < time:
                groups[before, keeping[KEEP.word]] = time
            rows[n] = row
            slots[n] = table[place]
            n += 1
        at = following
    found[0] = n
    return stop
