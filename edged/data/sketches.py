"""Sketches as bytes: quantiles and numbers of different values, merged and read.

    merged_quantiles([a, b])       the sketch of the rows of both
    quantile(sketch, 0.99)         the value of that rank, within the sketch's relative error
    merged_distinct([a, b])
    distinct(sketch)               the estimated number of different values

Windows on the device write them (`kernels.cpu.quantile_sketch`, `kernels.cpu.distinct_sketch`).
Merging is exact: the result is the sketch that all rows together would have made, whatever the
order.  None among the sketches is one without values; of None alone the result is None.

A quantile sketch is a sequence of numbers, each in groups of 7 bits, lowest first, with the highest
bit set in all bytes but the last: 1 (the version), the most buckets, the halvings of the scale,
the counts of NaN, infinity, minus infinity and 0; then, for values below 0 and for those above 0,
the number of buckets and, where there are any, the least bucket i as 2i (or -2i - 1 below 0) and
the count of each.

A sketch of different values is that of Apache DataSketches: HLL with registers of 8 bits, marked
as made out of order.  Spark's `hll_union_agg` and `hll_sketch_estimate` read it.

Needs numpy only.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
SCALE_MOST = 7
"""Binary logarithm of the buckets of an octave, before the scale is halved."""
_VERSION = 1
_PREAMBLE = struct.Struct("<BBBBBBBBdddII")
"""DataSketches: words of the preamble, version, family, log2 of the registers, 0, flags, 0, mode;
an estimate in order, sums of 2^-register below 32 and from 32 on, registers of 0, exceptions."""
_FAMILY, _FLAGS, _MODE = 7, 8 | 16, 2 | 2 << 2
"""HLL; compact and out of order; dense registers of 8 bits."""
_RANKS = 64
"""Values of a register."""
_ESTIMATE_BIAS = 0.5 / math.log(2.0)


@dataclass(slots=True)
class _Buckets:
    """Buckets of one sign: the least one, and the count of each."""

    low: int
    counts: Ints

    def halved(self, times: int) -> _Buckets:
        """The same values at a smaller scale."""
        if not times or not self.counts.size:
            return self
        places = (self.low + np.arange(self.counts.size)) >> times
        low = self.low >> times
        counts = np.zeros(int(places[-1]) - low + 1, np.int64)
        np.add.at(counts, places - low, self.counts)
        return _Buckets(low, counts)

    def plus(self, other: _Buckets) -> _Buckets:
        """Both, at one scale."""
        if not self.counts.size or not other.counts.size:
            return self if self.counts.size else other
        low = min(self.low, other.low)
        high = max(s.low + s.counts.size for s in (self, other))
        counts = np.zeros(high - low, np.int64)
        for s in (self, other):
            counts[s.low - low : s.low - low + s.counts.size] += s.counts
        return _Buckets(low, counts)


@dataclass(slots=True)
class _Histogram:
    """A quantile sketch."""

    most: int
    halvings: int
    odd: Ints
    """Counts of NaN, infinity, minus infinity and 0."""
    below: _Buckets
    above: _Buckets

    @classmethod
    def read(cls, sketch: bytes) -> _Histogram:
        """Raises ValueError for bytes that are no sketch."""
        numbers = _numbers(sketch)
        if len(numbers) < 9 or numbers[0] != _VERSION:
            raise ValueError("these bytes are no quantile sketch of a known version")
        below, at = _side(numbers, 7)
        above, at = _side(numbers, at)
        if at != len(numbers):
            raise ValueError("a quantile sketch has more bytes than it needs")
        return cls(int(numbers[1]), int(numbers[2]), numbers[3:7], below, above)

    def bytes(self) -> bytes:
        """The inverse of `read`."""
        numbers = [_VERSION, self.most, self.halvings, *map(int, self.odd)]
        for side in (self.below, self.above):
            numbers.append(side.counts.size)
            if side.counts.size:
                numbers.append(side.low << 1 ^ side.low >> 63)
                numbers += map(int, side.counts)
        out = bytearray()
        for n in numbers:
            while n >= 128:
                out.append(n & 127 | 128)
                n >>= 7
            out.append(n)
        return bytes(out)

    def plus(self, other: _Histogram) -> _Histogram:
        """The sketch of the values of both."""
        if self.most != other.most:
            raise ValueError("quantile sketches of different sizes do not merge")
        halvings = max(self.halvings, other.halvings)
        a, b = halvings - self.halvings, halvings - other.halvings
        below = self.below.halved(a).plus(other.below.halved(b))
        above = self.above.halved(a).plus(other.above.halved(b))
        while below.counts.size + above.counts.size > self.most:
            below, above, halvings = below.halved(1), above.halved(1), halvings + 1
        return _Histogram(self.most, halvings, self.odd + other.odd, below, above)

    def value(self, share: float) -> float:
        """The value of rank ceil(share * n), at least 1."""
        nan, up, down, zeros = map(int, self.odd)
        n = nan + up + down + zeros + int(self.below.counts.sum() + self.above.counts.sum())
        rank = max(1, math.ceil(Fraction(repr(share)) * n))
        below = int(self.below.counts.sum())
        if rank <= down:
            return -math.inf
        rank -= down
        if rank <= below:
            ranks = np.cumsum(self.below.counts[::-1])
            at = self.below.counts.size - 1 - int(np.searchsorted(ranks, rank))
            return -_middle(self.halvings, self.below.low + at)
        rank -= below + zeros
        if rank <= 0:
            return 0.0
        ranks = np.cumsum(self.above.counts)
        if ranks.size and rank <= ranks[-1]:
            return _middle(self.halvings, self.above.low + int(np.searchsorted(ranks, rank)))
        return math.inf if rank <= (ranks[-1] if ranks.size else 0) + up else math.nan


def _numbers(sketch: bytes) -> Ints:
    """The numbers of a quantile sketch."""
    raw = np.frombuffer(sketch, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if not raw.size or ends[-1:].tolist() != [raw.size - 1]:
        raise ValueError("these bytes are no quantile sketch")
    begins = np.concatenate([[0], ends[:-1] + 1])
    places = np.arange(raw.size) - np.repeat(begins, ends - begins + 1)
    if places.max() > 8:
        raise ValueError("a quantile sketch has a number above 2^63")
    return np.add.reduceat((raw & 127).astype(np.int64) << 7 * places, begins)


def _side(numbers: Ints, at: int) -> tuple[_Buckets, int]:
    """The buckets at a place of the numbers, and the place behind them."""
    count = int(numbers[at])
    if not count:
        return _Buckets(0, np.empty(0, np.int64)), at + 1
    if count > numbers.size - at - 2:
        raise ValueError("a quantile sketch ends early")
    low = int(numbers[at + 1])
    return _Buckets(low >> 1 ^ -(low & 1), numbers[at + 2 : at + 2 + count]), at + 2 + count


@cache
def _power(i: int) -> float:
    """2^(i / 2^SCALE_MOST), rounded up to 52 bits."""
    whole = 1 << (i + (52 << SCALE_MOST))
    root = whole
    for _ in range(SCALE_MOST):
        root = math.isqrt(root)
    return (root if root ** (1 << SCALE_MOST) == whole else root + 1) / 2.0**52


def _middle(halvings: int, i: int) -> float:
    """The middle of a bucket (`kernels.cpu.quantile_sketch.middle`)."""
    scale = SCALE_MOST - halvings
    if scale > 0:
        low = _power((i & (1 << scale) - 1) << halvings)
        return math.ldexp(low * (2.0 / (1.0 + 1.0 / _power(1 << halvings))), i >> scale)
    factor = 2.0 / (1.0 + math.ldexp(1.0, -(1 << -scale)))
    try:
        return math.ldexp(factor, i << -scale)
    except OverflowError:
        return math.nextafter(math.inf, 0.0)


def merged_quantiles(sketches: Iterable[bytes | None]) -> bytes | None:
    """The quantile sketch of the values of all.  Raises ValueError for sketches of different sizes,
    and for bytes that are none."""
    parts = [_Histogram.read(bytes(s)) for s in sketches if s is not None]
    if not parts:
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.plus(part)
    return whole.bytes()


def quantile(sketch: bytes | None, share: float) -> float | None:
    """The value below which a share of the sketch's values lies: of n values that of rank
    ceil(share * n).  Raises ValueError for a share outside of 0 to 1."""
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"{share} is not between 0 and 1")
    return None if sketch is None else _Histogram.read(bytes(sketch)).value(float(share))


def relative_error(sketch: bytes) -> float:
    """How far a quantile of the sketch may be from the value of that rank, relative to it."""
    growth: float = 2.0 ** (2.0 ** (_Histogram.read(bytes(sketch)).halvings - SCALE_MOST))
    return (growth - 1.0) / (growth + 1.0)


def merged_distinct(sketches: Iterable[bytes | None]) -> bytes | None:
    """The sketch of the values of all.  Raises ValueError for sketches of different sizes, and for
    bytes that are none."""
    parts = [_registers(s) for s in sketches if s is not None]
    if not parts:
        return None
    if len({p.size for p in parts}) > 1:
        raise ValueError("sketches of different values with different sizes do not merge")
    whole: bytes = distinct_sketches(np.maximum.reduce(parts)[None, :])[0].tobytes()
    return whole


def distinct(sketch: bytes | None) -> int:
    """The estimated number of different values."""
    return 0 if sketch is None else int(estimates(_registers(sketch)[None, :])[0])


def _registers(sketch: bytes) -> Bytes:
    whole = bytes(sketch)
    if len(whole) < _PREAMBLE.size + 16:
        raise ValueError("these bytes are no sketch of different values")
    preamble = _PREAMBLE.unpack_from(whole)
    size = 1 << preamble[3]
    known = (preamble[0], preamble[2], preamble[7]) == (10, _FAMILY, _MODE)
    if not known or len(whole) != _PREAMBLE.size + size:
        raise ValueError("these bytes are no sketch of different values with 8-bit registers")
    return np.frombuffer(whole, np.uint8, size, _PREAMBLE.size)


def distinct_sketches(registers: Bytes) -> Bytes:
    """The sketches, a row each, of registers, a row each."""
    count, size = registers.shape
    counts = _counts(registers)
    shares = counts * 2.0 ** -np.arange(_RANKS)[:, None]
    low, high = shares[:32].sum(axis=0), shares[32:].sum(axis=0)
    out = np.empty((count, _PREAMBLE.size + size), np.uint8)
    log = size.bit_length() - 1
    for row, a, b, zeros in zip(out, low, high, counts[0], strict=True):
        head = _PREAMBLE.pack(10, 1, _FAMILY, log, 0, _FLAGS, 0, _MODE, 0.0, a, b, int(zeros), 0)
        row[: _PREAMBLE.size] = np.frombuffer(head, np.uint8)
    out[:, _PREAMBLE.size :] = registers
    return out


def estimates(registers: Bytes) -> Ints:
    """The estimated number of different values of registers, a row each.

    Ertl's estimator (2017, "New cardinality estimation algorithms for HyperLogLog sketches"), which
    has no bias over the whole range; its standard error is 1.04 / sqrt(registers).
    """
    size, counts = registers.shape[1], _counts(registers).astype(np.float64)
    z = size * _tau(1.0 - counts[_RANKS - 1] / size)
    for rank in range(_RANKS - 2, 0, -1):
        z = 0.5 * (z + counts[rank])
    with np.errstate(all="ignore"):
        z += size * _sigma(counts[0] / size)
        found = np.rint(_ESTIMATE_BIAS * size * size / z)
    found = np.where(counts[0] == size, 0.0, np.minimum(found, 2.0**62))
    whole: Ints = found.astype(np.int64)
    return whole


def _counts(registers: Bytes) -> Ints:
    """By rank (rows) and sketch (columns), the number of registers."""
    count = registers.shape[0]
    which = registers.astype(np.int64) + _RANKS * np.arange(count)[:, None]
    found = np.bincount(which.ravel(), minlength=_RANKS * count)
    whole: Ints = found.reshape(count, _RANKS).T.astype(np.int64)
    return whole


def _sigma(x: Floats) -> Floats:
    y, z = 1.0, x
    while True:
        x, before = x * x, z
        z = z + x * y
        y += y
        if ((z == before) | ~np.isfinite(z)).all():
            return z


def _tau(x: Floats) -> Floats:
    y, z = 1.0, 1.0 - x
    edge = (x == 0.0) | (x == 1.0)
    while True:
        x, before = np.sqrt(x), z
        y *= 0.5
        z = z - (1.0 - x) ** 2 * y
        if (edge | (z == before)).all():
            return np.where(edge, 0.0, z / 3.0)


def chunks(rows: int, most: int = 256) -> Sequence[slice]:
    """Slices of at most so many rows: what is made of registers takes many times their memory."""
    return [slice(at, min(at + most, rows)) for at in range(0, rows, most)]
