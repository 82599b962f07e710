"""Schedules of operators: when they run, what waits, and that a replay does the same."""

from __future__ import annotations

import time

import pytest

from edged.beat.jobs import JobRegistry
from edged.beat.recover import recover
from edged.data.flow import WATERMARK_MAX_US
from edged.errors import JobError
from edged.job.explain import explain
from edged.job.plan import faults, parse_job
from edged.job.plan_warnings import warnings
from edged.store import Store
from tests.beat.loop import Loop, batch
from tests.beat.support import SECOND, T0, Live, changed, stream


def job(schedule=None, **more):
    """Rows of `r` pass a union, whose copies need no compiled kernel, as pages."""
    operators = {"all": {"type": "union", "inputs": ["r"]}}
    if schedule is not None:
        operators["all"]["schedule"] = schedule
    sinks = {"rows": {"type": "pages", "input": "all", "page": "4KiB"}}
    return {"name": "waits", "streams": {"r": stream()}, "operators": operators, "sinks": sinks,
            **more}  # fmt: skip


def rows(start, n):
    return [(i, T0 + i, i) for i in range(start, start + n)]


def open_rows(live):
    return live.job.open_rows()


def beat(live, n=0, after_us=0, start=0):
    """Time passes, `n` rows come; returns the rows that have reached the sink."""
    live.clock.advance(after_us)
    if n:
        live.send("r", rows(start, n))
    live.beat()
    return open_rows(live)


