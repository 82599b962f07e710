"""The landing: each page once, over crashes at any step and with several collectors."""

import errno
import itertools
import os
import threading
import time

import pytest

from edged.central import highwater, seals, segments
from edged.central import landing as landing_module
from edged.central.admission import Delivery
from edged.central.landing import DirectoryLanding
from edged.central.segments import ROW_BYTES, SegmentWriter
from edged.errors import CentralError, SchemaMismatch
from edged.pages.format import verify
from tests.central.support import (
    DEVICE,
    EPOCH,
    SCHEMA,
    by_partition,
    landed_pages,
    make_page,
    read_landing,
)


class Died(BaseException):
    """Simulates the end of the process where it is raised."""


@pytest.fixture
def landing(tmp_path):
    place = open_landing(tmp_path)
    yield place
    place.close()


def open_landing(path, **more):
    place = DirectoryLanding(path, **more)
    place.register("power", 1, SCHEMA)
    return place


def delivery(*pages, device=DEVICE, epoch=EPOCH, session=(1, 5), damage=None, lost=None):
    parsed = [(verify(p), memoryview(p)) for p in pages]
    return Delivery(device, epoch, *session, parsed, damage, lost)


def send(place, *pages, **more):
    return place.commit([delivery(*pages, **more)])[0]


def die(place, monkeypatch, where, pages):
    """Commit `pages` until `where` (a method of SegmentWriter), then drop all locks and files."""

    def end(*_):
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, where, end)
        with pytest.raises(Died):
            send(place, *pages)
    place.close()


def test_pages_land_in_order_byte_for_byte(tmp_path, landing):
    pages = [make_page(seq, partition=p) for seq in range(1, 20) for p in range(3)]
    outcome = send(landing, *pages)
    assert outcome.acked == {("power", p): 19 for p in range(3)}
    assert landed_pages(tmp_path) == pages


def test_duplicates_are_acked_and_not_landed(tmp_path, landing):
    pages = [make_page(seq) for seq in range(1, 6)]
    send(landing, *pages[:3])
    outcome = send(landing, *pages)
    assert (outcome.duplicates, len(outcome.landed)) == (3, 2)
    assert outcome.acked == {("power", 0): 5}
    assert send(landing, pages[1]).acked == {("power", 0): 5}
    assert landed_pages(tmp_path) == pages


def test_after_a_gap_nothing_lands_and_what_was_before_it_does(tmp_path, landing):
    outcome = send(landing, make_page(1), make_page(2), make_page(4), make_page(1, partition=1))
    assert outcome.problem.problem == "gap" and outcome.problem.expected == 3
    assert outcome.acked == {("power", 0): 2}
    assert landed_pages(tmp_path) == [make_page(1), make_page(2)]


def test_the_same_seq_with_another_checksum_is_a_conflict(tmp_path, landing):
    send(landing, *[make_page(seq) for seq in range(1, 4)])
    for seq in (2, 3):  # the remembered one, and the high water itself
        assert send(landing, make_page(seq, salt=1)).problem.problem == "conflict"
    assert landed_pages(tmp_path) == [make_page(seq) for seq in range(1, 4)]


def test_a_page_behind_lost_ones_lands_where_they_are_declared(tmp_path, landing):
    send(landing, make_page(1))
    for lost in (
        None,
        ("power", 0, 3, 3),
        ("power", 1, 2, 3),
        ("wind", 0, 2, 3),
        ("power", 0, 2, 2),
    ):
        outcome = send(landing, make_page(4), lost=lost)
        assert outcome.problem.problem == "gap" and outcome.problem.expected == 2
    outcome = send(landing, make_page(4), make_page(5), lost=("power", 0, 2, 3))
    assert outcome.problem is None and outcome.acked == {("power", 0): 5}
    landing.close()
    landing.__init__(tmp_path)
    assert send(landing, make_page(6)).acked == {("power", 0): 6}
    assert landed_pages(tmp_path) == [make_page(seq) for seq in (1, 4, 5, 6)]


def test_an_older_session_and_a_twin_are_fenced(tmp_path, landing):
    assert send(landing, make_page(1), session=(3, 5)).problem is None
    for session in ((2, 5), (3, 6)):
        assert send(landing, make_page(2), session=session).problem.problem == "fenced"
    assert send(landing, make_page(2), session=(4, 9)).problem is None
    assert send(landing, make_page(3), session=(3, 5)).problem.problem == "fenced"
    assert len(landed_pages(tmp_path)) == 2
    assert send(landing, make_page(1, epoch=9), epoch=9, session=(1, 1)).problem is None


def test_a_fence_outlives_the_collector(tmp_path, landing):
    send(landing, session=(8, 1))
    landing.close()
    landing.__init__(tmp_path)
    assert send(landing, make_page(1), session=(7, 1)).problem.problem == "fenced"


