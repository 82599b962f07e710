"""Statistics of the heart: beats, stage times, latencies and the time that sources stalled.

All values are counters or histograms that only grow, so that two readings give a rate.  Stages are
observed once a beat (`durable_to_landed` once a page), never once a tuple; a beat without rows is
not observed.  `arrival_to_…` is measured from the oldest tuple of the beat and is therefore an
upper bound for the others.

With a trace file, every durable beat writes one JSON line: its number, wall clock, rows, bytes,
pages, and the microseconds of each stage.  The benchmarks read it.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from edged.beat.committer import Committed
from edged.beat.hysteresis import Hysteresis
from edged.events.publisher import EventPublisher
from edged.platform.clock import Clock

_MS, _S = 1_000, 1_000_000
STAGE_US = (50, *(n * 10**e for e in (2, 3, 4, 5) for n in (1, 2, 5)), _S)
"""Bounds for stages of a beat: 50 µs to 1 s."""
WAIT_US = tuple(n * _MS for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)) + tuple(
    n * _S for n in (1, 2, 5, 10, 60)
)
"""Bounds for times that a promise covers: 1 ms to a minute."""
LANDED_US = tuple(n * _MS for n in (10, 20, 50, 100, 200, 500)) + tuple(
    n * _S for n in (1, 2, 5, 10, 60, 600, 3600, 86400)
)
"""Bounds for the time from a durable page to the centre's ack: 10 ms to a day."""
AROUND_PERCENT = (90, 95, 100, 102, 105, 110, 125)
"""Bounds around a job's latency promise, in percent of it: how nearly it is kept or missed."""
RECENT_US, RECENT_BEATS_MAX = 60 * _S, 8192
"""The latencies that the percentiles are of; see `Stats.snapshot`."""
ROWS = tuple(4**n for n in range(14))
"""Bounds for the rows of a beat: 1 to 67 million."""
LEGS = {
    "arrival_to_race": WAIT_US,
    "ingest": STAGE_US,
    "race": STAGE_US,
    "seal": STAGE_US,
    "commit": STAGE_US,
    "ack": STAGE_US,
    "arrival_to_durable": WAIT_US,
    "durable_to_landed": LANDED_US,
}
ENDED_JOBS_MAX = 64
"""Ended jobs whose latencies are kept: a job of such a name goes on from them."""
LATE_IDLE_US, SATURATED_IDLE_US = 300 * _S, 10 * _S
"""Time without a beat after which results are no longer late, and the input no longer too much."""


