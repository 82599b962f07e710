"""Fast beside slow streams: none runs ahead of another's window, none makes another late."""

from __future__ import annotations

from edged.beat.stream_alignment import ONE_CHUNK
from tests.beat.loop import Loop, batch, now_us
from tests.beat.support import MANY, SECOND, T0, Live, changed, copy_job, join_job, stream

IDLE = 10 * SECOND
MANY_BATCHES = 500


def pairs_of(left, right, before=100, after=100):
    """The naive join of rows (key, time, value), as the job's output columns."""
    return sorted(
        (k, t, v, u, w)
        for k, t, v in left
        for k2, u, w in right
        if k == k2 and -before <= u - t <= after
    )


def rows(first, count, step=10):
    return [(i % 3, T0 + i * step, i) for i in range(first, first + count)]


def live_rows(live):
    counters = live.job.operators["joined"].counters()
    return counters["left_live"] + counters["right_live"]


def test_a_fast_stream_is_held_at_the_slow_ones_horizon_plus_the_bound():
    with Live(join_job(before=100, after=100)) as live:
        live.send("s", rows(0, 1))
        for i in range(100):
            live.send("r", rows(i * 10, 10))
        live.beat()
        taken = live.facts[-1].streams["r"].take_rows
        assert taken == 20, "two chunks begin no later than 100 after the slow stream's 0"
        live.send("s", rows(1, 1))
        live.beat()
        assert live.facts[-1].streams["r"].take_rows == 0
        live.send("s", rows(10, 1))
        live.beat()
        assert live.facts[-1].streams["r"].take_rows == 10


def test_each_side_may_run_ahead_by_its_own_bound():
    with Live(join_job(before=50, after=300)) as live:
        live.send("r", [(1, T0, 0)])
        live.send("s", [(1, T0, 0)])
        for i in range(1, 20):
            live.send("r", [(1, T0 + 100 * i, i)], producer="later")
            live.send("s", [(1, T0 + 100 * i, i)], producer="later")
        live.beat()
        facts = live.facts[-1].streams
        assert facts["r"].take_rows == 1, "a left row more than `before` ahead waits"
        assert facts["s"].take_rows == 1 + 3, "a right row up to `after` ahead is taken"


def test_the_window_stays_small_however_fast_one_stream_comes_and_the_result_is_exact():
    left, right = rows(0, 4000), rows(0, 400)
    with Live(join_job()) as live:
        most = 0
        for i in range(40):
            live.send("r", left[i * 100 : i * 100 + 100])
            live.send("s", right[i * 10 : i * 10 + 10])
            live.beat()
            most = max(most, live_rows(live))
        assert most < 200, "of 4000 rows only those around the slow stream's time are held"
        assert live.job.streams["r"].staging.rows > 3000
        live.drain()
        assert sorted(live.rows("pairs")) == pairs_of(left, right)
        assert live.late("r") == live.late("s") == 0


def test_the_window_stays_small_while_one_of_a_streams_producers_is_away_and_the_result_is_exact():
    """Regression from the demo: three turbines' power stayed in the window until the fourth had
    reconnected after a restart, and wind probed all of it in races of ten seconds."""
    fast, away, right = rows(1, 3000), rows(0, 1), rows(0, 3000)
    with Live(join_job()) as live:
        live.send("r", away, producer="away")
        for at in range(0, 3000, 100):
            live.send("r", fast[at : at + 100])
            live.send("s", right[at : at + 100])
            live.beat()
        assert live_rows(live) < 200
        live.drain()
        assert sorted(live.rows("pairs")) == pairs_of(away + fast, right)
        assert live.late("r") == live.late("s") == 0


def test_rows_that_are_held_back_stop_the_fast_source_from_reading():
    document = join_job()
    document["promises"] = {"memory": "1MiB"}
    with Live(document) as live:
        live.send("s", rows(0, 1))
        sent = 0
        while live.job.streams["r"].staging.room():
            live.send("r", rows(sent, 100))
            live.beat()
            sent += 100
            assert sent < 1 << 20
        assert live.job.streams["r"].staging.live_bytes() <= 1 << 19
        assert live_rows(live) < 300


