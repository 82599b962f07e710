"""The batcher: decides when to wake.  Pure decisions from observations; no clock, no I/O.

A tuple that arrives right after a beat's ingest waits for the next wake, is raced and committed.
The batcher makes that wait as long as the promises allow, because long waits permit deep sleep:

    wake <= oldest arrival + latency    − expected race − expected commit − margin
    wake <= oldest arrival + ack_within − expected commit − margin     (commit without racing)
    wake <= first readiness + fill      where `fill` halves whenever the senders' buffers were
                                        found more than half full, and grows back when they
                                        were less than a quarter full

The margin covers how late wakes come, the expected commit how long sealed pages take to be
durable: each has the 99.9th percentile of the last 1000 beats in it (`SlidingQuantile`).  With the
99th of 200, 1.6 instead of 0.6 % of the beats were late at a promise of 50 ms and a load of 1 %,
for 4 % less energy (docs/measurements/promise.md).  A single outlier, such as a process that was
stopped for half a second, says nothing about the next beat and is left out.  What recurs is in the
percentile, up to a share of the latency: covering more would cost many beats for the few that are
late.

A limit on the rows of one beat keeps a race under about half the latency.  Rows beyond the limit
are raced in the next beat, at once.  A backlog therefore drains with all capacity that the load
leaves.  The limit follows the cheapest of the last beats: where other processes take a core from a
race, that costs time by the beat and not by the row.  Smaller beats would cost more of it, and the
backlog would grow.

The governor adjusts this by `steer`: spend only a share of the latency on waiting, leave time for
a race that is planned to be slower than the last ones, or not race before some time, which takes
precedence over the promises.

The scheme follows ecoJoin, section 2.1 (batch to race to idle; the latency tolerance is the bound).
There, batch sizes come from settings files; here they follow from the arrivals.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from edged.beat.sliding_quantile import SlidingQuantile

MARGIN_US_MIN = 2_000
COVERED_SHARE = 4
"""At most the latency / COVERED_SHARE is spent on late wakes, and as much on slow commits."""
FILL_HIGH = 0.5
FILL_LOW = 0.25
"""Between the two the wait does not change, so that a fast sender sees a steady rhythm."""
FILL_US_MIN = 500
ROWS_MIN = 65_536
"""A beat may always take this many rows, ..."""
RACE_US_MAX = 1_000_000
"""... unless they take longer than this: a race serves neither control nor the watchdog."""
CHEAPEST_OF, CHEAPER_MAX = 16, 4
"""A row costs what it cost in the cheapest of the last CHEAPEST_OF beats, and at least the mean /
CHEAPER_MAX: one beat whose rows cost nearly nothing does not lift the limit of the next one."""
LEARN_ROWS = 1024
"""Beats of fewer rows do not update the cost of a row, unless the limit is lower or they take
long."""


@dataclass(frozen=True, slots=True)
class BeatCosts:
    """Rows and times of one beat."""

    rows: int
    """Rows taken by the operators."""
    ingest_us: int
    race_us: int
    """Operators, sealing and the record, without the wait for the commit before."""
    fill: float
    """Fill of the fullest receive buffer at the ingest (0 to 1)."""


@dataclass(frozen=True, slots=True)
class Wake:
    """When to wake, and whether to race then or only to commit new rows."""

    at_us: int
    race: bool


class Batcher:
    """Decides from the costs of the last beats.  All times are monotonic microseconds."""

    def __init__(self, latency_us: int, ack_within_us: int) -> None:
        self.fill_us = 0.0
        self._lateness, self._commits = SlidingQuantile(), SlidingQuantile()
        self.promise(latency_us, ack_within_us)
        self.race_us = 0.0
        """Expected time of ingest, operators, sealing and the record together."""
        self.commit_us = 0.0
        """Expected time from sealed pages to durable ones."""
        self._commit_peak_us = 0.0
        self.row_us = 0.0
        """Time of a row in a race that is not held up."""
        self._row_mean_us = 0.0
        self._row_costs: deque[float] = deque(maxlen=CHEAPEST_OF)
        self._wait_share, self._planned_us, self._not_before_us = 1.0, 0.0, 0
        self.reserve_us = 0.0
        """Time to leave for a race that may take longer than the last ones: other processes may
        begin to use the GPU that it runs on."""

    def promise(self, latency_us: int, ack_within_us: int) -> None:
        """Set the promises; learned costs are kept."""
        self.latency_us = latency_us
        self.ack_within_us = min(ack_within_us, latency_us)
        self.fill_us = float(latency_us)
        self._set_margin()

    def steer(self, wait_share: float, race_us: float, not_before_us: int) -> None:
        """Set the governor's adjustments of the wait; (1, 0, 0) has no effect."""
        self._wait_share, self._planned_us = wait_share, race_us
        self._not_before_us = not_before_us

    def learn(self, beat: BeatCosts) -> None:
        """Learn from a beat.  Expected times rise at once and fall slowly (a peak holder)."""
        spent = beat.ingest_us + beat.race_us
        self.race_us = max(float(spent), 0.9 * self.race_us + 0.1 * spent)
        significant = min(LEARN_ROWS, (self.rows_max() + 1) // 2)
        if beat.rows >= significant or (beat.rows and beat.race_us >= RACE_US_MAX // 4):
            self._learn_row(beat.race_us / beat.rows)
        if beat.fill >= FILL_HIGH:
            self.fill_us = self.fill_us / 2 if self.fill_us > FILL_US_MIN else 0.0
        elif beat.fill < FILL_LOW:
            grown = self.fill_us * (2.0 if beat.fill < FILL_LOW / 4 else 1.25)
            self.fill_us = min(float(self.latency_us), max(FILL_US_MIN, grown))

    def _learn_row(self, cost_us: float) -> None:
        mean = self._row_mean_us
        self._row_mean_us = cost_us if mean == 0.0 else 0.8 * mean + 0.2 * cost_us
        self._row_costs.append(cost_us)
        self.row_us = max(min(self._row_costs), self._row_mean_us / CHEAPER_MAX)

    def woke(self, late_us: int) -> None:
        """Learn how long after its time a wake came; negative where it came before."""
        self._lateness.add(max(0, late_us))
        self._set_margin()

    def committed(self, commit_us: int) -> None:
        """Learn the time from sealed pages to durable ones; the commit thread's call.

        The wait for the previous commit is no part of it: it grows with the number of beats, which
        a longer expected time raises.
        """
        self._commits.add(commit_us)
        peak = max(float(commit_us), 0.9 * self._commit_peak_us + 0.1 * commit_us)
        self._commit_peak_us = peak
        self.commit_us = max(peak, float(self._covered(self._commits)))

    def _covered(self, observed: SlidingQuantile) -> int:
        return min(observed.value, self.latency_us // COVERED_SHARE)

    def _set_margin(self) -> None:
        """Half of the least margin is left beside the lateness that is expected."""
        least_us = max(MARGIN_US_MIN, self.latency_us // 50)
        self.margin_us = max(least_us, self._covered(self._lateness) + least_us // 2)

    def wake(self, oldest_us: int, first_us: int, unraced_us: int | None = None) -> Wake:
        """When to wake for tuples that may have arrived at `oldest_us` and were seen at `first_us`.

        `oldest_us` is the end of the last ingest if input was ready right after it, else the first
        readiness.  `unraced_us` is the arrival of the oldest rows that are not raced, or in open
        pages.
        """
        race_by = self.race_by(oldest_us if unraced_us is None else min(oldest_us, unraced_us))
        ack_by = oldest_us + self.ack_within_us - int(self.commit_us) - self.margin_us
        fill_by = first_us + int(self.fill_us)
        at = min(race_by, ack_by, fill_by)
        if self._not_before_us > at:
            return Wake(max(self._not_before_us, first_us), True)
        commit_only = at == ack_by and race_by - ack_by > self.latency_us // 4
        return Wake(max(at, first_us), not commit_only)

    def race_by(self, oldest_us: int) -> int:
        """The latest start of a race that keeps the latency promise, with the governor's
        settings."""
        work_us = int(self._race_plan_us() + self.commit_us)
        wait_us = int(self._wait_share * self.latency_us) - work_us - self.margin_us
        return max(oldest_us + wait_us, self._not_before_us)

    def _race_plan_us(self) -> float:
        return max(self.race_us, self._planned_us) + self.reserve_us

    def rows_max(self) -> int:
        """Rows that one beat may take for its race to stay under half the latency."""
        if self.row_us == 0.0:
            return 1 << 22
        least = min(ROWS_MIN, int(RACE_US_MAX / self.row_us))
        return max(1, least, int(self.latency_us / 2 / self.row_us))

    def rows_over(self) -> int:
        """Rows that a beat takes beyond the limit if they are the last: a beat of their own would
        pay its fixed cost and wait for this beat's commit."""
        return self.rows_max() // 4

    def period_us_max(self) -> float:
        """Longest time between races that the receive buffers allow; infinite where they allow the
        whole latency."""
        return self.fill_us + self.race_us if self.fill_us < self.latency_us else math.inf

    def commit_every_us(self) -> float:
        """Longest time between commits that keeps the ack promise."""
        return max(0.0, self.ack_within_us - self.commit_us - self.margin_us)

    def must_flush(self, oldest_open_us: int, now_us: int) -> bool:
        """Whether open pages must be sealed in this beat, because the next one is too late."""
        return now_us >= self.flush_from(oldest_open_us)

    def flush_from(self, oldest_open_us: int) -> int:
        """Time from which `must_flush` holds: at the latest the start of the last race that keeps
        the promise."""
        race_us = self._race_plan_us()
        next_beat_us = race_us + min(self.fill_us, self.latency_us / 2)
        work_us = 2 * race_us + self.commit_us + next_beat_us
        return oldest_open_us + self.latency_us - self.margin_us - int(work_us)
