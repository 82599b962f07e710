"""How `edged bench join` measures: members, the whole operator, and the floor, in steady state.

Windows are filled first (members: by `restore`), then turned over once, or for WARM_S seconds, with
beats that are not counted.  After that come `repeats` sections; a section lasts until it took
`seconds` and turned the windows over twice, but at most SECTION_S.  The clock stands while the
records of the next period are made.  At last a slice of beats is joined once more whose pairs are
hashed and compared with `join_data.expected`, which shares nothing with the members.
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from edged.bench.join_data import Digest, Feed, expected
from edged.columns import Batch, Column, address
from edged.joins._lanes import cut
from edged.joins.base import PARTITIONS, Int64s, Records, WindowJoin
from edged.operators.base import BeatContext, Flow, Link
from edged.operators.interval_join import IntervalJoinPlan
from edged.schema import TYPES, Field, Schema
from edged.workers import Workers
from kernels.cpu import floor, rings

WARM_S, SECTION_S = 1.0, 1.0
CHECKED_ROWS = 100_000
"""Tuples a side of the slice that is checked, at least a beat."""
CHECK_S = 1.0
"""Slow members are checked on as many beats as they do in so long."""
AHEADS = (0, 8, 16, 32, 64)
HEADS_BYTES = 32
"""Heads of the floor for a row of one side: four chains, two heads of four bytes each."""
FLOOR_CHUNK = 1 << 20
"""Tuples after which the floor looks at the clock."""
_ROW = Schema.of([Field("key", TYPES["int32"]), Field("value", TYPES["float32"]),
                  Field("ts", TYPES["timestamp"])])  # fmt: skip
_COLUMNS = {"key": "left.key", "r_value": "left.value", "r_ts": "left.ts",
            "s_value": "right.value", "s_ts": "right.ts"}  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    seconds: float
    repeats: int


@dataclass(frozen=True)
class Section:
    """What was done in how long; tuples are of both streams."""

    tuples: int
    pairs: int
    wall_s: float
    cpu_s: float


class Driver(ABC):
    """Something that joins the beats of a feed."""

    feed: Feed
    apart_s = apart_cpu_s = 0.0
    """What was spent in steps on what is not to be measured."""

    @abstractmethod
    def step(self) -> int:
        """Join the next beat; returns how many pairs it has."""

    @abstractmethod
    def pairs(self) -> tuple[Int64s, Int64s]:
        """The last step's pairs as numbers of tuples."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Memory that the windows take."""

    @abstractmethod
    def close(self) -> None:
        """Give up threads and memory."""


class MemberDriver(Driver):
    """`WindowJoin.join` alone, on records that lie prepared.

    A member on a GPU gets them in memory of its own, where the daemon writes them at once: that
    copy is not measured.
    """

    def __init__(self, member: type[WindowJoin], feed: Feed, threads: int) -> None:
        window = feed.pool.window
        self.feed, self._join = feed, member(window, window)
        self._workers = Workers(threads) if threads > 1 else None
        self._moves = member.device != "cpu"
        filling = [feed.filling(side) for side in (0, 1)]
        before = time.perf_counter()
        for side in (0, 1):
            self._join.restore(side, self._placed(side, filling[side]))
        self.fill_s = time.perf_counter() - before
        """How long the window's tuples took to be restored."""

    def step(self) -> int:
        """Join the next beat."""
        left, right, beat = self.feed.next()
        left, right = self._placed(0, left), self._placed(1, right)
        self._found = self._join.join(left, right, beat, self._workers)
        return self._found[0].size

    def _placed(self, side: int, records: Records) -> Records:
        """The records where the member reads them."""
        if not self._moves:
            return records
        cpu_before, before = time.process_time(), time.perf_counter()
        data = self._join.buffer(side, records.rows)
        data[: records.data.size] = records.data
        self.apart_s += time.perf_counter() - before
        self.apart_cpu_s += time.process_time() - cpu_before
        return Records(data, records.counts)

    def pairs(self) -> tuple[Int64s, Int64s]:
        """Rows of the stores, and where the stores begin."""
        base = self.feed.base - self.feed.batch
        left, right = self._found
        return left + base, right + base

    def state_bytes(self) -> int:
        """Bytes of the member's windows: columns are not its own."""
        return self._join.nbytes()

    def close(self) -> None:
        """End the workers."""
        self._join.close()
        if self._workers is not None:
            self._workers.close()