def test_the_stream_whose_producers_connect_first_does_not_make_the_other_late():
    left, right = rows(0, 100), rows(0, 100)
    with Live(join_job()) as live:
        live.send("r", left)
        live.beat()
        assert live.facts[-1].streams["r"].take_rows == 0
        live.clock.advance(3 * SECOND)
        live.send("s", right)
        live.drain()
        assert live.late("s") == 0
        assert sorted(live.rows("pairs")) == pairs_of(left, right)


def test_a_stream_without_producers_is_awaited_until_idle_after_and_not_longer():
    with Live(join_job()) as live:
        live.beat()
        live.send("r", rows(0, 100))
        live.clock.advance(IDLE - 1)
        live.connect("r", "p")
        live.beat()
        assert live.facts[-1].streams["r"].take_rows == 0
        time = live.job.streams["s"].time
        due = time.idle_at(live.job.streams["s"].staging.producers, live.clock.now)
        assert due == live.clock.now + 1, "the heart knows when to look again"
        live.clock.advance(1)
        live.beat()
        assert live.facts[-1].streams["r"].take_rows == 100


def test_a_stream_whose_producers_fell_silent_releases_the_other():
    with Live(join_job()) as live:
        live.send("s", rows(0, 1))
        live.send("r", rows(0, 10))
        live.send("r", rows(100, 10))
        live.beat()
        assert live.job.staged() == 10
        live.clock.advance(IDLE)
        live.connect("r", "p")
        live.beat()
        assert live.job.staged() == 0
        assert live.watermark("s") == live.watermark("r"), "it follows, so that windows are evicted"


def test_a_stream_that_has_ended_releases_the_other():
    with Live(join_job()) as live:
        live.send("s", rows(0, 1))
        live.send("r", rows(0, 10))
        live.send("r", rows(100, 10))
        live.end("s")
        live.beat()
        assert live.job.staged() == 0


def three_streams():
    return changed(
        join_job(),
        streams={"other": stream()},
        sinks={"others": {"type": "pages", "input": "other"}},
    )


def test_streams_that_hold_each_other_back_move_on_beside_one_that_always_flows():
    """Regression: the deadlock was resolved only when no stream at all advanced.

    Both joined streams have a producer that lags and one that is far ahead; with full staging the
    lagging ones were never read again.
    """
    with Live(three_streams()) as live:
        for name in "rs":
            live.send(name, rows(0, 1), producer="laggard")
            live.send(name, rows(1000, 1), producer="leader")
        live.beat()
        assert live.job.staged() == 2, "both leaders are held"
        live.send("other", rows(0, 1))
        live.beat()
        assert live.job.streams["r"].staging.rows == 0


def test_results_of_streams_in_step_and_far_out_of_step_are_the_same():
    left, right = rows(0, 600), rows(0, 600)
    results = []
    for block in (1, 50, 600):
        with Live(join_job()) as live:
            live.connect("r", "p"), live.connect("s", "p")
            for at in range(0, 600, block):
                live.send("r", left[at : at + block])
                live.beat(rows_max=MANY)
            for at in range(0, 600, 7):
                live.send("s", right[at : at + 7])
                live.beat(rows_max=40)
            live.drain()
            results.append(sorted(live.rows("pairs")))
            assert live.late("r") == live.late("s") == 0
    assert results[0] == results[1] == results[2] == pairs_of(left, right)


def test_a_producer_that_waits_for_room_never_becomes_idle(tmp_path):
    """Regression: `idle_after` ran on while a producer's data was unread.

    The stream's staging is full with rows of a fast producer that are held for the other stream;
    a slow producer's row stays in its socket for longer than `idle_after`.
    """
    document = changed(
        join_job(idle_after="60s", max_ahead="1d"),
        promises={"latency": "20ms", "memory": "1MiB"},
    )
    base = now_us()
    far = base + 3_600_000_000
    with (
        Loop(document, tmp_path / "store") as loop,
        loop.producer("r", "steady") as steady,
        loop.producer("s", "fast") as fast,
        loop.producer("s", "slow") as slow,
    ):
        steady.send(batch([0], [base]))
        slow.connect()
        staging = loop.job.streams["s"].staging
        whole = staging.batch_bytes_max // 24
        fast.send(batch([1] * whole, [far] * whole))
        loop.until(lambda: staging.full, producer=fast)
        slow.send(batch([2], [base + 1]))
        for _ in range(3):
            steady.flush()
            loop.clock.ahead_us += 40_000_000
            steady.send(batch([0], [base]))
        steady.flush()
        assert loop.job.streams["s"].late == 0
        assert slow.poll() == 0, "its row is still in the socket"
        steady.send(batch([0], [far]))
        loop.until(lambda: slow.poll() and not fast.poll() < fast.sent and steady.poll())
        assert loop.job.streams["s"].late == 0
        loop.until(lambda: loop.job.operators["joined"].counters()["matches"] >= 4)


