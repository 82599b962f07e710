"""Windowed groups: rows find their (key, window) group in a hash table and update its aggregates.

A group is one row of `groups` (int64[capacity, words]; `floats` is the same memory as float64): a
`WindowGroup`, whose key words the accumulators follow.

A fixed key column has one word, its bits zero-extended, floats with one zero and one NaN; a string
or binary one has two, place and size in `store` (uint8[bytes]).  `table` (int32, a power of two,
at least twice the capacity) holds group numbers, -1 if empty, probed linearly.  Groups and their
bytes in the store are in the order of creation.  `state` is a `GroupState`, `settings` a
`GroupSettings`.  Key columns are the rows of `keys` (`GroupKey`), accumulators those of `aggs`
(`kernels.cpu.accumulate.GroupAggregate`; those of weighted rows: `kernels.cpu.weighted`).

With several lanes a lane takes the rows of its hashes; each group belongs to one lane and gets its
rows in arrival order, so float sums do not depend on the lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import (
    F4,
    F8,
    I2,
    I4,
    I8,
    U2,
    U4,
    U8,
    VARIABLE,
    load_f32,
    load_f64,
)
from kernels.cpu.columns import COLUMN
from kernels.cpu.records import I64, field, words
from kernels.registry import device, kernel


class WindowGroup(NamedTuple):
    """A group of a key and a window, up to its first key word."""

    start: I64 = field("begin of the window (us)")
    first: I64 = field("number of the group's first row")
    hash: I64 = field("hash of the key")
    nulls: I64 = field("bit k: key column k is null")
    keys: I64 = field("first of the key words")


class GroupKey(NamedTuple):
    """A key column."""

    column: I64 = field("number of the column")
    kind: I64 = field("type code (`kernels.cpu.accumulate`)")
    word: I64 = field("its first word in a group")


class GroupState(NamedTuple):
    """What a lane counts."""

    groups: I64 = field("groups")
    bytes: I64 = field("bytes of the store in use")
    oldest: I64 = field(
        "no group has an earlier begin, or end of an OpenWindow; OLDEST_NONE: no groups"
    )
    errors: I64 = field("rows whose windows lie outside of 64-bit time")
    need: I64 = field("bytes of the store that a row lacked")


class GroupSettings(NamedTuple):
    """The windows, the lane and the batch at hand."""

    time: I64 = field("number of the event-time column")
    size: I64 = field("length of a window (us)")
    every: I64 = field("distance between the begins of windows (us)")
    hops: I64 = field("windows of a row, at most")
    time_low: I64 = field("earliest time whose windows lie within 64-bit time")
    time_high: I64 = field("latest such time")
    lane: I64 = field("number of the lane")
    lanes: I64 = field("lanes")
    base: I64 = field("number of the batch's first row")
    gap: I64 = field("of sessions: the pause that ends one (us); else 0")
    rows: I64 = field("of windows of a number of rows: that number; else 0")
    opened: I64 = field("first word of a group's OpenWindow (`kernels.cpu.open_windows`)")


GROUP, KEY = words(WindowGroup), words(GroupKey)
STATE, SETTINGS = words(GroupState), words(GroupSettings)
BLOCK = 1024
"""Rows (and about as many pairs of row and window) that are looked up before aggregation."""
PREFETCH_GROUPS = 4096
"""Above this number of groups the table is prefetched."""
OLDEST_NONE = 2**63 - 1
SHUT = 1
"""The start of a group that is in no table (`kernels.cpu.open_windows`)."""
K1, K2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


@device
def spread(key_hash: Any, start: int) -> Any:
    """The hash of a group's key and window."""
    x = key_hash ^ (np.uint64(start) * K1)
    x ^= x >> np.uint64(32)
    x *= K2
    return x ^ (x >> np.uint64(29))


@device
def key_word(kind: int, at: int) -> Any:
    """A fixed-width key's bits, zero-extended; floats have one zero and one NaN."""
    if kind in (I8, U8):
        return mem.load_i64(at)
    if kind == F8:
        x = load_f64(at)
        if x != x:
            return np.int64(0x7FF8000000000000)
        return np.int64(0) if x == 0.0 else mem.load_i64(at)
    if kind == F4:
        y = load_f32(at)
        if y != y:
            return np.int64(0x7FC00000)
        return np.int64(0) if y == 0.0 else np.int64(mem.load_u32(at))
    if kind in (I4, U4):
        return np.int64(mem.load_u32(at))
    if kind in (I2, U2):
        return np.int64(mem.load_u16(at))
    return np.int64(mem.load_u8(at))


