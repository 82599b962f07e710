"""`check` and `repair` of a store: what is damaged, what is lost, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from edged.console.damage_report import EXIT_LOST, EXIT_MENDABLE, LOST, MENDABLE
from edged.errors import StoreBusy
from edged.pages.sealed import PageKey, SealedPage
from edged.store import BeatRecord, Store
from edged.store.gaps import DROPPED, Gap
from edged.store.inspection import inspect, repair
from tests.central.support import make_page

BEATS, SNAPSHOT = 8, 5
SEGMENT_BYTES = 8 << 10
"""One record a segment."""


@pytest.fixture
def store(tmp_path):
    """Pages in the spool, a snapshot, a shelved job, and beats in the log; page 1 is acked."""
    path = str(tmp_path / "store")
    with Store.open(path, segment_bytes=SEGMENT_BYTES) as made:
        for beat in range(1, BEATS + 1):
            data = make_page(beat, epoch=made.device_epoch)
            page = SealedPage(PageKey("power", 0, beat), data)
            made.commit(BeatRecord(beat, b"facts %d" % beat, [np.full(99, beat, "u1")], [page]))
            if beat == SNAPSHOT:
                made.acked("power", 0, 1)
                made.shelve(("job", beat), b"{}", {"x": np.arange(9)})
                made.snapshot(beat, b"state", {"n": np.arange(500)})
    return path


def content(tmp_path):
    return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def flip(tmp_path, pattern, at):
    """Change a byte of the first file that matches; returns its path below the store."""
    file = sorted((tmp_path / "store").glob(pattern))[0]
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)
    return str(file.relative_to(tmp_path / "store"))


def test_a_whole_store_is_whole_and_is_not_touched(store, tmp_path):
    before = content(tmp_path)
    report = inspect(store)
    assert report.findings == report.losses == [] and report.exit_code == 0
    assert report.read == {
        "log segments": 4, "snapshots": 1, "spool files": 1, "shelved jobs": 1,
        "beats to replay": BEATS - SNAPSHOT, "waiting pages": BEATS - 1,
    }  # fmt: skip
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("pattern", "at", "kind", "state"),
    [
        ("spool/*", -20, "page", LOST),
        ("spool/*", 70, "spool file", LOST),
        ("log/*7.log", 4096 + 80, "log record", LOST),
        ("log/*7.log", 8, "log segment", MENDABLE),
        ("snapshots/*", 70, "snapshot", LOST),
        ("shelf/*", 70, "shelf file", LOST),
        ("acks", 3, "acks", MENDABLE),
    ],
)
def test_damage_is_found_with_its_place_and_repaired_once(
    store, tmp_path, pattern, at, kind, state
):
    file = flip(tmp_path, pattern, at)
    before = content(tmp_path)
    report = inspect(store)
    found = {(f.file, f.kind): f for f in report.findings}
    assert (file, kind) in found, report.findings
    assert found[file, kind].state == state
    assert report.exit_code == (EXIT_LOST if state == LOST else EXIT_MENDABLE)
    assert content(tmp_path) == before
    done = repair(store)
    assert [(f.file, f.kind) for f in done.findings] == [(f.file, f.kind) for f in report.findings]
    assert done.left == len(inspect(store).findings)
    assert done.left or kind != "log record", "the loss is known until a start has recorded it"
    assert done.exit_code == (EXIT_LOST if state == LOST else EXIT_MENDABLE if done.left else 0)
    first = repair(store)
    assert [f.kind for f in repair(store).findings] == [f.kind for f in first.findings]
    assert repair(store).losses == first.losses


def test_lost_pages_are_named_with_their_numbers_and_recorded_by_a_repair(store, tmp_path):
    flip(tmp_path, "spool/*", -20)
    (loss,) = inspect(store).losses
    assert (loss.what, loss.stream, loss.partition) == ("pages", "power", 0)
    assert (loss.first, loss.last) == (4, 4)
    repair(store)
    with Store.open(store) as opened:
        assert [(g.stream, g.first, g.last) for g in opened.gaps.newest] == [("power", 4, 4)]
    again = inspect(store)
    assert again.findings == [] and again.exit_code == 0
    assert "1 gaps were recorded before" in again.notes[-1]


def test_lost_beats_are_named_with_the_times_around_them(store, tmp_path):
    flip(tmp_path, "log/*7.log", 4096 + 80)
    report = inspect(store, lambda facts: 1_000_000 * int(facts.split()[1]))
    (loss,) = [loss for loss in report.losses if loss.what == "beats"]
    assert (loss.first, loss.last) == (7, 7)
    assert (loss.first_us, loss.last_us) == (6_000_000, 8_000_000)


def test_a_whole_page_of_a_damaged_record_below_the_snapshot_is_delivered(store, tmp_path):
    """The record is alone in its segment, and the state has it: a start replays no hole."""
    flip(tmp_path, "log/*5.log", 4096 + 80)
    assert [f.kind for f in inspect(store).findings] == ["log record"]
    with Store.open(store, segment_bytes=SEGMENT_BYTES) as opened:
        assert [ref.key.seq for ref in opened.pending()] == list(range(2, BEATS + 1))
        records = list(opened.recover().records)
        assert [(r.number, r.hole) for r in records] == [(6, None), (7, None), (8, None)]


def test_a_policy_that_is_not_json_is_named(store, tmp_path):
    (tmp_path / "store/policy.json").write_text('{"policy": "x"}')
    assert inspect(store).findings == []
    (tmp_path / "store/policy.json").write_text('{"policy": "x"')
    assert [f.kind for f in inspect(store).findings] == ["policy"]


def test_a_store_in_use_is_read_and_not_repaired(store):
    with Store.open(store, segment_bytes=SEGMENT_BYTES) as opened:
        report = inspect(store)
        assert report.findings == [] and "uses the store" in report.notes[0]
        with pytest.raises(StoreBusy):
            repair(store)
        opened.gaps.add([Gap(DROPPED, "power", 1, 2, 0)])
    assert "1 gaps were recorded before" in inspect(store).notes[0]
