"""Output columns of finished groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data import sketches
from edged.data.columns import Batch, Column
from edged.data.schema import TIMESTAMP, DType, Field, Schema
from edged.operators import _window_weights as weights
from edged.operators._window_functions import BUCKETS, PAIRS, SPREADS, TIMED, Measure
from edged.operators._window_groups import Groups, Shape
from kernels.cpu import accumulate as acc
from kernels.cpu import quantile_sketch
from kernels.cpu import window as kernels
from kernels.cpu.comoments import PAIR
from kernels.cpu.open_windows import OPENED
from kernels.cpu.quantile_sketch import SKETCH
from kernels.cpu.window import GROUP

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
SECOND_US = 1e-6
"""Seconds of a microsecond: in pairs, timestamps count in seconds."""


@dataclass(slots=True)
class OutputBuilder:
    """Makes the output batch of finished groups; counts sums that int64 cannot hold."""

    shape: Shape
    measures: tuple[Measure, ...]
    size_us: int
    """What lies between start and end, or between a session's last row and its end."""
    output: Schema
    nothing: Batch
    """The output of a beat in which no window ends."""
    sums_overflowed: int = 0

    def batch(self, groups: Groups) -> Batch:
        """Key columns, window start and end, then every measure's columns."""
        rows, columns = groups.rows, []
        if not len(rows):
            return self.nothing
        for k in range(len(self.shape.keys)):
            field = self.shape.schema.fields[int(self.shape.keys[k, 0])]
            columns.append(self._key(k, field, groups))
        columns += self._times(rows)
        for measure, place in zip(self.measures, self.shape.places, strict=True):
            columns += self._columns(measure, rows, place)
        return Batch(self.output, len(rows), tuple(columns))

    def _times(self, rows: Ints) -> list[Column]:
        """Start and end of the windows."""
        opened = self.shape.opened
        if not opened:
            start = np.ascontiguousarray(rows[:, GROUP.start])
            return [Column(start), Column(start + self.size_us)]
        begin, last = rows[:, opened + OPENED.begin], rows[:, opened + OPENED.last]
        return [Column(begin.copy()), Column(last + self.size_us)]

    def _columns(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        """The columns of one measure."""
        if measure.function in PAIRS:
            return self._pairs(measure, rows, place)
        if measure.function in SPREADS or measure.function == "variance":
            return self._moments(measure, rows, place)
        if measure.function == "quantile":
            return self._quantile(measure, rows, place)
        if measure.function == "approx_distinct":
            return self._distinct(measure, rows, place)
        if self.shape.weighted and self._exact(measure):
            return self._weighted(measure, rows, place)
        words = np.ascontiguousarray(rows[:, place : place + 3])
        if measure.function in TIMED:
            dtype = self.shape.schema.field(measure.column).dtype
            value = self._extreme(measure, words, dtype)
            return [value, Column(words[:, acc.TIMED.time].copy(), value.valid)]
        return self._measured(measure, words)

    def _key(self, k: int, field: Field, groups: Groups) -> Column:
        _, code, w = self.shape.keys[k]
        rows = groups.rows
        valid: Bytes | None = None
        if field.nullable:
            valid = ((rows[:, GROUP.nulls] >> k & 1) ^ 1).astype(np.uint8)
        if code != acc.VARIABLE:
            return Column(_narrowed(rows[:, w], field.dtype), valid)
        sizes = np.ascontiguousarray(rows[:, w + 1])
        offsets: Ints = np.empty(len(rows) + 1, np.int64)
        values: Bytes = np.empty(int(sizes.sum()), np.uint8)
        kernels.strings(groups.store, np.ascontiguousarray(rows[:, w]), sizes, offsets, values)
        return Column(values, valid, offsets)

    def _exact(self, measure: Measure) -> bool:
        """Whether weighted rows have an exact sum of floats; other accumulators look alike."""
        if measure.function in ("sum", "mean"):
            return self.shape.schema.field(measure.column).dtype.floating
        return False

    def _weighted(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        total, there = weights.float_sums(rows, place)
        if measure.function == "mean":
            return [Column(rows[:, place].copy()), Column(total)]
        if not self.output.field(measure.name).nullable:
            return [Column(total)]
        return [Column(total, there.astype(np.uint8))]

    def _moments(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        """Variance and standard deviation, and the moments of a column."""
        if self.shape.weighted:
            n, mean, m2 = weights.moments(rows, place)
        else:
            words = np.ascontiguousarray(rows[:, place : place + len(acc.WELFORD)])
            floats = words.view(np.float64)
            n = words[:, acc.WELFORD.n].copy()
            mean, m2 = floats[:, acc.WELFORD.mean].copy(), floats[:, acc.WELFORD.m2].copy()
        parts = [Column(n), Column(mean), Column(m2)]
        if measure.function == "variance":
            return parts
        least = 1 if measure.function.endswith("_pop") else 2
        with np.errstate(all="ignore"):
            value = m2 / (n - (least - 1))
            if measure.function.startswith("stddev"):
                value = np.sqrt(value)
        return [_where(value, n >= least), *(parts if measure.parts else [])]

    def _pairs(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        """Covariance, correlation and regression, and the moments of pairs."""
        n, mean_x, mean_y, m2_x, m2_y, m2_xy = self._pair_moments(measure, rows, place)
        value, there = _pair_value(measure.function, n, mean_x, mean_y, m2_x, m2_y, m2_xy)
        found = [_where(value, there)]
        if measure.parts:
            found += [Column(c) for c in (n, mean_x, mean_y, m2_x, m2_y, m2_xy)]
        return found

    def _pair_moments(
        self, measure: Measure, rows: Ints, place: int
    ) -> tuple[Ints, Floats, Floats, Floats, Floats, Floats]:
        schema = self.shape.schema
        x, y = schema.field(measure.column).dtype, schema.field(measure.second).dtype
        if self.shape.weighted:
            n, mean_x, mean_y, m2_x, m2_y, m2_xy = weights.pair_moments(rows, place)
        else:
            words = np.ascontiguousarray(rows[:, place : place + len(PAIR)])
            floats, n = words.view(np.float64), words[:, PAIR.n].copy()
            mean_x = _origin(words[:, PAIR.first_x], x) + floats[:, PAIR.mean_x]
            mean_y = _origin(words[:, PAIR.first_y], y) + floats[:, PAIR.mean_y]
            m2_x, m2_y, m2_xy = (floats[:, k].copy() for k in (PAIR.m2_x, PAIR.m2_y, PAIR.m2_xy))
        unit_x = SECOND_US if x is TIMESTAMP else 1.0
        unit_y = SECOND_US if y is TIMESTAMP else 1.0
        return (
            n, mean_x * unit_x, mean_y * unit_y, m2_x * (unit_x * unit_x),
            m2_y * (unit_y * unit_y), m2_xy * (unit_x * unit_y),
        )  # fmt: skip

    def _quantile(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        value, share = np.empty(len(rows)), measure.share
        quantile_sketch.quantiles(rows, place, BUCKETS, share.numerator, share.denominator, value)
        valid = self._valid(measure, rows[:, place + SKETCH.n] != 0)
        if not measure.parts:
            return [Column(value, valid)]
        offsets, values = np.empty(len(rows) + 1, np.int64), np.empty(0, np.uint8)
        size = quantile_sketch.pack(rows, place, BUCKETS, offsets, values, False)
        values = np.empty(size, np.uint8)
        quantile_sketch.pack(rows, place, BUCKETS, offsets, values, True)
        return [Column(value, valid), Column(values, valid, offsets)]

    def _distinct(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        size = 1 << measure.registers
        registers = np.ascontiguousarray(rows[:, place : place + size // 8]).view(np.uint8)
        parts = sketches.chunks(len(rows))
        found = Column(np.concatenate([sketches.estimates(registers[part]) for part in parts]))
        if not measure.parts:
            return [found]
        whole = np.concatenate([sketches.distinct_sketches(registers[part]) for part in parts])
        there = registers.any(axis=1)
        offsets = np.concatenate([[0], np.cumsum(there * whole.shape[1])]).astype(np.int64)
        return [found, Column(whole[there].ravel(), self._valid(measure, there), offsets)]

    def _valid(self, measure: Measure, there: Any) -> Bytes | None:
        """The validity of a column that is null where a group has no values."""
        if not self.shape.schema.field(measure.column).nullable:
            return None
        valid: Bytes = there.astype(np.uint8)
        return valid

    def _measured(self, measure: Measure, words: Ints) -> list[Column]:
        if measure.function == "count":
            return [Column(words[:, 0].copy())]
        dtype = self.shape.schema.field(measure.column).dtype
        if measure.function in ("min", "max"):
            return [self._extreme(measure, words, dtype)]
        if dtype.floating:
            count = words[:, 1].copy()
            whole: npt.NDArray[Any] = words.view(np.float64)[:, 0].copy()
            fits = np.ones(len(words), np.bool_)
        else:
            count, whole = words[:, 2].copy(), words[:, 0].copy()
            fits = words[:, 1] == whole >> 63
        if measure.function == "mean":
            total = whole.astype(np.float64)
            # by Python's integers, which are rounded once; few sums leave int64
            high, low = words[~fits, 1].astype(object), whole[~fits].view(np.uint64).astype(object)
            total[~fits] = (high << 64) + low
            return [Column(count), Column(total)]
        self.sums_overflowed += int((~fits).sum())
        if not self.output.field(measure.name).nullable:
            return [Column(whole)]
        there = (count != 0) | words[:, :2].any(axis=1)
        return [Column(whole, (there & fits).astype(np.uint8))]

    def _extreme(self, measure: Measure, words: Ints, dtype: DType) -> Column:
        if dtype.floating:
            values = words.view(np.float64)[:, 0].astype(dtype.numpy)
        else:
            values = _narrowed(words[:, 0], dtype)
        if not self.output.field(measure.name).nullable:
            return Column(values)
        return Column(values, (words[:, 1] > 0).astype(np.uint8))


def _narrowed(words: Ints, dtype: DType) -> npt.NDArray[Any]:
    """The low bytes of 64-bit words as values of a fixed-width type."""
    narrow = np.ascontiguousarray(words).astype(f"u{dtype.width}")
    return narrow.view(dtype.numpy)


def _where(value: Floats, there: npt.NDArray[np.bool_]) -> Column:
    return Column(np.where(there, value, 0.0), there.astype(np.uint8))


def _origin(words: Ints, dtype: DType) -> Floats:
    """The first values of pairs as floats (`kernels.cpu.comoments.distance`)."""
    if dtype.floating or dtype.name == "uint64":
        return words.view(np.float64) if words.flags.c_contiguous else words.copy().view(np.float64)
    return words.astype(np.float64)


def _pair_value(
    function: str,
    n: Ints,
    mean_x: Floats,
    mean_y: Floats,
    m2_x: Floats,
    m2_y: Floats,
    m2_xy: Floats,
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """An aggregate of pairs, and where it is defined."""
    with np.errstate(all="ignore"):
        if function == "covar_pop":
            return m2_xy / n, n > 0
        if function == "covar_samp":
            return m2_xy / (n - 1), n > 1
        if function == "corr":
            return m2_xy / (np.sqrt(m2_x) * np.sqrt(m2_y)), (n > 0) & (m2_x != 0.0) & (m2_y != 0.0)
        slope = m2_xy / m2_x
        value = slope if function == "regr_slope" else mean_y - slope * mean_x
        return value, (n > 0) & (m2_x != 0.0)
