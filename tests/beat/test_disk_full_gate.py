"""A full disk stops the beats and nothing else; beats resume when there is room."""

from __future__ import annotations

import errno
from contextlib import closing

import duckdb
import pytest

from edged.beat import heart as heart_module
from edged.beat.disk_full_gate import DiskFullGate
from edged.beat.quarantine import Quarantine
from edged.beat.snapshots import SnapshotSchedule
from edged.data.flow import BeatContext
from edged.platform.disk import SystemDisk, SystemFile
from edged.store import BeatRecord, Store, StoreFull
from tests.beat.loop import Loop, batch
from tests.beat.support import HandClock, changed, copy_job, event_log, publisher

QUICK = changed(copy_job(), promises={"latency": "40ms"})


class FullFile(SystemFile):
    """A file of a disk that may be full."""

    def allocate(self, length):
        if self.disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(length)


class FullDisk(SystemDisk):
    """The real disk, full while `full` is set: allocating fails then."""

    full = False

    def open(self, path, create=False):
        file = super().open(path, create)
        file.__class__ = FullFile
        file.disk = self
        return file

    def free(self, path):
        return 0 if self.full else super().free(path)


def room_events(loop):
    """The loop's events `store.full` and `store.room` so far."""
    events = loop.events.since(0)[0]
    return [e for e in events if e["kind"] in ("store.full", "store.room")]


def fill(loop, disk, producer):
    """Fill the disk and send until the store waits for room; returns the number of messages."""
    disk.full, sent = True, 0
    while not loop.committer.gate.full:
        if producer.poll() == sent:
            producer.send(batch(list(range(20_000))))
            sent += 1
    return sent


@pytest.fixture
def small_segments(monkeypatch):
    """The loop's store begins a segment with every few messages."""
    opened = Store.open
    monkeypatch.setattr(
        Store, "open", lambda *a, **k: opened(*a, **{**k, "segment_bytes": 1 << 20})
    )


def test_a_store_without_an_uplink_waits_for_room_and_goes_on(tmp_path, small_segments):
    disk = FullDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, loop.producer() as producer:
        sent = fill(loop, disk, producer)
        loop.call(lambda: None)  # control is served
        (full,) = room_events(loop)
        assert full["kind"] == "store.full" and "are free on its disk" in full["text"]
        assert producer.poll() < sent
        disk.full = False
        loop.until(lambda: producer.acked == sent, producer=producer)
        loop.until(lambda: not loop.committer.gate.full)
        assert [e["kind"] for e in room_events(loop)] == ["store.full", "store.room"]
        assert loop.committer.gate.full_us() > 0
        assert loop.problem is None


def test_a_stop_while_the_disk_is_full_ends_in_order(tmp_path, small_segments):
    disk = FullDisk()
    with Loop(QUICK, tmp_path / "store", disk) as loop, closing(loop.producer()) as producer:
        fill(loop, disk, producer)
        acked = producer.poll()
        loop.heart.stop()
        assert loop.ended() is None
    with Loop(QUICK, tmp_path / "store") as loop, closing(loop.producer()) as producer:
        loop.until(lambda: producer.acked >= acked, producer=producer)


FILES = changed(
    copy_job(), promises={"latency": "40ms"},
    sinks={"rows": {"type": "file", "input": "r", "path": "out", "every": "1us"}},
)  # fmt: skip


def full_once(monkeypatch, name, problems):
    """Have `name`'s `replace_file` raise the problems, one a call, before it works."""
    module = pytest.importorskip(name)
    write = module.replace_file

    def refused(*arguments, **more):
        if problems:
            raise problems.pop()
        return write(*arguments, **more)

    monkeypatch.setattr(module, "replace_file", refused)


