"""Slots of keys: a hash table from the key of a row to a record of words, its state.

A slot is a row of `groups` (int64[capacity, words]): a `WindowGroup` of `kernels.cpu.window`, whose
`start` is here the latest time of the key's rows, at least the horizon when they came, then the key
words, then the words of an operator's state, which begin as 0.  `table` (int32, a power of two, at
least twice the capacity) holds slot numbers, -1 if empty, probed linearly.  `state` is a
`GroupState`, key columns are `GroupKey`s.

With several lanes a lane takes the rows of its hashes; a key belongs to one lane, which sees its
rows in order.
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
    STATE,
    key_bytes,
    load_keys,
    make_group,
    same_key,
)
from kernels.registry import device, kernel


class SlotSettings(NamedTuple):
    """The lane and the batch at hand."""

    time: I64 = field("number of the event-time column")
    lane: I64 = field("number of the lane")
    lanes: I64 = field("lanes")
    base: I64 = field("number of the batch's first row")
    makes: I64 = field("1: a key without a slot gets one; 0: its rows get -1")
    null_keys: I64 = field("1: null is a key like any other; 0: its rows get -1")
    horizon: I64 = field("time (us); a key whose rows are all older is as good as without a slot")
    word: I64 = field("first word of the state")
    exact: I64 = field("1: one key column, of which equal hashes prove equal values")


SLOT = words(SlotSettings)


@device
def is_mine(key_hash: Any, lane: int, lanes: int) -> Any:
    """Whether a lane has the rows of a hash."""
    return ((key_hash >> np.uint64(58)) * np.uint64(lanes)) >> np.uint64(6) == np.uint64(lane)


@device
def pick(settings: Any, hashes: Any, at: int, stop: int, rows: Any) -> Any:
    """The lane's next block of rows; returns (count, next row)."""
    lane, lanes, count = settings[SLOT.lane], settings[SLOT.lanes], 0
    while at < stop and count < BLOCK:
        if lanes == 1 or is_mine(hashes[at], lane, lanes):
            rows[count] = at
            count += 1
        at += 1
    return count, at


@device
def exact_place(table: Any, groups: Any, key_hash: Any, nulls: int) -> Any:
    """The table's place of a key that its hash proves: its slot's, or an empty one."""
    mask, i = np.uint64(table.size - 1), key_hash & np.uint64(table.size - 1)
    while True:
        g = table[i]
        if g < 0 or (
            groups[g, GROUP.hash] == np.int64(key_hash) and groups[g, GROUP.nulls] == nulls
        ):
            return np.int64(i)
        i = (i + np.uint64(1)) & mask


@device
def slot_place(
    table: Any, groups: Any, kinds: int, width: int, key_hash: Any, key_words: int, store: int
) -> Any:
    """The table's place of a key: its slot's, or an empty one."""
    mask, row_bytes = np.uint64(table.size - 1), 8 * groups.shape[1]
    groups_at, i = np.int64(groups.ctypes.data), key_hash & mask
    while True:
        g = table[i]
        if g < 0:
            return np.int64(i)
        group = groups_at + row_bytes * np.int64(g)
        if mem.load_u64(group + 8 * GROUP.hash) == key_hash and same_key(
            kinds, width, group + 8 * GROUP.nulls, key_words, store
        ):
            return np.int64(i)
        i = (i + np.uint64(1)) & mask


@device
def begin_again(group: Any, word: int, number: int, time: int) -> None:
    """Make a slot as new, for a row's number and time."""
    group[GROUP.first], group[GROUP.start] = number, time
    for w in range(word, group.size):
        group[w] = 0