def test_a_stream_needs_its_schema(tmp_path, landing):
    outcome = send(landing, make_page(1), make_page(2, version=2))
    assert outcome.problem.problem == "unknown_schema" and outcome.problem.version == 2
    landing.register("power", 2, SCHEMA)
    assert send(landing, make_page(2, version=2)).acked == {("power", 0): 2}
    assert len(read_landing(tmp_path)) == 2


def test_a_schema_is_registered_once_for_ever(landing):
    landing.register("power", 1, SCHEMA.replace(":", ": "))
    with pytest.raises(SchemaMismatch, match="give the new ones a new version"):
        landing.register("power", 1, SCHEMA.replace("float64", "float32"))
    for text in ("", "{}", "[]", "[1]", '[{"name":"a","type":"decimal"}]', "[" * 100_000):
        with pytest.raises(CentralError, match="is not a schema"):
            landing.register("wind", 1, text)
    for stream in ("../x", "Power", "", "a" * 64):
        with pytest.raises(CentralError, match="is not a valid schema name"):
            landing.register(stream, 1, SCHEMA)
    assert landing.schema("power", 1) == SCHEMA
    assert landing.schema("../x", 1) is None


def test_deliveries_of_one_group_see_each_other(tmp_path, landing):
    outcomes = landing.commit(
        [
            delivery(make_page(1), make_page(2)),
            delivery(make_page(2), make_page(3)),
            delivery(make_page(1, device="other"), device="other", session=(1, 1)),
            delivery(make_page(9)),
            delivery(make_page(4)),
        ]
    )
    assert [o.problem.problem if o.problem else None for o in outcomes] == [
        None, None, None, "gap", None,
    ]  # fmt: skip
    assert len(landed_pages(tmp_path)) == 5


@pytest.mark.parametrize("where", ["append", "sync", "commit"])
def test_a_death_before_the_rows_loses_and_repeats_nothing(tmp_path, monkeypatch, where):
    place = open_landing(tmp_path)
    send(place, make_page(1))
    die(place, monkeypatch, where, [make_page(2), make_page(3)])
    assert landed_pages(tmp_path) == [make_page(1)]
    place = open_landing(tmp_path)  # recovers what was durable
    send(place, *[make_page(seq) for seq in range(1, 6)])
    place.close()
    assert landed_pages(tmp_path) == [make_page(seq) for seq in range(1, 6)]


@pytest.mark.parametrize("where", ["append", "sync", "commit"])
@pytest.mark.parametrize("restart_first", [True, False])
def test_another_collector_takes_over_from_a_dead_one(tmp_path, monkeypatch, where, restart_first):
    dead = open_landing(tmp_path)
    send(dead, make_page(1))
    other = open_landing(tmp_path)
    assert (dead.instance, other.instance) == ("c0", "c1")
    die(dead, monkeypatch, where, [make_page(2), make_page(3)])
    if restart_first:
        again = open_landing(tmp_path)
        send(other, make_page(2), make_page(3), make_page(4))
    else:
        send(other, make_page(2), make_page(3), make_page(4))
        again = open_landing(tmp_path)
    assert again.instance == "c0"
    send(again, make_page(4), make_page(5))
    again.close()
    other.close()
    assert by_partition(tmp_path) == {
        (DEVICE, "power", 0): {seq: make_page(seq) for seq in range(1, 6)}
    }


def test_a_death_between_rows_and_high_water_is_seen_by_the_other_collector(tmp_path, monkeypatch):
    dead = open_landing(tmp_path)
    other = open_landing(tmp_path)
    send(other, make_page(1))
    commit = SegmentWriter.commit

    def commit_and_die(self, rows):
        commit(self, rows)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "commit", commit_and_die)
        with pytest.raises(Died):
            send(dead, make_page(2), make_page(3))
    outcome = send(other, make_page(2), make_page(3), make_page(4))
    assert outcome.duplicates == 2
    dead.close()
    other.close()
    assert landed_pages(tmp_path) == [make_page(2), make_page(3), make_page(1), make_page(4)]


@pytest.mark.parametrize("cut", [1, 100, 223, 224, 262, 263, 264])
def test_a_torn_tail_is_cut_and_whole_pages_before_it_are_kept(tmp_path, monkeypatch, cut):
    place = open_landing(tmp_path)
    die(place, monkeypatch, "commit", [make_page(1), make_page(2)])
    pages_file = segments.pages_path(tmp_path, "seg-c0-00000001")
    os.truncate(pages_file, len(make_page(1)) + cut - 1)
    place = open_landing(tmp_path)
    kept = 2 if cut == 264 else 1
    assert landed_pages(tmp_path) == [make_page(seq) for seq in range(1, kept + 1)]
    assert pages_file.stat().st_size == kept * len(make_page(1))
    assert send(place, make_page(1), make_page(2)).duplicates == kept
    place.close()


