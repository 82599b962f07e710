"""The method of `edged bench join`: kernels and the whole operator in steady state.

    1. Fill the windows (kernels: by `restore`).
    2. Warm up: replace the windows once, or run for WARM_S seconds.
    3. Measure `repeats` sections. A section lasts at least `seconds`, and long enough that all
       sections together replace the windows twice, but at most SECTION_S. Preparing the records of
       the next period and waking sleeping threads are not measured.
    4. Check: join a slice of beats, hash its pairs, and compare them with `join_data.expected`,
       which shares no code with the kernels.

A shared machine changes its speed within seconds. So sections are short, and those of the roofline
(`join_roofline`) alternate with the kernel's; the median of the fractions is reported.
"""

from __future__ import annotations

import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edged.calibration.join_data import BeatFeed, PairDigest, expected
from edged.calibration.join_roofline import Effort, Limit
from edged.data.columns import Batch, Column, empty_batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.joins.base import Int64s, Records, WindowJoin
from edged.operators.interval_join import IntervalJoinPlan

WARM_S, SECTION_S = 1.0, 1.0
WAKING_S = 0.0005
"""Uncounted time that wakes the threads. A thread sleeps after 0.15 ms without work, and takes as
long to wake."""
CHECKED_ROWS = 100_000
"""Tuples a side of the checked slice; at least one beat."""
OUTPUT_BYTES = 128 << 20
"""What the pairs of a beat may take in a job of the default memory."""
CHECK_S = 1.0
"""Longest check of a slow kernel."""
_ROW = Schema.of([Field("key", TYPES["int32"]), Field("value", TYPES["float32"]),
                  Field("ts", TYPES["timestamp"])])  # fmt: skip
_COLUMNS = {"key": "left.key", "r_value": "left.value", "r_ts": "left.ts",
            "s_value": "right.value", "s_ts": "right.ts"}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """The result of one section: tuples of both streams, pairs, wall time and CPU time."""

    tuples: int
    pairs: int
    wall_s: float
    cpu_s: float


class Driver(ABC):
    """Runs a join over the beats of a feed."""

    feed: BeatFeed
    excluded_s = excluded_cpu_s = 0.0
    """Wall and CPU time of steps that is not part of the join."""

    @abstractmethod
    def step(self) -> int:
        """Join the next beat; returns the number of pairs."""

    @abstractmethod
    def pairs(self) -> tuple[Int64s, Int64s]:
        """The pairs of the last step, as tuple numbers (left, right)."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the windows."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory."""


class MemberDriver(Driver):
    """Runs `WindowJoin.join` on prepared records.

    The daemon writes records directly into the memory of a GPU kernel. This driver copies them
    there; the copy is not measured.
    """

    def __init__(self, member: type[WindowJoin], feed: BeatFeed, threads: int) -> None:
        window = feed.pool.window
        self.feed, self._join = feed, member(window, window)
        self._workers = Workers(threads) if threads > 1 else None
        self._moves = member.device != "cpu"
        filling = [feed.filling(side) for side in (0, 1)]
        before = time.perf_counter()
        for side in (0, 1):
            self._join.restore(side, self._placed(side, filling[side]))
        self.fill_s = time.perf_counter() - before
        """Time to restore the windows (s)."""

    def step(self) -> int:
        """Join the next beat."""
        left, right, beat = self.feed.next()
        left, right = self._placed(0, left), self._placed(1, right)
        self._found = self._join.join(left, right, beat, self._workers)
        return self._found[0].size

    def _placed(self, side: int, records: Records) -> Records:
        """The records in the member's memory."""
        if not self._moves:
            return records
        cpu_before, before = time.process_time(), time.perf_counter()
        data = self._join.buffer(side, records.rows)
        data[: records.data.size] = records.data
        self.excluded_s += time.perf_counter() - before
        self.excluded_cpu_s += time.process_time() - cpu_before
        return Records(data, records.counts)

    def pairs(self) -> tuple[Int64s, Int64s]:
        """The pairs of the last step: rows of the stores plus the stores' first number."""
        base = self.feed.base - self.feed.batch
        left, right = self._found
        return left + base, right + base

    def state_bytes(self) -> int:
        """Bytes of the kernel's windows, without the columns, which belong to the operator."""
        return self._join.nbytes()

    def close(self) -> None:
        """Stop the worker threads."""
        self._join.close()
        if self._workers is not None:
            self._workers.close()


