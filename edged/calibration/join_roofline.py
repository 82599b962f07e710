"""The roofline of `edged bench join`: the speed of the unavoidable memory accesses of a join.

`kernels.cpu.roofline` defines the accesses. This module runs it with the records, windows, threads
and matches a tuple of a configuration. Its sections alternate with those of the measured kernel.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from edged.calibration.join_data import BeatFeed
from edged.data.columns import address
from edged.data.workers import Workers
from edged.joins._lanes import cut
from edged.joins.base import Int64s
from kernels.cpu import rings, roofline
from kernels.cpu.partition import PARTITIONS

AHEADS = (0, 8, 16, 32, 64)
ROUNDS = 3
"""Sections for each prefetching distance; the fastest counts."""
HEADS_BYTES = 32
"""Bytes of heads for a row of one side: four chains with two heads of four bytes each."""
FLOOR_CHUNK = 1 << 20
"""Tuples between two reads of the clock."""


@dataclass(frozen=True)
class Effort:
    """The effort of a measurement: least length of a section (s), and number of sections."""

    seconds: float
    repeats: int


class Floor:
    """`kernels.cpu.roofline` over a feed's records, with the footprint of its windows."""

    def __init__(self, feed: BeatFeed, threads: int, matches_per_tuple: float) -> None:
        self._feed, self._workers = feed, Workers(threads)
        self._rate = round(matches_per_tuple * roofline.ONE)
        self._at = 0
        self._edges = np.zeros((feed.beats, 2, PARTITIONS + 1), np.int64)
        for side in (0, 1):
            np.cumsum(feed.counts[side], axis=1, out=self._edges[:, side, 1:])
        step = rings.RECORD_BYTES * feed.batch * np.arange(feed.beats)
        self._records = np.stack([address(data) + step for data in feed.data], axis=1)
        counts = np.stack([c.sum(axis=0) for c in feed.counts])
        self._lay_out(counts)
        places = max(1024, int(2 * feed.batch * matches_per_tuple) // threads)
        self._out = np.ones((threads, 2, places), np.int64)
        self._lanes = np.zeros((threads, 2 * roofline.LANE_FIELDS), np.int64)
        self._lanes[:, roofline.LANE.places] = places
        for lane, out in zip(self._lanes, self._out, strict=True):
            lane[[roofline.LANE.out_mine, roofline.LANE.out_met]] = address(out[0]), address(out[1])
        self._ranges = list(pairwise(cut(counts.sum(axis=0), threads)))

    def _lay_out(self, counts: Int64s) -> None:
        """Allocate the rings of both sides and the heads, and write to every page of them.

        `counts` has the rows of each side and partition in a period.
        """
        pool, batch = self._feed.pool, self._feed.batch
        entries = np.maximum(2, -(-counts * (pool.window + batch) // pool.period))
        lines = -(-HEADS_BYTES * entries.max(axis=0) // rings.LINE)
        heads = np.ones(rings.LINE * (int(lines.sum()) + 1), np.uint8)
        at = -(-address(heads) // rings.LINE) * rings.LINE
        self._memory = [heads]
        self._state = np.zeros((PARTITIONS, roofline.PART_FIELDS), np.int64)
        self._state[:, roofline.PART.heads] = at + rings.LINE * (lines.cumsum() - lines)
        self._state[:, roofline.PART.lines] = lines
        for side in (0, 1):
            ring = np.ones(rings.ENTRY * int(entries[side].sum()), np.uint8)
            self._memory.append(ring)
            first = entries[side].cumsum() - entries[side]
            self._state[:, roofline.PART.rings + side] = address(ring) + rings.ENTRY * first
            self._state[:, roofline.PART.entries + side] = entries[side]
            filled = counts[side] * pool.window // pool.period
            self._state[:, roofline.PART.next + side] = np.minimum(filled, entries[side] - 1)

    def section(self, ahead: int, seconds: float) -> float:
        """Tuples/s of both streams, over at least `seconds`."""
        beats, batch = self._feed.beats, self._feed.batch
        chunk = max(1, FLOOR_CHUNK // (2 * batch))
        tuples, wall_s, before = 0, 0.0, time.perf_counter()
        while wall_s < seconds or not tuples:
            stop = min(beats, self._at + chunk)
            calls = [
                partial(roofline.touch, *rows, ahead, self._rate, self._records[self._at : stop],
                        self._edges[self._at : stop], self._state, lane[: roofline.LANE_FIELDS])
                for rows, lane in zip(self._ranges, self._lanes, strict=True)
            ]  # fmt: skip
            self._workers.run(calls)
            tuples += 2 * batch * (stop - self._at)
            self._at = stop % beats
            wall_s = time.perf_counter() - before
        return tuples / wall_s

    def apart(self, ahead: int, seconds: float) -> float:
        """Tuples/s of both streams with independent threads: the limit of the hardware."""
        feed = self._feed
        total = sum(int(counts.sum()) for counts in feed.counts)

        def go(rows: tuple[int, int], lane: Int64s) -> float:
            share = sum(int(counts[:, slice(*rows)].sum()) for counts in feed.counts) / total
            periods, wall_s, before = 0, 0.0, time.perf_counter()
            while wall_s < seconds:
                roofline.touch(*rows, ahead, self._rate, self._records, self._edges, self._state,
                            lane[: roofline.LANE_FIELDS])  # fmt: skip
                periods += 1
                wall_s = time.perf_counter() - before
            return share * 2 * feed.batch * feed.beats * periods / wall_s

        parts = zip(self._ranges, self._lanes, strict=True)
        rates: list[float] = self._workers.run([partial(go, *part) for part in parts])
        return sum(rates)

    def close(self) -> None:
        """Stop the worker threads."""
        self._workers.close()


@dataclass(frozen=True)
class Turn:
    """Speeds of one section of the roofline."""

    tuples_per_s: float
    apart_tuples_per_s: float
    """The same with independent threads."""


class Limit:
    """The roofline of a configuration, at its fastest prefetching distance (`ahead`)."""

    def __init__(
        self, feed: BeatFeed, threads: int, matches_per_tuple: float, effort: Effort
    ) -> None:
        self._floor = Floor(feed, threads, matches_per_tuple)
        self._seconds, self._threads = effort.seconds / 2, threads
        self._floor.section(16, self._seconds)
        rounds = [
            [self._floor.section(ahead, self._seconds) for ahead in AHEADS] for _ in range(ROUNDS)
        ]
        fastest = [max(speeds) for speeds in zip(*rounds, strict=True)]
        self.ahead = AHEADS[fastest.index(max(fastest))]

    def turn(self) -> Turn:
        """Measure one section, and with several threads also one of independent threads."""
        together = self._floor.section(self.ahead, self._seconds)
        if self._threads == 1:
            return Turn(together, together)
        return Turn(together, self._floor.apart(self.ahead, self._seconds))

    def close(self) -> None:
        """Stop the worker threads."""
        self._floor.close()
