"""Saturated is what cannot keep up: neither a join that waits for its other stream, nor a policy
that holds rows back, nor what reads its rows by itself."""

from __future__ import annotations

import pytest

from edged.beat.committer import Committed
from edged.beat.stats import BeatTimes, Stats
from tests.beat.loop import Loop, batch
from tests.beat.support import (
    SECOND,
    T0,
    HandClock,
    Live,
    changed,
    copy_job,
    event_log,
    join_job,
    publisher,
)

SMALL = {"memory": "1MiB"}
MANY = [(1, T0 + i, i) for i in range(5_000)]


def sent(live, stream, times=12):
    for n in range(times):
        live.send(stream, [(k, t + n * len(MANY), v) for k, t, v in MANY])


def test_rows_beyond_the_limit_of_a_beat_saturate_it():
    with Live(copy_job()) as live:
        sent(live, "r", 4)
        live.job.decide(live.clock.monotonic_us(), live.clock.wall_us(), 5_000, True)
        assert live.job.saturated and not live.job.streams["r"].aligned
        live.job.decide(live.clock.monotonic_us(), live.clock.wall_us(), 50_000, True)
        assert not live.job.saturated


def test_a_full_staging_saturates():
    with Live(changed(copy_job(), promises=SMALL)) as live:
        sent(live, "r")
        assert live.job.streams["r"].staging.full
        live.job.decide(live.clock.monotonic_us(), live.clock.wall_us(), 1 << 30, True)
        assert live.job.saturated


def test_a_join_that_waits_for_its_other_stream_is_not_saturated_however_full_it_is():
    with Live(changed(join_job(), promises=SMALL)) as live:
        live.send("s", [(1, T0, 0)])
        sent(live, "r")
        assert live.job.streams["r"].staging.full
        live.job.decide(live.clock.monotonic_us(), live.clock.wall_us(), 1 << 30, True)
        assert not live.job.saturated
        assert live.job.streams["r"].aligned and not live.job.streams["s"].aligned


def test_a_source_that_reads_its_rows_by_itself_saturates_nothing(monkeypatch):
    with Live(copy_job()) as live:
        sent(live, "r", 4)
        kind = type(live.job.streams["r"].plan.source)
        monkeypatch.setattr(kind, "listens", False)
        live.job.decide(live.clock.monotonic_us(), live.clock.wall_us(), 5_000, True)
        assert live.job.cut and not live.job.saturated


@pytest.fixture
def kinds():
    """Stats with a clock, and the kinds of their events."""
    log = event_log()
    stats = Stats(HandClock(), None, publisher(log))
    return stats, lambda: [event["kind"] for event in log.since(0, 1000)[0]]


def beat(stats, at_us, latency_us=0, saturated=False):
    times = BeatTimes(1, at_us - latency_us, 0, 0, 0, 0, 10, 10, {"a": 1_000}, saturated)
    stats.durable(times, Committed(1, at_us, at_us, at_us, at_us))


def test_late_and_saturated_are_two_states_with_events_of_their_own(kinds):
    stats, told = kinds
    for n in range(1, 40):
        beat(stats, n * SECOND, latency_us=2_000)
    assert stats.snapshot()["promise_missed"] and not stats.snapshot()["saturated"]
    for n in range(40, 140):
        beat(stats, n * SECOND, saturated=True)
    assert stats.snapshot()["saturated"] and not stats.snapshot()["promise_missed"]
    stats._clock.now = 151 * SECOND
    assert not stats.snapshot()["saturated"], "ten seconds without a beat"
    wanted = ["promise.missed", "saturation.begun", "promise.kept", "saturation.ended"]
    assert told() == wanted


def test_senders_that_wait_for_a_join_s_other_stream_feel_no_backpressure(tmp_path):
    with (
        Loop(changed(join_job(), promises=SMALL), tmp_path) as loop,
        loop.producer("s", "slow") as slow,
        loop.producer("r", "fast") as fast,
    ):
        slow.send(batch([0], [T0]))
        slow.flush()
        (source,) = loop.inputs.sources
        for n in range(300):
            fast.send(batch(list(range(200)), [T0 + SECOND * (n + 1)] * 200))
            if source.more():
                break
        loop.until(source.more, producer=fast)
        loop.leap(5 * SECOND)
        assert loop.heart.stalls.total_us(source.name, loop.clock.monotonic_us()) == 0
        assert not loop.stats.snapshot()["saturated"]


def test_a_source_that_ends_each_ingest_with_input_left_saturates(tmp_path, monkeypatch):
    """Regression: at nearly full speed each ingest stopped at its bound, every beat was late, and
    the daemon did not say that it was saturated."""
    with Loop(changed(copy_job(), promises={"latency": "10ms"}), tmp_path) as loop:
        (source,) = loop.inputs.sources
        monkeypatch.setattr(type(source), "unread", lambda _: True)
        with loop.producer() as producer:

            def sent_one_more():
                producer.send(batch([1]))
                return loop.stats.snapshot()["saturated"]

            loop.until(sent_one_more, producer=producer)