@lru_cache(maxsize=64)
def job_bounds(promise_us: int) -> tuple[int, ...]:
    """Bounds for a job's latency: those of every wait, and AROUND_PERCENT of the promise.  The
    promise is one of them, so that the number of beats that broke it is exact since the job
    promises it."""
    around = {max(1, promise_us * percent // 100) for percent in AROUND_PERCENT}
    return tuple(sorted({*WAIT_US, *around}))


class BucketCounts:
    """Counts of values up to each bound and above the one before, and beyond the last; their
    sum."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0

    def add(self, value: int) -> None:
        """Count a value; negative values, from a clock that stepped back, add 0 to the sum."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += max(0, value)

    def rebound(self, bounds: Sequence[int]) -> BucketCounts:
        """The same observations with other bounds.  The count up to a new bound includes those up
        to the next old bound: no count up to a bound falls, whatever bounds were between."""
        moved, below = BucketCounts(bounds), [*accumulate(self.counts)]
        up_to = [below[bisect_left(self.bounds, bound)] for bound in moved.bounds]
        moved.counts = [n - m for n, m in zip([*up_to, below[-1]], [0, *up_to], strict=True)]
        moved.sum = self.sum
        return moved

    def snapshot(self, unit: str = "_us") -> dict[str, Any]:
        """`counts` are not cumulative and have one entry more than the bounds, beyond the last."""
        return {
            f"bounds{unit}": self.bounds, "counts": self.counts.copy(), f"sum{unit}": self.sum,
            "count": sum(self.counts),
        }  # fmt: skip


@dataclass(slots=True)
class BeatTimes:
    """Times (monotonic µs) and sizes of one beat, known when its race ends."""

    beat: int
    oldest_us: int
    woke_us: int
    ingested_us: int
    raced_us: int
    sealed_us: int
    rows_logged: int
    rows_taken: int
    jobs: Mapping[str, int] = field(default_factory=dict)
    """Jobs that took rows, and their latency promise in µs."""
    saturated: bool = False
    """Whether senders had sent more than the beat took (`JobRuntime.saturated`), though the loop
    has not rested for longer than the latency promise."""


_TIMES = tuple(f.name for f in fields(BeatTimes))


class Stats:
    """Counters of one heart.  `durable` and `landed` are called on the commit thread."""

    def __init__(self, clock: Clock, trace: Path | None, publisher: EventPublisher) -> None:
        self._clock, self._publisher = clock, publisher
        self._lock = threading.Lock()
        self._trace = trace.open("a", buffering=1 << 16) if trace else None
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_BEATS_MAX)
        """Latencies (µs) of the last beats, each after the time until which it is recent."""
        self.beats = 0
        self.rows = 0
        self.pages = 0
        self.idle_beats = 0
        """Beats that found nothing to do and left no record."""
        self.stage_us: Counter[str] = Counter()
        self.legs = {name: BucketCounts(bounds) for name, bounds in LEGS.items()}
        self.batch_rows = BucketCounts(ROWS)
        self._late, self._saturated = Hysteresis(LATE_IDLE_US), Hysteresis(SATURATED_IDLE_US)
        self.jobs: dict[str, BucketCounts] = {}
        """By job, latency from a row's arrival to durable results (`job_bounds`)."""

    def durable(self, times: BeatTimes, commit: Committed) -> None:
        """Count a beat that is durable and acked."""
        stages = {
            "ingest": times.ingested_us - times.woke_us,
            "race": times.raced_us - times.ingested_us,
            "seal": times.sealed_us - times.raced_us,
            "commit": commit.durable_us - commit.started_us,
            "fsync": commit.sync_us,
            "ack": commit.acked_us - commit.durable_us,
            "hand_over": commit.finished_us - commit.acked_us,
        }
        with self._lock:
            self.beats += 1
            self.rows += times.rows_taken
            self.pages += len(commit.pages)
            for name, us in stages.items():
                self.stage_us[name] += us
            if times.rows_taken:
                self._observe(times, commit, stages)
            if self._trace is not None:
                wall = self._clock.wall_us() - self._clock.monotonic_us()
                row = {name: getattr(times, name) for name in _TIMES}
                row["durable_us"] = commit.durable_us
                row["durable_wall_us"] = commit.durable_us + wall
                row |= {"stages": stages, "pages": commit.pages}
                try:
                    self._trace.write(json.dumps(row) + "\n")
                except OSError:  # a full disk ends the trace, not the daemon
                    self._end_trace()

    def landed(self, took_us: Sequence[int]) -> None:
        """Count pages that the centre has acknowledged, each so long after it was durable."""
        with self._lock:
            for us in took_us:
                self.legs["durable_to_landed"].add(us)

    def snapshot(self) -> dict[str, Any]:
        """Beats, rows, pages, stage times in µs, latency from arrival to durable results, and the
        states of lateness and saturation.

        The latency is of the last minute, of the last RECENT_BEATS_MAX beats at most; None without
        rows in it.  A beat whose jobs promise more than half a minute counts for twice that time.
        """
        now_us = self._clock.monotonic_us()
        with self._lock:
            if self._late.settle(now_us):
                self._publisher.latency_promise_kept()
            if self._saturated.settle(now_us):
                self._publisher.saturation_ended()
            recent = [us for until_us, us in self._recent if until_us > now_us]
            latency = np.array(recent, np.int64) / 1000
            p50 = p99 = None
            if latency.size:
                p50, p99 = np.percentile(latency, [50, 99]).round(3).tolist()
            return {
                "beats": self.beats,
                "beats_idle": self.idle_beats,
                "rows": self.rows,
                "pages": self.pages,
                "stage_us": dict(self.stage_us),
                "latency_ms_p50": p50,
                "latency_ms_p99": p99,
                "promise_missed": self._late.active,
                "saturated": self._saturated.active,
                "legs": {name: leg.snapshot() for name, leg in self.legs.items()},
                "batch_rows": self.batch_rows.snapshot(""),
            }

    def latency(self, job: str) -> dict[str, Any]:
        """The job's latency histogram."""
        with self._lock:
            return self.jobs.get(job, BucketCounts(WAIT_US)).snapshot()

    def keep(self, jobs: Iterable[str]) -> None:
        """Drop the latencies of all other jobs but the ENDED_JOBS_MAX that ended last."""
        with self._lock:
            live = {job: self.jobs.pop(job) for job in jobs if job in self.jobs}
            ended = list(self.jobs.items())[-ENDED_JOBS_MAX:]
            self.jobs = {**dict(ended), **live}

    def close(self) -> None:
        """Flush and close the trace."""
        self._end_trace()

    def _end_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            with suppress(OSError):
                trace.close()

    def _observe(self, times: BeatTimes, commit: Committed, stages: dict[str, int]) -> None:
        latency_us = commit.durable_us - times.oldest_us
        recent_us = max(RECENT_US, 2 * max(times.jobs.values(), default=0))
        self._recent.append((commit.durable_us + recent_us, latency_us))
        for name, us in stages.items():
            if name in self.legs:
                self.legs[name].add(us)
        self.legs["arrival_to_race"].add(times.ingested_us - times.oldest_us)
        self.legs["arrival_to_durable"].add(latency_us)
        self.batch_rows.add(times.rows_taken)
        for job, promise_us in times.jobs.items():
            histogram, bounds = self.jobs.get(job), job_bounds(promise_us)
            if histogram is None or histogram.bounds != bounds:
                old = histogram or BucketCounts(WAIT_US)
                histogram = self.jobs[job] = old.rebound(bounds)
            histogram.add(latency_us)
        late = any(latency_us > us for us in times.jobs.values())
        if self._late.observe(commit.durable_us, late):
            if self._late.active:
                self._publisher.latency_promise_missed(latency_us)
            else:
                self._publisher.latency_promise_kept()
        if self._saturated.observe(commit.durable_us, times.saturated):
            if self._saturated.active:
                self._publisher.saturation_begun()
            else:
                self._publisher.saturation_ended()


class SourceStalls:
    """How long each source was not read to its end: staging was full, or no beat could take rows
    because links are."""

    def __init__(self) -> None:
        self._total_us: dict[str, int] = {}
        self._since_us: dict[str, int] = {}

    def note(self, source: str, stalled: bool, now_us: int) -> None:
        """Whether input is left unread from now on."""
        since = self._since_us.pop(source, None)
        if since is not None:
            self._total_us[source] = self._total_us.get(source, 0) + now_us - since
        if stalled:
            self._since_us[source] = now_us

    def total_us(self, source: str, now_us: int) -> int:
        """Microseconds so far."""
        since = self._since_us.get(source, now_us)
        return self._total_us.get(source, 0) + max(0, now_us - since)
