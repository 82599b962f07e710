"""Accumulators of weighted rows: a row of weight n counts n times, one of weight -n takes n back.

All are linear, so the order of rows has no effect, and rows that are taken back leave every word 0
(`kernels.cpu.accumulate` describes the layout).  The kinds:

    WEIGHTED_ROWS     the weight of all rows, one word
    WEIGHTED_COUNT    the weight of the values that are not null, one word
    WEIGHTED_INT      an `IntegerSum`, whose n is a weight
    WEIGHTED_FLOAT    an `ExactSum`
    WEIGHTED_SQUARES  an `ExactSum` of the values and then one of their squares
    WEIGHTED_PAIRS    of pairs (x, y) without nulls: `ExactSum`s of x, y, x², y² and xy
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import (
    AGGREGATE,
    DISTINCT,
    INTEGER_SUM,
    U8,
    load_float,
    load_int,
)
from kernels.cpu.columns import COLUMN
from kernels.cpu.exact_sums import EXACT, EXACT_WORDS, add_exact, add_product
from kernels.registry import device

WEIGHTED = DISTINCT + 1
"""The first of the kinds that weights have."""
WEIGHTED_ROWS, WEIGHTED_COUNT, WEIGHTED_INT, WEIGHTED_FLOAT, WEIGHTED_SQUARES, WEIGHTED_PAIRS = (
    range(WEIGHTED, WEIGHTED + 6)
)
PAIR_SUMS = 5
"""Sums of WEIGHTED_PAIRS."""


@device
def add_weighted_integer(kind: int, at: int, weight: Any, groups: Any, g: int, w: int) -> None:
    """Add the integer at an address `weight` times to an IntegerSum."""
    value = load_int(kind, at)
    negative = kind != U8 and value < 0
    amount, times = np.uint64(value), np.uint64(abs(weight))
    if negative:
        amount = ~amount + np.uint64(1)
    first = (amount & np.uint64(0xFFFFFFFF)) * times
    second = (amount >> np.uint64(32)) * times
    low, high = first + (second << np.uint64(32)), second >> np.uint64(32)
    if low < first:
        high += np.uint64(1)
    before = np.uint64(groups[g, w + INTEGER_SUM.low])
    if negative != (weight < 0):
        if before < low:
            high += np.uint64(1)
        groups[g, w + INTEGER_SUM.low] = np.int64(before - low)
        groups[g, w + INTEGER_SUM.high] -= np.int64(high)
    else:
        low += before
        if low < before:
            high += np.uint64(1)
        groups[g, w + INTEGER_SUM.low] = np.int64(low)
        groups[g, w + INTEGER_SUM.high] += np.int64(high)
    groups[g, w + INTEGER_SUM.n] += weight


@device
def add_weighted_pairs(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, n: int, groups: Any
) -> None:
    """Add a block's pairs of values to WEIGHTED_PAIRS."""
    c, d, w = aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.second], aggs[a, AGGREGATE.word]
    weights = columns[aggs[a, AGGREGATE.weight], COLUMN.values]
    valid_x, valid_y = columns[c, COLUMN.valid], columns[d, COLUMN.valid]
    for j in range(n):
        row, g = rows[j], to[j]
        if (valid_x != 0 and mem.load_u8(valid_x + row) == 0) or (
            valid_y != 0 and mem.load_u8(valid_y + row) == 0
        ):
            continue
        weight = np.int64(mem.load_i32(weights + 4 * row))
        at_x = columns[c, COLUMN.values] + columns[c, COLUMN.width] * row
        at_y = columns[d, COLUMN.values] + columns[d, COLUMN.width] * row
        x = load_float(aggs[a, AGGREGATE.code], at_x)
        y = load_float(aggs[a, AGGREGATE.second_code], at_y)
        for k in range(PAIR_SUMS):
            groups[g, w + k * EXACT_WORDS + EXACT.n] += weight
        add_exact(groups, g, w, x, weight)
        add_exact(groups, g, w + EXACT_WORDS, y, weight)
        add_product(groups, g, w + 2 * EXACT_WORDS, x, x, weight)
        add_product(groups, g, w + 3 * EXACT_WORDS, y, y, weight)
        add_product(groups, g, w + 4 * EXACT_WORDS, x, y, weight)


@device
def add_weighted(columns: Any, aggs: Any, a: int, rows: Any, to: Any, n: int, groups: Any) -> None:
    """Add a block's pairs to one accumulator of weighted rows."""
    kind, c, at = aggs[a, AGGREGATE.kind], aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.weight]
    code, w = aggs[a, AGGREGATE.code], aggs[a, AGGREGATE.word]
    weights = columns[at, COLUMN.values]
    if kind == WEIGHTED_ROWS:
        for j in range(n):
            groups[to[j], w] += np.int64(mem.load_i32(weights + 4 * rows[j]))
        return
    if kind == WEIGHTED_PAIRS:
        add_weighted_pairs(columns, aggs, a, rows, to, n, groups)
        return
    width, values, valid = (
        columns[c, COLUMN.width],
        columns[c, COLUMN.values],
        columns[c, COLUMN.valid],
    )
    for j in range(n):
        row, g = rows[j], to[j]
        if valid != 0 and mem.load_u8(valid + row) == 0:
            continue
        weight = np.int64(mem.load_i32(weights + 4 * row))
        if kind == WEIGHTED_COUNT:
            groups[g, w] += weight
        elif kind == WEIGHTED_INT:
            add_weighted_integer(code, values + width * row, weight, groups, g, w)
        else:
            value = load_float(code, values + width * row)
            groups[g, w + EXACT.n] += weight
            add_exact(groups, g, w, value, weight)
            if kind == WEIGHTED_SQUARES:
                groups[g, w + EXACT_WORDS + EXACT.n] += weight
                add_product(groups, g, w + EXACT_WORDS, value, value, weight)
