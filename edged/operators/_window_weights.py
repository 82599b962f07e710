"""Windows of weighted rows: their accumulators, which groups are left, and their output columns.

All accumulators are linear (`kernels.cpu.weighted`): a row that is taken back leaves no trace, in
integers and floats alike, whatever the order.  Moments are Σw, Σwx and Σwx²; mean and squared
deviations come from both sums in twice the precision of a float64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.data.schema import Schema
from edged.errors import JobError
from kernels.cpu import exact_sums as exact
from kernels.cpu import weighted as acc
from kernels.cpu.exact_sums import EXACT, EXACT_WORDS, SPLIT

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

IRREVOCABLE = ("min", "max", "first", "last", "quantile", "approx_distinct")
"""Aggregates that cannot take a row back; all others are functions of sums."""


def refuse(path: str, function: str) -> None:
    """Raise JobError for an aggregate that cannot take a row back."""
    if function in IRREVOCABLE:
        raise JobError(
            path, f"{function} cannot take a row back, and the input has weights",
            "sums, counts, variances and regressions can; or ship the changes and take it at the "
            "centre",
        )  # fmt: skip


def accumulator(schema: Schema, function: str, column: str) -> int:
    """The kind of the accumulator of one column; `count` and pairs have their own."""
    if function not in ("sum", "mean"):
        return acc.WEIGHTED_SQUARES
    floating = schema.field(column).dtype.floating
    return acc.WEIGHTED_FLOAT if floating else acc.WEIGHTED_INT


def float_sums(rows: Ints, place: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The ExactSums of groups at a word, and where anything has been added to them."""
    nearest, _ = _rounded(rows, place)
    there: npt.NDArray[np.bool_] = np.any(rows[:, place : place + EXACT_WORDS] != 0, axis=1)
    return nearest, there


def moments(rows: Ints, place: int) -> tuple[Ints, Floats, Floats]:
    """Count, mean and squared deviations; where the count is 0, sum and sum of squares instead."""
    n = np.ascontiguousarray(rows[:, place + EXACT.n])
    sums, squares = _rounded(rows, place), _rounded(rows, place + EXACT_WORDS)
    return n, _mean(n, sums), _deviations(n, sums, sums, squares, squared=True)


def pair_moments(rows: Ints, place: int) -> tuple[Ints, Floats, Floats, Floats, Floats, Floats]:
    """Count, means of x and y, and deviations of x, of y and of both; where the count is 0, the
    sums of x, y, x², y² and xy instead."""
    n = np.ascontiguousarray(rows[:, place + EXACT.n])
    x, y, xx, yy, xy = (_rounded(rows, place + k * EXACT_WORDS) for k in range(acc.PAIR_SUMS))
    return (
        n, _mean(n, x), _mean(n, y), _deviations(n, x, x, xx, squared=True),
        _deviations(n, y, y, yy, squared=True), _deviations(n, x, y, xy, squared=False),
    )  # fmt: skip


def _mean(n: Ints, sums: tuple[Floats, Floats]) -> Floats:
    with np.errstate(all="ignore"):
        return np.where(n == 0, sums[0], sums[0] / np.where(n == 0, 1, n))


def _deviations(
    n: Ints,
    x: tuple[Floats, Floats],
    y: tuple[Floats, Floats],
    xy: tuple[Floats, Floats],
    squared: bool,
) -> Floats:
    """Σxy - Σx * Σy / n in twice the precision; Σxy where n is 0."""
    (sums, more), (others, others_more), (products, rest) = x, y, xy
    with np.errstate(all="ignore"):
        count = np.where(n == 0, 1, n).astype(np.float64)
        high, low = _product(sums, others)
        low += sums * others_more + others * more
        share = high / count
        back, error = _product(share, count)
        share_rest = ((high - back) - error + low) / count
        deviations = products - share
        deviations += (products - (deviations + share)) + rest - share_rest
        if squared:
            deviations = np.where(n > 0, np.maximum(deviations, 0.0), deviations)
    return np.where(n == 0, products, deviations)


def _rounded(rows: Ints, place: int) -> tuple[Floats, Floats]:
    nearest, rest = np.empty(len(rows)), np.empty(len(rows))
    exact.round_sums(rows, place, nearest, rest)
    return nearest, rest


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """A product and its rounding error (Dekker)."""
    whole = a * b
    a_high, b_high = _high(a), _high(b)
    a_low, b_low = a - a_high, b - b_high
    return whole, ((a_high * b_high - whole) + a_high * b_low + a_low * b_high) + a_low * b_low


def _high(a: Floats) -> Floats:
    c = SPLIT * a
    high: Floats = c - (c - a)
    return high
