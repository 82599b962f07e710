"""Torn tails, flipped bits and vanished files: cut off, passed and named, or harmless."""

from __future__ import annotations

import random

import numpy as np
import pytest

from edged.errors import StoreFailed
from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store
from edged.store.records import ALIGN
from tests.store.simdisk import PowerCut, SimDisk

SEGMENT = 64 << 10
PAGES = {
    (1, 1): b"first page" * 50,
    (1, 2): b"second" * 77,
    (2, 1): b"third" * 9,
    (3, 1): b"last page" * 33,
}
LOG = "/store/log/0000000000000001.log"


def three_beats(disk: SimDisk) -> list[BeatRecord]:
    records = []
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        for n in (1, 2, 3):
            pages = [
                SealedPage(PageKey("curve", p, n), data)
                for (beat, p), data in PAGES.items()
                if beat == n
            ]
            inputs = [np.arange(n * 100, dtype=np.int64)]
            records.append(BeatRecord(n, b"facts %d" % n, inputs, pages))
            store.commit(records[-1])
    return records


def reopened(disk: SimDisk) -> list[int]:
    """The beats that come back; their pages are checked byte for byte on the way."""
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        numbers = []
        for record in store.recover().records:
            numbers.append(record.number)
            assert record.facts == b"facts %d" % record.number
            assert bytes(record.inputs[0]) == np.arange(record.number * 100).tobytes()
        for ref in store.pending():
            data = disk.content(ref.file)[ref.offset : ref.offset + ref.length]
            assert data == PAGES[ref.key.seq, ref.key.partition]
        expected = [k for k in PAGES if k[0] in numbers]
        assert sorted((r.key.seq, r.key.partition) for r in store.pending()) == expected
    return numbers


def ends(disk: SimDisk) -> list[int]:
    """Where each of the three records ends."""
    data = bytes(disk.content(LOG))
    starts = [i for i in range(0, len(data), ALIGN) if data[i : i + 4] == b"EdgR"]
    return [*starts[1:], starts[-1] + int.from_bytes(data[starts[-1] + 48 :][:8], "little")]


def test_the_log_cut_at_every_byte_gives_exactly_the_records_that_are_whole():
    disk = SimDisk()
    three_beats(disk)
    whole = bytes(disk.content(LOG))
    stops = ends(disk)
    for cut in range(ALIGN, stops[-1] + 1):
        twin = disk.after_kill()
        twin.put(LOG, whole[:cut])
        found = reopened(twin)
        assert found == [1, 2, 3][: sum(cut >= stop for stop in stops)], f"cut at {cut}"


def test_a_store_that_was_cut_goes_on_and_its_past_does_not_come_back():
    disk = SimDisk()
    records = three_beats(disk)
    whole = bytes(disk.content(LOG))
    for cut in range(ALIGN, ends(disk)[-1], 997):
        twin = disk.after_kill()
        twin.put(LOG, whole[:cut])
        last = max([0, *reopened(twin)])
        with Store.open("/store", twin, segment_bytes=SEGMENT) as store:
            for record in records[last:]:
                store.commit(record)
        assert reopened(twin) == [1, 2, 3]


def salvaged(disk: SimDisk) -> tuple[list[int], list[tuple[int, int]], list[str]]:
    """Open a damaged store: the beats that come back, checked byte for byte, the holes, and what is
    damaged."""
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        numbers, holes = [], []
        recovery = store.recover()
        for record in recovery.records:
            numbers.append(record.number)
            assert record.facts == b"facts %d" % record.number
            assert bytes(record.inputs[0]) == np.arange(record.number * 100).tobytes()
            if record.hole is not None:
                holes.append((record.hole.after, record.hole.before))
        if recovery.end is not None:
            holes.append((recovery.end.after, recovery.end.before))
        for ref in store.pending():
            data = disk.content(ref.file)[ref.offset : ref.offset + ref.length]
            assert data == PAGES[ref.key.seq, ref.key.partition]
        return numbers, holes, [found.text() for found in store.salvaged]