def test_segments_roll_and_are_sealed_and_records_can_be_rebuilt_from_them(tmp_path):
    place = open_landing(tmp_path, segment_bytes=1000)
    pages = {p: [make_page(seq, partition=p) for seq in range(1, 31)] for p in range(2)}
    for seq in range(30):
        send(place, pages[0][seq], pages[1][seq])
    names = segments.list_segments(tmp_path)
    assert len(names) == 15
    place.close()
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    place = open_landing(tmp_path, segment_bytes=1000)
    outcome = send(place, pages[0][29], make_page(31, partition=1), session=(1, 5))
    assert outcome.duplicates == 1 and outcome.acked == {("power", 0): 30, ("power", 1): 31}
    place.close()


def fleet_deliveries(seq, count, session=(1, 5)):
    return [
        delivery(make_page(seq, device=f"d{n}"), device=f"d{n}", session=session)
        for n in range(count)
    ]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_seal_goes_on_between_commits_and_a_death_in_it_loses_and_repeats_nothing(
    tmp_path, monkeypatch, steps
):
    monkeypatch.setattr(landing_module, "SEAL_DEVICES", 3)
    place = open_landing(tmp_path, segment_bytes=1000)
    assert all(o.acked == {("power", 0): 1} for o in place.commit(fleet_deliveries(1, 8)))
    summary = segments.segments_dir(tmp_path) / "seg-c0-00000001.sum"
    assert not summary.exists(), "the acknowledgement came before the seal's end"
    for left in range(steps, 0, -1):
        assert place.commit(fleet_deliveries(1, 1))[0].duplicates == 1
        assert place.work_off() == (left == 2 or steps == 1)
    place.close()  # everything but the locks is as after a death
    assert summary.exists() == (steps == 2)
    for record in sorted((tmp_path / "devices").iterdir())[:4]:
        record.unlink()  # as after a power cut before the sync
    place = open_landing(tmp_path, segment_bytes=1000)
    while place.work_off():
        pass
    assert summary.exists()
    outcomes = place.commit([*fleet_deliveries(1, 8), *fleet_deliveries(2, 8)])
    assert [o.duplicates for o in outcomes] == [1] * 8 + [0] * 8
    place.close()
    assert all(list(pages) == [1, 2] for pages in by_partition(tmp_path).values())


def test_sessions_of_a_group_are_durable_before_it_is_answered(tmp_path, monkeypatch):
    synced, real = set(), os.fdatasync

    def fdatasync(fd):
        real(fd)
        synced.add(os.path.realpath(f"/proc/self/fd/{fd}"))

    place = open_landing(tmp_path)
    place.commit(fleet_deliveries(1, 40))
    monkeypatch.setattr(highwater.os, "fdatasync", fdatasync)
    place.commit(fleet_deliveries(2, 40, session=(2, 6)))
    records = {str(path) for path in (tmp_path / "devices").iterdir()}
    assert len(records) == 40 and records <= synced
    place.close()


def test_a_failed_sync_of_one_session_ends_the_collector_after_all_syncs_ended(
    tmp_path, monkeypatch
):
    begun, ended = itertools.count(), []

    def fdatasync(fd):
        number = next(begun)
        time.sleep(0.01 * (number > 0))
        ended.append(os.path.realpath(f"/proc/self/fd/{fd}"))
        if number == 0:
            raise OSError(errno.EIO, "the medium failed")

    place = open_landing(tmp_path)
    place.commit(fleet_deliveries(1, 20))
    monkeypatch.setattr(highwater.os, "fdatasync", fdatasync)
    with pytest.raises(OSError, match="the medium failed"):
        place.commit(fleet_deliveries(1, 20, session=(2, 6)))
    assert len(ended) == 20 and all(path.endswith(".record") for path in ended)
    place.close()


def test_high_waters_outlive_retired_pages(tmp_path):
    place = open_landing(tmp_path, segment_bytes=500)
    for seq in range(1, 8):
        send(place, make_page(seq))
    for name in segments.list_segments(tmp_path)[:-1]:
        seals.retire(tmp_path, name)
    with pytest.raises(CentralError, match="not sealed"):
        seals.retire(tmp_path, segments.list_segments(tmp_path)[-1])
    place.close()
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    place = open_landing(tmp_path, segment_bytes=500)
    assert send(place, *[make_page(seq) for seq in range(1, 9)]).duplicates == 7
    place.close()
    assert len(landed_pages(tmp_path)) == 2


def test_names_of_segments_are_never_used_again(tmp_path):
    place = open_landing(tmp_path, segment_bytes=1)
    send(place, make_page(1))
    seals.retire(tmp_path, "seg-c0-00000001")
    place.close()
    place = open_landing(tmp_path, segment_bytes=1)
    send(place, make_page(2))
    place.close()
    assert segments.list_segments(tmp_path) == ["seg-c0-00000002"]


