"""QUANTILES: a histogram of buckets with a bounded relative error, from which quantiles follow.

Bucket i of scale s holds the values from 2^(i / 2^s) up to 2^((i + 1) / 2^s), as the exponential
histograms of OpenTelemetry do.  A sketch begins at scale SCALE_MAX.  Where its buckets, from the
least to the greatest that is used on each side of 0, are more than it has room for, it halves its
scale: buckets 2i and 2i + 1 become bucket i.  The scale is therefore the largest at which all
values fit, and a sketch depends on its values alone, not on their order; sketches that are merged
equal the sketch of all values.  The middle of a bucket is within (g - 1) / (g + 1) of each of its
values, for g = 2^(2^-s): 0.27 % at scale 7, 0.54 % at 6, 1.1 % at 5, 2.2 % at 4.

Buckets of values below 0 lie at the begin of the array, in ascending order of i; those of values
above 0 at its end, in descending order.  Values closer to 0 than 2^-1022 count as 0.  Infinities
and NaN are counted apart; NaN is greater than every number.

DDSketch (Masson, Rim and Lee, 2019) has the same buckets up to their base, and UDDSketch (Epicoco
and others, 2020) the same halving.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kernels.cpu import mem
from kernels.cpu.accumulate import AGGREGATE, load_float
from kernels.cpu.columns import COLUMN
from kernels.cpu.exact_sums import float_bits
from kernels.cpu.records import I64, field, words
from kernels.registry import device, kernel


class QuantileSketch(NamedTuple):
    """A sketch; its buckets follow."""

    n: I64 = field("values")
    nan: I64 = field("values that are NaN")
    up: I64 = field("values that are infinity")
    down: I64 = field("values that are minus infinity")
    zeros: I64 = field("values that are 0")
    halved: I64 = field("how often the scale was halved, from SCALE_MAX")
    below_low: I64 = field("least bucket of values below 0")
    below: I64 = field("number of those buckets")
    above_low: I64 = field("least bucket of values above 0")
    above: I64 = field("number of those buckets")
    buckets: I64 = field("the first bucket")


SKETCH = words(QuantileSketch)
NOWHERE = 1
"""In place of a bucket's word, where a sketch has no such bucket yet."""
SCALE_MAX = 7
FRACTION_BITS = 52
ONE = 1 << FRACTION_BITS
"""A mantissa of 1.0."""


def _root(i: int) -> int:
    """The least mantissa that is not below 2^(i / 2^SCALE_MAX), exactly."""
    power = 1 << (i + (FRACTION_BITS << SCALE_MAX))
    root = power
    for _ in range(SCALE_MAX):
        root = math.isqrt(root)
    exact: bool = root ** (1 << SCALE_MAX) == power
    return root if exact else root + 1


BOUNDS = np.array([_root(i) for i in range((1 << SCALE_MAX) + 1)], np.int64)
"""Mantissas at which the buckets of an octave begin, and that of the next octave."""
_CELLS = 9
"""Bits of a mantissa's cell; no cell holds two bounds."""
_BEGINS = (np.arange(1 << _CELLS, dtype=np.int64) << (FRACTION_BITS - _CELLS)) + ONE
CELLS = (np.searchsorted(BOUNDS, _BEGINS, side="right") - 1).astype(np.int64)
"""The bucket in which each cell begins."""


@device
def bucket_of(bits: Any) -> Any:
    """The bucket at SCALE_MAX of a normal number above 0, given by its bits."""
    fraction = bits & (ONE - 1)
    place = CELLS[fraction >> (FRACTION_BITS - _CELLS)]
    if fraction + ONE >= BOUNDS[place + 1]:
        place += 1
    return (((bits >> FRACTION_BITS) - 1023) << SCALE_MAX) + place


@device
def halve(groups: Any, g: int, w: int, size: int) -> None:
    """Halve the scale of a sketch."""
    first, last = w + SKETCH.buckets, w + SKETCH.buckets + size - 1
    for side in range(2):
        low = groups[g, w + (SKETCH.above_low if side else SKETCH.below_low)]
        count = groups[g, w + (SKETCH.above if side else SKETCH.below)]
        if count:
            for k in range(count):
                to = ((low + k) >> 1) - (low >> 1)
                at = last - k if side else first + k
                held = groups[g, at]
                groups[g, at] = 0
                groups[g, last - to if side else first + to] += held
            groups[g, w + (SKETCH.above_low if side else SKETCH.below_low)] = low >> 1
            groups[g, w + (SKETCH.above if side else SKETCH.below)] = (
                ((low + count - 1) >> 1) - (low >> 1) + 1
            )
    groups[g, w + SKETCH.halved] += 1