@device
def load_keys(columns: Any, keys: Any, rows: Any, count: int, key_words: Any) -> None:
    """The block's keys as in a group from `nulls` on; the place of a string is its address."""
    for j in range(count):
        key_words[j, 0] = 0
    for k in range(keys.shape[0]):
        c, kind, w = keys[k, KEY.column], keys[k, KEY.kind], keys[k, KEY.word] - GROUP.nulls
        width, values, valid, offsets = (
            columns[c, COLUMN.width],
            columns[c, COLUMN.values],
            columns[c, COLUMN.valid],
            columns[c, COLUMN.offsets],
        )
        for j in range(count):
            row = rows[j]
            if kind == VARIABLE:
                begin = mem.load_i64(offsets + 8 * row)
                key_words[j, w] = values + begin
                key_words[j, w + 1] = mem.load_i64(offsets + 8 * row + 8) - begin
            else:
                key_words[j, w] = key_word(kind, values + width * row)
            if valid != 0 and mem.load_u8(valid + row) == 0:
                key_words[j, 0] |= np.int64(1) << k
                key_words[j, w] = 0
                if kind == VARIABLE:
                    key_words[j, w + 1] = 0


@device
def same_bytes(a: int, b: int, size: int) -> bool:
    """Whether `size` bytes at two addresses are equal."""
    whole = size & ~7
    for at in range(0, whole, 8):
        if mem.load_u64(a + at) != mem.load_u64(b + at):
            return False
    for at in range(whole, size):  # noqa: SIM110 - a generator does not compile
        if mem.load_u8(a + at) != mem.load_u8(b + at):
            return False
    return True


@device
def same_key(kinds: int, width: int, group: int, key_words: int, store: int) -> Any:
    """Whether a group's key words (from `nulls` on, at address `group`) are `key_words`."""
    for w in range(width):
        a, b = mem.load_i64(group + 8 * w), mem.load_i64(key_words + 8 * w)
        if mem.load_u8(kinds + w) == 0:
            if a != b:
                return False
        else:
            size = mem.load_i64(key_words + 8 * w + 8)
            if mem.load_i64(group + 8 * w + 8) != size or not same_bytes(store + a, b, size):
                return False
    return True


@device
def key_bytes(keys: Any, key_words: Any, j: int, first: int) -> Any:
    """Store bytes of key `j` of `key_words`; `first` is the column of its `nulls` word."""
    total = 0
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            total += key_words[j, first + keys[k, KEY.word] + 1 - GROUP.nulls]
    return total


@device
def make_group(
    keys: Any, start: int, first: int, key_hash: Any, key_words: Any, j: int, groups: Any,
    store: int, state: Any,
) -> Any:  # fmt: skip
    """Append a group with the block's key `j`.  The caller has checked the room."""
    g = state[STATE.groups]
    for w in range(groups.shape[1]):
        groups[g, w] = 0
    groups[g, GROUP.start], groups[g, GROUP.first], groups[g, GROUP.hash] = (
        start,
        first,
        np.int64(key_hash),
    )
    for w in range(key_words.shape[1]):
        groups[g, GROUP.nulls + w] = key_words[j, w]
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            w = keys[k, KEY.word]
            mem.copy_bytes(store + state[STATE.bytes], groups[g, w], groups[g, w + 1])
            groups[g, w] = state[STATE.bytes]
            state[STATE.bytes] += groups[g, w + 1]
    state[STATE.groups] = g + 1
    state[STATE.oldest] = min(state[STATE.oldest], start)
    return g


