"""A stream that has ended opens again, and one without rows is waited for: no row is lost."""

from __future__ import annotations

import pytest

from edged.data.flow import WATERMARK_MAX_US
from tests.beat.support import SECOND, T0, Live, changed, copy_job, join_job
from tests.beat.test_replay import bytes_of, differing, recovered

IDLE = 10 * SECOND


def day(number, count=5):
    """Rows of one second, `number` days after T0."""
    return [(1, T0 + number * 86_400 * SECOND + i, i) for i in range(count)]


def send_and_end(live, stream, rows, producer):
    live.send(stream, rows, producer)
    live.end(stream, producer)
    live.beat()
    live.beat(flush=True)


@pytest.mark.parametrize("producer", ["p", "another"])
def test_a_stream_that_has_ended_opens_again_with_the_next_row(producer):
    with Live(copy_job()) as live:
        send_and_end(live, "r", day(0), "p")
        assert live.job.ended()
        live.connect("r", producer)
        live.clock.advance(86_400 * SECOND)
        send_and_end(live, "r", day(1), producer)
        assert live.job.ended() and live.late("r") == 0
        assert [row[1] for row in live.rows("rows")] == [row[1] for row in day(0) + day(1)]


def test_rows_before_the_end_of_a_stream_that_is_opened_again_are_late():
    with Live(copy_job(lateness=2)) as live:
        send_and_end(live, "r", day(0), "p")
        send_and_end(live, "r", day(0), "another")
        assert live.late("r") == 2 and len(live.rows("rows")) == 8
        producers = live.job.streams["r"].staging.producers
        assert producers.late[producers.number("another")] == 2


def test_a_join_whose_streams_have_ended_joins_the_next_rows_of_both():
    with Live(join_job()) as live:
        for n, producer in enumerate(["p", "q", "p"]):
            live.clock.advance(86_400 * SECOND)
            for stream in "rs":
                send_and_end(live, stream, day(n), producer)
                live.clock.advance(5 * IDLE)
                live.beat()
        assert live.late("r") == live.late("s") == 0
        live.beat(flush=True)
        assert len(live.rows("pairs")) == 3 * 25
        assert live.job.ended()


def test_a_stream_that_opens_again_does_not_go_behind_the_one_it_is_joined_with():
    with Live(join_job()) as live:
        live.send("s", day(0))
        send_and_end(live, "r", day(0), "p")
        live.clock.advance(86_400 * SECOND)
        live.send("s", day(1))
        live.beat()
        live.send("r", [*day(0), *day(1)], "q")
        live.beat()
        assert live.watermark("r") >= T0 + 86_400 * SECOND and live.late("r") == 9


def test_a_stream_without_rows_is_awaited_however_long_the_other_is_silent():
    with Live(join_job()) as live:
        live.send("r", day(0))
        live.beat()
        for _ in range(5):
            live.clock.advance(IDLE)
            live.beat()
        assert live.job.staged() == 0
        live.send("s", day(0))
        live.drain()
        assert live.late("s") == 0 and len(live.rows("pairs")) == 25


def test_a_stream_without_rows_follows_once_the_rows_that_await_it_take_too_much_memory():
    document = changed(join_job(), promises={"memory": "1MiB"})
    with Live(document) as live:
        live.beat()
        live.clock.advance(IDLE)
        for i in range(40):
            live.connect("r", "p")
            live.send("r", [(k, T0 + i * SECOND + k, k) for k in range(1000)])
            live.beat()
        assert live.watermark("s") > T0
        assert live.job.operators["joined"].state_bytes() < 1 << 19


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_stream_opens_again_after_a_recovery_and_replays(tmp_path, snapshot):
    with Live(join_job(), tmp_path / "store") as live:
        for stream in "rs":
            send_and_end(live, stream, day(0), "p")
        assert live.job.ended()
        if snapshot:
            live.snapshot()
        live.clock.advance(86_400 * SECOND)
        live.send("r", day(1), "q")
        live.beat()
        state = bytes_of(live.job.save())
    (job,) = recovered(tmp_path / "store", live.plan)[0].jobs
    assert differing(state, bytes_of(job.save())) == []
    assert job.streams["s"].time.watermark_us < WATERMARK_MAX_US and job.streams["s"].time.fresh