@device
def widen(groups: Any, g: int, w: int, size: int, side: int, bucket: Any) -> Any:
    """Make room for a bucket at SCALE_MAX on one side (0: below, 1: above); returns its word."""
    first, last = w + SKETCH.buckets, w + SKETCH.buckets + size - 1
    low_at = w + (SKETCH.above_low if side else SKETCH.below_low)
    count_at = w + (SKETCH.above if side else SKETCH.below)
    while True:
        i, low, count = (
            bucket >> groups[g, w + SKETCH.halved],
            groups[g, low_at],
            groups[g, count_at],
        )
        if count == 0:
            low = i
        lowest, highest = min(i, low), max(i, low + count - 1)
        other = groups[g, w + (SKETCH.below if side else SKETCH.above)]
        if highest - lowest + 1 + other <= size:
            break
        halve(groups, g, w, size)
    shift = low - lowest
    if shift:
        for k in range(count - 1, -1, -1):
            at = last - k if side else first + k
            held = groups[g, at]
            groups[g, at] = 0
            groups[g, at - shift if side else at + shift] = held
    groups[g, low_at], groups[g, count_at] = lowest, highest - lowest + 1
    return last - (i - lowest) if side else first + (i - lowest)


@device
def add_odd(sketch: int, bits: Any) -> None:
    """Count a value that has no bucket, given by its bits."""
    fraction, at = bits & (ONE - 1), sketch + 8 * SKETCH.zeros
    if (bits >> FRACTION_BITS) & 0x7FF:
        if fraction:
            at = sketch + 8 * SKETCH.nan
        else:
            at = sketch + 8 * (SKETCH.down if bits < 0 else SKETCH.up)
    mem.store_i64(at, mem.load_i64(at) + 1)


@device
def place_of(sketch: int, bucket: Any, negative: bool, size: int) -> Any:
    """The word of a bucket in the sketch at an address, or NOWHERE; with the values' sign."""
    i = bucket >> mem.load_i64(sketch + 8 * SKETCH.halved)
    if negative:
        k = i - mem.load_i64(sketch + 8 * SKETCH.below_low)
        if 0 <= k < mem.load_i64(sketch + 8 * SKETCH.below):
            return -(SKETCH.buckets + k)
        return -NOWHERE
    k = i - mem.load_i64(sketch + 8 * SKETCH.above_low)
    if 0 <= k < mem.load_i64(sketch + 8 * SKETCH.above):
        return SKETCH.buckets + size - 1 - k
    return NOWHERE


@device
def add_quantiles(
    columns: Any, aggs: Any, a: int, rows: Any, to: Any, ok: Any, n: int, groups: Any
) -> None:
    """Add a block's values; `ok` says which are not null."""
    c, code, w = aggs[a, AGGREGATE.column], aggs[a, AGGREGATE.code], aggs[a, AGGREGATE.word]
    size, values, width = (
        aggs[a, AGGREGATE.size],
        columns[c, COLUMN.values],
        columns[c, COLUMN.width],
    )
    base, row_bytes = np.int64(groups.ctypes.data) + 8 * w, 8 * groups.shape[1]
    buckets, words_at = np.empty(n, np.int64), np.empty(n, np.int64)
    for j in range(n):
        words_at[j] = 0
        if ok[j]:
            bits = float_bits(load_float(code, values + width * rows[j]))
            exponent = (bits >> FRACTION_BITS) & 0x7FF
            sketch = base + row_bytes * to[j]
            mem.store_i64(sketch, mem.load_i64(sketch) + 1)
            if exponent in (0, 0x7FF):
                add_odd(sketch, bits)
            else:
                buckets[j] = bucket_of(bits & 0x7FFFFFFFFFFFFFFF)
                words_at[j] = place_of(sketch, buckets[j], bits < 0, size)
                mem.prefetch(sketch + 8 * abs(words_at[j]))
    for j in range(n):
        if words_at[j]:
            sketch = base + row_bytes * to[j]
            at = place_of(sketch, buckets[j], words_at[j] < 0, size)
            if at in (NOWHERE, -NOWHERE):
                at = widen(groups, to[j], w, size, 0 if at < 0 else 1, buckets[j]) - w
            at = sketch + 8 * abs(at)
            mem.store_i64(at, mem.load_i64(at) + 1)