@device
def probe(
    table: int, mask: Any, groups: int, row_bytes: int, kinds: int, width: int, start: int,
    key_hash: Any, key_words: int, store: int,
) -> Any:  # fmt: skip
    """The table's place of a key and window: its group's, or an empty one.

    Takes addresses, since passing arrays costs more than the lookup.
    """
    i = spread(key_hash, start) & mask
    while True:
        g = np.int64(mem.load_i32(table + 4 * np.int64(i)))
        if g < 0:
            return np.int64(i)
        group = groups + row_bytes * g
        if (
            mem.load_i64(group + 8 * GROUP.start) == start
            and mem.load_u64(group + 8 * GROUP.hash) == key_hash
            and same_key(kinds, width, group + 8 * GROUP.nulls, key_words, store)
        ):
            return np.int64(i)
        i = (i + np.uint64(1)) & mask


@device
def pick_rows(settings: Any, hashes: Any, at: int, stop: int, rows: Any) -> Any:
    """The lane's next block of rows; returns (count, next row)."""
    lane, lanes = np.uint64(settings[SETTINGS.lane]), np.uint64(settings[SETTINGS.lanes])
    most = max(1, BLOCK // settings[SETTINGS.hops])
    count = 0
    if settings[SETTINGS.lanes] == 1:
        count = min(most, stop - at)
        for j in range(count):
            rows[j] = at + j
        return count, at + count
    while at < stop and count < most:
        if ((hashes[at] >> np.uint64(58)) * lanes) >> np.uint64(6) == lane:
            rows[count] = at
            count += 1
        at += 1
    return count, at


@device
def fetch_ahead(
    settings: Any, hashes: Any, times: int, rows: Any, count: int, groups: Any, table: Any
) -> None:
    """Prefetch a block's table entries and then the groups of its newest windows."""
    every, mask = settings[SETTINGS.every], np.uint64(table.size - 1)
    table_at, groups_at = np.int64(table.ctypes.data), np.int64(groups.ctypes.data)
    places = np.empty(BLOCK, np.int64)
    for j in range(count):
        start = mem.load_i64(times + 8 * rows[j]) // every * every
        places[j] = np.int64(spread(hashes[rows[j]], start) & mask)
        mem.prefetch(table_at + 4 * places[j])
    for j in range(count):
        g = table[places[j]]
        if g >= 0:
            mem.prefetch(groups_at + 8 * groups.shape[1] * g)


@device
def find_groups(
    settings: Any, keys: Any, hashes: Any, times: int, rows: Any, count: int, key_words: Any,
    kinds: Any, groups: Any, table: Any, store: Any, state: Any, pair_rows: Any, pair_groups: Any,
) -> Any:  # fmt: skip
    """Pairs of row and group for a block's rows, while there is room.

    Returns (rows done, pairs).  A row is done in all of its windows or in none.
    """
    size, every, hops = settings[SETTINGS.size], settings[SETTINGS.every], settings[SETTINGS.hops]
    store_at, table_at = np.int64(store.ctypes.data), np.int64(table.ctypes.data)
    groups_at, row_bytes = np.int64(groups.ctypes.data), 8 * groups.shape[1]
    words_at, width = np.int64(key_words.ctypes.data), key_words.shape[1]
    kinds_at = np.int64(kinds.ctypes.data)
    mask, capacity = np.uint64(table.size - 1), groups.shape[0]
    pairs, newest = 0, np.int64(0)
    for j in range(count):
        row = rows[j]
        need = key_bytes(keys, key_words, j, 0) * hops
        if state[STATE.groups] + hops > capacity or state[STATE.bytes] + need > store.size:
            state[STATE.need] = need
            return j, pairs
        time = mem.load_i64(times + 8 * row)
        if time < settings[SETTINGS.time_low] or time > settings[SETTINGS.time_high]:
            state[STATE.errors] += 1
            continue
        if time < newest or time >= newest + every:
            newest = time // every * every
        start = newest
        while start + size > time:
            place = probe(
                table_at, mask, groups_at, row_bytes, kinds_at, width, start, hashes[row],
                words_at + 8 * width * j, store_at,
            )  # fmt: skip
            if table[place] < 0:
                table[place] = make_group(
                    keys, start, settings[SETTINGS.base] + row, hashes[row], key_words, j, groups,
                    store_at, state,
                )  # fmt: skip
            pair_rows[pairs] = row
            pair_groups[pairs] = table[place]
            pairs += 1
            start -= every
    return count, pairs


@kernel(
    "void(int64[:, ::1], int64[:, ::1], int64, int64, int64[::1])",
    reference="tests.naive.window.count_expired",
)
def count_expired(keys: Any, groups: Any, word: int, before: int, found: Any) -> None:
    """Fill `found` with the number of groups whose `word` is below `before`, and their store
    bytes."""
    found[0] = found[1] = 0
    for g in range(groups.shape[0]):
        if groups[g, word] < before:
            found[0] += 1
            found[1] += key_bytes(keys, groups, g, GROUP.nulls)


@kernel(
    "void(int64[:, ::1], int64[:, ::1], uint8[::1], int64[::1], int32[::1], int64,"
    " int64, int64[:, ::1], uint8[::1])",
    reference="tests.naive.window.expire",
)
def expire(
    keys: Any, groups: Any, store: Any, state: Any, table: Any, word: int, before: int, gone: Any,
    gone_store: Any,
) -> None:  # fmt: skip
    """Move the groups whose `word` is below `before` to `gone`, close the gaps and rebuild the
    table.  The word is GROUP.start, or the end of an OpenWindow.

    `gone` and `gone_store` have the sizes of `count_expired`; the order of groups is kept.
    """
    count, kept, kept_bytes, gone_count, gone_bytes = state[STATE.groups], 0, 0, 0, 0
    state[STATE.oldest] = OLDEST_NONE
    for g in range(count):
        group = groups[g]
        if group[word] < before:
            gone[gone_count] = group
            gone_bytes = move_bytes(keys, store, gone[gone_count], gone_store, gone_bytes)
            gone_count += 1
        else:
            state[STATE.oldest] = min(state[STATE.oldest], group[word])
            kept_bytes = move_bytes(keys, store, group, store, kept_bytes)
            if kept != g:
                groups[kept] = group
            kept += 1
    state[STATE.groups], state[STATE.bytes] = kept, kept_bytes
    fill_table(groups, kept, table, word)


@device
def move_bytes(keys: Any, store: Any, group: Any, to: Any, at: int) -> Any:
    """Move a group's strings to `at` (never behind their old place, if in the same store)."""
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            w = keys[k, KEY.word]
            begin, size = group[w], group[w + 1]
            for b in range(size):
                to[at + b] = store[begin + b]
            group[w] = at
            at += size
    return at


@device
def fill_table(groups: Any, count: int, table: Any, word: int) -> None:
    """Build the hash table of the first `count` groups; `word` is that of `expire`."""
    mask = np.uint64(table.size - 1)
    table[:] = -1
    for g in range(count):
        if word != GROUP.start and groups[g, GROUP.start] == SHUT:
            continue
        i = spread(np.uint64(groups[g, GROUP.hash]), groups[g, GROUP.start]) & mask
        while table[i] >= 0:
            i = (i + np.uint64(1)) & mask
        table[i] = g


@kernel(
    "void(int64[:, ::1], int64[:, ::1], uint8[::1], uint8[::1])",
    reference="tests.naive.window.lay_out",
)
def lay_out(keys: Any, groups: Any, store: Any, to: Any) -> None:
    """Copy the groups' strings from `store` to `to` in the order of groups."""
    at = 0
    for g in range(groups.shape[0]):
        at = move_bytes(keys, store, groups[g], to, at)


@kernel("void(int64[:, ::1], int32[::1], int64)", reference="tests.naive.window.rebuild")
def rebuild(groups: Any, table: Any, word: int) -> None:
    """Rebuild the hash table of `groups`; `word` is that of `expire`."""
    fill_table(groups, groups.shape[0], table, word)


@kernel(
    "int64(uint8[::1], int64[::1], int64[::1], int64[::1], uint8[::1])",
    reference="tests.naive.window.strings",
)
def strings(store: Any, begins: Any, sizes: Any, offsets: Any, to: Any) -> int:
    """Copy the strings at `begins` to `to`, contiguously; fills `offsets` (int64[n+1])."""
    at = 0
    offsets[0] = 0
    for g in range(begins.size):
        for b in range(sizes[g]):
            to[at + b] = store[begins[g] + b]
        at += sizes[g]
        offsets[g + 1] = at
    return at
