"""The heart: commits beside races, acks after the sync, promises, input that kills."""

from __future__ import annotations

import shutil
import socket
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edged.beat.heart import CRASHES_MAX, Heart
from edged.errors import StoreFailed
from edged.platform.event_loop import EventLoop
from tests.beat import crashing
from tests.beat.loop import GateDisk, Loop, batch, now_us
from tests.beat.support import ARROW, changed, copy_job, join_job

HOUR_US = 3_600_000_000
QUICK = changed(copy_job(), promises={"latency": "40ms"})


def test_acks_come_only_after_the_sync_has_returned(tmp_path):
    disk = GateDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, loop.producer() as producer:
        producer.connect()
        disk.close_gate()
        producer.send(batch([1]))
        producer.poll()
        assert disk.syncing.wait(120)
        for _ in range(20):
            time.sleep(0.01)
            assert producer.poll() == 0
        disk.gate.set()
        loop.until(lambda: producer.acked == 1, producer=producer)


def test_the_next_beat_races_while_the_last_ones_sync_is_under_way(tmp_path):
    disk = GateDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, loop.producer() as producer:
        producer.connect()
        disk.close_gate()
        producer.send(batch([1]))
        producer.poll()
        assert disk.syncing.wait(120)
        producer.send(batch([2, 3]))
        stream = loop.job.streams["r"]
        loop.until(lambda: stream.rows == 3, producer=producer)
        assert producer.poll() == 0
        assert not loop.heart.settled
        producer.send(batch([4]))
        time.sleep(0.2)
        producer.poll()
        assert stream.rows == 3, "one commit and one race at a time, not more"
        disk.gate.set()
        loop.until(lambda: producer.acked == 3, producer=producer)


def test_a_stop_is_not_missed_when_a_poll_of_the_sources_consumes_its_wake(tmp_path, monkeypatch):
    """Regression, seen on an emulated processor, where the moment between the two is long."""
    hearts, look, run = [], EventLoop.ready_now, Heart.run

    def stopped_meanwhile(waiter):
        if hearts:
            hearts.pop().stop()
        return look(waiter)

    def noted(heart):
        hearts.append(heart)
        run(heart)

    monkeypatch.setattr(EventLoop, "ready_now", stopped_meanwhile)
    monkeypatch.setattr(Heart, "run", noted)
    loop = Loop(QUICK, tmp_path / "store")
    loop._thread.join(120)
    ended = not loop._thread.is_alive()
    loop.heart.stop()
    loop.stop()
    assert ended


def test_pages_that_wait_for_the_previous_commit_are_not_reported_as_durable(tmp_path, monkeypatch):
    """Regression: while the store was full and the previous commit finished, the status reported
    the job as ended though its last pages were in no record."""
    disk = GateDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, loop.producer() as producer:
        producer.connect()
        disk.close_gate()
        producer.send(batch([1]))
        producer.poll()
        assert disk.syncing.wait(120)
        producer.send(batch([2, 3]))
        stream = loop.job.streams["r"]
        loop.until(lambda: stream.rows == 3, producer=producer)
        with monkeypatch.context() as patch:
            patch.setattr(loop.heart._committer, "busy", False)
            assert not loop.heart.settled
        disk.gate.set()
        loop.until(lambda: producer.acked == 2, producer=producer)
        loop.until(lambda: loop.heart.settled)


def test_a_commit_that_fails_ends_the_daemon_though_nothing_more_arrives(tmp_path):
    """Regression: an idle loop noticed the failure only at the next input."""
    disk = GateDisk()
    loop = Loop(QUICK, tmp_path / "store", disk)
    try:
        producer = loop.producer()
        producer.connect()
        disk.fails = True
        producer.send(batch([1]))
        assert isinstance(loop.ended(), StoreFailed)
        assert producer.acked == 0
    finally:
        producer.close()
        loop.stop()


def test_rows_are_in_a_durable_page_within_the_latency_and_not_much_earlier(tmp_path):
    document = changed(copy_job(), promises={"latency": "1h"})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        producer.send(batch([1]))
        for _ in range(10):
            time.sleep(0.01)
            assert producer.poll() == 0
        assert (loop.heart.beat, loop.store.backlog_pages) == (0, 0)
        loop.leap_until(HOUR_US, lambda: loop.store.backlog_pages == 1, producer=producer)


def raced_early(loop):
    time.sleep(0.2)
    return loop.heart.beat > 0


def test_rows_that_come_while_control_is_served_arrive_then_however_long_the_last_ingest_is_past(
    tmp_path,
):
    """Regression: they counted as arrived at the last ingest, and were raced at once as late."""
    document = changed(copy_job(), promises={"latency": "1h"})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        loop.clock.ahead_us += 2 * HOUR_US
        loop.call(lambda: None)
        time.sleep(0.05)  # the heart waits for input again
        loop.call(lambda: (producer.send(batch([1])), producer.poll()))
        assert not raced_early(loop), "the row may wait for an hour"
        loop.leap_until(HOUR_US, lambda: producer.acked == 1, producer=producer)