@device
def middle(halved: int, i: Any) -> Any:
    """The middle of a bucket: the value with the least relative error for all that it holds."""
    scale = SCALE_MAX - halved
    if scale > 0:
        growth = BOUNDS[1 << halved] / np.float64(ONE)
        low = BOUNDS[(i & ((1 << scale) - 1)) << halved] / np.float64(ONE)
        return math.ldexp(low * (2.0 / (1.0 + 1.0 / growth)), i >> scale)
    growth = math.ldexp(1.0, 1 << -scale)
    factor = 2.0 / (1.0 + 1.0 / growth)
    return min(math.ldexp(factor, i << -scale), 1.7976931348623157e308)


@device
def value_at(groups: Any, g: int, w: int, size: int, rank: Any) -> Any:
    """The value of a rank (from 1) in ascending order."""
    first, last = w + SKETCH.buckets, w + SKETCH.buckets + size - 1
    left = rank - groups[g, w + SKETCH.down]
    if left <= 0:
        return -np.inf
    halved = groups[g, w + SKETCH.halved]
    for k in range(groups[g, w + SKETCH.below] - 1, -1, -1):
        left -= groups[g, first + k]
        if left <= 0:
            return -middle(halved, groups[g, w + SKETCH.below_low] + k)
    left -= groups[g, w + SKETCH.zeros]
    if left <= 0:
        return 0.0
    for k in range(groups[g, w + SKETCH.above]):
        left -= groups[g, last - k]
        if left <= 0:
            return middle(halved, groups[g, w + SKETCH.above_low] + k)
    return np.inf if left <= groups[g, w + SKETCH.up] else np.nan


@kernel(
    "void(int64[:, ::1], int64, int64, int64, int64, float64[::1])",
    reference="tests.naive.sketches.quantile",
)
def quantiles(
    groups: Any, word: int, size: int, numerator: int, denominator: int, found: Any
) -> None:
    """The quantile numerator / denominator of each group's sketch: of n values that of rank
    ceil(q * n), at least 1, as DuckDB's `quantile_disc`; 0 where there are no values."""
    for g in range(groups.shape[0]):
        n = groups[g, word + SKETCH.n]
        whole, rest = n // denominator, n % denominator
        rank = whole * numerator + (rest * numerator + denominator - 1) // denominator
        found[g] = 0.0
        if n > 0:
            found[g] = value_at(groups, g, word, size, max(rank, np.int64(1)))


@device
def put_number(to: Any, at: int, value: Any, writes: bool) -> Any:
    """Write an unsigned number in groups of 7 bits, lowest first; returns the next place."""
    while value >= 128:
        if writes:
            to[at] = np.uint8((value & 127) | 128)
        value >>= 7
        at += 1
    if writes:
        to[at] = np.uint8(value)
    return at + 1


@kernel(
    "int64(int64[:, ::1], int64, int64, int64[::1], uint8[::1], boolean)",
    reference="tests.naive.sketches.packed",
)
def pack(groups: Any, word: int, size: int, offsets: Any, to: Any, writes: bool) -> Any:
    """Write each group's sketch as bytes (`edged.data.sketches`), one after the other; a sketch of
    no values has none.  Fills `offsets` and returns the number of bytes; if not `writes`, `to` is
    left as it is."""
    at = np.int64(0)
    first, last = word + SKETCH.buckets, word + SKETCH.buckets + size - 1
    offsets[0] = 0
    for g in range(groups.shape[0]):
        if groups[g, word + SKETCH.n] > 0:
            at = put_number(to, at, np.int64(1), writes)
            at = put_number(to, at, size, writes)
            at = put_number(to, at, groups[g, word + SKETCH.halved], writes)
            for k in (SKETCH.nan, SKETCH.up, SKETCH.down, SKETCH.zeros):
                at = put_number(to, at, groups[g, word + k], writes)
            for side in range(2):
                count = groups[g, word + (SKETCH.above if side else SKETCH.below)]
                low = groups[g, word + (SKETCH.above_low if side else SKETCH.below_low)]
                at = put_number(to, at, count, writes)
                if count:
                    at = put_number(to, at, (low << 1) ^ (low >> 63), writes)
                for k in range(count):
                    at = put_number(to, at, groups[g, last - k if side else first + k], writes)
        offsets[g + 1] = at
    return at
