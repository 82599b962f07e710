"""High-water records: never below what landed, whatever happens to the file."""

import os
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.central import highwater
from edged.central.highwater import HEAD_BYTES, SLOT_BYTES, DeviceRecords, HighWater
from edged.errors import CentralError
from tests.whole import examples

DEVICE = 0xABC


def records(path, rows=(), **more):
    return DeviceRecords(path, lambda devices: [(d, row) for d in devices for row in rows], **more)


def put(store, seq, epoch=1, stream=2, partition=3, device=DEVICE):
    with store.locked(device) as record:
        record.table.raise_high(epoch, stream, partition, seq, seq * 10)
        record.save()


def high(store, epoch=1, stream=2, partition=3, device=DEVICE):
    with store.locked(device) as record:
        return record.table.high(epoch, stream, partition)


def test_what_is_saved_is_read_back_by_another(tmp_path):
    put(records(tmp_path), 7)
    assert high(records(tmp_path)) == (7, 70)
    assert high(records(tmp_path), epoch=2) == (0, 0)


def test_a_change_by_another_is_seen(tmp_path):
    one, two = records(tmp_path), records(tmp_path)
    for seq in range(1, 20):
        put((one, two)[seq % 2], seq)
        assert high(one) == high(two) == (seq, seq * 10)


def test_a_high_water_never_falls(tmp_path):
    store = records(tmp_path)
    put(store, 9)
    put(store, 4)
    assert high(store) == (9, 90) == high(records(tmp_path))


def test_what_was_not_saved_is_forgotten(tmp_path):
    store = records(tmp_path)
    put(store, 1)
    with store.locked(DEVICE) as record:
        record.table.raise_high(1, 2, 3, 2, 0)
    assert high(store) == (1, 10)


def test_sessions_and_high_waters_of_all_kinds_live_side_by_side(tmp_path):
    store = records(tmp_path)
    with store.locked(DEVICE) as record:
        for epoch in range(5):
            record.table.set_session(epoch, epoch + 1, 2**64 - 1)
            for partition in range(7):
                record.table.raise_high(epoch, 2**64 - 1, partition, 2**64 - 1, 2**32 - 1)
        record.save()
        record.sync()
    with records(tmp_path).locked(DEVICE) as record:
        assert len(record.table.highs()) == 35
        assert record.table.session(3) == (4, 2**64 - 1)
        assert record.table.high(4, 2**64 - 1, 6) == (2**64 - 1, 2**32 - 1)


def test_a_missing_record_is_rebuilt_from_the_rows(tmp_path):
    store = records(
        tmp_path, [HighWater(1, 2, 3, 41, 5), HighWater(1, 2, 3, 42, 6), HighWater(1, 2, 4, 1, 7)]
    )
    assert high(store) == (42, 6)
    assert high(store, partition=4) == (1, 7)
    assert high(records(tmp_path)) == (42, 6)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_a_record_with_any_flipped_bit_is_never_behind(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("records")
    store = records(path)
    seqs = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    for partition, last in enumerate(seqs):
        for seq in range(1, last + 1):
            put(store, seq, partition=partition)
    file = store.path(DEVICE)
    content = bytearray(file.read_bytes())
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)
    rows = [HighWater(1, 2, p, last, last * 10) for p, last in enumerate(seqs)]
    again = records(path, rows)
    got = [high(again, partition=p) for p in range(len(seqs))]
    assert got == [(last, last * 10) for last in seqs]


@pytest.mark.parametrize(
    "cut", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + SLOT_BYTES, HEAD_BYTES + SLOT_BYTES + 1]
)
def test_a_record_that_was_cut_is_rebuilt(tmp_path, cut):
    store = records(tmp_path)
    for seq in range(1, 4):
        put(store, seq)
    os.truncate(store.path(DEVICE), cut)
    assert high(records(tmp_path, [HighWater(1, 2, 3, 3, 30)])) == (3, 30)


def test_a_newer_format_is_refused_and_left_alone(tmp_path):
    store = records(tmp_path)
    put(store, 1)
    file = store.path(DEVICE)
    content = bytearray(file.read_bytes())
    content[4] = 2
    content[60:64] = zlib.crc32(content[:60]).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(CentralError, match="has format 2"):
        high(records(tmp_path))
    assert file.read_bytes() == content


def test_a_record_left_in_doubt_by_a_dead_writer_is_rebuilt(tmp_path):
    store = records(tmp_path)
    put(store, 1)
    with store.locked(DEVICE) as record:
        record.table.raise_high(1, 2, 3, 2, 20)
        record.mark_in_doubt()  # a crash after the row was committed
    rows = [HighWater(1, 2, 3, 2, 20)]
    assert high(records(tmp_path, rows)) == (2, 20)
    assert high(records(tmp_path)) == (2, 20)


def test_doubt_that_came_to_nothing_changes_nothing(tmp_path):
    store = records(tmp_path)
    put(store, 1)
    with store.locked(DEVICE) as record:
        record.table.raise_high(1, 2, 3, 2, 20)
        record.mark_in_doubt()
        record.discard()
    rows = [HighWater(1, 2, 3, 99, 0)]  # would appear if the record was rebuilt
    assert high(records(tmp_path, rows)) == (1, 10) == high(store)


def test_only_so_many_devices_are_remembered_and_none_is_forgotten(tmp_path):
    store = records(tmp_path, cache_size=2)
    for device in range(5):
        put(store, device + 1, device=device)
    assert [high(store, device=d)[0] for d in range(5)] == [1, 2, 3, 4, 5]
    assert len(store._tables) == 2


def test_a_devices_entries_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(highwater, "ENTRIES_MAX", 3)
    store = records(tmp_path)
    for partition in range(3):
        put(store, 1, partition=partition)
    with store.locked(DEVICE) as record:
        assert record.table.has_room(1, 2, 2) and not record.table.has_room(1, 2, 3)


_COUNT = """
import sys
from pathlib import Path
from edged.central.highwater import DeviceRecords
store = DeviceRecords(Path(sys.argv[1]), lambda devices: ())
for _ in range(200):
    with store.locked(1) as record:
        seq, _ = record.table.high(1, 1, 1)
        record.table.raise_high(1, 1, 1, seq + 1, 0)
        record.save()
"""


def test_processes_that_count_together_lose_nothing(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", _COUNT, tmp_path]) for _ in range(3)]
    assert [w.wait(120) for w in writers] == [0, 0, 0]
    assert high(records(tmp_path), 1, 1, 1, device=1)[0] == 600