def no_space():
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_file_sink_whose_disk_is_full_keeps_the_beat_and_writes_its_rows_once(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(heart_module, "RETRY_MS", 1)
    full_once(monkeypatch, "edged.sinks.file", [no_space() for _ in range(5)])
    document = changed(FILES, sinks={"rows": {**FILES["sinks"]["rows"], "path": str(tmp_path)}})
    with Loop(document, tmp_path / "store") as loop, loop.producer() as producer:
        for n in range(3):
            producer.send(batch([n]))
            loop.until(lambda n=n: producer.acked == n + 1, producer=producer)
        assert [e["kind"] for e in room_events(loop)] == ["store.full", "store.room"]
        assert loop.problem is None
    found = duckdb.sql(f"SELECT value FROM read_parquet('{tmp_path}/part-*') ORDER BY value")
    assert found.fetchall() == [(0,), (1,), (2,)]


def test_a_stop_while_a_file_sink_waits_leaves_its_rows_to_the_next_start(tmp_path, monkeypatch):
    document = changed(FILES, sinks={"rows": {**FILES["sinks"]["rows"], "path": str(tmp_path)}})
    with monkeypatch.context() as patch:
        full_once(patch, "edged.sinks.file", [no_space() for _ in range(10_000)])
        with Loop(document, tmp_path / "store") as loop, closing(loop.producer()) as producer:
            producer.send(batch([7]))
            loop.until(lambda: loop.committer.gate.full, producer=producer)
            loop.until(lambda: producer.acked == 1, producer=producer)
            loop.heart.stop()
            assert loop.ended() is None
            assert not list(tmp_path.glob("part-*"))
    with Loop(document, tmp_path / "store") as loop:
        loop.until(lambda: list(tmp_path.glob("part-*.parquet")))
    found = duckdb.sql(f"SELECT value FROM read_parquet('{tmp_path}/part-*')").fetchall()
    assert found == [(7,)]


def test_rows_that_are_set_aside_wait_for_room_too(tmp_path, monkeypatch):
    full_once(monkeypatch, "edged.beat.quarantine", [no_space(), no_space()])
    waits = []
    beat = BeatContext(3, 0, None, waits.append)
    Quarantine(tmp_path / "quarantine", publisher())._write(
        beat, tmp_path / "quarantine/a", memoryview(b"rows")
    )
    assert (tmp_path / "quarantine/a").read_bytes() == b"rows" and len(waits) == 2
    full_once(monkeypatch, "edged.beat.quarantine", [OSError(errno.EIO, "gone")])
    with pytest.raises(OSError, match="gone"):
        Quarantine(tmp_path, publisher())._write(beat, tmp_path / "b", memoryview(b"rows"))


def test_on_a_small_disk_a_snapshot_is_due_before_the_log_fills_it():
    class Small:
        log_bytes_since_snapshot, capacity, crowded, log_segments = 0, 24 << 20, False, 1

        @classmethod
        def is_crowded(cls, size, capacity):
            return cls.crowded

    class Snapshots:
        given_up, under_way = 0, False

    pace = SnapshotSchedule(Small, Snapshots, 512 << 20)
    assert not pace.due(5 << 20)
    assert pace.due(6 << 20)
    Small.capacity = 1 << 40
    assert not pace.due(500 << 20) and pace.due(512 << 20)
    assert not pace.due(1 << 20, 510 << 20) and pace.due(1 << 20, 511 << 20), "files count as log"
    Small.capacity, Small.crowded = 24 << 20, True
    assert not pace.due(1 << 20) and pace.due(2 << 20), "the next record might find no room"
    Small.log_segments = 2
    assert pace.due(1 << 10), "a snapshot retires a whole segment"


def test_the_gate_counts_the_time_in_which_anything_waits_and_publishes_both_ends():
    clock, events = HandClock(), event_log()
    gate = DiskFullGate(clock, publisher(events), lambda: (7, None))
    gate.proceed("beat")
    clock.advance(5)
    assert (gate.full, gate.full_us(), events.counts()) == (False, 0, {})
    gate.wait("commit", "why")
    clock.advance(3)
    gate.wait("beat", "too")
    clock.advance(3)
    gate.proceed("commit")
    clock.advance(4)
    assert (gate.full, gate.full_us()) == (True, 10)
    gate.proceed("beat")
    clock.advance(100)
    assert (gate.full, gate.full_us()) == (False, 10)
    full, room = events.since(0)[0]
    assert (full["kind"], room["kind"]) == ("store.full", "store.room")
    assert full["text"].endswith(": why") and full["facts"] == {"bytes": 7, "bytes_max": None}


def test_a_store_that_is_refused_leaves_room_for_the_copy_that_a_restart_makes(tmp_path):
    class Disk(SystemDisk):
        left = 1 << 30

        def free(self, path):
            return self.left

    disk = Disk()
    with Store.open(tmp_path / "store", disk, segment_bytes=1 << 20) as opened:
        opened.recover()
        disk.left = 12_000
        with pytest.raises(StoreFull, match="12000 bytes are free on its disk, 8192 more"):
            opened.commit(BeatRecord(1, b"facts"))
        disk.left = 16_384
        opened.commit(BeatRecord(1, b"facts"))
        assert opened.bytes_used == 8192, "no segment of full size"
