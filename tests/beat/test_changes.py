"""Jobs are created, changed, paused, drained and deleted while the heart runs; the log has all.

A restart from a copy of the store must find the live jobs, byte for byte.
"""

from __future__ import annotations

import errno
import random
import shutil
import socket
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from edged.beat.changes import RETRY_US
from edged.beat.jobs import describe
from edged.beat.recover import recover
from edged.client import Producer
from edged.data.workers import Workers
from edged.errors import CommandError, JobError
from edged.platform.disk import SystemDisk
from edged.platform.processes import free_port
from edged.sinks.base import SinkContext
from edged.store import Store
from tests.beat.loop import Loop, batch, now_us
from tests.beat.support import ARROW, COMPILED_S, HandClock, changed, copy_job, join_job
from tests.beat.test_replay import bytes_of, differing

QUICK = {"latency": "20ms"}


def at(port, document):
    """The document with its streams at this port, and a short latency unless it has one."""
    for table in document["streams"].values():
        table["source"] = {"type": "tcp", "listen": f"127.0.0.1:{port}"}
    document.setdefault("promises", dict(QUICK))
    return document


def renamed(name, stream, sink, **options):
    """A job that copies `stream` into pages of `sink`."""
    document = copy_job(**options)
    document["streams"] = {stream: document["streams"]["r"]}
    document["sinks"] = {sink: {"type": "pages", "input": stream, "page": "4KiB"}}
    return {**document, "name": name}


def windowed(name, stream, sink):
    """A job that counts `stream` in windows of ten seconds."""
    document = renamed(name, stream, sink)
    document["operators"] = {
        "counted": {"type": "window", "input": stream, "keys": ["key"], "size": "10s",
                    "aggregates": {"n": "count(*)"}}
    }  # fmt: skip
    document["sinks"][sink]["input"] = "counted"
    return document


def facts_of(book):
    return {**book.facts(), "about": {j.plan.name: vars(j.meta) for j in book.list}}


def restarted(path, copy, files):
    """Facts and states that a restart finds in a copy of the store, and its `Recovered`."""
    shutil.copytree(path, copy)
    workers = Workers(1)
    with Store.open(copy) as store:
        context = SinkContext("dev", store.device_epoch, str(copy / "sinks"), workers)
        found = recover(store, files, context, HandClock())
    workers.close()
    states = {job.plan.name: bytes_of(job.save()) for job in found.jobs}
    return facts_of(found.registry), states, found


class Twins:
    """A running heart, compared with restarts from copies of its store."""

    def __init__(self, loop, path):
        self.loop, self.path, self.copies = loop, path, 0

    def compare(self):
        """A restart now finds the jobs as they are."""
        live = {}

        def look():
            heart = self.loop.heart
            heart.await_commit()
            live["facts"] = facts_of(heart.changes.registry)
            live["states"] = {job.plan.name: bytes_of(job.save()) for job in heart.jobs}
            self.copies += 1
            files = [self.loop.plan]
            live["found"] = restarted(self.path, self.path.parent / f"c{self.copies}", files)

        self.loop.call(look)
        facts, states, found = live["found"]
        assert facts == live["facts"]
        assert states.keys() == live["states"].keys()
        for name, state in states.items():
            assert differing(state, live["states"][name]) == []
        assert not found.fresh
        return found


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_finds_the_jobs_as_they_were_after_any_changes(tmp_path, seed):
    dice, port = random.Random(seed), free_port()
    base = at(port, {**join_job(before=10**9, after=10**9), "name": "base"})
    variants = [
        at(port, renamed("second", "q", "others", lateness=n, late="process")) for n in (0, 10, 20)
    ]
    variants.append(changed(variants[0], operators={
        "chosen": {"type": "filter", "input": "q", "where": "value > 3"}}, sinks={
        "others": {"type": "pages", "input": "chosen", "page": "4KiB"}}))  # fmt: skip
    with Loop(base, tmp_path / "store") as loop:
        twins, sent = Twins(loop, tmp_path / "store"), Counter()

        def send(stream):
            with Producer(
                f"127.0.0.1:{port}", stream, ARROW, f"p-{stream}", timeout_s=COMPILED_S
            ) as producer:
                sent[stream] += 1
                producer.send(batch(list(range(dice.randint(1, 5)))))
                producer.flush()

        for _ in range(14):
            second = loop.heart.changes.registry.get("second")
            op = dice.choice(["put", "state", "state", "send", "send", "snapshot", "delete"])
            if op == "put" or second is None:
                loop.change("put", "second", dice.choice(variants))
            elif op == "state":
                loop.change("state", "second", state=dice.choice(["paused", "running", "draining"]))
            elif op == "delete":
                loop.change("delete", "second")
            elif op == "snapshot":
                loop.call(lambda: (loop.heart.await_commit(), loop.heart.snapshot()))
            send("r"), send("s")
            second = loop.heart.changes.registry.get("second")
            if second is not None and not second.suspended and op != "put":
                send("q")
            twins.compare()
        assert loop.heart.jobs[0].plan.name == "base"
        assert loop.heart.jobs[0].streams["r"].rows + loop.heart.jobs[0].staged() > 0


