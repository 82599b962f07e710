"""Records by key: each row finds the number of its key's record in a hash table, or makes one.

Records are those of `kernels.cpu.window` with one window that begins at 0; their words after the
key are the user's.  New records are zero there: the caller fills in defaults.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import VARIABLE
from kernels.cpu.window import (
    BLOCK,
    GROUP,
    KEY,
    PREFETCH_GROUPS,
    SETTINGS,
    STATE,
    key_bytes,
    load_keys,
    make_group,
    pick_rows,
    probe,
    spread,
)
from kernels.registry import device, kernel


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
    " int32[::1], uint8[::1], int64[::1], int64[::1], int32[::1], int64[::1])",
    reference="tests.naive.slots.find_slots",
)
def find_slots(
    columns: Any, keys: Any, settings: Any, hashes: Any, at: int, stop: int, groups: Any,
    table: Any, store: Any, state: Any, rows: Any, slots: Any, found: Any,
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
            if table[place] < 0:
                need = key_bytes(keys, key_words, j, 0)
                if state[STATE.groups] >= capacity or state[STATE.bytes] + need > store.size:
                    state[STATE.need] = need
                    found[0] = n
                    return row
                table[place] = make_group(
                    keys, 0, settings[SETTINGS.base] + row, hashes[row], key_words, j, groups,
                    store_at, state,
                )  # fmt: skip
            rows[n] = row
            slots[n] = table[place]
            n += 1
        at = following
    found[0] = n
    return stop
