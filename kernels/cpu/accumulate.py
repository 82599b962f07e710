"""Accumulators: the state of a group's aggregates, and their update with blocks of rows.

An accumulator is a few consecutive words of a group's row, seen as int64 (`groups`) or float64
(`floats`: the same memory).  Its kind says which: ROWS and COUNT have one word, the number of rows
and of values that are not null; sums, extremes and moments have the records declared below, in
which `n` is the number of values that are not null.  NaN is greater than every number, as in
DuckDB.  Type codes name how a column's values are read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kernels.compiler import intrinsic, ir, types
from kernels.cpu import mem
from kernels.cpu.columns import COLUMN
from kernels.cpu.records import F64, I64, field, words
from kernels.registry import device

I1, I2, I4, I8, U1, U2, U4, U8, F4, F8, VARIABLE = range(11)
ROWS, COUNT, SUM_INT, SUM_FLOAT, MIN_INT, MAX_INT, MIN_FLOAT, MAX_FLOAT, MOMENTS = range(9)
FIRST_INT, LAST_INT, FIRST_FLOAT, LAST_FLOAT, COMOMENTS, QUANTILES, DISTINCT = range(9, 16)


class GroupAggregate(NamedTuple):
    """An accumulator of a group, and the column that it takes."""

    kind: I64 = field("kind of the accumulator")
    column: I64 = field("number of the column; 0 for ROWS")
    code: I64 = field("type code of the column; 0 for ROWS and COUNT")
    word: I64 = field("first word of the accumulator in a group")
    weight: I64 = field("number of the weight column; of `kernels.cpu.weighted` alone")
    second: I64 = field("number of a second column: the time of FIRST and LAST, y of COMOMENTS")
    second_code: I64 = field("type code of the second column")
    size: I64 = field("of QUANTILES the buckets, of DISTINCT the binary logarithm of registers")


class IntegerSum(NamedTuple):
    """SUM_INT: one 128-bit integer."""

    low: I64 = field("its low half")
    high: I64 = field("its high half")
    n: I64 = field("values")


class FloatSum(NamedTuple):
    """SUM_FLOAT."""

    total: F64 = field("sum")
    n: I64 = field("values")


class Extreme(NamedTuple):
    """MIN_INT and MAX_INT; of MIN_FLOAT and MAX_FLOAT `value` is a float64."""

    value: I64 = field("least or greatest value")
    n: I64 = field("values")


class WelfordMoments(NamedTuple):
    """MOMENTS."""

    n: I64 = field("values")
    mean: F64 = field("their mean")
    m2: F64 = field("sum of their squared deviations from the mean")


class TimedValue(NamedTuple):
    """FIRST and LAST; of the kinds of floats `value` is a float64."""

    value: I64 = field("value at the least or greatest time")
    n: I64 = field("values")
    time: I64 = field("its time (us)")


AGGREGATE = words(GroupAggregate)
INTEGER_SUM, FLOAT_SUM = words(IntegerSum), words(FloatSum)
EXTREME, WELFORD, TIMED = words(Extreme), words(WelfordMoments), words(TimedValue)
SIGN = np.int64(-(2**63))


def _float_loader(kind: Any, llvm: Any) -> Any:
    @intrinsic
    def load(typingctx: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], llvm.as_pointer()))
            value.align = 1
            return value

        return kind(types.int64), codegen

    return load


load_f32 = _float_loader(types.float32, ir.FloatType())
load_f64 = _float_loader(types.float64, ir.DoubleType())


@device
def load_int(kind: int, at: int) -> Any:
    """An integer of any width as int64 (uint64: its bits)."""
    if kind in (I8, U8):
        return mem.load_i64(at)
    if kind == I4:
        return np.int64(mem.load_i32(at))
    if kind == U4:
        return np.int64(mem.load_u32(at))
    if kind == I2:
        return np.int64(np.int16(mem.load_u16(at)))
    if kind == U2:
        return np.int64(mem.load_u16(at))
    if kind == I1:
        return np.int64(np.int8(mem.load_u8(at)))
    return np.int64(mem.load_u8(at))


@device
def load_float(kind: int, at: int) -> Any:
    """Any number as float64."""
    if kind == F8:
        return load_f64(at)
    if kind == F4:
        return np.float64(load_f32(at))
    if kind == U8:
        return np.float64(mem.load_u64(at))
    return np.float64(load_int(kind, at))


@device
def add_integers(
    kind: int, values: int, width: int, rows: Any, to: Any, ok: Any, n: int, groups: Any, w: int
) -> None:
    """SUM_INT: 128-bit sums, which no window overflows."""
    for j in range(n):
        if ok[j]:
            g = to[j]
            value = load_int(kind, values + width * rows[j])
            low = np.uint64(groups[g, w + INTEGER_SUM.low]) + np.uint64(value)
            if low < np.uint64(value):
                groups[g, w + INTEGER_SUM.high] += 1
            if kind != U8 and value < 0:
                groups[g, w + INTEGER_SUM.high] -= 1
            groups[g, w + INTEGER_SUM.low] = np.int64(low)
            groups[g, w + INTEGER_SUM.n] += 1


@device
def extreme_integers(
    kind: int,
    sign: int,
    values: int,
    width: int,
    rows: Any,
    to: Any,
    ok: Any,
    n: int,
    groups: Any,
    w: int,
) -> None:
    """MIN_INT (sign 1) and MAX_INT (sign -1); the bits of uint64 are ordered with a flip."""
    flip = SIGN if kind == U8 else np.int64(0)
    for j in range(n):
        if ok[j]:
            g = to[j]
            value = load_int(kind, values + width * rows[j])
            a, b = value ^ flip, groups[g, w + EXTREME.value] ^ flip
            if groups[g, w + EXTREME.n] == 0 or (a < b if sign > 0 else b < a):
                groups[g, w + EXTREME.value] = value
            groups[g, w + EXTREME.n] += 1


@device
def extreme_floats(
    kind: int,
    sign: int,
    values: int,
    width: int,
    rows: Any,
    to: Any,
    ok: Any,
    n: int,
    groups: Any,
    floats: Any,
    w: int,
) -> None:
    """MIN_FLOAT (sign 1) and MAX_FLOAT (sign -1), NaN the greatest."""
    for j in range(n):
        if ok[j]:
            g = to[j]
            new, old = load_float(kind, values + width * rows[j]), floats[g, w + EXTREME.value]
            a, b = (new, old) if sign > 0 else (old, new)
            if groups[g, w + EXTREME.n] == 0 or a < b or (b != b and a == a):
                floats[g, w + EXTREME.value] = new
            groups[g, w + EXTREME.n] += 1


@device
def add_floats(
    kind: int,
    values: int,
    width: int,
    rows: Any,
    to: Any,
    ok: Any,
    n: int,
    groups: Any,
    floats: Any,
    w: int,
) -> None:
    """SUM_FLOAT, in arrival order."""
    for j in range(n):
        if ok[j]:
            floats[to[j], w + FLOAT_SUM.total] += load_float(kind, values + width * rows[j])
            groups[to[j], w + FLOAT_SUM.n] += 1


@device
def add_moments(
    kind: int,
    values: int,
    width: int,
    rows: Any,
    to: Any,
    ok: Any,
    n: int,
    groups: Any,
    floats: Any,
    w: int,
) -> None:
    """MOMENTS: Welford's update of mean and sum of squared deviations."""
    for j in range(n):
        if ok[j]:
            g = to[j]
            value = load_float(kind, values + width * rows[j])
            groups[g, w + WELFORD.n] += 1
            delta = value - floats[g, w + WELFORD.mean]
            floats[g, w + WELFORD.mean] += delta / groups[g, w + WELFORD.n]
            floats[g, w + WELFORD.m2] += delta * (value - floats[g, w + WELFORD.mean])