def test_a_change_is_in_the_log_and_takes_no_snapshot(tmp_path):
    port = free_port()
    with Loop(at(port, copy_job()), tmp_path / "store") as loop:
        snapshots = sorted(p.name for p in (tmp_path / "store/snapshots").iterdir())
        loop.change("put", "second", at(port, renamed("second", "q", "others")))
        loop.change("state", "second", state="paused")
        found = Twins(loop, tmp_path / "store").compare()
        assert found.replayed_beats == loop.heart.beat == 2
        assert [describe(j)["state"] for j in found.jobs] == ["running", "paused"]
        assert sorted(p.name for p in (tmp_path / "store/snapshots").iterdir()) == snapshots


def test_the_first_job_whose_inputs_are_logged_comes_with_a_snapshot(tmp_path):
    """Rows that an earlier job had staged are in no log: a replay could not take them."""
    port = free_port()
    base = at(port, join_job(idle_after="1h"))
    base["promises"] = {**QUICK, "durability": "results"}
    with Loop(base, tmp_path / "store") as loop:
        with loop.producer("r") as r, loop.producer("s") as s:
            r.send(batch([1], [now_us() + 10**6])), s.send(batch([1]))
            r.flush(), s.flush()
            loop.change("put", "second", at(port, renamed("second", "q", "others")))
        with loop.producer("s") as s:
            s.send(batch([2], [now_us() + 2 * 10**6]))
            s.flush()
            loop.until(lambda: loop.job.staged() <= 1)
            Twins(loop, tmp_path / "store").compare()


def test_a_paused_job_holds_its_producers_seals_its_open_pages_and_counts_no_producer_as_idle(
    tmp_path,
):
    port = free_port()
    slow = at(port, renamed("second", "q", "others", idle_after="10s", lateness="0s"))
    slow["promises"] = {"latency": "30s", "ack_within": "20ms"}
    with Loop(at(port, copy_job()), tmp_path / "store") as loop:
        loop.change("put", "second", slow)
        second, now = loop.heart.jobs[1], now_us()
        with loop.producer("q", "ahead") as ahead, loop.producer("q", "behind") as behind:
            ahead.connect(), behind.connect()  # a producer that never connected is not awaited
            ahead.send(batch([1], [now])), behind.send(batch([2], [now - 10**6]))
            ahead.flush(), behind.flush()
            loop.change("state", "second", state="paused")
            assert second.open_rows() == second.staged() == 0
            assert second.sinks["others"].counters()["rows"] == 2
            ahead.send(batch([3], [now + 10**6]))
            with pytest.raises(TimeoutError):
                ahead.flush(0.3)
            with loop.producer("r", "other") as other:
                other.send(batch([1]))
                other.flush()
            loop.clock.ahead_us += 3600 * 10**6
            loop.change("state", "second", state="running")
            ahead.flush()
            behind.send(batch([4], [now - 10**6 + 1]))
            behind.flush()
            loop.change("state", "second", state="draining")
            loop.until(lambda: describe(second)["state"] == "drained", producer=ahead)
        assert second.sinks["others"].counters()["rows"] == 4
        assert second.streams["q"].late == 0, "no producer became idle in an hour of pause"