def test_salvage_of_any_bit_of_a_log():
    disk = SimDisk()
    three_beats(disk)
    whole = bytes(disk.content(LOG))
    stops = ends(disk)
    rng = random.Random(7)
    meaningful = [i for i in range(stops[-1]) if whole[i]] + list(range(64, 4096, 256))
    kinds = set()
    for at in meaningful:
        twin = disk.after_kill()
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        twin.put(LOG, data)
        found, holes, texts = salvaged(twin)
        assert all(text.startswith("log") and "offset" in text for text in texts)
        if at < 64:
            assert (found, holes, len(texts)) == ([1, 2, 3], [], 1), "the header costs nothing"
        elif at < ALIGN:
            assert (found, holes, texts) == ([1, 2, 3], [], [])
        else:
            hurt = 1 + sum(at >= stop for stop in stops[:2])
            rest = [n for n in (1, 2, 3) if n != hurt]
            assert texts and (found, holes) in (
                (rest, [(hurt - 1, hurt + 1)]), ([1, 2, 3], [])
            )  # fmt: skip
            kinds.add((hurt, bool(holes)))
    assert kinds == {(n, kind) for n in (1, 2, 3) for kind in (True, False)}, (
        "a damaged page costs no beat, nor does it in the last record"
    )


@pytest.mark.parametrize("way", ["header", "facts", "sector", "mark"])
def test_salvage_of_the_last_record_tells_damage_from_a_torn_write(way):
    """A damaged record was durable, which the mark behind it says; a torn one has no mark."""
    disk = SimDisk()
    store = Store.open("/store", disk, segment_bytes=SEGMENT)
    for n in (1, 2, 3):
        store.commit(BeatRecord(n, b"facts %d" % n, [np.arange(n * 100)]))
    last, durable = 3 * ALIGN, disk.after_kill()
    disk.cut_at = disk.operations + 3
    with pytest.raises(PowerCut):
        store.commit(BeatRecord(4, b"facts 4", [np.arange(400)]))
    torn = [salvaged(disk.after_power_cut(random.Random(seed))) for seed in range(20)]
    assert ([1, 2, 3], [], []) in torn, "nothing was promised of beat 4"
    assert all(not holes and not texts for _, holes, texts in torn)
    data = durable.content(LOG)
    if way == "sector":
        data[last : last + 512] = bytes(512)
    elif way == "mark":
        data[last + ALIGN + 10] ^= 1
    else:
        data[last + (9 if way == "header" else 90)] ^= 1
    for _ in range(2):
        found, holes, texts = salvaged(durable)
        if way == "mark":
            assert (found, holes, texts) == ([1, 2, 3], [], [])
        else:
            assert (found, holes) == ([1, 2], [(2, 4)])
            assert "damaged though it was durable; beats after 2 and before 4" in texts[0]
        durable = durable.after_kill()  # a start that was interrupted finds the same again


def test_salvage_changes_nothing_in_the_log_and_finds_the_same_again():
    disk = SimDisk()
    three_beats(disk)
    data = bytearray(disk.content(LOG))
    data[ALIGN + 100] ^= 1
    disk.put(LOG, data)
    first = salvaged(disk)
    assert first == salvaged(disk) and len(first[2]) == 1
    kept = [p for p in disk.names if "/quarantine/" in p]
    assert kept == ["/store/quarantine/log-0000000000000001.log-4096.damaged"]
    assert bytes(disk.content(kept[0])) == bytes(data[ALIGN : ends(disk)[0]])


def test_salvage_of_two_records_that_changed_places():
    disk = SimDisk()
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        for n in (1, 2, 3, 4):
            store.commit(BeatRecord(n, b"facts %d" % n, [np.arange(n * 100)]))
    data = bytearray(disk.content(LOG))
    one, two = slice(ALIGN, 2 * ALIGN), slice(2 * ALIGN, 3 * ALIGN)
    data[one], data[two] = data[two], data[one]
    disk.put(LOG, data)
    found, holes, _ = salvaged(disk)
    assert found[-2:] == [3, 4] and holes


