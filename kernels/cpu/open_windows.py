"""Windows that rows open and close: sessions, and windows of a number of rows.

Rows come in the order of event time.  Each key has one open window at most, which its next row
joins or closes:

  - a session (`gap`) takes rows until one lies `gap` or more behind its last row;
  - a window of a number of rows (`rows`) is closed by the last of them.

The group's `start` is OPEN, and SHUT once another has taken its place in the table, which finds the
newest by its key alone.  Its place in event time is in an OpenWindow.  A window is emitted once the
watermark has reached its `end`; that of a session moves with each of its rows.  A late row joins a
session from whose begin it lies less than `gap` away, and is a session of its own otherwise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.records import I64, field, words
from kernels.cpu.window import (
    GROUP,
    OLDEST_NONE,
    SETTINGS,
    SHUT,
    STATE,
    key_bytes,
    make_group,
    probe,
)
from kernels.registry import device


class OpenWindow(NamedTuple):
    """The window of a group, behind its key words."""

    begin: I64 = field("time of the first row (us)")
    last: I64 = field("time of the last row (us)")
    end: I64 = field("time that the watermark must reach; ENDLESS while rows are lacking")
    rows: I64 = field("rows")


OPENED = words(OpenWindow)
OPEN = 0
ENDLESS = OLDEST_NONE - 1


@device
def add_row(settings: Any, group: Any, opened: int, time: Any) -> None:
    """Add a row to the window of a group, and set its end."""
    group[opened + OPENED.begin] = min(group[opened + OPENED.begin], time)
    group[opened + OPENED.last] = max(group[opened + OPENED.last], time)
    group[opened + OPENED.rows] += 1
    if settings[SETTINGS.gap] != 0:
        group[opened + OPENED.end] = group[opened + OPENED.last] + settings[SETTINGS.gap]
    elif group[opened + OPENED.rows] == settings[SETTINGS.rows]:
        group[opened + OPENED.end] = group[opened + OPENED.last]


@device
def joins(settings: Any, group: Any, opened: int, time: Any) -> Any:
    """Whether a row joins the window of a group."""
    gap = settings[SETTINGS.gap]
    if gap == 0:
        return group[opened + OPENED.rows] < settings[SETTINGS.rows]
    return time - group[opened + OPENED.last] < gap and group[opened + OPENED.begin] - time < gap


@device
def find_open(
    settings: Any, keys: Any, hashes: Any, times: int, rows: Any, count: int, key_words: Any,
    kinds: Any, groups: Any, table: Any, store: Any, state: Any, pair_rows: Any, pair_groups: Any,
) -> Any:  # fmt: skip
    """As `find_groups`, of windows that rows open and close."""
    opened = settings[SETTINGS.opened]
    store_at, table_at = np.int64(store.ctypes.data), np.int64(table.ctypes.data)
    groups_at, row_bytes = np.int64(groups.ctypes.data), 8 * groups.shape[1]
    words_at, width = np.int64(key_words.ctypes.data), key_words.shape[1]
    kinds_at, mask = np.int64(kinds.ctypes.data), np.uint64(table.size - 1)
    pairs = 0
    for j in range(count):
        row = rows[j]
        need = key_bytes(keys, key_words, j, 0)
        if state[STATE.groups] + 1 > groups.shape[0] or state[STATE.bytes] + need > store.size:
            state[STATE.need] = need
            return j, pairs
        time = mem.load_i64(times + 8 * row)
        if time < settings[SETTINGS.time_low] or time > settings[SETTINGS.time_high]:
            state[STATE.errors] += 1
            continue
        place = probe(
            table_at, mask, groups_at, row_bytes, kinds_at, width, OPEN, hashes[row],
            words_at + 8 * width * j, store_at,
        )  # fmt: skip
        g = np.int64(table[place])
        if g < 0 or not joins(settings, groups[g], opened, time):
            before, oldest = g, state[STATE.oldest]  # make_group takes OPEN for a time
            g = make_group(
                keys, OPEN, settings[SETTINGS.base] + row, hashes[row], key_words, j, groups,
                store_at, state,
            )  # fmt: skip
            groups[g, opened + OPENED.begin] = groups[g, opened + OPENED.last] = time
            groups[g, opened + OPENED.end] = ENDLESS
            state[STATE.oldest] = oldest
            if before < 0:
                table[place] = g
            elif settings[SETTINGS.gap] != 0 and time < groups[before, opened + OPENED.last]:
                groups[g, GROUP.start] = SHUT
            else:
                groups[before, GROUP.start], table[place] = SHUT, g
        add_row(settings, groups[g], opened, time)
        state[STATE.oldest] = min(state[STATE.oldest], groups[g, opened + OPENED.end])
        pair_rows[pairs], pair_groups[pairs] = row, g
        pairs += 1
    return count, pairs