def test_a_producer_that_connected_and_sent_nothing_is_awaited_after_a_pause_too(tmp_path):
    port = free_port()
    slow = at(port, renamed("second", "q", "others", idle_after="10s", lateness="0s"))
    slow["promises"] = {"latency": "20ms", "ack_within": "20ms"}
    with Loop(at(port, copy_job()), tmp_path / "store") as loop:
        loop.change("put", "second", slow)
        second, now = loop.heart.jobs[1], now_us()
        with loop.producer("q", "ahead") as ahead, loop.producer("q", "behind") as behind:
            ahead.connect(), behind.connect()
            loop.change("state", "second", state="paused")
            loop.change("state", "second", state="running")
            ahead.send(batch([1], [now]))
            ahead.flush()
            loop.until(lambda: second.staged() == 0)
            behind.send(batch([2], [now - 10**6]))
            behind.flush()
            loop.change("state", "second", state="paused")
            assert second.sinks["others"].counters()["rows"] == 2, "none was late"


def test_a_paused_job_does_not_wake_the_heart(tmp_path):
    port = free_port()
    document = at(port, join_job(idle_after="50ms"))
    with Loop(document, tmp_path / "store") as loop, loop.producer("r") as r:
        r.send(batch([1])), r.flush()
        loop.change("state", "joining", state="paused")
        r.send(batch([2]))
        r.poll()
        time.sleep(0.2)
        wakes = loop.event_loop.wakes
        time.sleep(0.6)
        assert loop.event_loop.wakes - wakes <= 1
        loop.change("state", "joining", state="running")
        r.flush()


def test_a_deleted_job_whose_pages_were_open_leaves_no_beat_due(tmp_path):
    """Regression: open pages were checked only after races."""
    port = free_port()
    slow = at(port, renamed("second", "q", "others"))
    slow["promises"] = {"latency": "1h"}
    base = at(port, copy_job())
    base["promises"] = {"latency": "1h"}
    with Loop(base, tmp_path / "store") as loop:
        loop.change("put", "second", slow)
        second = loop.heart.jobs[1]
        loop.heart.batcher.fill_us = 1000.0  # raced at once, sealed when it has to be
        with loop.producer("q") as q:
            q.send(batch([1])), q.flush()
            loop.until(lambda: second.open_rows() == 1)
            loop.change("delete", "second")
            idle_beats = loop.stats.idle_beats
            loop.leap(3 * 3600 * 10**6)
            time.sleep(0.3)
            assert loop.stats.idle_beats - idle_beats <= 1


def test_rows_staged_before_a_pause_are_raced_after_it(tmp_path):
    """Regression: the heart noticed the staged rows only at the next input."""
    document = at(free_port(), copy_job(idle_after="1000h"))
    document["promises"] = {"latency": "30s", "ack_within": "20ms"}
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        for value in range(5):
            producer.send(batch([value])), producer.flush()
        loop.heart.batcher.row_us = 1e9  # a pause races one message
        loop.change("state", "copying", state="paused")
        assert loop.job.staged() == 4
        for _ in range(3):
            loop.leap(3600 * 10**6)
            time.sleep(0.1)
        loop.change("state", "copying", state="running")
        loop.leap_until(60 * 10**6, lambda: loop.job.staged() == 0, 30)


def test_draining_takes_what_waited_for_the_other_stream_and_the_window_is_kept(tmp_path):
    port, now = free_port(), now_us()
    document = at(port, join_job(before="1s", after="1h", idle_after="1h"))
    with Loop(document, tmp_path / "store") as loop:
        job = loop.job
        with loop.producer("r") as r, loop.producer("s") as s:
            s.send(batch([1], [now])), s.flush()
            r.send(batch([1], [now])), r.flush()
            r.send(batch([2], [now + 60 * 10**6])), r.flush()
            r.send(batch([3], [now + 61 * 10**6])), r.flush()
            loop.until(lambda: job.streams["r"].rows >= 1)
            assert job.staged() >= 1, "a row waits for the other stream"
            loop.change("state", "joining", state="draining")
            loop.until(lambda: describe(job)["state"] == "drained", producer=r)
            assert job.staged() == job.open_rows() == 0
            assert job.operators["joined"].counters()["left_live"] == 3
            loop.change("state", "joining", state="running")
            s.send(batch([4], [now + 60 * 10**6])), s.flush()
            loop.until(lambda: job.operators["joined"].counters()["matches"] == 4)
            assert job.streams["s"].late == 0
            Twins(loop, tmp_path / "store").compare()