def test_a_damaged_summary_is_replaced_by_the_rows(tmp_path):
    place = open_landing(tmp_path, segment_bytes=1)
    send(place, make_page(1))
    place.close()
    summary = segments.segments_dir(tmp_path) / "seg-c0-00000001.sum"
    assert summary.stat().st_size == ROW_BYTES + 4
    summary.write_bytes(summary.read_bytes()[:-1] + b"?")
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    place = open_landing(tmp_path)
    assert send(place, make_page(1)).duplicates == 1
    place.close()


def test_a_stale_record_is_raised_at_start_from_segments_that_are_not_sealed(tmp_path):
    place = open_landing(tmp_path)
    send(place, make_page(1))
    record = next((tmp_path / "devices").iterdir())
    stale = record.read_bytes()
    send(place, make_page(2), make_page(3))
    place.close()
    record.write_bytes(stale)  # as after a power cut: the record was never synced
    place = open_landing(tmp_path)
    assert send(place, make_page(2), make_page(3), make_page(4)).duplicates == 2
    place.close()


def test_a_full_disk_refuses_and_recovers(tmp_path, landing, monkeypatch):
    send(landing, make_page(1))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentWriter, "sync", full)
        outcome = send(landing, make_page(2))
        assert outcome.problem.problem == "full" and not outcome.acked
    assert landed_pages(tmp_path) == [make_page(1)]
    assert send(landing, make_page(2), make_page(3)).acked == {("power", 0): 3}
    assert landed_pages(tmp_path) == [make_page(1), make_page(2), make_page(3)]


def test_a_disk_that_is_nearly_full_refuses_before_anything_is_begun(
    tmp_path, landing, monkeypatch
):
    """A record, row or summary without room would end the collector, so the check comes first."""
    send(landing, make_page(1))
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    disk = os.statvfs(tmp_path)
    room = 1 + disk.f_bavail * disk.f_frsize - len(make_page(2))
    with monkeypatch.context() as patch:
        patch.setattr(landing_module, "FREE_BYTES_MIN", 2 * room)
        for device in (DEVICE, "newcomer"):
            outcome = send(landing, make_page(2, device=device), device=device)
            assert outcome.problem.problem == "full" and not outcome.acked
        assert send(landing).problem is None, "nothing to land"
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == files
    assert send(landing, make_page(2)).acked == {("power", 0): 2}


def test_a_device_may_not_have_sessions_without_end(tmp_path, landing, monkeypatch):
    """Requests with ever new epochs need no page but add a session each to the record; this is
    bounded."""
    monkeypatch.setattr(highwater, "ENTRIES_MAX", 3)
    send(landing, make_page(1))
    assert send(landing, epoch=EPOCH - 1).problem is None
    size = next((tmp_path / "devices").iterdir()).stat().st_size
    for epoch in range(5):
        assert send(landing, epoch=epoch).problem.problem == "limit"
    assert next((tmp_path / "devices").iterdir()).stat().st_size == size
    assert send(landing, make_page(2)).acked == {("power", 0): 2}


def test_any_other_write_error_ends_the_collector(landing, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentWriter, "sync", broken)
    with pytest.raises(OSError, match="Input/output"):
        send(landing, make_page(1))


def test_what_is_desired_is_read_again_when_it_changes(tmp_path, landing):
    assert landing.desired(DEVICE) is None
    path = tmp_path / "desired" / f"{DEVICE}.json"
    path.parent.mkdir()
    wanted = [('{"a":1}', {"a": 1}), ("{", None), ('{"a":2}', {"a": 2})]
    for i, (text, value) in enumerate(wanted):
        path.write_text(text)
        os.utime(path, ns=(i, i))
        assert landing.desired(DEVICE) == value
    path.unlink()
    assert landing.desired(DEVICE) is None
    assert landing.desired("../schemas/power@1") is None


def test_two_collectors_taking_turns_land_each_page_once(tmp_path):
    places = [open_landing(tmp_path, segment_bytes=2000) for _ in range(2)]

    def run(place, device):
        for seq in range(1, 60):
            outcome = send(place, make_page(seq, device=device), device=device)
            assert outcome.problem is None or outcome.problem.problem == "gap"

    threads = [
        threading.Thread(target=run, args=(place, device))
        for device, place in [("a", places[0]), ("b", places[1])]
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for seq in range(1, 60):
        for place in places:
            assert send(place, make_page(seq, device="c"), device="c").acked == {("power", 0): seq}
    for place in places:
        place.close()
    assert {k[0]: sorted(v) for k, v in by_partition(tmp_path).items()} == {
        d: list(range(1, 60)) for d in "abc"
    }