@device
def fetch_slots(hashes: Any, rows: Any, count: int, groups: Any, table: Any) -> None:
    """Prefetch a block's table entries and then its slots."""
    mask = np.uint64(table.size - 1)
    table_at, groups_at = np.int64(table.ctypes.data), np.int64(groups.ctypes.data)
    for j in range(count):
        mem.prefetch(table_at + 4 * np.int64(hashes[rows[j]] & mask))
    for j in range(count):
        g = table[hashes[rows[j]] & mask]
        if g >= 0:
            mem.prefetch(groups_at + 8 * groups.shape[1] * np.int64(g))


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], int64[::1], uint64[::1], int64, int64, int64[:, ::1],"
    " int32[::1], uint8[::1], int64[::1], int32[::1])",
    reference="tests.naive.keyed.find_slots",
)
def find_slots(
    columns: Any, keys: Any, settings: Any, hashes: Any, at: int, stop: int, groups: Any,
    table: Any, store: Any, state: Any, slots: Any,
) -> Any:  # fmt: skip
    """Write into `slots` the slot of each of the lane's rows `at..stop-1`; -1: none.

    Returns the first row not done: `stop`, or less where groups or store lack room (`need` bytes).
    """
    width = GROUP.keys - GROUP.nulls
    for k in range(keys.shape[0]):
        width += 2 if keys[k, KEY.kind] == VARIABLE else 1
    rows = np.empty(BLOCK, np.int64)
    key_words, kinds = np.empty((BLOCK, width), np.int64), np.zeros(width, np.uint8)
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            kinds[keys[k, KEY.word] - GROUP.nulls] = 1
    times, store_at = columns[settings[SLOT.time], COLUMN.values], np.int64(store.ctypes.data)
    kinds_at = np.int64(kinds.ctypes.data)
    makes, null_keys, exact = settings[SLOT.makes], settings[SLOT.null_keys], settings[SLOT.exact]
    valid = np.int64(0)
    if exact != 0:
        valid = columns[keys[0, KEY.column], COLUMN.valid]
    while at < stop:
        count, following = pick(settings, hashes, at, stop, rows)
        if exact == 0:
            load_keys(columns, keys, rows, count, key_words)
        if state[STATE.groups] > PREFETCH_GROUPS:
            fetch_slots(hashes, rows, count, groups, table)
        for j in range(count):
            row = rows[j]
            if exact != 0:
                nulls = np.int64(valid != 0 and mem.load_u8(valid + row) == 0)
            else:
                nulls = key_words[j, 0]
            if null_keys == 0 and nulls != 0:
                slots[row] = -1
                continue
            if exact != 0:
                place = exact_place(table, groups, hashes[row], nulls)
            else:
                words_at = np.int64(key_words.ctypes.data) + 8 * width * j
                place = slot_place(table, groups, kinds_at, width, hashes[row], words_at, store_at)
            time, g = mem.load_i64(times + 8 * row), np.int64(table[place])
            seen = max(time, settings[SLOT.horizon])
            if g >= 0 and groups[g, GROUP.start] < settings[SLOT.horizon]:
                if makes == 0:
                    g = -1
                else:
                    begin_again(groups[g], settings[SLOT.word], settings[SLOT.base] + row, seen)
            if g < 0 and makes != 0:
                if exact != 0:
                    load_keys(columns, keys, rows[j : j + 1], 1, key_words[j : j + 1])
                need = key_bytes(keys, key_words, j, 0)
                if state[STATE.groups] == groups.shape[0] or state[STATE.bytes] + need > store.size:
                    state[STATE.need] = need
                    return row
                number = settings[SLOT.base] + row
                g = make_group(
                    keys, seen, number, hashes[row], key_words, j, groups, store_at, state
                )
                table[place] = g
            if g >= 0 and makes != 0 and groups[g, GROUP.start] < time:
                groups[g, GROUP.start] = time
            slots[row] = g
        at = following
    return stop


@kernel("void(int64[:, ::1], int32[::1])", reference="tests.naive.keyed.rebuild_slots")
def rebuild_slots(groups: Any, table: Any) -> None:
    """Build the hash table of `groups`."""
    mask = np.uint64(table.size - 1)
    table[:] = -1
    for g in range(groups.shape[0]):
        i = np.uint64(groups[g, GROUP.hash]) & mask
        while table[i] >= 0:
            i = (i + np.uint64(1)) & mask
        table[i] = g