def test_a_deleted_job_that_drains_first_closes_its_windows(tmp_path):
    port = free_port()
    with Loop(at(port, copy_job()), tmp_path / "store") as loop:
        twins = Twins(loop, tmp_path / "store")
        loop.change("put", "second", at(port, windowed("second", "q", "counts")))
        with loop.producer("q") as q:
            q.send(batch([1, 2, 3]))
            q.flush()
        second = loop.heart.jobs[1]
        assert second.sinks["counts"].counters()["rows"] == 0
        loop.change("state", "second", state="draining", ends=True)
        loop.until(lambda: len(loop.heart.jobs) == 1)
        assert second.sinks["counts"].counters()["rows"] == 1
        found = twins.compare()
        assert found.registry.retired["counts"].last == [1]
        loop.change("put", "third", at(port, windowed("third", "q", "counts")))
        assert loop.heart.jobs[1].sinks["counts"].numbers() == {"counts": [1]}
        twins.compare()


class FullDisk(SystemDisk):
    """The real disk, with no room for snapshots while it is `full`; `tries` counts them."""

    def __init__(self):
        self.full, self.tries = False, 0

    def open(self, path, create=False):
        if "/snapshots/" in path and self.full:
            self.tries += 1
            raise OSError(errno.ENOSPC, "no room")
        return super().open(path, create)


def test_a_job_that_drained_on_a_full_disk_goes_when_there_is_room_and_is_not_tried_all_the_time(
    tmp_path,
):
    port, disk = free_port(), FullDisk()
    base = at(port, copy_job())
    base["promises"] = {**QUICK, "durability": "results"}
    with Loop(base, tmp_path / "store", disk) as loop:
        loop.change("put", "second", at(free_port(), renamed("second", "q", "others")))
        disk.full = True
        loop.change("state", "second", state="draining", ends=True)
        loop.until(lambda: disk.tries >= 1)
        with Producer(f"127.0.0.1:{port}", "r", ARROW, "r", timeout_s=COMPILED_S) as r:
            for value in range(5):
                r.send(batch([value]))
                r.flush()
        assert disk.tries == 1, "every try builds the sources again"
        wakes = loop.event_loop.wakes
        loop.clock.ahead_us += RETRY_US
        loop.event_loop.wake()
        loop.until(lambda: disk.tries == 2)
        assert loop.event_loop.wakes - wakes < 10
        loop.until(
            lambda: [describe(j)["state"] for j in loop.heart.jobs] == ["running", "draining"]
        )
        disk.full = False
        loop.clock.ahead_us += RETRY_US
        loop.event_loop.wake()
        loop.until(lambda: len(loop.heart.jobs) == 1)
        assert disk.tries == 2
        Twins(loop, tmp_path / "store").compare()


def test_pages_of_a_job_that_is_gone_keep_their_schema_and_all_numbers(tmp_path):
    port = free_port()
    wide = at(port, renamed("wide", "q", "others"))
    wide["sinks"]["others"] |= {"partitions": 3, "partition_by": ["key"]}
    narrow = at(port, renamed("narrow", "q", "others"))
    narrow["sinks"]["others"] |= {"stream": "others", "version": 2}
    other = at(port, windowed("other", "q", "others"))
    with Loop(at(port, copy_job()), tmp_path / "store") as loop:
        book = loop.heart.changes.registry
        loop.change("put", "wide", wide)
        with loop.producer("q") as q:
            q.send(batch(list(range(100))))
            q.flush()
        loop.change("delete", "wide")
        last = book.retired["others"].last
        assert len(last) == 3 and max(last) > 0
        old = [s for s in book.schemas() if s[:2] == ("others", 1)]
        with pytest.raises(JobError, match="others@1 had other columns"):
            loop.change("put", "other", other)
        loop.change("put", "narrow", narrow)
        assert [s for s in book.schemas() if s[:2] == ("others", 1)] == old, "pages wait still"
        loop.change("delete", "narrow")
        loop.change("put", "wide", wide)
        assert book.get("wide").sinks["others"].numbers() == {"others": last}
        Twins(loop, tmp_path / "store").compare()


