"""How `edged bench join` measures members and the whole operator, in steady state.

Windows are filled first (members: by `restore`), then turned over once, or for WARM_S seconds, with
beats that are not counted.  Then come `repeats` sections.  A section lasts until it took `seconds`,
and all of them turned the windows over twice, but at most SECTION_S.  The clock stands while the
records of the next period are made and while sleeping threads wake.  Sections are short, and those
of the roofline (`join_roofline`) come in turn with the member's, since a shared machine changes its
speed within seconds; the median of the turns' fractions is reported.  At last a slice of beats is
joined once more, and its pairs are hashed and compared with `join_data.expected`, which shares no
code with the members.
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
from edged.data.columns import Batch, Column
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.joins.base import Int64s, Records, WindowJoin
from edged.operators.interval_join import IntervalJoinPlan

WARM_S, SECTION_S = 1.0, 1.0
WAKING_S = 0.0005
"""A thread sleeps after 0.15 ms without work, and takes as long to wake."""
CHECKED_ROWS = 100_000
"""Tuples a side of the slice that is checked, at least a beat."""
CHECK_S = 1.0
"""Slow members are checked on as many beats as they do in so long."""
_ROW = Schema.of([Field("key", TYPES["int32"]), Field("value", TYPES["float32"]),
                  Field("ts", TYPES["timestamp"])])  # fmt: skip
_COLUMNS = {"key": "left.key", "r_value": "left.value", "r_ts": "left.ts",
            "s_value": "right.value", "s_ts": "right.ts"}  # fmt: skip


@dataclass(frozen=True)
class Section:
    """Tuples (of both streams), pairs and times of a section."""

    tuples: int
    pairs: int
    wall_s: float
    cpu_s: float


class Driver(ABC):
    """A join of the beats of a feed."""

    feed: BeatFeed
    apart_s = apart_cpu_s = 0.0
    """Time of steps that is not measured."""

    @abstractmethod
    def step(self) -> int:
        """Join the next beat; returns the number of its pairs."""

    @abstractmethod
    def pairs(self) -> tuple[Int64s, Int64s]:
        """The last step's pairs as numbers of tuples."""

    @abstractmethod
    def state_bytes(self) -> int:
        """Bytes of the windows."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory."""


class MemberDriver(Driver):
    """`WindowJoin.join` alone, on records that lie prepared.

    A member on a GPU has memory of its own for them, where the daemon writes them directly: that
    copy is not measured.
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
        """Time of restoring the windows."""

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

    def __init__(self, kernel: str, feed: BeatFeed, threads: int) -> None:
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


def wake(driver: Driver) -> None:
    """Join beats for WAKING_S, for at most half a period, without counting them."""
    beats, until = 0, time.perf_counter() + WAKING_S
    while driver.feed.ready() and 2 * beats + 2 <= driver.feed.beats:
        driver.step()
        beats += 1
        if time.perf_counter() >= until:
            break


def cpu_time_s() -> float:
    """The CPU time of this process's threads up to now.  `time.process_time` adds that of a thread
    on another core up only when it sleeps, or at a tick."""
    clocks = (time.pthread_getcpuclockid(t.ident) for t in threading.enumerate() if t.ident)
    return sum(time.clock_gettime(clock) for clock in clocks)


def section(driver: Driver, seconds: float, rows: int, most_s: float) -> Section:
    """Join beats until `seconds` have passed and `rows` a side have come, or `most_s` have passed.

    Before the clock starts, and after each time it stood, some uncounted beats wake the threads.
    """
    feed, done = driver.feed, False
    beats = pairs = 0
    wall_s = cpu_s = 0.0
    while not done:
        if not feed.ready():
            feed.turn()
        wake(driver)
        cpu_before = cpu_time_s() - cpu_s - driver.apart_cpu_s
        before = time.perf_counter() - wall_s - driver.apart_s
        while feed.ready() and not done:
            pairs += driver.step()
            beats += 1
            wall_s = time.perf_counter() - before - driver.apart_s
            done = wall_s >= most_s or (wall_s >= seconds and beats * feed.batch >= rows)
        cpu_s = cpu_time_s() - cpu_before - driver.apart_cpu_s
    return Section(2 * beats * feed.batch, pairs, wall_s, cpu_s)


def check(driver: Driver, beats: int) -> bool:
    """Whether the next beats' pairs are those of the independent computation."""
    feed, found = driver.feed, PairDigest()
    if not feed.ready():
        feed.turn()
    first = feed.start
    for _ in range(beats):
        if not feed.ready():
            feed.turn()
        driver.step()
        found.add(*driver.pairs())
    return found == expected(feed.pool, first, first + beats * feed.batch)


def measure(
    make: Callable[[], Driver], effort: Effort, limit_of: Callable[[float], Limit] | None = None
) -> dict[str, Any]:
    """The medians of the repeats, the matches a tuple, and whether the results are exact; with
    `limit_of`, which gives the roofline for a number of matches a tuple, also its speed in turn."""
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
