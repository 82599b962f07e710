"""`absorb`: a lane's rows find their groups and update the aggregates of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu.accumulate import (
    AGGREGATE,
    COMOMENTS,
    DISTINCT,
    QUANTILES,
    VARIABLE,
    mark_present,
    update,
)
from kernels.cpu.columns import COLUMN
from kernels.cpu.comoments import add_comoments
from kernels.cpu.distinct_sketch import add_distinct
from kernels.cpu.open_windows import find_open
from kernels.cpu.quantile_sketch import add_quantiles
from kernels.cpu.weighted import WEIGHTED, add_weighted
from kernels.cpu.window import (
    BLOCK,
    GROUP,
    KEY,
    PREFETCH_GROUPS,
    SETTINGS,
    STATE,
    fetch_ahead,
    find_groups,
    load_keys,
    pick_rows,
)
from kernels.registry import kernel

_ABSORB = (
    "int64(int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], uint64[::1], int64, int64,"
    " int64[:, ::1], float64[:, ::1], int32[::1], uint8[::1], int64[::1])"
)


@kernel(_ABSORB, reference="tests.naive.window.absorb")
def absorb(
    columns: Any, keys: Any, aggs: Any, settings: Any, hashes: Any, at: int, stop: int,
    groups: Any, floats: Any, table: Any, store: Any, state: Any,
) -> Any:  # fmt: skip
    """Aggregate the lane's rows `at..stop-1` into their groups.

    Returns the first row not done: `stop`, or less if groups or store lack room (`need`
    store bytes, and groups for one row's windows).  Grow them and continue there.
    """
    most = max(BLOCK, settings[SETTINGS.hops])
    rows, ok = np.empty(BLOCK, np.int64), np.empty(most, np.uint8)
    to, pair_rows = np.empty(most, np.int64), np.empty(most, np.int64)
    width = GROUP.keys - GROUP.nulls
    for k in range(keys.shape[0]):
        width += 2 if keys[k, KEY.kind] == VARIABLE else 1
    key_words, kinds = np.empty((BLOCK, width), np.int64), np.zeros(width, np.uint8)
    for k in range(keys.shape[0]):
        if keys[k, KEY.kind] == VARIABLE:
            kinds[keys[k, KEY.word] - GROUP.nulls] = 1
    times = columns[settings[SETTINGS.time], COLUMN.values]
    while at < stop:
        count, following = pick_rows(settings, hashes, at, stop, rows)
        load_keys(columns, keys, rows, count, key_words)
        if state[STATE.groups] > PREFETCH_GROUPS:
            fetch_ahead(settings, hashes, times, rows, count, groups, table)
        if settings[SETTINGS.opened] != 0:
            done, pairs = find_open(
                settings, keys, hashes, times, rows, count, key_words, kinds, groups, table, store,
                state, pair_rows, to,
            )  # fmt: skip
        else:
            done, pairs = find_groups(
                settings, keys, hashes, times, rows, count, key_words, kinds, groups, table, store,
                state, pair_rows, to,
            )  # fmt: skip
        for a in range(aggs.shape[0]):
            kind = aggs[a, AGGREGATE.kind]
            if kind >= WEIGHTED:
                add_weighted(columns, aggs, a, pair_rows, to, pairs, groups)
            elif kind == COMOMENTS:
                add_comoments(columns, aggs, a, pair_rows, to, ok, pairs, groups)
            elif kind in (QUANTILES, DISTINCT):
                mark_present(columns, aggs[a, AGGREGATE.column], pair_rows, pairs, ok)
                if kind == QUANTILES:
                    add_quantiles(columns, aggs, a, pair_rows, to, ok, pairs, groups)
                else:
                    add_distinct(columns, aggs, a, pair_rows, to, ok, pairs, groups)
            else:
                update(columns, aggs, a, pair_rows, to, ok, pairs, groups, floats)
        if done < count:
            return rows[done]
        at = following
    return stop