@device
def add_timed_integers(
    kind: int, sign: int, values: int, width: int, times: int, rows: Any, to: Any, ok: Any, n: int,
    groups: Any, w: int,
) -> None:  # fmt: skip
    """FIRST_INT (sign 1) and LAST_INT (sign -1)."""
    flip = SIGN if kind == U8 else np.int64(0)
    for j in range(n):
        if ok[j]:
            g, row = to[j], rows[j]
            time, value = mem.load_i64(times + 8 * row), load_int(kind, values + width * row)
            old = groups[g, w + TIMED.time]
            a, b = value ^ flip, groups[g, w + TIMED.value] ^ flip
            if (
                groups[g, w + TIMED.n] == 0
                or (time < old if sign > 0 else old < time)
                or (time == old and (a < b if sign > 0 else b < a))
            ):
                groups[g, w + TIMED.value], groups[g, w + TIMED.time] = value, time
            groups[g, w + TIMED.n] += 1


@device
def add_timed_floats(
    kind: int, sign: int, values: int, width: int, times: int, rows: Any, to: Any, ok: Any, n: int,
    groups: Any, floats: Any, w: int,
) -> None:  # fmt: skip
    """FIRST_FLOAT (sign 1) and LAST_FLOAT (sign -1), NaN the greatest."""
    for j in range(n):
        if ok[j]:
            g, row = to[j], rows[j]
            time, new = mem.load_i64(times + 8 * row), load_float(kind, values + width * row)
            old, kept = groups[g, w + TIMED.time], floats[g, w + TIMED.value]
            a, b = (new, kept) if sign > 0 else (kept, new)
            if (
                groups[g, w + TIMED.n] == 0
                or (time < old if sign > 0 else old < time)
                or (time == old and (a < b or (b != b and a == a)))
            ):
                floats[g, w + TIMED.value], groups[g, w + TIMED.time] = new, time
            groups[g, w + TIMED.n] += 1


