"""The input of `edged bench join`: two periodic streams of records, and their reference join.

Each stream has one tuple a microsecond: tuple g has event time g and number g. Its key is
`keys[g % period]` of a pool; the period is longer than window plus batch. A window of `window`
tuples a side is the join bound before = after = `window` µs.

Keys are int32. The right side's keys are uniform over `window / match_rate` values, so a tuple of
either side has `match_rate` earlier partners on average. The left side's keys come from the same
values, in one of these distributions:

    uniform
    zipf      zipf(1.1), by inverting the continuous form of the distribution. Only one side is
              skewed: with both, a window of 10^6 would hold 10^4 partners a tuple. With fewer than
              one match a tuple the right side rarely has the left's heavy hitters, and then there
              are about half as many matches. The benchmark's rows hold the actual number
    one       all tuples have one key, so the left window is one chain in one partition. The right
              side has that key as often as any other, at even distances

A beat takes `batch` tuples of each side. The records of a whole period are prepared in advance. At
its end their times and numbers are advanced, outside the measured time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address
from edged.data.hashing import hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.joins.base import Beat, Int64s, Records
from kernels.cpu import partition, rings
from kernels.cpu.partition import PARTITIONS

ZIPF = 1.1
KEYS = ("uniform", "zipf", "one")
PERIOD_MIN = 1 << 18
"""Least tuples a side of a period."""
KEY_MAX = 2**31 - 1
_KEY_SCHEMA = Schema.of([Field("key", TYPES["int32"])])
_FILTER_BITS = 22
MATCH_RATE = 0.01
"""Mean matches of a tuple in the joins of `edged calibrate`."""

Int32s = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Pool:
    """The keys of both sides, int32[period], and their hashes, uint64[period]."""

    window: int
    match_rate: float
    keys: tuple[Int32s, Int32s]
    hashes: tuple[Hashes, Hashes]

    @property
    def period(self) -> int:
        """Tuples a side after which keys repeat."""
        return self.keys[0].size


def draw(window: int, match_rate: float, kind: str, batches: tuple[int, ...]) -> Pool:
    """The pool for a window and match rate, for beats of any of `batches` tuples a side.

    `kind` is one of KEYS. Equal arguments give equal pools.
    """
    step = int(np.lcm.reduce(batches))
    period = -(-max(window + max(batches), PERIOD_MIN) // step) * step
    distinct = min(KEY_MAX, max(1, round(window / match_rate)))
    # One generator for each side: a longer period then starts with the keys of a shorter one.
    seed = window, round(match_rate * 1000), KEYS.index(kind)
    dice = [np.random.default_rng([*seed, side]) for side in (0, 1)]
    right = dice[1].integers(0, distinct, period, np.int32)
    if kind == "zipf":
        left = zipf(dice[0].random(period), distinct)
    elif kind == "one":
        left, right = np.zeros(period, np.int32), np.maximum(right, 1)
        right[distinct // 2 :: distinct] = 0
    else:
        left = dice[0].integers(0, distinct, period, np.int32)
    hashes = tuple(
        hash_columns(Batch(_KEY_SCHEMA, period, (Column(keys),)), ["key"]) for keys in (left, right)
    )
    return Pool(window, match_rate, (left, right), (hashes[0], hashes[1]))


def zipf(uniform: npt.NDArray[np.float64], distinct: int) -> Int32s:
    """Keys 0..distinct-1 for uniform numbers in [0, 1); their density is (key + 1) ** -ZIPF."""
    most = float(distinct + 1) ** (1 - ZIPF)
    ranks = (1 - uniform * (1 - most)) ** (1 / (1 - ZIPF))
    keys: Int32s = np.minimum(ranks - 1, distinct - 1).astype(np.int32)
    return keys


class BeatFeed:
    """The pool as an endless sequence of beats of `batch` tuples a side."""

    def __init__(self, pool: Pool, batch: int) -> None:
        self.pool, self.batch = pool, batch
        self.beats = pool.period // batch
        self._next, self._cycle = 0, 1
        shape = self.beats, PARTITIONS
        self.data = tuple(np.zeros(2 * (pool.period + rings.AHEAD), np.int64) for _ in (0, 1))
        self.counts = tuple(np.zeros(shape, np.int64) for _ in (0, 1))
        times = np.arange(pool.period)
        for side in (0, 1):
            for beat in range(self.beats):
                rows = beat * batch, (beat + 1) * batch
                at = self.data[side][2 * rows[0] :]
                _scatter(pool.hashes[side], times, rows, at, self.counts[side][beat])
        self._records = [(self._slice(0, beat), self._slice(1, beat)) for beat in range(self.beats)]
        self._move_on()

    def _slice(self, side: int, beat: int) -> Records:
        a, b = beat * self.batch, (beat + 1) * self.batch
        return Records(self.data[side][2 * a : 2 * (b + rings.AHEAD)], self.counts[side][beat])

    @property
    def start(self) -> int:
        """Number of the first tuple of the next beat."""
        return self._cycle * self.pool.period + self._next * self.batch

    @property
    def base(self) -> int:
        """Tuple number of row 0 of the stores of both sides, in the next beat."""
        return self.start - self.pool.window - self.batch

    def filling(self, side: int) -> Records:
        """The records of one side's window before the first beat, as one batch."""
        window, period = self.pool.window, self.pool.period
        data, counts = (
            np.zeros(2 * (window + rings.AHEAD), np.int64),
            np.zeros(PARTITIONS, np.int64),
        )
        rows = period - window, period
        _scatter(self.pool.hashes[side], np.arange(period), rows, data, counts)
        return Records(data, counts)

    def ready(self) -> bool:
        """Whether the period has another beat. If not, `turn` must precede `next`."""
        return self._next < self.beats

    def turn(self) -> None:
        """Start the next period."""
        self._next, self._cycle = 0, self._cycle + 1
        self._move_on()

    def next(self) -> tuple[Records, Records, Beat]:
        """Records of both sides and the bounds of the next beat."""
        self._next += 1
        return self._coming[self._next - 1]

    def _move_on(self) -> None:
        period = self.pool.period
        for data in self.data:
            data[::2] += period
            data.view(np.uint32)[3::4] += np.uint32(period)
        first = self._cycle * period
        reach = self.pool.window + self.batch
        self._coming: list[tuple[Records, Records, Beat]] = []
        for beat in range(self.beats):
            start = first + beat * self.batch
            bound = start + self.batch - self.pool.window
            base = (start - reach) % 2**32
            self._coming.append((*self._records[beat], Beat((base, base), (bound, bound))))