def test_rows_wait_for_the_time_of_the_schedule():
    with Live(job({"every": "1s"})) as live:
        assert beat(live, 2) == 2, "the first rows wait for nothing"
        assert beat(live, 2, SECOND // 2, 2) == 2
        assert list(live.job.schedules.due_us()) == [live.clock.now + SECOND // 2]
        assert not live.job.released(live.clock.now)
        assert live.job.released(live.clock.now + SECOND // 2)
        assert beat(live, 0, SECOND // 2) == 4, "a beat without new rows runs it"
        assert live.facts[-1].ran == {"all": {}}
        assert not list(live.job.schedules.due_us())


def test_rows_wait_for_their_number():
    with Live(job({"rows": 5})) as live:
        assert [beat(live, 2, SECOND, start) for start in (0, 2, 4, 6)] == [0, 0, 6, 6]
        assert live.job.schedules.rows("all") == 2
        assert live.job.operators["all"] and not list(live.job.schedules.due_us())


def test_whichever_comes_first_runs_the_operator():
    with Live(job({"rows": 5, "every": "10s"})) as live:
        assert [beat(live, 5), beat(live, 4, SECOND, 5), beat(live, 1, SECOND, 9)] == [5, 5, 10]
        assert [beat(live, 1, SECOND, 10), beat(live, 0, 9 * SECOND)] == [10, 11]


def test_the_watermark_waits_with_the_rows_and_ends_with_the_stream():
    with Live(job({"rows": 100})) as live:
        beat(live, 3)
        gate = live.job.schedules._gates["all"]
        assert gate._out.watermark_us < T0 < live.watermark("r")
        live.drain()
        assert gate._out.watermark_us == WATERMARK_MAX_US
        assert [row[0] for row in live.rows("rows")] == [0, 1, 2] and live.job.ended()


def test_what_waits_runs_before_a_change_of_the_job():
    with Live(job({"rows": 100})) as live:
        beat(live, 3)
        live.send("r", rows(3, 1))
        facts = live.job.decide(live.clock.now, live.clock.wall, 100, True)
        live.job.schedules.flush = True
        assert live.job.schedules.wanted
        live.job.operate_now = live.job.operate(None, facts)
        assert live.job.operate_now["all"].batch.rows == 4


def test_rows_that_fill_their_memory_run_at_once():
    small = {"promises": {"memory": "1MiB", "latency": "1s"}}
    with Live(job({"every": "1h"}, **small)) as live:
        beat(live, 1)
        beat(live, 1, 1, 1)
        assert open_rows(live) == 1
        beat(live, 8000, 1, 2)
        assert open_rows(live) + len(live.rows("rows")) == 8002


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_replay_runs_the_same_operators_in_the_same_beats(tmp_path, snapshot):
    document = job({"rows": 7, "every": "2s"})
    with Live(document, tmp_path) as live:
        for i in range(12):
            beat(live, 3, SECOND // 3, 3 * i)
            if snapshot and i == 4:
                assert live.job.schedules.rows("all")
                live.snapshot()
        live.beat(flush=True)
        beat(live, 2, 1, 36)
        pages, saved = live.all_pages(), live.job.save()
        live.store.close()
        live.store = Store.open(tmp_path)
        found = recover(live.store, [live.plan], live.context, live.clock)
        assert pages and found.replayed_beats
        again = found.jobs[0].save()
        assert again.keys() == saved.keys()
        for name in saved:
            if not name.startswith("streams/"):
                assert again[name].tobytes() == saved[name].tobytes(), name


def test_a_schedule_may_change_in_a_running_job_and_keeps_what_waits():
    from edged.beat.jobs import carry_over
    from edged.beat.runtime import JobRuntime

    with Live(job({"rows": 100})) as live:
        beat(live, 3)
        new = JobRuntime(parse_job(job({"every": "1s"})), live.context)
        carry_over(live.job, new)
        assert new.schedules.rows("all") == 3
        assert JobRegistry([new]).facts()["jobs"]["waits"]["operators"]["all"]["schedule"]


def test_explain_adds_schedules_to_the_promise():
    slow = job({"every": "1s500ms"})
    plan = parse_job(slow)
    found = explain(plan)
    assert "rows wait for it up to 1s500ms" in found["operators"]["all"]["does"][-1]
    assert found["sinks"]["rows"]["does"][-1] == "with schedules, results within 2s500ms"
    assert any("add up to 1s500ms" in line for line in warnings(plan))
    endless = parse_job(job({"rows": 5}))
    assert any("without every" in line for line in warnings(endless))
    assert "no latency is promised" in explain(endless)["sinks"]["rows"]["does"][-1]


@pytest.mark.parametrize(
    ("schedule", "path", "text"),
    [
        ("hourly", "operators.all.schedule", "is no schedule"),
        ({}, "operators.all.schedule", "is no schedule"),
        ({"rows": 0}, "operators.all.schedule.rows", "out of range"),
        ({"every": "0s"}, "operators.all.schedule.every", "at least"),
        ({"each": 1}, "operators.all.schedule.each", "unknown key"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_path(schedule, path, text):
    with pytest.raises(JobError, match=text) as refused:
        parse_job(job(schedule))
    assert refused.value.path == path
    assert not faults(job("data"))


def test_a_job_without_a_log_that_forwards_has_no_schedule():
    document = changed(job({"rows": 5}), promises={"durability": "through"})
    assert "operators.all.schedule" in [fault.path for fault in faults(document)]


def test_a_schedule_of_a_running_job_changes_and_nothing_waits_longer(tmp_path):
    """The heart runs it by its timer alone, and does not spin meanwhile."""
    waits = changed(job({"rows": 1000}), promises={"latency": "20ms"})
    with Loop(waits, tmp_path) as loop, loop.producer() as producer:
        producer.send(batch([1, 2, 3]))
        producer.flush()
        loop.until(lambda: loop.job.schedules.rows("all") == 3)
        assert loop.stats.pages == 0
        beats = loop.stats.beats + loop.stats.idle_beats
        time.sleep(0.1)
        assert loop.stats.beats + loop.stats.idle_beats <= beats + 10
        loop.change("put", "waits", changed(waits, operators={"all": {
            **waits["operators"]["all"], "schedule": {"every": "50ms"}}}))  # fmt: skip
        loop.until(lambda: loop.stats.pages == 1)
        assert loop.job.schedules.rows("all") == 0
        for value in (4, 5):
            producer.send(batch([value]))
            producer.flush()
        loop.until(lambda: loop.job.streams["r"].rows == 5 and loop.stats.pages >= 2)
        loop.until(lambda: loop.job.schedules.rows("all") == 0 and not loop.job.open_rows())