def test_rows_that_come_with_their_connection_arrive_then(tmp_path):
    """Regression: the connection ended the wait, and the rows counted as arrived at the last
    ingest."""
    document = changed(copy_job(), promises={"latency": "1h"})
    with Loop(document, tmp_path / "store") as loop:
        (source,) = loop.inputs.sources
        sent, serve = threading.Event(), source.serve_control
        source.serve_control = lambda at_us: (sent.wait(120), serve(at_us))
        loop.clock.ahead_us += 2 * HOUR_US
        loop.call(lambda: None)
        time.sleep(0.05)  # the heart waits for input again
        greeting = ARROW.with_metadata({"edged.stream": "r", "edged.producer": "p"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, greeting) as writer:
            rows = pa.record_batch(list(batch([1]).values()), schema=greeting)
            writer.write_batch(rows, custom_metadata={"edged.seq": "1"})
            size = sink.tell()
        with socket.create_connection(("127.0.0.1", source.port)) as peer:
            peer.sendall(sink.getvalue()[:size])
            sent.set()
            assert not raced_early(loop), "the row may wait for an hour"
            loop.leap_until(HOUR_US, lambda: loop.job.streams["r"].rows == 1)


def test_the_time_from_the_race_to_the_record_counts_as_work_and_the_wait_for_a_commit_does_not(
    tmp_path,
):
    disk = GateDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, loop.producer() as producer:
        producer.connect()
        disk.close_gate()
        producer.send(batch([1]))
        producer.poll()
        assert disk.syncing.wait(120)
        loop.heart._before_commit = lambda: time.sleep(0.03)
        loop.heart.batcher.race_us = 0.0
        producer.send(batch([2]))
        stream = loop.job.streams["r"]
        loop.until(lambda: stream.rows == 2, producer=producer)
        time.sleep(0.3)
        loop.leap(HOUR_US)
        disk.gate.set()
        loop.until(lambda: producer.acked == 2, producer=producer)
        assert 30_000 <= loop.heart.batcher.race_us < HOUR_US


def test_an_ack_promise_below_the_latency_is_kept_without_racing(tmp_path):
    document = changed(copy_job(), promises={"latency": "1h", "ack_within": "100ms"})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        producer.send(batch([1, 2, 3]))
        loop.until(lambda: producer.acked == 1, producer=producer)
        assert loop.job.streams["r"].rows == 0, "committed, not raced"
        assert loop.job.staged() == 3
        loop.leap_until(HOUR_US, lambda: loop.store.backlog_pages == 1, producer=producer)
        assert loop.job.streams["r"].rows == 3


def test_pages_left_open_by_early_beats_are_sealed_within_the_latency(tmp_path):
    """Regression: the deadline of open pages started another wait instead of a beat."""
    document = changed(copy_job(), promises={"latency": "1h"})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        loop.heart.batcher.fill_us = 1000.0
        producer.send(batch([1]))
        loop.until(lambda: loop.job.streams["r"].rows == 1, producer=producer)
        loop.until(lambda: producer.acked == 1, producer=producer)
        assert loop.store.backlog_pages == 0
        loop.leap(HOUR_US)
        loop.until(lambda: loop.store.backlog_pages == 1, producer=producer)


def test_rows_that_are_held_for_another_stream_cost_no_beats_while_they_wait(tmp_path):
    document = changed(join_job(idle_after="1h"), promises={"latency": "20ms"})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        producer.send(batch([1]))
        loop.until(lambda: producer.acked == 1, producer=producer)
        wakes, beat = loop.event_loop.wakes, loop.heart.beat
        time.sleep(0.5)
        assert loop.event_loop.wakes - wakes <= 3
        assert loop.heart.beat == beat
        loop.leap_until(HOUR_US, lambda: loop.job.staged() == 0)


def filing(path, **more):
    sinks = {"rows": {"type": "file", "input": "r", "path": str(path), **more}}
    return {**copy_job(), "sinks": sinks, "promises": {"latency": "20ms"}}


def test_a_file_is_finished_when_it_is_old_enough_and_nothing_more_arrives(tmp_path):
    document = filing(tmp_path / "out", every="1h")
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        for i in range(5):
            producer.send(batch([i]))
            producer.flush()
        assert loop.heart.beat >= 5
        assert not list((tmp_path / "out").glob("*.parquet"))
        loop.leap(HOUR_US)
        loop.until(lambda: list((tmp_path / "out").glob("*.parquet")))
        loop.until(lambda: loop.heart.settled)
        (file,) = (tmp_path / "out").glob("*.parquet")
        assert pq.read_table(file)["value"].to_pylist() == list(range(5))
        wakes, beat = loop.event_loop.wakes, loop.heart.beat
        time.sleep(0.3)
        assert (loop.event_loop.wakes - wakes, loop.heart.beat - beat) == (0, 0)


def test_a_file_that_is_due_is_finished_at_once_however_long_the_latency(tmp_path):
    """Regression: the wait for more input lasted for the latency, with empty beats for acks."""
    promises = {"latency": "1h", "ack_within": "50ms"}
    document = changed(filing(tmp_path / "out", every="100ms"), promises=promises)
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        loop.heart.batcher.fill_us = 1000.0
        producer.send(batch([1]))
        loop.until(lambda: loop.job.streams["r"].rows == 1, producer=producer)
        wakes = loop.event_loop.wakes
        loop.until(lambda: list((tmp_path / "out").glob("*.parquet")))
        assert loop.event_loop.wakes - wakes <= 4


def test_a_stop_and_the_end_of_all_streams_finish_the_open_file(tmp_path):
    with Loop(filing(tmp_path / "out"), tmp_path / "store") as loop, loop.producer() as producer:
        producer.send(batch([1]))
        producer.flush()
        assert not list((tmp_path / "out").glob("*.parquet"))
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 1
    with Loop(filing(tmp_path / "out"), tmp_path / "store") as loop, loop.producer() as producer:
        producer.connect()
        producer.send(batch([2]))
        producer.end()
        loop.until(lambda: len(list((tmp_path / "out").glob("*.parquet"))) == 2)


@pytest.mark.parametrize("durability", ["exactly_once", "results", "none"])
def test_a_window_survives_a_stop_whatever_the_durability(tmp_path, durability):
    """Regression: only a replay of logged inputs restored windows."""
    base = now_us() // 1_000_000_000 * 1_000_000_000
    windows = {
        "type": "window", "input": "r", "size": "1s", "aggregates": {"n": "count(*)"},
    }  # fmt: skip
    document = changed(
        copy_job(), operators={"w": windows}, promises={"latency": "20ms", "durability": durability}
    )
    document["sinks"]["rows"]["input"] = "w"
    for i in range(3):
        with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
            producer.connect()
            producer.send(batch([i], [base + i]))
            producer.flush()
            assert loop.job.operators["w"].counters()["rows"] == i + 1
            assert loop.recovered.fresh == (i == 0)


def test_a_window_is_emitted_when_the_producer_that_held_it_back_becomes_idle(tmp_path):
    base = now_us() // 1_000_000 * 1_000_000 - 10_000_000
    windows = {
        "type": "window", "input": "r", "size": "1s", "aggregates": {"n": "count(*)"},
    }  # fmt: skip
    document = changed(
        copy_job(idle_after="300ms"), operators={"w": windows}, promises={"latency": "20ms"}
    )
    document["sinks"]["rows"]["input"] = "w"
    with (
        Loop(document, tmp_path / "store") as loop,
        loop.producer(id="slow") as slow,
        loop.producer(id="fast") as fast,
    ):
        slow.send(batch([1], [base]))
        fast.send(batch([1], [base + 5_000_000]))
        slow.flush()
        fast.flush()
        loop.until(lambda: loop.job.operators["w"].counters()["groups_emitted"] == 1)


def poisoned():
    document = changed(QUICK, operators={"p": {"type": "poison", "input": "r"}})
    return changed(document, sinks={"rows": {**QUICK["sinks"]["rows"], "input": "p"}})


def quarantined(path):
    found = []
    for file in sorted((path / "quarantine").glob("*.arrow")):
        with pa.ipc.open_file(file) as reader:
            found += reader.read_all().column("value").to_pylist()
    return found


def poison_until_set_aside(path):
    """Start, send, die of it, start again; the deaths until the beat was set aside.

    What a kill would have left then is `<path>-killed`.
    """
    deaths, sent = 0, [7, crashing.RAISES]
    message = batch(sent)
    while deaths <= CRASHES_MAX:
        loop = Loop(poisoned(), path)
        producer = loop.producer()
        assert producer.connect() == 0
        producer.send(message)
        loop.until(lambda p=producer, x=loop: p.acked or x.problem, producer=producer)
        if producer.acked:
            producer.send(batch([8, 9]))
            producer.flush()
            assert loop.heart.quarantine.rows == 2
            assert loop.job.streams["r"].rows == 2
            assert quarantined(path) == sent
            shutil.copytree(path, f"{path}-killed")
        else:
            assert isinstance(loop.ended(), ArithmeticError)
            deaths += 1
        over = producer.acked
        producer.close()
        loop.stop()
        if over:
            break
    return deaths


def test_input_that_makes_an_operator_raise_is_set_aside_after_some_attempts(tmp_path):
    assert poison_until_set_aside(tmp_path / "store") == CRASHES_MAX


def test_a_beat_that_was_set_aside_replays(tmp_path):
    poison_until_set_aside(tmp_path / "store")
    killed = tmp_path / "store-killed"
    with Loop(poisoned(), killed) as loop, loop.producer() as producer:
        assert loop.recovered.replayed_beats > 0
        assert producer.connect() == 2
        assert loop.job.staged() == 0
        producer.send(batch([10]))
        producer.flush()
        assert loop.job.streams["r"].rows == 3
