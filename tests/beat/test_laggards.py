"""Producers whose clock is far behind, or far ahead, do not stop a job, nor cost others rows."""

from __future__ import annotations

import time

import pytest

from edged.control.door import ask
from tests.beat.support import SECOND, T0, Daemon, Live, changed, copy_job, join_job
from tests.beat.test_replay import bytes_of, differing, recovered

IDLE = 10 * SECOND
YEAR = 365 * 86_400 * SECOND


def second(live, behind=(), step=SECOND):
    """One second of three live sensors, of laggards `behind` by so much, and a beat."""
    live.clock.advance(SECOND)
    for stream in live.plan.streams:
        for name in ("a", "b"):
            live.send(stream, [(1, live.clock.wall, 0)], producer=name)
    for i, (stream, distance) in enumerate(behind):
        time = T0 - distance + (live.clock.wall - T0) // SECOND * step
        live.send(stream, [(1, time, 1)], producer=f"old{i}")
    live.beat()


def behind(live, stream="r"):
    producers = live.job.streams[stream].staging.producers
    return [producers.ids[n] for n in producers.behind.nonzero()[0]]


def turns(live, stream="r"):
    return [(t.producer, t.behind) for t in live.job.streams[stream].turns]


def test_a_producer_with_nothing_but_late_rows_does_not_hold_the_watermark():
    with Live(join_job(before=SECOND, after=SECOND)) as live:
        for _ in range(3):
            second(live)
        for _ in range(5):
            second(live, [("r", YEAR)])
        assert behind(live) == ["old0"] and turns(live) == [("old0", True)]
        assert live.watermark("r") == live.clock.wall
        assert live.job.staged() == 0
        assert live.late("r") == 5 and live.job.streams["r"].staging.producers.late.sum() == 5


def test_a_producer_that_is_a_year_behind_from_the_first_row_on_is_given_up_after_idle_after():
    with Live(join_job(before=SECOND, after=SECOND)) as live:
        for _ in range(10):
            second(live, [("r", YEAR), ("s", YEAR)])
        assert live.watermark("r") < T0 - YEAR // 2, "it may still catch up"
        for _ in range(5):
            second(live, [("r", YEAR), ("s", YEAR)])
        assert (behind(live, "r"), behind(live, "s")) == (["old0"], ["old1"])
        assert live.watermark("r") >= live.clock.wall - SECOND
        assert live.job.staged() == 0
        for _ in range(20):
            second(live, [("r", YEAR), ("s", YEAR)])
        assert live.watermark("r") == live.clock.wall
        assert len(turns(live)) == 1, "a laggard does not flap"


def test_a_stream_whose_only_producer_is_a_year_behind_does_not_hold_the_stream_it_is_joined_with():
    with Live(join_job(before=SECOND, after=SECOND)) as live:
        for _ in range(15):
            live.clock.advance(SECOND)
            live.send("r", [(1, live.clock.wall - YEAR, 0)], producer="old")
            live.send("s", [(1, live.clock.wall, 0)])
            live.beat()
        assert behind(live) == ["old"] and live.job.staged() == 0
        assert live.watermark("r") == live.watermark("s") == live.clock.wall


@pytest.mark.parametrize("distance", [3600 * SECOND, 10 * SECOND])
def test_a_producer_within_max_behind_counts(distance):
    with Live(copy_job(max_behind="1h")) as live:
        for _ in range(30):
            second(live, [("r", distance)])
        assert behind(live) == []
        assert live.watermark("r") == live.clock.wall - distance
        assert live.late("r") == 0


def test_a_producer_that_catches_up_is_waited_for():
    """A backlog of ten days, sent at 1000 times the speed of the clock."""
    days = 10 * 86_400 * SECOND
    with Live(copy_job()) as live:
        for _ in range(60):
            second(live, [("r", days)], step=1000 * SECOND)
        assert behind(live) == [] and live.late("r") == 0


def test_a_producer_whose_clock_is_put_right_counts_again_at_once():
    with Live(copy_job()) as live:
        for _ in range(3):
            second(live)
        second(live, [("r", YEAR)])
        assert behind(live) == ["old0"]
        live.send("r", [(1, live.clock.wall + 1, 0)], producer="old0")
        live.beat()
        assert behind(live) == [] and turns(live) == [("old0", True), ("old0", False)]
        second(live)
        assert live.watermark("r") == T0 + 4 * SECOND + 1


def test_a_producer_that_returns_after_days_is_waited_for_until_its_first_row():
    with Live(copy_job()) as live:
        second(live, [("r", 0)])
        for _ in range(12):
            second(live)
        live.clock.advance(3 * 86_400 * SECOND)
        second(live)
        live.connect("r", "old0")
        before = live.watermark("r")
        second(live)
        assert live.watermark("r") == before and behind(live) == []


def test_a_producer_ahead_makes_no_other_one_a_laggard():
    with Live(copy_job(max_behind="10min")) as live:
        for _ in range(30):
            live.clock.advance(SECOND)
            live.send("r", [(1, live.clock.wall, 0)], producer="right")
            live.send("r", [(1, live.clock.wall + 3000 * SECOND, 0)], producer="ahead")
            live.beat()
        assert behind(live) == [] and live.late("r") == 0
        assert live.watermark("r") == live.clock.wall


def test_a_laggard_that_goes_on_does_not_keep_a_stream_from_its_end_nor_end_it():
    with Live(copy_job()) as live:
        second(live)
        second(live, [("r", YEAR)])
        live.end("r", "a"), live.end("r", "b")
        live.beat()
        assert not live.job.ended()
        live.end("r", "old0")
        live.beat()
        assert live.job.ended()


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_laggard_is_one_after_a_recovery_too(tmp_path, snapshot):
    with Live(join_job(before=SECOND, after=SECOND), tmp_path / "store") as live:
        for _ in range(3):
            second(live)
        second(live, [("r", YEAR)])
        if snapshot:
            live.snapshot()
        second(live, [("r", YEAR)])
        state = bytes_of(live.job.save())
    (job,) = recovered(tmp_path / "store", live.plan)[0].jobs
    assert differing(state, bytes_of(job.save())) == []
    producers = job.streams["r"].staging.producers
    assert producers.behind.sum() == 1 and producers.late.sum() == 2


def test_a_sensor_that_is_a_year_behind_does_not_stop_a_running_join(tmp_path):
    """Regression: the job stood still without an event, and honest senders blocked."""
    document = changed(
        join_job(before=SECOND, after=SECOND, idle_after="300ms"), promises={"latency": "50ms"}
    )

    def rows(offset=0):
        return {"key": [1], "time": [time.time_ns() // 1000 - offset], "value": [0]}

    with (
        Daemon(tmp_path, document) as daemon,
        daemon.producer("r", "old") as old,
        daemon.producer("r", "right") as right,
        daemon.producer("s", "other") as other,
    ):

        def goes_on(status):
            old.send(rows(YEAR)), right.send(rows()), other.send(rows())
            job = status["jobs"]["joining"]
            return (
                job["streams"]["r"]["producers_behind"] == 1
                and job["operators"]["joined"].get("matches", 0) > 5
                and job["streams"]["r"]["late"] > 2
            )

        daemon.until(goes_on)
        right.flush(), other.flush(), old.flush()
        assert old.late > 0 and right.late == other.late == 0
        events = [e for e in ask(daemon.door, "events")["events"] if e["kind"] == "producer.behind"]
        assert events[0]["facts"]["producer"] == "old" and events[0]["level"] == "warning"