def several_segments(disk: SimDisk, beats: int = 12) -> None:
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        for n in range(1, beats + 1):
            store.commit(BeatRecord(n, b"facts %d" % n, [np.full(20_000, n, "u1")]))


def test_a_segment_that_vanished_between_others_is_noticed():
    disk = SimDisk()
    several_segments(disk)
    names = [p for p in disk.names if p.endswith(".log")]
    assert len(names) > 3
    for name in sorted(names)[:-1]:
        twin = disk.after_kill()
        twin.unlink(name)
        with Store.open("/store", twin, segment_bytes=SEGMENT) as store:
            records = list(store.recover().records)
            (hole,) = [r.hole for r in records if r.hole is not None]
            gone = set(range(1, 13)) - {r.number for r in records}
            assert gone == set(range(hole.after + 1, hole.before)) and hole.unknown_pages
            assert [found.problem for found in store.salvaged] == ["durable records are gone"]


def test_the_end_of_a_segment_before_the_last_is_not_taken_for_a_torn_tail():
    disk = SimDisk()
    several_segments(disk)
    first = sorted(p for p in disk.names if p.endswith(".log"))[0]
    data = disk.content(first)
    offset = max(i for i in range(0, len(data), ALIGN) if data[i : i + 4] == b"EdgR")
    twin = disk.after_kill()
    twin.put(first, data[:offset] + bytes(len(data) - offset))
    with Store.open("/store", twin, segment_bytes=SEGMENT) as store:
        records = list(store.recover().records)
        (hole,) = [r.hole for r in records if r.hole is not None]
        assert {r.number for r in records} == set(range(1, 13)) - {hole.after + 1}
        assert hole.before == hole.after + 2


def test_salvage_of_a_spool_file_without_a_whole_page_and_of_a_page_that_moves_to_the_spool():
    disk = SimDisk()
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        for n in range(1, 9):
            page = SealedPage(PageKey("curve", 0, n), bytes([n]) * 9000)
            store.commit(BeatRecord(n, b"", [np.zeros(9000, "u1")], [page]))
        twin = disk.after_kill()
        store.snapshot(8, b"", {})
    (spool,) = [p for p in disk.names if p.endswith(".pages")]
    for at in (0, 20, 63, 64, 100, 150):
        damaged = disk.after_kill()
        data = bytearray(disk.content(spool))
        data[at] ^= 4
        damaged.put(spool, data)
        with Store.open("/store", damaged, segment_bytes=SEGMENT) as store:
            (found,) = store.salvaged
            assert (found.kind, found.lost) == ("spool file", "its pages")
            assert bytes(damaged.content(f"/store/{found.kept}")) == bytes(data)

    with Store.open("/store", twin, segment_bytes=SEGMENT) as store:
        ref = store.pending()[0]
        twin.content(ref.file)[ref.offset + 5] ^= 1
        store.snapshot(8, b"", {})
        assert [r.key.seq for r in store.pending()] == list(range(2, 9))
        assert [(g.first, g.last) for g in store.take_lost()] == [(1, 1)]
        assert store.gaps.pages == 1


def test_salvage_of_blocks_that_the_disk_does_not_read():
    disk = SimDisk()
    with Store.open("/store", disk, segment_bytes=SEGMENT) as store:
        for n in (1, 2, 3, 4):
            store.commit(BeatRecord(n, b"facts %d" % n, [np.arange(n * 100)]))
    for block, expected in ((0, [1, 2, 3, 4]), (1, [2, 3, 4]), (2, [1, 3, 4]), (4, [1, 2, 3])):
        twin = disk.after_kill()
        twin.bad_blocks.add((LOG, block * ALIGN))
        found, holes, texts = salvaged(twin)
        assert found == expected and len(texts) == 1 and len(holes) == 4 - len(expected)
    twin = disk.after_kill()
    twin.bad_blocks.add((LOG, 5 * ALIGN))
    with pytest.raises(StoreFailed, match="the end of the log"):
        Store.open("/store", twin, segment_bytes=SEGMENT)