def test_an_invalid_change_is_refused_and_all_jobs_go_on(tmp_path):
    port, taken = free_port(), free_port()
    second = at(port, renamed("second", "q", "others"))
    with Loop(at(port, copy_job()), tmp_path / "store") as loop, socket.socket() as squatter:
        squatter.bind(("127.0.0.1", taken))
        squatter.listen()
        loop.change("put", "second", second)
        moved = changed(second, streams={"w": at(taken, renamed("x", "w", "y"))["streams"]["w"]})
        with pytest.raises(CommandError, match="cannot listen"):
            loop.change("put", "second", moved)
        same_stream = at(port, renamed("third", "q", "elsewhere"))
        with pytest.raises(JobError, match="both have a stream q"):
            loop.change("put", "third", same_stream)
        with pytest.raises(CommandError, match="of version 1, not 7") as refused:
            loop.change("put", "second", moved, if_version=7)
        assert refused.value.kind == "conflict"
        with pytest.raises(CommandError, match="no job third") as refused:
            loop.change("state", "third", state="paused")
        assert refused.value.kind == "missing"
        other = changed(second, sinks={"others": {"type": "pages", "input": "q", "page": "8KiB"}})
        with pytest.raises(JobError, match=r"sinks\.others"):
            loop.change("put", "second", other)
        assert describe(loop.heart.jobs[1])["version"] == 1
        for stream in "rq":
            with loop.producer(stream, f"p{stream}") as producer:
                producer.send(batch([1]))
                producer.flush()
        Twins(loop, tmp_path / "store").compare()


def test_a_job_whose_port_is_taken_at_the_start_has_failed_until_it_is_resumed(tmp_path):
    port, other = free_port(), free_port()
    base, second = at(port, copy_job()), at(other, renamed("second", "q", "others"))
    with Loop(base, tmp_path / "store") as loop:
        loop.change("put", "second", second)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", other))
        squatter.listen()
        loop = Loop(base, tmp_path / "store")
        failed = loop.heart.changes.registry.get("second")
        assert describe(failed)["state"] == "failed"
        assert "cannot listen" in describe(failed)["problem"]
    with loop:
        with loop.producer("r") as r:
            r.send(batch([1]))
            r.flush()
        assert loop.change("state", "second", state="running")["job"]["state"] == "running"
        with Producer(f"127.0.0.1:{other}", "q", ARROW, "q", timeout_s=COMPILED_S) as q:
            q.send(batch([1]))
            q.flush()


def test_a_job_whose_port_is_lost_while_another_is_refused_has_failed_until_it_is_resumed(
    tmp_path, monkeypatch
):
    port, own, taken = free_port(), free_port(), free_port()
    second, moved = (at(p, renamed("second", "q", "others")) for p in (own, taken))
    events = []
    with Loop(at(port, copy_job()), tmp_path / "store") as loop, ExitStack() as stack:

        def squat(on):
            squatter = stack.enter_context(socket.socket())
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", on))
            squatter.listen()

        def remove(key):
            removed(key)
            squat(own), squat(taken)  # after the check

        loop.change("put", "second", second)
        removed = loop.inputs._remove
        monkeypatch.setattr(loop.inputs, "_remove", remove)
        last = loop.events.newest()
        with pytest.raises(CommandError, match="cannot listen"):
            loop.change("put", "second", moved)
        monkeypatch.undo()
        events = loop.events.since(last)[0]
        assert [(e["kind"], e["job"]) for e in events] == [("job.failed", "second")]
        told = describe(loop.heart.jobs[1])
        assert told["state"] == "failed" and str(own) in told["problem"]
        with Producer(f"127.0.0.1:{port}", "r", ARROW, "r", timeout_s=COMPILED_S) as r:
            r.send(batch([1]))
            r.flush()
        stack.close()
        assert loop.change("state", "second", state="running")["job"]["state"] == "running"
        with Producer(f"127.0.0.1:{own}", "q", ARROW, "q", timeout_s=COMPILED_S) as q:
            q.send(batch([1]))
            q.flush()