def test_a_producer_does_not_become_idle_during_beats_longer_than_idle_after(tmp_path, monkeypatch):
    """Regression from the demo on a loaded machine, with wrong tables: between beats that only take
    rows left by the previous one no source is read, and `idle_after` ran on meanwhile."""
    document = changed(copy_job(idle_after="10s"), promises={"latency": "300ms"})
    base = now_us()
    with (
        Loop(document, tmp_path / "store") as loop,
        loop.producer("r", "slow") as slow,
        loop.producer("r", "fast") as fast,
    ):
        slow.send(batch([0], [base]))
        fast.send(batch([1], [base]))
        loop.until(lambda: slow.poll() == fast.poll() == 1)
        step, raced = loop.job.step, []

        def long_race(*given):
            raced.append(loop.clock.ahead_us)
            if len(raced) == 1:
                slow.send(batch([2], [base + 1]))
            loop.clock.ahead_us += 8_000_000
            return step(*given)

        monkeypatch.setattr(loop.job, "step", long_race)
        monkeypatch.setattr(loop.heart.batcher, "rows_max", lambda: ONE_CHUNK)
        for value in range(3, 7):
            fast.send(batch([value], [base + 10 * value]))
        loop.until(lambda: loop.job.streams["r"].rows == 7, producer=slow)
        assert len(raced) >= 4, "the fast producer's rows were taken in several beats"
        assert loop.job.streams["r"].late == 0


def test_a_producer_further_ahead_than_a_beat_could_take_is_left_unread(tmp_path):
    """Regression: the rows of a thousand producers stayed in staging, and in every snapshot, until
    the slowest of them had caught up."""
    document = changed(
        join_job(idle_after="60s", max_ahead="1d"),
        promises={"latency": "20ms", "memory": "32MiB"},
    )
    base = now_us()
    far = base + 3_600_000_000
    with (
        Loop(document, tmp_path / "store") as loop,
        loop.producer("r", "steady") as steady,
        loop.producer("s", "fast") as fast,
        loop.producer("s", "slow") as slow,
    ):
        steady.send(batch([0], [base]))
        slow.send(batch([2], [base]))
        fast.send(batch([1], [far]))
        loop.until(lambda: steady.poll() == slow.poll() == fast.poll() == 1)
        for _ in range(MANY_BATCHES):
            fast.send(batch([1] * 1000, [far] * 1000))
            fast.poll()
        loop.until(lambda: fast.poll() > 1)
        slow.send(batch([3], [base + 1]))
        loop.until(lambda: slow.poll() == 2)
        stream = loop.job.streams["s"]
        assert not stream.staging.full
        assert fast.poll() < 1 + MANY_BATCHES, "an eighth is for those ahead; the rest waits"
        steady.send(batch([0], [far]))
        slow.send(batch([4], [far]))
        loop.until(lambda: fast.poll() == 1 + MANY_BATCHES)
        loop.until(lambda: stream.rows == MANY_BATCHES * 1000 + 4)
        assert stream.late == 0 and loop.job.streams["r"].late == 0


def test_a_row_of_the_year_2106_does_not_cost_the_other_rows_of_its_message(tmp_path):
    document = changed(copy_job(), promises={"latency": "20ms"})
    base = now_us()
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.send(batch([1, 2, 3], [base, 4_291_747_200_000_000, base + 1]))
        producer.send(batch([4], [base + 2]))
        producer.flush()
        stream = loop.job.streams["r"]
        loop.until(lambda: stream.rows == 3)
        assert stream.staging.refused_ahead == 1
        assert stream.late == 0