class OperatorDriver(Driver):
    """The whole `IntervalJoin`: stores columns, hashes, partitions, joins, materialises pairs."""

    def __init__(self, kernel: str, feed: Feed, threads: int) -> None:
        window, link = feed.pool.window, Link(_ROW, "ts")
        document = {"on": ["key"], "before": window, "after": window, "columns": _COLUMNS,
                    "kernel": kernel}  # fmt: skip
        plan = IntervalJoinPlan.parse("bench", "bench", document, (link, link))
        self.feed, self._workers = feed, Workers(threads)
        self._beat = BeatContext(1, 0, self._workers)
        self._operator = plan.build(self._workers)
        self._values = np.zeros(feed.batch, np.float32)
        for start in range(feed.start - window, feed.start, feed.batch):
            self._run(start, min(feed.start, start + feed.batch))

    def step(self) -> int:
        """Run the operator on the next beat."""
        start = self.feed.start
        self.feed.next()
        self._run(start, start + self.feed.batch)
        return self._output.rows

    def _run(self, start: int, stop: int) -> None:
        times, first = np.arange(start, stop), start % self.feed.pool.period
        flows = []
        for keys in self.feed.pool.keys:
            columns = keys[first : first + stop - start], self._values[: stop - start], times
            batch = Batch(_ROW, stop - start, tuple(Column(values) for values in columns))
            flows.append(Flow(batch, stop))
        self._output = self._operator.run(self._beat, flows).batch

    def pairs(self) -> tuple[Int64s, Int64s]:
        """The output's times: a tuple's time is its number."""
        return self._output["r_ts"].values, self._output["s_ts"].values

    def state_bytes(self) -> int:
        """Bytes of windows and stores."""
        return self._operator.state_bytes()

    def close(self) -> None:
        """End the workers."""
        self._workers.close()


def section(driver: Driver, seconds: float, rows: int, most_s: float) -> Section:
    """Beats until `seconds` have passed and `rows` a side have come, or `most_s` have passed."""
    feed, done = driver.feed, False
    beats = pairs = 0
    wall_s = cpu_s = 0.0
    apart_cpu_s = driver.apart_cpu_s
    while not done:
        if not feed.ready():
            feed.turn()
        cpu_before, before = time.process_time(), time.perf_counter() - wall_s - driver.apart_s
        while feed.ready() and not done:
            pairs += driver.step()
            beats += 1
            wall_s = time.perf_counter() - before - driver.apart_s
            done = wall_s >= most_s or (wall_s >= seconds and beats * feed.batch >= rows)
        cpu_s += time.process_time() - cpu_before
    cpu_s -= driver.apart_cpu_s - apart_cpu_s
    return Section(2 * beats * feed.batch, pairs, wall_s, cpu_s)


def check(driver: Driver, beats: int) -> bool:
    """Whether the next beats' pairs are those of the independent computation."""
    feed, found = driver.feed, Digest()
    if not feed.ready():
        feed.turn()
    first = feed.start
    for _ in range(beats):
        if not feed.ready():
            feed.turn()
        driver.step()
        found.add(*driver.pairs())
    return found == expected(feed.pool, first, first + beats * feed.batch)


def measure(make: Callable[[], Driver], effort: Effort) -> dict[str, Any]:
    """Medians of the repeats, the matches a tuple, and whether the results are right."""
    driver = make()
    feed = driver.feed
    try:
        warm = section(driver, 0.0, feed.pool.window, WARM_S)
        runs = [
            section(driver, effort.seconds, 2 * feed.pool.window, max(SECTION_S, effort.seconds))
            for _ in range(effort.repeats)
        ]
        beats = int(min(CHECKED_ROWS, warm.tuples / warm.wall_s * CHECK_S / 2)) // feed.batch
        exact = check(driver, max(1, beats))
        state_bytes = driver.state_bytes()
    finally:
        driver.close()
    tuples = sum(run.tuples for run in runs)
    return {
        "tuples_per_s": round(statistics.median(run.tuples / run.wall_s for run in runs)),
        "cpu_s_per_mtuple": statistics.median(1e6 * run.cpu_s / run.tuples for run in runs),
        "state_bytes_per_tuple": round(state_bytes / (2 * feed.pool.window), 1),
        "matches_per_tuple": sum(run.pairs for run in runs) / tuples,
        "repeats_tuples_per_s": [round(run.tuples / run.wall_s) for run in runs],
        "exact": exact,
    }