@device
def add_timed(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, ok: Any, n: int, groups: Any, floats: Any
) -> None:
    """Add a block's pairs to a FIRST or LAST; `ok` says which values are not null."""
    kind, c, code = aggs[a, AGGREGATE.kind], aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.code]
    width, values, w = columns[c, COLUMN.width], columns[c, COLUMN.values], aggs[a, AGGREGATE.word]
    times = columns[aggs[a, AGGREGATE.second], COLUMN.values]
    sign = 1 if kind in (FIRST_INT, FIRST_FLOAT) else -1
    if kind in (FIRST_INT, LAST_INT):
        add_timed_integers(code, sign, values, width, times, rows, to, ok, n, groups, w)
    else:
        add_timed_floats(code, sign, values, width, times, rows, to, ok, n, groups, floats, w)


@device
def mark_present(columns: Any, c: int, rows: Any, n: int, ok: Any) -> None:
    """Fill `ok`: whether the column's value of each of `rows` is not null."""
    valid = columns[c, COLUMN.valid]
    for j in range(n):
        ok[j] = 1 if valid == 0 else mem.load_u8(valid + rows[j])


@device
def update(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, ok: Any, n: int, groups: Any, floats: Any
) -> None:
    """Add a block's pairs to one accumulator."""
    kind, c = aggs[a, AGGREGATE.kind], aggs[a, AGGREGATE.column]
    code, w = aggs[a, AGGREGATE.code], aggs[a, AGGREGATE.word]
    if kind == ROWS:
        for j in range(n):
            groups[to[j], w] += 1
        return
    width, values = columns[c, COLUMN.width], columns[c, COLUMN.values]
    mark_present(columns, c, rows, n, ok)
    if kind == COUNT:
        for j in range(n):
            groups[to[j], w] += ok[j]
    elif kind == SUM_INT:
        add_integers(code, values, width, rows, to, ok, n, groups, w)
    elif kind == SUM_FLOAT:
        add_floats(code, values, width, rows, to, ok, n, groups, floats, w)
    elif kind in (MIN_INT, MAX_INT):
        sign = 1 if kind == MIN_INT else -1
        extreme_integers(code, sign, values, width, rows, to, ok, n, groups, w)
    elif kind in (MIN_FLOAT, MAX_FLOAT):
        sign = 1 if kind == MIN_FLOAT else -1
        extreme_floats(code, sign, values, width, rows, to, ok, n, groups, floats, w)
    elif kind in (FIRST_INT, LAST_INT, FIRST_FLOAT, LAST_FLOAT):
        add_timed(columns, aggs, a, rows, to, ok, n, groups, floats)
    else:
        add_moments(code, values, width, rows, to, ok, n, groups, floats, w)
