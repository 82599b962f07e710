"""The store's guarantees to the heart, on the real disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from edged.errors import StoreBusy, StoreError
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import SystemDisk, flat_view, replace_file
from edged.store import BeatRecord, PageRef, Store, StoreFull
from edged.store.identity import FORMAT

SEGMENT = 256 << 10


def open_store(path, **options) -> Store:
    return Store.open(path, segment_bytes=SEGMENT, **options)


def page(seq: int, size: int = 1000, stream: str = "curve", partition: int = 0) -> SealedPage:
    return SealedPage(PageKey(stream, partition, seq), bytes([seq % 251]) * size)


def beat(number: int, *pages: SealedPage, inputs: int = 1000) -> BeatRecord:
    return BeatRecord(
        number, b"facts %d" % number, [np.full(inputs, number % 251, "u1")], list(pages)
    )


def read(ref: PageRef) -> bytes:
    with Path(ref.file).open("rb") as f:
        f.seek(ref.offset)
        return f.read(ref.length)


def seqs(store: Store) -> list[int]:
    return [r.key.seq for r in store.pending()]


def test_a_new_store_recovers_to_nothing(tmp_path):
    with open_store(tmp_path / "s") as store:
        recovery = store.recover()
        assert recovery.snapshot is None
        assert list(recovery.records) == []
        assert store.pending() == []
        assert store.backlog_bytes == 0
        assert store.log_bytes_since_snapshot == 0


def test_records_come_back_equal_and_their_inputs_are_writable(tmp_path):
    inputs = [np.arange(100_000), memoryview(b"abc"), b"", np.zeros((3, 4), "f4")]
    with open_store(tmp_path) as store:
        store.commit(BeatRecord(7, b"", inputs, [page(1), page(1, partition=3)]))
        store.commit(BeatRecord(9, b"x" * 4097))
    with open_store(tmp_path) as store:
        first, second = store.recover().records
    assert (first.number, second.number, second.facts) == (7, 9, b"x" * 4097)
    assert [bytes(flat_view(b)) for b in first.inputs] == [bytes(flat_view(b)) for b in inputs]
    assert first.pages == [page(1), page(1, partition=3)]
    assert all(b.flags.writeable and b.dtype == np.uint8 for b in first.inputs)


def test_a_record_with_more_buffers_than_one_system_call_takes_comes_back_equal(tmp_path):
    inputs = [np.full(i % 5, i % 256, "u1") for i in range(3000)]
    with open_store(tmp_path) as store:
        store.commit(BeatRecord(1, b"", inputs))
    with open_store(tmp_path) as store:
        (record,) = store.recover().records
    assert [b.tobytes() for b in record.inputs] == [b.tobytes() for b in inputs]


def test_a_record_larger_than_a_segment_gets_its_own(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1))
        store.commit(beat(2, inputs=3 * SEGMENT))
        store.commit(beat(3))
    with open_store(tmp_path) as store:
        assert [r.inputs[0].nbytes for r in store.recover().records] == [1000, 3 * SEGMENT, 1000]


def test_beats_must_grow(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(5))
        with pytest.raises(StoreError, match="beat 5 cannot be committed after beat 5"):
            store.commit(beat(5))


def test_the_epoch_stays_and_the_session_counts_every_opening(tmp_path):
    seen = []
    for _ in range(5):
        with open_store(tmp_path) as store:
            seen.append((store.device_epoch, store.session[0], store.session[1]))
    assert {s[0] for s in seen} == {seen[0][0]}
    assert [s[1] for s in seen] == [1, 2, 3, 4, 5]
    assert len({s[2] for s in seen}) == 5


def test_the_session_does_not_go_back_when_one_of_its_slots_is_damaged(tmp_path):
    for _ in range(6):
        open_store(tmp_path).close()
    for slot in (0, 4096):
        data = bytearray((tmp_path / "session").read_bytes())
        data[slot : slot + 8] = b"garbage!"
        (tmp_path / "session").write_bytes(data)
        with open_store(tmp_path) as store:
            assert store.session[0] > 6


def test_pending_pages_are_in_order_whatever_the_beats_were(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1, page(1, partition=5), page(1, stream="b"), page(2, stream="b")))
        store.commit(beat(2, page(1, stream="a", partition=9), page(3, stream="b")))
        keys = [(r.key.stream, r.key.partition, r.key.seq) for r in store.pending()]
        assert keys == [("a", 9, 1), ("b", 0, 1), ("b", 0, 2), ("b", 0, 3), ("curve", 5, 1)]


def test_acks_are_cumulative_and_may_repeat_or_run_behind(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1, *(page(i) for i in range(1, 6))))
        store.acked("curve", 0, 3)
        store.acked("curve", 0, 2)
        store.acked("unknown", 0, 9)
        assert seqs(store) == [4, 5]
        assert store.backlog_bytes == 2000
        assert store.backlog_pages == 2


def test_a_clean_close_remembers_the_acks(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1, *(page(i) for i in range(1, 6))))
        store.acked("curve", 0, 3)
    with open_store(tmp_path) as store:
        assert seqs(store) == [4, 5]


@pytest.mark.parametrize("garbage", [b"", b"{}", b"{}\n123\n", b"\xff\xfe\n"])
def test_a_damaged_ack_file_only_makes_pages_come_again(tmp_path, garbage):
    with open_store(tmp_path) as store:
        store.commit(beat(1, page(1), page(2)))
        store.acked("curve", 0, 1)
    (tmp_path / "acks").write_bytes(garbage)
    with open_store(tmp_path) as store:
        assert seqs(store) == [1, 2]


def test_a_snapshot_moves_unacked_pages_to_the_spool_and_frees_the_log(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(1, 11):
            store.commit(beat(i, page(i), inputs=100_000))
        segments = len(list((tmp_path / "log").glob("*.log")))
        store.acked("curve", 0, 4)
        moved = store.snapshot(10, b"state", {"a": np.arange(5)})
        assert [r.key.seq for r in moved] == [5, 6, 7, 8]
        assert all("/spool/" in r.file for r in moved)
        assert seqs(store) == [5, 6, 7, 8, 9, 10]
        assert [read(r) for r in store.pending()] == [page(i).data for i in range(5, 11)]
        assert store.log_bytes_since_snapshot == 0
        assert len(list((tmp_path / "log").glob("*.log"))) < segments
        store.commit(beat(11, page(11)))
    with open_store(tmp_path) as store:
        recovery = store.recover()
        assert (recovery.snapshot.beat, recovery.snapshot.facts) == (10, b"state")
        assert [r.number for r in recovery.records] == [11]
        assert [read(r) for r in store.pending()] == [page(i).data for i in range(5, 12)]
        store.acked("curve", 0, 8)
        assert list((tmp_path / "spool").iterdir()) == []


def test_a_snapshot_keeps_every_kind_of_array(tmp_path):
    rng = np.random.default_rng(1)
    record = np.zeros(4, [("x", "i4"), ("y", "f8", (2,)), ("z", [("q", "u1")])])
    record["y"] = 1.5
    arrays = {
        "int": np.arange(7), "empty": np.empty((0, 5), "f4"), "scalar": np.array(3.25),
        "bool": np.array([True, False]), "names": np.array(["a", "bcd"]), "fields": record,
        "times": np.array([1, 2], "M8[us]"), "big": rng.integers(0, 9, (300, 700)),
        "strided": np.arange(20)[::3], "fortran": np.asfortranarray(rng.random((3, 4))),
    }  # fmt: skip
    with open_store(tmp_path) as store:
        store.commit(beat(1))
        store.snapshot(1, b"\0facts", arrays)
    with open_store(tmp_path) as store:
        snapshot = store.recover().snapshot
    assert snapshot.facts == b"\0facts"
    assert list(snapshot.arrays) == list(arrays)
    for name, array in arrays.items():
        got = snapshot.arrays[name]
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert got.flags.writeable
        np.testing.assert_array_equal(got, array)


def test_arrays_of_python_objects_are_refused(tmp_path):
    with open_store(tmp_path) as store, pytest.raises(StoreError, match="'bad' holds Python"):
        store.snapshot(1, b"", {"bad": np.array([None])})


def test_a_snapshot_whose_thread_dies_of_anything_does_not_count(tmp_path, monkeypatch):
    def no_memory(*_):
        raise MemoryError("no room to encode the table")

    with open_store(tmp_path) as store:
        for i in range(1, 400):
            store.commit(beat(i, page(i)))
        task = store.begin_snapshot(399)
        with monkeypatch.context() as patch:
            patch.setattr("edged.store.snapshots.write_snapshot", no_memory)
            thread = threading.Thread(target=task.write, args=(b"", {}))
            thread.start()
            thread.join()
        with pytest.raises(MemoryError):
            store.end_snapshot(task)
    with open_store(tmp_path) as store:
        assert [r.number for r in store.recover().records] == list(range(1, 400))


def test_a_damaged_snapshot_is_set_aside_where_the_log_leads_on_from_the_one_before(tmp_path):
    with open_store(tmp_path) as store:
        for i in range(1, 4):
            store.commit(beat(i))
            store.snapshot(i, b"%d" % i, {"a": np.arange(i)})
    damage(newest(tmp_path / "snapshots"), 64)
    with open_store(tmp_path) as store:
        recovery = store.recover()
        assert recovery.snapshot.beat == 2
        assert [r.number for r in recovery.records] == [3]
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_a_snapshot_before_the_first_beat_counts_like_any_other(tmp_path):
    with open_store(tmp_path) as store:
        store.snapshot(0, b"the job", {})
        store.commit(beat(1))
    with open_store(tmp_path) as store:
        recovery = store.recover()
        assert (recovery.snapshot.beat, recovery.snapshot.facts) == (0, b"the job")
        assert [r.number for r in recovery.records] == [1]
    damage(newest(tmp_path / "snapshots"), 64)
    with open_store(tmp_path) as store:
        recovery = store.recover()
        (record,) = recovery.records
        assert recovery.snapshot is None and (record.hole.after, record.hole.before) == (0, 1)


def newest(directory: Path) -> Path:
    return max(directory.iterdir())


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_full_store_says_so_before_it_writes_and_goes_on_once_pages_are_acked(tmp_path):
    limit = 5 * SEGMENT
    with open_store(tmp_path, bytes_max=limit) as store:
        number = 0
        with pytest.raises(StoreFull, match="wait until pages are acked"):
            while True:
                number += 1
                store.commit(beat(number, page(number, 50_000)))
        assert store.bytes_used <= limit
        store.snapshot(number - 1, b"", {})
        with pytest.raises(StoreFull):
            while True:
                store.commit(beat(number, page(number, 50_000)))
                number += 1
        assert seqs(store) == list(range(1, number))
        store.acked("curve", 0, number - 1)
        store.commit(beat(number, page(number, 50_000)))
        assert store.bytes_used <= limit
    with open_store(tmp_path) as store:
        assert [r.number for r in store.recover().records][-1] == number
        assert read(store.pending()[-1]) == page(number, 50_000).data


def test_the_disk_stays_bounded_over_many_beats_snapshots_and_acks(tmp_path):
    most = 0
    with open_store(tmp_path, bytes_max=8 * SEGMENT) as store:
        for number in range(1, 400):
            store.commit(beat(number, page(number, 5000), inputs=20_000))
            if number % 10 == 0:
                store.acked("curve", 0, number - 7)
                store.snapshot(number, b"", {"a": np.zeros(1000)})
            most = max(most, sum(p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()))
    assert most <= 8 * SEGMENT


def test_a_commit_without_sync_survives_the_process(tmp_path):
    with open_store(tmp_path / "s") as store:
        for i in range(1, 9):
            store.commit(beat(i, page(i), inputs=50_000), sync=False)
        shutil.copytree(tmp_path / "s", tmp_path / "as left")
    with open_store(tmp_path / "as left") as store:
        assert [r.number for r in store.recover().records] == list(range(1, 9))
        assert seqs(store) == list(range(1, 9))


def test_restarting_again_and_again_does_not_grow_the_store(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1, page(1)))
    sizes = set()
    for _ in range(5):
        with open_store(tmp_path) as store:
            assert [r.number for r in store.recover().records] == [1]
            assert read(store.pending()[0]) == page(1).data
            sizes.add(store.bytes_used)
    assert len(sizes) == 1


def test_two_daemons_cannot_share_a_store(tmp_path):
    with open_store(tmp_path) as store:
        with pytest.raises(StoreBusy) as refused:
            open_store(tmp_path)
        assert refused.value.exit_code == 73
        code = "import sys; from edged.store import Store; Store.open(sys.argv[1])"
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert f"{tmp_path}: process" in other.stderr
        assert "StoreBusy" in other.stderr
        assert store.session[0] == 1
    open_store(tmp_path).close()


def test_an_unknown_format_is_refused_and_nothing_is_touched(tmp_path):
    with open_store(tmp_path) as store:
        store.commit(beat(1, page(1)))
    golden = json.loads((tmp_path / "identity").read_text())
    assert golden["format"] == FORMAT
    crc = zlib.crc32(f"{FORMAT + 1} {golden['epoch']}".encode())
    (tmp_path / "identity").write_text(
        json.dumps({**golden, "format": FORMAT + 1, "crc": crc, "more": []})
    )
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files(tmp_path)}
    with pytest.raises(
        StoreError, match=f"has format {FORMAT + 1}, .* reads formats 1 to {FORMAT}"
    ) as refused:
        open_store(tmp_path)
    assert refused.value.exit_code == 78, "the unit does not try again"
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in files(tmp_path)} == before


def files(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def test_a_segment_of_another_store_is_not_taken_for_ours(tmp_path):
    for name in ("a", "b"):
        with open_store(tmp_path / name) as store:
            store.commit(beat(1))
    (segment,) = (tmp_path / "a" / "log").iterdir()
    (tmp_path / "b" / "log" / segment.name).write_bytes(segment.read_bytes())
    with open_store(tmp_path / "b") as store:
        assert not list(store.recover().records)
        assert "belongs to another store" in store.salvaged[0].problem
    assert (tmp_path / "b" / "quarantine" / segment.name).read_bytes() == segment.read_bytes()


def test_a_stream_name_that_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    with open_store(tmp_path) as store:
        with pytest.raises(StoreError, match="takes 1 to 63"):
            store.commit(beat(1, page(1, stream="x" * 64)))
        store.commit(beat(1, page(1, stream="x" * 63)))
        assert store.pending()[0].key.stream == "x" * 63


def test_symbolic_links_are_not_followed(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_bytes(b"keep me")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match=r"symbolic link|loop"):
        SystemDisk().open(str(tmp_path / "link"))


def test_a_whole_file_is_replaced_or_left(tmp_path):
    path = str(tmp_path / "f")
    replace_file(SystemDisk(), path, [b"one"])
    replace_file(SystemDisk(), path, [b"t", np.frombuffer(b"wo", np.uint8)], sync=False)
    assert Path(path).read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
