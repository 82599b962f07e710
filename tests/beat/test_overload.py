"""Near full speed, in virtual time: batcher and pending work keep the promise where the
machine can, and get back to it as soon as the backlog can drain."""

from __future__ import annotations

import pytest

from edged.beat.batcher import Batcher, BeatCosts
from edged.beat.pending_work import PendingWork
from edged.beat.record import BeatFacts, JobFacts, StreamFacts
from edged.sinks.base import Flush

LATENCY_US = 250_000
ROW_US, INGEST_ROW_US = 0.2, 0.02
RACE_US, COMMIT_US, COMMIT_ROW_US = 2_000.0, 8_000.0, 0.02
"""Five million rows a second, and the fixed costs of beats and commits."""


class Job:
    """The part of a job that `PendingWork` uses."""

    cut = False

    def open_rows(self):
        return 0

    def waiting(self):
        return 0


class Loop:
    """What the heart does with a batcher, on a machine whose speed is known at every moment.

    Rows arrive evenly, so that they are known by the time at which they did: `staged_us` is when
    the newest of those arrived that are staged, `raced_us` that of those that were raced.
    """

    def __init__(self, load, speed=lambda _: 1.0):
        self.rows_per_us = load / (ROW_US + INGEST_ROW_US)
        self.batcher, self.left, self.job = Batcher(LATENCY_US, LATENCY_US), PendingWork(0), Job()
        self.speed = speed
        self.now = self.staged_us = self.raced_us = self.durable_us = 0.0
        self.beats = []
        """Of each: when its oldest and its newest row arrived, and when they were durable."""

    def work(self, us):
        """Advance the clock by this work, at the machine's speed at each step."""
        while us > 0:
            speed = self.speed(self.now)
            part = min(us, 1000.0 * speed)
            self.now += part / speed
            us -= part

    def run(self, until_us):
        while self.now < until_us:
            self.beat()

    def beat(self):
        left, batcher = self.left, self.batcher
        wake = batcher.wake(int(left.new_us), int(self.now), left.since_us())
        self.now = max(self.now, float(wake.at_us))
        woke, oldest = self.now, left.oldest_us(int(left.new_us))
        if not left.cut:
            self.work((woke - self.staged_us) * self.rows_per_us * INGEST_ROW_US)
            self.staged_us = woke
            left.ingested(int(woke), int(self.now))
        ingested, first = self.now, self.raced_us
        rows = waiting = (self.staged_us - first) * self.rows_per_us
        if waiting > batcher.rows_max() + batcher.rows_over():
            rows = batcher.rows_max()
        self.job.cut = rows < waiting
        stream = StreamFacts(take_rows=int(rows), take_chunks=1)
        facts = BeatFacts(0, {"j": JobFacts(True, Flush.NO, {"s": stream})})
        left.decided([self.job], facts, True, oldest, None)
        self.raced_us = first + rows / self.rows_per_us
        self.work(RACE_US + rows * ROW_US)
        raced = self.now
        left.raced([self.job], oldest)
        self.now = max(self.now, self.durable_us)
        began = self.now
        self.durable_us = began + (COMMIT_US + rows * COMMIT_ROW_US) / self.speed(began)
        batcher.learn(BeatCosts(int(rows), int(ingested - woke), int(raced - ingested), 0.3))
        batcher.committed(int(self.durable_us - began))
        self.beats.append((first, self.raced_us, self.durable_us))

    def latest_us(self, from_us):
        """The longest latency of a row that arrived after `from_us`."""
        return max(durable - first for first, _, durable in self.beats if first >= from_us)

    def kept_from_us(self, within=1.1):
        """Time after which no row's latency exceeds this multiple of the promise."""
        late = [n for first, n, durable in self.beats if durable - first > within * LATENCY_US]
        return max(late, default=0.0)


@pytest.mark.parametrize("load", [0.25, 0.5, 0.8, 0.9, 0.93])
def test_at_an_even_load_the_promise_is_kept_up_to_nearly_full_speed(load):
    """Regression: a beat over rows that another beat had left made the next one wait as if it had
    ingested.  From 80 % load on, every other beat was half as late again as promised."""
    loop = Loop(load)
    loop.run(10e6)
    assert loop.latest_us(5e6) <= 1.05 * LATENCY_US
    assert loop.beats[-1][2] - loop.beats[-2][2] > 0.3 * LATENCY_US, "it waits where it can"


@pytest.mark.parametrize("load", [0.5, 0.8, 0.9])
def test_after_half_a_second_of_silence_the_promise_holds_as_soon_as_the_backlog_can_drain(load):
    begun, lasts = 5e6, 0.5e6
    loop = Loop(load, lambda now: 1e-3 if begun <= now < begun + lasts else 1.0)
    loop.run(20e6)
    drains_us = load * lasts / (1 - load)
    assert loop.latest_us(begun - 1e6) > 2 * LATENCY_US, "there was one"
    assert loop.kept_from_us() <= begun + lasts + 1.2 * drains_us + 2 * LATENCY_US


def test_a_machine_that_is_slow_for_seconds_is_learned_and_unlearned():
    def speed(now):
        return 0.85 if 6e6 <= now < 9e6 else 1.0

    loop = Loop(0.9, speed)
    loop.run(25e6)
    backlog_us = 3e6 * (0.9 / 0.85 - 1) * 0.85
    assert loop.kept_from_us() <= 9e6 + 1.2 * backlog_us / 0.1 + 2 * LATENCY_US


def test_rows_that_the_governor_leaves_count_as_arrived_now():
    left = PendingWork(0)
    job = Job()
    facts = BeatFacts(0, {"j": JobFacts(True, Flush.NO, {"s": StreamFacts(take_rows=5)})})
    left.ingested(90, 100)
    job.cut = True
    left.decided([job], facts, True, 50, 700)
    assert (left.cut, left.since_us(), left.new_us) == (True, None, 700)
    left.decided([job], facts, True, 50, None)
    assert (left.since_us(), left.oldest_us(700)) == (50, 50), "and what the bound leaves does not"
    job.cut = False
    left.decided([job], facts, True, 50, None)
    assert left.since_us() is None