def _scatter(
    hashes: Hashes, times: Int64s, rows: tuple[int, int], data: Int64s, counts: Int64s
) -> None:
    """Write the records of a range of rows to the start of `data`, partition by partition.

    `counts` receives the rows of each partition.
    """
    partition.count(hashes, 0, *rows, counts)
    cursors = counts.cumsum() - counts
    partition.scatter(hashes, 0, address(times), 0, *rows, cursors, address(data))


@dataclass
class PairDigest:
    """The number of pairs, and the sum of their hashes mod 2^64. The order does not matter."""

    pairs: int = 0
    hash: int = 0

    def add(self, left: Int64s, right: Int64s) -> None:
        """Add pairs of tuple numbers."""
        x = left.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(32)
        x += right.astype(np.uint64)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(29)
        x *= np.uint64(0x94D049BB133111EB)
        self.pairs += left.size
        self.hash = (self.hash + int(x.sum(dtype=np.uint64))) % 2**64


class Products(PairDigest):
    """A digest that SQL can compute: the hash of a pair is the product of its numbers."""

    def add(self, left: Int64s, right: Int64s) -> None:
        """Add pairs of tuple numbers."""
        product = left.astype(np.uint64) * right.astype(np.uint64)
        self.pairs += left.size
        self.hash = (self.hash + int(product.sum(dtype=np.uint64))) % 2**64


def expected(pool: Pool, start: int, stop: int, digest: PairDigest | None = None) -> PairDigest:
    """The digest of all pairs whose later tuple has a number in start..stop: the reference join.

    A pair is (left, right) with equal keys and |left - right| <= window; the first tuple has number
    0. The join sorts keys and searches them. It uses no hashes and shares no code with the kernels.
    Adds to `digest`, if one is given.
    """
    digest = PairDigest() if digest is None else digest
    new = np.arange(start, stop)
    for side in (0, 1):
        mine, other = pool.keys[side], pool.keys[1 - side]
        keys = mine[new % pool.period]
        old = _filter(np.arange(max(0, start - pool.window), stop), other, keys, pool.period)
        places = np.sort(_place(other[old % pool.period], old - start + 2**31))
        # A pair of tuples with equal numbers is found from the right side only.
        latest = new - start if side else new - start - 1
        low = np.searchsorted(places, _place(keys, new - start - pool.window + 2**31), "left")
        high = np.searchsorted(places, _place(keys, latest + 2**31), "right")
        for a in range(0, new.size, 1 << 16):
            counts = (high - low)[a : a + (1 << 16)]
            met = np.repeat(low[a : a + (1 << 16)] - counts.cumsum() + counts, counts)
            partners = (places[met + np.arange(met.size)] & (2**32 - 1)) - 2**31 + start
            probing = np.repeat(new[a : a + (1 << 16)], counts)
            pair = (partners, probing) if side else (probing, partners)
            digest.add(*pair)
    return digest


def _place(keys: Int32s, number: Int64s) -> Int64s:
    """One integer that sorts by key, then by number (0..2^32)."""
    placed: Int64s = (keys.astype(np.int64) << 32) + number
    return placed


def _filter(numbers: Int64s, keys: Int32s, wanted: Int32s, period: int) -> Int64s:
    """The `numbers` whose keys may be among `wanted`: a Bloom filter with one hash."""
    bits = np.zeros(1 << _FILTER_BITS, np.bool_)
    bits[wanted & (bits.size - 1)] = True
    candidates: Int64s = numbers[bits[keys[numbers % period] & (bits.size - 1)]]
    return candidates
