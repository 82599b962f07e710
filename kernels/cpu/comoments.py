"""COMOMENTS: means, squared deviations and products of deviations of pairs (x, y).

A pair counts where neither value is null.  Values are taken as distances from the first pair, and
their moments follow Welford's update (Chan, Golub and LeVeque, 1979).  The distance makes the
update accurate where the values are large and close to each other, as times are: of 64-bit integers
it is taken before they become floats.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import (
    AGGREGATE,
    F4,
    F8,
    U8,
    load_f64,
    load_float,
    load_int,
    mark_present,
)
from kernels.cpu.columns import COLUMN
from kernels.cpu.exact_sums import float_bits
from kernels.cpu.records import F64, I64, field, words
from kernels.registry import device


class PairMoments(NamedTuple):
    """Moments of distances from the first pair; `first_x` and `first_y` are bits of integers where
    the columns hold integers."""

    n: I64 = field("pairs")
    first_x: F64 = field("x of the first pair")
    first_y: F64 = field("y of the first pair")
    mean_x: F64 = field("mean distance of x")
    mean_y: F64 = field("mean distance of y")
    m2_x: F64 = field("sum of squared deviations of x from its mean")
    m2_y: F64 = field("the same of y")
    m2_xy: F64 = field("sum of products of both deviations")


PAIR = words(PairMoments)


@device
def store_f64(at: int, value: float) -> None:
    """Store a float64 at an address."""
    mem.store_i64(at, float_bits(value))


@device
def distance(kind: int, at: int, origin: int, first: bool) -> Any:
    """The value at an address less the one at `origin`, which it becomes if `first`."""
    if kind in (F4, F8, U8):
        value = load_float(kind, at)
        if first:
            mem.store_i64(origin, float_bits(value))
        return value - load_f64(origin)
    whole = load_int(kind, at)
    if first:
        mem.store_i64(origin, whole)
    begin = mem.load_i64(origin)
    apart = whole - begin
    if ((whole ^ begin) & (whole ^ apart)) < 0:
        return np.float64(whole) - np.float64(begin)
    return np.float64(apart)


@device
def add_pair(pair: int, x: float, y: float) -> None:
    """Add two distances to the PairMoments at an address."""
    n = mem.load_i64(pair) + 1
    mem.store_i64(pair, n)
    share = 1.0 / n
    mean_x, mean_y = load_f64(pair + 8 * PAIR.mean_x), load_f64(pair + 8 * PAIR.mean_y)
    dx, dy = x - mean_x, y - mean_y
    mean_x += dx * share
    mean_y += dy * share
    rest = y - mean_y
    store_f64(pair + 8 * PAIR.mean_x, mean_x)
    store_f64(pair + 8 * PAIR.mean_y, mean_y)
    store_f64(pair + 8 * PAIR.m2_x, load_f64(pair + 8 * PAIR.m2_x) + dx * (x - mean_x))
    store_f64(pair + 8 * PAIR.m2_y, load_f64(pair + 8 * PAIR.m2_y) + dy * rest)
    store_f64(pair + 8 * PAIR.m2_xy, load_f64(pair + 8 * PAIR.m2_xy) + dx * rest)


@device
def add_comoments(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, ok: Any, n: int, groups: Any
) -> None:
    """Add a block's pairs of values."""
    c, d, w = aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.second], aggs[a, AGGREGATE.word]
    code_x, code_y = aggs[a, AGGREGATE.code], aggs[a, AGGREGATE.second_code]
    values_x, width_x = columns[c, COLUMN.values], columns[c, COLUMN.width]
    values_y, width_y = columns[d, COLUMN.values], columns[d, COLUMN.width]
    base, row_bytes = np.int64(groups.ctypes.data) + 8 * w, 8 * groups.shape[1]
    both = np.empty(n, np.uint8)
    mark_present(columns, c, rows, n, ok)
    mark_present(columns, d, rows, n, both)
    for j in range(n):
        if ok[j] & both[j]:
            pair, row = base + row_bytes * to[j], rows[j]
            first = mem.load_i64(pair) == 0
            x = distance(code_x, values_x + width_x * row, pair + 8 * PAIR.first_x, first)
            y = distance(code_y, values_y + width_y * row, pair + 8 * PAIR.first_y, first)
            add_pair(pair, x, y)
