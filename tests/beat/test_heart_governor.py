"""The heart's calls of its governor, and how it obeys the answers."""

from __future__ import annotations

import time

from governors.base import Steer
from tests.beat.loop import Loop, batch
from tests.beat.support import changed, copy_job

HOUR_US = 3_600_000_000
QUICK = changed(copy_job(), promises={"latency": "50ms"})


class RecordingGovernor:
    """A governor that returns the test's settings and records its calls."""

    def __init__(self):
        self.steer, self.calls, self.done = Steer(), [], []
        self.held_until_us = 0

    def race(self, forecast):
        self.calls.append("race")
        if self.held_until_us > forecast.at_us:
            self.steer.units_max, self.steer.not_before_us = 0, self.held_until_us
        elif self.steer.units_max == 0:
            self.steer.units_max, self.steer.not_before_us = None, 0
        return self.steer

    def commit(self, forecast):
        self.calls.append("commit")

    def ingested(self):
        self.calls.append("ingested")

    def idle(self, done):
        self.calls.append("idle")
        self.done.append(done)
        return self.steer


def test_the_governor_is_called_before_and_after_every_race(tmp_path):
    governor = RecordingGovernor()
    with Loop(QUICK, tmp_path / "store", governor=governor) as loop, loop.producer() as producer:
        for i in range(3):
            producer.send(batch([i, i]))
            loop.until(lambda i=i: producer.acked == i + 1, producer=producer)
    calls = "".join(call[0] for call in governor.calls)
    assert calls.startswith("rii") and calls.replace("rii", "").strip("i") == ""
    assert sum(done.arrived for done in governor.done) == 6
    assert sum(done.taken for done in governor.done) == 6


def test_the_governor_is_called_before_and_after_a_beat_that_only_commits(tmp_path):
    governor = RecordingGovernor()
    document = changed(copy_job(), promises={"latency": "1h", "ack_within": "50ms"})
    with Loop(document, tmp_path / "store", governor=governor) as loop, loop.producer() as producer:
        producer.send(batch([1]))
        loop.until(lambda: producer.acked == 1, producer=producer)
        assert governor.calls == ["commit", "ingested", "idle"]
        assert [(d.arrived, d.taken) for d in governor.done] == [(1, 0)]


def test_while_nothing_is_admitted_the_heart_sleeps_and_its_senders_wait(tmp_path):
    governor = RecordingGovernor()
    with Loop(QUICK, tmp_path / "store", governor=governor) as loop, loop.producer() as producer:
        producer.connect()
        governor.held_until_us = loop.clock.monotonic_us() + HOUR_US
        for i in range(5):
            producer.send(batch([i]))
        producer.poll()
        loop.until(lambda: governor.calls, producer=producer)
        wakes = loop.event_loop.wakes
        for _ in range(20):
            time.sleep(0.01)
            assert producer.poll() == 0
        assert loop.event_loop.wakes - wakes <= 2, "the one timer"
        loop.leap(HOUR_US)
        loop.until(lambda: producer.acked == 5, producer=producer)
        assert loop.job.streams["r"].rows == 5, "and nothing was dropped"


def test_a_stop_does_not_wait_for_rows_that_the_governor_holds(tmp_path):
    governor = RecordingGovernor()
    loop = Loop(QUICK, tmp_path / "store", governor=governor)
    producer = loop.producer()
    producer.connect()
    governor.held_until_us = loop.clock.monotonic_us() + HOUR_US
    producer.send(batch([1]))
    producer.poll()
    loop.until(lambda: governor.calls, producer=producer)
    loop.heart.stop()
    assert loop.ended() is None
    loop.stop()
    producer.close()
    assert loop.problem is None


def test_open_pages_are_waited_for_without_beats_however_early_races_are_wanted(tmp_path):
    """Regression: such a race was due before it could seal the pages that it was due for."""
    governor = RecordingGovernor()
    governor.steer.wait_share = 0.1
    governor.steer.race_us = 300_000.0
    document = changed(copy_job(), promises={"latency": "2s"})
    with Loop(document, tmp_path / "store", governor=governor) as loop, loop.producer() as producer:
        producer.send(batch([1]))  # raced as it always was
        loop.until(lambda: loop.store.backlog_pages == 1, producer=producer)
        idle_beats = loop.stats.idle_beats
        producer.send(batch([2]))
        loop.until(lambda: loop.store.backlog_pages == 2, producer=producer)
        assert loop.job.streams["r"].rows == 2
        assert loop.stats.idle_beats - idle_beats <= 2


def test_a_race_takes_no_more_than_is_admitted_and_the_rest_follows(tmp_path):
    governor = RecordingGovernor()
    governor.steer.units_max = 10
    with Loop(QUICK, tmp_path / "store", governor=governor) as loop, loop.producer() as producer:
        for i in range(40):
            producer.send(batch([i] * 5))
        loop.until(lambda: producer.acked == 40, producer=producer)
        loop.until(lambda: loop.job.streams["r"].rows == 200, producer=producer)
    assert max(done.taken for done in governor.done) <= 10