class OperatorDriver(Driver):
    """Runs the whole `IntervalJoin`: it stores columns, hashes, partitions, joins, materialises.

    Its output in a beat is bounded as in a job of the default memory.  A step lasts until no row
    waits.
    """

    def __init__(self, kernel: str, feed: BeatFeed, threads: int) -> None:
        window, link = feed.pool.window, Link(_ROW, "ts")
        document = {"on": ["key"], "before": window, "after": window, "columns": _COLUMNS,
                    "kernel": kernel}  # fmt: skip
        plan = IntervalJoinPlan.parse("bench", "bench", document, (link, link))
        self.feed, self._workers = feed, Workers(threads)
        self._beat = BeatContext(1, 0, self._workers)
        self._operator = plan.build(self._workers)
        self._operator.bound(OUTPUT_BYTES)
        self._values = np.zeros(feed.batch, np.float32)
        for start in range(feed.start - window, feed.start, feed.batch):
            self._run(start, min(feed.start, start + feed.batch))

    def step(self) -> int:
        """Run the operator on the next beat."""
        start = self.feed.start
        self.feed.next()
        self._run(start, start + self.feed.batch)
        return sum(r.size for r, _ in self._times)

    def _run(self, start: int, stop: int) -> None:
        times, first = np.arange(start, stop), start % self.feed.pool.period
        flows = []
        for keys in self.feed.pool.keys:
            columns = keys[first : first + stop - start], self._values[: stop - start], times
            batch = Batch(_ROW, stop - start, tuple(Column(values) for values in columns))
            flows.append(Flow(batch, stop))
        output = self._operator.run(self._beat, flows).batch
        self._times = [(output["r_ts"].values, output["s_ts"].values)]
        nothing = [Flow(empty_batch(_ROW), stop)] * 2
        while self._operator.waiting():
            self._times = [(r.copy(), s.copy()) for r, s in self._times]
            output = self._operator.run(self._beat, nothing).batch
            self._times.append((output["r_ts"].values, output["s_ts"].values))

    def pairs(self) -> tuple[Int64s, Int64s]:
        """The pairs of the last step: the output's times, since a tuple's time is its number."""
        left, right = zip(*self._times, strict=True)
        return np.concatenate(left), np.concatenate(right)

    def state_bytes(self) -> int:
        """Bytes of windows and stores."""
        return self._operator.state_bytes()

    def close(self) -> None:
        """Stop the worker threads."""
        self._workers.close()


def wake(driver: Driver) -> None:
    """Wake the worker threads: join uncounted beats for WAKING_S, or for half a period."""
    beats, until = 0, time.perf_counter() + WAKING_S
    while driver.feed.ready() and 2 * beats + 2 <= driver.feed.beats:
        driver.step()
        beats += 1
        if time.perf_counter() >= until:
            break


def cpu_time_s() -> float:
    """CPU time of this process's threads so far (s).

    `time.process_time` lags: it includes a thread on another core only after a tick or a sleep.
    """
    clocks = (time.pthread_getcpuclockid(t.ident) for t in threading.enumerate() if t.ident)
    return sum(time.clock_gettime(clock) for clock in clocks)


def section(driver: Driver, seconds: float, rows: int, most_s: float) -> Section:
    """Measure beats until `seconds` and `rows` tuples a side are reached, or `most_s` seconds.

    Uncounted beats wake the threads at the start and after each pause of the measurement.
    """
    feed, done = driver.feed, False
    beats = pairs = 0
    wall_s = cpu_s = 0.0
    while not done:
        if not feed.ready():
            feed.turn()
        wake(driver)
        cpu_before = cpu_time_s() - cpu_s - driver.excluded_cpu_s
        before = time.perf_counter() - wall_s - driver.excluded_s
        while feed.ready() and not done:
            pairs += driver.step()
            beats += 1
            wall_s = time.perf_counter() - before - driver.excluded_s
            done = wall_s >= most_s or (wall_s >= seconds and beats * feed.batch >= rows)
        cpu_s = cpu_time_s() - cpu_before - driver.excluded_cpu_s
    return Section(2 * beats * feed.batch, pairs, wall_s, cpu_s)


def check(driver: Driver, beats: int) -> bool:
    """Whether the pairs of the next `beats` beats equal those of the reference join."""
    feed, digest = driver.feed, PairDigest()
    if not feed.ready():
        feed.turn()
    first = feed.start
    for _ in range(beats):
        if not feed.ready():
            feed.turn()
        driver.step()
        digest.add(*driver.pairs())
    return digest == expected(feed.pool, first, first + beats * feed.batch)


def measure(
    make: Callable[[], Driver], effort: Effort, limit_of: Callable[[float], Limit] | None = None
) -> dict[str, Any]:
    """Measure one configuration; returns its figures.

    They hold medians over the sections, the matches a tuple, and whether the results are exact.
    `limit_of` returns the roofline for a number of matches a tuple; with it the figures also hold
    the roofline's speed and the fraction of it.
    """
    driver = make()
    feed = driver.feed
    try:
        warm = section(driver, 0.0, feed.pool.window, WARM_S)
        limit = limit_of(warm.pairs / warm.tuples) if limit_of else None
        runs, turns = [], []
        for _ in range(effort.repeats):
            rows = 2 * feed.pool.window // effort.repeats
            runs.append(section(driver, effort.seconds, rows, max(SECTION_S, effort.seconds)))
            if limit is not None:
                turns.append(limit.turn())
        beats = int(min(CHECKED_ROWS, warm.tuples / warm.wall_s * CHECK_S / 2)) // feed.batch
        exact = check(driver, max(1, beats))
        state_bytes = driver.state_bytes()
    finally:
        driver.close()
    tuples = sum(run.tuples for run in runs)
    figures = {
        "tuples_per_s": round(statistics.median(run.tuples / run.wall_s for run in runs)),
        "cpu_s_per_mtuple": statistics.median(1e6 * run.cpu_s / run.tuples for run in runs),
        "state_bytes_per_tuple": round(state_bytes / (2 * feed.pool.window), 1),
        "matches_per_tuple": sum(run.pairs for run in runs) / tuples,
        "repeats_tuples_per_s": [round(run.tuples / run.wall_s) for run in runs],
        "exact": exact,
    }
    if limit is not None:
        parts = [r.tuples / r.wall_s / t.tuples_per_s for r, t in zip(runs, turns, strict=True)]
        figures |= {
            "fraction_of_limit": round(statistics.median(parts), 3),
            "floor_tuples_per_s": round(statistics.median(t.tuples_per_s for t in turns)),
            "floor_apart_tuples_per_s": round(
                statistics.median(t.apart_tuples_per_s for t in turns)
            ),
            "floor_ahead": limit.ahead,
        }
    return figures