class Floor:
    """`kernels.cpu.floor` over a feed's records, with the footprint of its windows."""

    def __init__(self, feed: Feed, threads: int, matches_per_tuple: float) -> None:
        self._feed, self._workers = feed, Workers(threads)
        self._rate = round(matches_per_tuple * floor.ONE)
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
        self._lanes = np.zeros((threads, 2 * floor.LANE_FIELDS), np.int64)
        self._lanes[:, floor.PLACES] = places
        for lane, out in zip(self._lanes, self._out, strict=True):
            lane[[floor.OUT_MINE, floor.OUT_MET]] = address(out[0]), address(out[1])
        self._ranges = list(pairwise(cut(counts.sum(axis=0), threads)))

    def _lay_out(self, counts: Int64s) -> None:
        """Rings of both sides (`counts`: each partition's share) and heads, all touched once."""
        pool, batch = self._feed.pool, self._feed.batch
        entries = np.maximum(2, -(-counts * (pool.window + batch) // pool.period))
        lines = -(-HEADS_BYTES * entries.max(axis=0) // floor.LINE)
        heads = np.ones(floor.LINE * (int(lines.sum()) + 1), np.uint8)
        at = -(-address(heads) // floor.LINE) * floor.LINE
        self._memory = [heads]
        self._state = np.zeros((PARTITIONS, floor.FIELDS), np.int64)
        self._state[:, floor.HEADS] = at + floor.LINE * (lines.cumsum() - lines)
        self._state[:, floor.LINES] = lines
        for side in (0, 1):
            ring = np.ones(floor.ENTRY * int(entries[side].sum()), np.uint8)
            self._memory.append(ring)
            first = entries[side].cumsum() - entries[side]
            self._state[:, floor.RING + side] = address(ring) + floor.ENTRY * first
            self._state[:, floor.ENTRIES + side] = entries[side]
            filled = counts[side] * pool.window // pool.period
            self._state[:, floor.NEXT + side] = np.minimum(filled, entries[side] - 1)

    def section(self, ahead: int, seconds: float) -> float:
        """Tuples per second, both streams."""
        beats, batch = self._feed.beats, self._feed.batch
        chunk = max(1, FLOOR_CHUNK // (2 * batch))
        tuples, wall_s, before = 0, 0.0, time.perf_counter()
        while wall_s < seconds or not tuples:
            stop = min(beats, self._at + chunk)
            calls = [
                partial(floor.touch, *rows, ahead, self._rate, self._records[self._at : stop],
                        self._edges[self._at : stop], self._state, lane[: floor.LANE_FIELDS])
                for rows, lane in zip(self._ranges, self._lanes, strict=True)
            ]  # fmt: skip
            self._workers.run(calls)
            tuples += 2 * batch * (stop - self._at)
            self._at = stop % beats
            wall_s = time.perf_counter() - before
        return tuples / wall_s

    def apart(self, ahead: int, seconds: float) -> float:
        """The same with threads that never wait for each other: what the hardware gives."""
        feed = self._feed
        total = sum(int(counts.sum()) for counts in feed.counts)

        def go(rows: tuple[int, int], lane: Int64s) -> float:
            share = sum(int(counts[:, slice(*rows)].sum()) for counts in feed.counts) / total
            periods, wall_s, before = 0, 0.0, time.perf_counter()
            while wall_s < seconds:
                floor.touch(*rows, ahead, self._rate, self._records, self._edges, self._state,
                            lane[: floor.LANE_FIELDS])  # fmt: skip
                periods += 1
                wall_s = time.perf_counter() - before
            return share * 2 * feed.batch * feed.beats * periods / wall_s

        parts = zip(self._ranges, self._lanes, strict=True)
        rates: list[float] = self._workers.run([partial(go, *part) for part in parts])
        return sum(rates)

    def close(self) -> None:
        """End the workers."""
        self._workers.close()


@dataclass(frozen=True)
class FloorSpeed:
    """The floor's tuples per second; the same of threads that never wait for each other; and at
    which prefetching distance."""

    tuples_per_s: float
    apart_tuples_per_s: float
    ahead: int


def measure_floor(feed: Feed, threads: int, matches_per_tuple: float, effort: Effort) -> FloorSpeed:
    """The floor's speeds, medians of the repeats, at the prefetching distance that is fastest."""
    at_work = Floor(feed, threads, matches_per_tuple)
    try:
        seconds = effort.seconds / 2
        at_work.section(16, seconds)
        best = max(AHEADS, key=lambda ahead: at_work.section(ahead, seconds))
        runs = [at_work.section(best, seconds) for _ in range(effort.repeats)]
        apart = runs
        if threads > 1:
            apart = [at_work.apart(best, seconds) for _ in range(effort.repeats)]
    finally:
        at_work.close()
    return FloorSpeed(statistics.median(runs), statistics.median(apart), best)
