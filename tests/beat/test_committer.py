"""The commit thread: snapshots are written beside commits, and one without room costs no commit."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager

import numpy as np

from edged.beat.committer import Commit, Committer
from edged.platform.clock import SystemClock
from edged.platform.disk import SystemDisk, SystemFile
from edged.store import BeatRecord, Store
from tests.beat.support import publisher

STATE = np.arange(1000)


class SnapshotFile(SystemFile):
    """A snapshot's file: its sync waits for the disk's gate, or finds no room."""

    def sync(self):
        self.disk.reached.set()
        assert self.disk.gate.wait(120)
        if self.disk.full:
            raise OSError(errno.ENOSPC, "no room")
        super().sync()


class SnapshotDisk(SystemDisk):
    """The real disk, but for what SnapshotFile does."""

    def __init__(self):
        self.gate, self.reached, self.full = threading.Event(), threading.Event(), False

    def open(self, path, create=False):
        file = super().open(path, create)
        if "/snapshots/" in path:
            file.__class__ = SnapshotFile
            file.disk = self
        return file


@contextmanager
def committing(path, disk):
    """A committer over a new store; closed, with what it still writes, at the end."""
    with Store.open(path / "store", disk) as store:
        store.recover()
        made = Committer(store, None, SystemClock(), publisher())
        try:
            yield made
        finally:
            disk.gate.set()
            made.close()


def commit(committer, number, snapshot=None):
    committer.submit(Commit(number, BeatRecord(number, b"%d" % number), [], snapshot=snapshot))
    committer.wait()


def recovered(path):
    with Store.open(path / "store") as store:
        recovery = store.recover()
        return recovery.snapshot, [r.number for r in recovery.records]


def test_commits_go_on_while_a_snapshot_is_being_written(tmp_path):
    disk = SnapshotDisk()
    with committing(tmp_path, disk) as committer:
        commit(committer, 1, snapshot=(b"after 1", {"state": STATE}))
        assert disk.reached.wait(120)
        commit(committer, 2)
        assert committer.snapshots.under_way
    snapshot, records = recovered(tmp_path)
    assert (snapshot.beat, records) == (1, [2])
    assert np.array_equal(snapshot.arrays["state"], STATE)


def test_a_snapshot_for_which_there_is_no_room_is_given_up_and_the_log_goes_on(tmp_path):
    disk, number = SnapshotDisk(), 1
    disk.gate.set()
    with committing(tmp_path, disk) as committer:
        disk.full = True
        commit(committer, number, snapshot=(b"after 1", {"state": STATE}))
        while committer.snapshots.under_way:
            number += 1
            commit(committer, number)
        assert committer.snapshots.given_up == 1
    snapshot, records = recovered(tmp_path)
    assert snapshot is None and records == list(range(1, number + 1))


def test_a_snapshot_overwrites_the_file_of_an_obsolete_one(tmp_path):
    with Store.open(tmp_path / "store", segment_bytes=1 << 16) as store:
        store.recover()
        inodes = set()
        for beat in range(1, 12):
            store.commit(BeatRecord(beat, b"x", [np.zeros(100_000, np.uint8)]))
            store.snapshot(beat, b"%d" % beat, {"state": np.arange(1000 - beat)})
            (path,) = (tmp_path / "store/snapshots").glob(f"{beat:016d}.snap")
            inodes.add(path.stat().st_ino)
        assert len(inodes) <= 3
        files = (tmp_path / "store/snapshots").iterdir()
        held = sum(f.stat().st_size for f in files)
        assert held <= store.bytes_used
    snapshot, records = recovered(tmp_path)
    assert (snapshot.beat, records) == (11, [])
    assert np.array_equal(snapshot.arrays["state"], np.arange(1000 - 11))
