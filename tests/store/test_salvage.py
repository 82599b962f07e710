"""A store opens past damage of its files, and tells what is lost."""

from __future__ import annotations

import numpy as np
import pytest

from edged.errors import StoreCorrupt
from edged.store import Store
from tests.store.simdisk import SimDisk
from tests.store.test_store import beat, damage, newest, open_store, page


def test_salvage_of_a_snapshot_that_nothing_replaces_keeps_its_whole_arrays(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(1, 12):
            store.commit(beat(i, inputs=100_000))
        store.snapshot(11, b"facts", {"a": np.arange(1000), "b": np.arange(9)})
    damage(newest(tmp_path / "snapshots"), 700)
    for _ in range(2):
        with open_store(tmp_path) as store:
            recovery = store.recover()
            found = recovery.snapshot
            assert (found.beat, found.facts, found.missing) == (11, b"facts", {"a"})
            assert found.arrays["b"].tolist() == list(range(9))
            assert recovery.end is None and not list(recovery.records)
            (salvaged,) = store.salvaged
            assert "0011.snap" in salvaged.file and "array 'a'" in salvaged.problem
    with open_store(tmp_path) as store:
        store.recover()
        store.snapshot(11, b"new", {}, barrier=True)
    with open_store(tmp_path) as store:
        assert store.recover().snapshot.facts == b"new" and not store.salvaged


def test_salvage_of_the_facts_of_the_only_snapshot_leaves_a_hole_up_to_its_beat(tmp_path):
    with open_store(tmp_path) as store:
        store.snapshot(4, b"facts", {"a": np.arange(1000)})
    damage(newest(tmp_path / "snapshots"), 20)
    for _ in range(2):
        with open_store(tmp_path) as store:
            recovery = store.recover()
            assert recovery.snapshot is None and not list(recovery.records)
            assert (recovery.end.after, recovery.end.before) == (0, 5)


def test_salvage_tells_of_a_hole_where_records_build_on_a_lost_snapshot(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1))
        store.snapshot(1, b"", {"a": np.arange(10)})
        store.commit(beat(2))
        store.snapshot(5, b"beats 3 to 5 were not logged", {"a": np.arange(100)})
        store.commit(beat(6))
    damage(newest(tmp_path / "snapshots"), 20)
    with open_store(tmp_path) as store:
        recovery = store.recover()
        holes = [(r.number, r.hole and (r.hole.after, r.hole.before)) for r in recovery.records]
        assert recovery.snapshot.beat == 1 and holes == [(2, None), (6, (2, 6))]


def test_salvage_behind_a_barrier_uses_no_older_snapshot(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(1, 4):
            store.commit(beat(i))
            store.snapshot(i, b"%d" % i, {"a": np.arange(9)}, barrier=i == 3)
        store.commit(beat(4))
    assert len(list((tmp_path / "snapshots").iterdir())) == 1
    damage(newest(tmp_path / "snapshots"), 64)
    with open_store(tmp_path) as store:
        recovery = store.recover()
        assert recovery.snapshot is None
        assert any(r.hole is not None for r in recovery.records)


def test_salvage_of_a_snapshot_behind_which_the_log_was_retired(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1))
        store.snapshot(1, b"", {})
    with open_store(tmp_path) as store:
        store.snapshot(1, b"", {"a": np.arange(100)})
    with open_store(tmp_path) as store:
        store.commit(beat(2))
        assert len(list((tmp_path / "log").iterdir())) == 1
    damage(newest(tmp_path / "snapshots"), 300)
    with open_store(tmp_path) as store:
        recovery = store.recover()
        assert (recovery.snapshot.beat, recovery.snapshot.missing) == (1, {"a"})
        assert [(r.number, r.hole) for r in recovery.records] == [(2, None)]


def test_salvage_of_pages_that_the_centre_asks_for_and_no_file_has(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(1, 9):
            store.commit(beat(i, page(i), page(i, partition=1), inputs=200_000))
            if i == 4:
                store.snapshot(i, b"", {})
        store.acked("curve", 0, 1)
        store.snapshot(8, b"", {})
    (newest(tmp_path / "spool").parent / "0000000000000001.pages").unlink()
    with open_store(tmp_path) as store:
        store.recover()
        assert not store.salvaged, "the centre may have acked them"
        first = store.pending()[0].key.seq
        assert first > 2
        store.lose_missing("curve", 0, 1)
        (gap,) = store.take_lost()
        assert (gap.stream, gap.partition, gap.first, gap.last) == ("curve", 0, 2, first - 1)
        assert store.gaps.newest == [gap]
        assert [(s.kind, s.offset) for s in store.salvaged] == [("spool file", 0)]
        store.lose_missing("curve", 0, first)
        store.lose_missing("curve", 0, first + 1)
        assert not store.take_lost()


@pytest.mark.parametrize("text", [b"", b"{", b'{"format": 1, "epoch": "00ff", "crc": 1}', b"[1]"])
@pytest.mark.parametrize("also", ["", "session"])
def test_salvage_of_the_identity_keeps_the_epoch_that_other_files_have(tmp_path, text, also):
    with open_store(tmp_path) as store:
        epoch = store.device_epoch
        store.commit(beat(1))
    (tmp_path / "identity").write_bytes(text)
    if also:
        (tmp_path / "session").write_bytes(bytes(range(100)))
    with open_store(tmp_path) as store:
        assert store.device_epoch == epoch
        assert [found.kind for found in store.salvaged] == ["identity", "session"][: 1 + bool(also)]
        assert [r.number for r in store.recover().records] == [1]
    with open_store(tmp_path) as store:
        assert not store.salvaged and store.device_epoch == epoch


def test_salvage_of_any_bit_of_the_identity():
    disk = SimDisk()
    with Store.open("/store", disk) as store:
        epoch = store.device_epoch
    whole = bytes(disk.content("/store/identity"))
    for bit in range(8 * (len(whole) - 1)):
        twin = disk.after_kill()
        twin.content("/store/identity")[bit // 8] ^= 1 << bit % 8
        with Store.open("/store", twin) as store:
            assert store.device_epoch == epoch


def test_salvage_of_a_missing_identity_beside_data_keeps_the_epoch(tmp_path):
    with open_store(tmp_path) as store:
        epoch = store.device_epoch
        store.commit(beat(1))
    (tmp_path / "identity").unlink()
    with open_store(tmp_path) as store:
        assert store.device_epoch == epoch and store.salvaged


def test_a_damaged_identity_without_any_other_file_is_refused(tmp_path):
    with open_store(tmp_path) as store:
        store.snapshot(1, b"", {})
    (tmp_path / "identity").write_bytes(b"{")
    (tmp_path / "session").unlink()
    with pytest.raises(StoreCorrupt, match="identity: damaged"):
        open_store(tmp_path)


@pytest.mark.parametrize("acks", [True, False])
def test_salvage_of_the_session_counts_on_above_all_that_the_centre_knows(tmp_path, acks):
    for _ in range(5):
        with open_store(tmp_path) as store:
            before = store.session[0]
    (tmp_path / "session").write_bytes(b"\x01" * 8192)
    if not acks:
        (tmp_path / "acks").unlink()
    for _ in range(2):
        with open_store(tmp_path) as store:
            assert store.session[0] > before + 1000
            before = store.session[0] - 1000
    assert before < 1 << 24
