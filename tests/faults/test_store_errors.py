"""EIO and full disks at every operation: nothing acked is lost, nothing failed is retried."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from edged.errors import StoreError, StoreFailed
from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store, StoreFull
from tests.store.simdisk import SimDisk

SEGMENT = 64 << 10
DATA = {n: bytes([n]) * (1000 * n) for n in range(1, 15)}


def beat(n: int) -> BeatRecord:
    page = SealedPage(PageKey("curve", 0, n), DATA[n])
    return BeatRecord(n, b"facts %d" % n, [np.full(9000, n, "u1")], [page])


class Script:
    """Opens, commits, acks, snapshots and closes; records what the store reported as durable."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk, self.committed, self.acked = disk, 0, 0
        self.store: Store | None = None

    def run(self) -> None:
        self.store = Store.open("/store", self.disk, segment_bytes=SEGMENT)
        done = max([0, *(r.number for r in self.store.recover().records)])
        for n in range(done + 1, 15):
            self.store.commit(beat(n))
            self.committed = n
            if n == 6:
                self.acked = 3
                self.store.acked("curve", 0, 3)
            if n in (5, 10):
                self.store.snapshot(n, b"after %d" % n, {"n": np.full(500, n)})
        self.acked = 8
        self.store.acked("curve", 0, 8)
        self.store.close()


def check(disk: SimDisk, script: Script) -> None:
    """A new process finds everything that the store reported to `script` as durable."""
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        recovery = store.recover()
        base = recovery.snapshot.beat if recovery.snapshot else 0
        numbers = [r.number for r in recovery.records]
        newest = max([base, *numbers])
        assert numbers == list(range(base + 1, newest + 1))
        assert newest >= script.committed
        refs = {r.key.seq: r for r in store.pending()}
        assert set(refs) >= set(range(script.acked + 1, newest + 1))
        for seq, ref in refs.items():
            content = disk.content(ref.file)[ref.offset : ref.offset + ref.length]
            assert content == DATA[seq]


def operations() -> int:
    disk = SimDisk()
    Script(disk).run()
    return disk.operations


@pytest.mark.parametrize("for_good", [False, True])
def test_an_io_error_at_any_operation_latches_and_loses_nothing_that_was_committed(for_good):
    total = operations()
    assert total > 100
    failed = 0
    for n in range(1, total + 1):
        disk = SimDisk()
        disk.fail_at, disk.fail_for_good = n, for_good
        script = Script(disk)
        try:
            script.run()
        except StoreError:
            failed += 1
        else:
            assert disk.failed == "pread" and not for_good, "a read is made again"
            check(disk.after_kill(), script)
            continue
        if script.store is not None:
            with pytest.raises(StoreFailed):
                script.store.commit(beat(14))
            with pytest.raises(StoreFailed):
                script.store.snapshot(14, b"", {})
        check(disk.after_kill(), script)
        for seed in range(3):
            check(disk.after_power_cut(random.Random(seed)), script)
    assert failed > total - 30


def test_what_a_failed_sync_left_in_the_page_cache_is_written_again_before_it_counts():
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    store.commit(beat(1))
    disk.fail_kinds, disk.fail_at, disk.operations = {"sync"}, 1, 0
    with pytest.raises(StoreFailed, match="committing beat 2 failed"):
        store.commit(beat(2))
    disk.fail_at = None
    with pytest.raises(StoreFailed):
        store.commit(beat(2))

    restarted = disk.after_kill()
    with Store.open("/store", restarted, segment_bytes=SEGMENT) as again:
        seen = [r.number for r in again.recover().records]
        assert seen == [1, 2], "the cache still shows beat 2"
    for seed in range(20):
        with Store.open(
            "/store", restarted.after_power_cut(random.Random(seed)), segment_bytes=SEGMENT
        ) as after:
            assert [r.number for r in after.recover().records] == seen


def test_a_full_disk_at_any_size_stops_cleanly_and_goes_on_when_there_is_room():
    disk = SimDisk()
    Script(disk).run()
    stopped = 0
    for capacity in range(12_000, 500_000, 4096):
        disk = SimDisk(capacity=capacity)
        script = Script(disk)
        try:
            script.run()
        except StoreFull:
            stopped += 1
            store = script.store
            if store is not None:
                disk.capacity = 1 << 30
                for n in range(script.committed + 1, 15):
                    store.commit(beat(n))
                    script.committed = n
                assert [r.key.seq for r in store.pending()][-1] == 14
                store.close()
        except StoreFailed as problem:
            assert script.store is None, problem
            assert problem.__cause__.errno == errno.ENOSPC
        disk.capacity = 1 << 30
        check(disk.after_kill(), script)
        check(disk.after_power_cut(random.Random(capacity)), script)
    assert stopped > 10


@pytest.mark.parametrize("kind", ["create", "allocate", "pwritev", "rename"])
def test_a_disk_that_is_full_at_any_operation_of_a_commit_fails_nothing(kind):
    """Also where it copies on write, so that preallocated room is none."""
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    disk.fail_kinds, disk.fail_errno, disk.operations = {kind}, errno.ENOSPC, 0
    refused = 0
    for n in range(1, 15):
        disk.fail_at, disk.fail_for_good = disk.operations + 1, True
        try:
            store.commit(beat(n))
        except StoreFull:
            refused += 1
            disk.fail_at = None
            store.commit(beat(n))
        disk.fail_at = None
        if n == 7:
            store.snapshot(n, b"", {})
    assert refused > 2
    store.close()
    for seed in range(5):
        check_all(disk.after_power_cut(random.Random(seed)), range(8, 15))


def check_all(disk: SimDisk, numbers: range) -> None:
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        assert [r.number for r in store.recover().records] == list(numbers)
        assert [r.key.seq for r in store.pending()] == list(range(1, 15))


def test_a_sync_that_says_the_disk_is_full_is_as_fatal_as_any_that_fails():
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    store.commit(beat(1))
    disk.fail_kinds, disk.fail_errno, disk.operations = {"sync"}, errno.ENOSPC, 0
    disk.fail_at = 1
    with pytest.raises(StoreFailed, match="committing beat 2"):
        store.commit(beat(2))
    disk.fail_at = None
    with pytest.raises(StoreFailed):
        store.commit(beat(2))


def test_a_store_is_opened_as_soon_as_its_disk_has_room_for_the_end_of_its_log():
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    for n in range(1, 6):
        store.commit(beat(n), sync=n < 5)
    disk = disk.after_kill()
    disk.capacity = 0
    for _ in range(3):
        with pytest.raises(StoreFull, match="no room"):
            Store.open("/store", disk, segment_bytes=SEGMENT)
    disk.capacity = 1 << 30
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        assert [r.number for r in store.recover().records] == [1, 2, 3, 4, 5]


def test_a_snapshot_that_finds_no_room_leaves_everything_as_it_was():
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    for n in range(1, 6):
        store.commit(beat(n))
    store.snapshot(3, b"good", {})
    names, used = set(disk.names), store.bytes_used
    disk.capacity = sum(len(i.current) for i in disk.names.values()) + 1000
    with pytest.raises(StoreFull, match="no room for a snapshot"):
        store.snapshot(5, b"", {"big": np.zeros(100_000)})
    assert (set(disk.names), store.bytes_used) == (names, used)
    store.commit(beat(6))
    store.close()
    disk.capacity = 1 << 30
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        recovery = store.recover()
        assert recovery.snapshot.facts == b"good"
        assert [r.number for r in recovery.records] == [4, 5, 6]
