"""Compaction: the rows of sealed segments as Parquet, each visible once at every moment."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import edged
from edged.central import compacted, compacted_checks, compactor, consumers, seals, segments
from edged.central.cli_compact import command
from edged.central.compactor import compact
from edged.central.consumers import Consumer
from edged.central.datasource import EdgedDataSource
from edged.central.expire import expire, retire_compacted
from edged.central.rot import check, repair
from edged.console.damage_report import LOST, MENDABLE
from edged.data.schema import TYPES, Field, Schema
from edged.errors import CentralError
from tests.central.compaction_kills import run as run_kills
from tests.central.support import make_page
from tests.central.test_landing import open_landing, send
from tests.spark.landings import READINGS, Landing, readings, readings_table, slotted_page
from tests.whole import count

LATER = 1 << 61


@pytest.fixture
def landing(tmp_path):
    made = Landing(tmp_path / "landing")
    made.register("curve", READINGS)
    yield made
    made.close()


def name(number):
    return f"seg-a-{number:08d}"


def seal(landing, *numbers):
    for number in numbers:
        rows = segments.read_rows(landing.path, name(number))
        seals.write(landing.path, name(number), seals.greatest(rows))


def fill(landing, sealed=3, pages=2, **more):
    """`sealed` sealed segments and an open one, of `pages` pages each; returns their rows."""
    for number in range(1, sealed + 2):
        seqs = range((number - 1) * pages + 1, number * pages + 1)
        landing.land([readings(s, n=100, **more) for s in seqs], name(number))
    seal(landing, *range(1, sealed + 1))
    return readings_table(range(1, (sealed + 1) * pages + 1), n=100).cast(READINGS.to_arrow())


def sorted_rows(table):
    return sorted(map(repr, table.to_pylist()))


def rows_of(landing, stream="curve", **more):
    """All rows, by Arrow and by the Spark source's own reader, which must agree."""
    table = edged.read_landing(landing.path, stream, **more).read_all()
    source = EdgedDataSource({"landing": str(landing.path), "stream": stream})
    reader = source.reader(source.schema())
    batches = [b for p in reader.partitions() for b in reader.read(p)]
    assert more or sum(b.num_rows for b in batches) == table.num_rows
    return sorted_rows(table)


def test_the_rows_are_the_same_before_and_after_and_each_is_in_one_file(landing):
    expected = fill(landing)
    before = rows_of(landing)
    done = compact(landing.path, group_bytes=1)
    assert (done.groups, done.segments, done.rows) == (3, 3, 600)
    assert before == rows_of(landing) == sorted_rows(expected)
    snapshot = compacted.snapshot(landing.path)
    assert dict(snapshot.position) == {name(4): 2}
    paths = [path for path, _ in snapshot.files(landing.path, "curve@1")]
    found = pa.concat_tables(pq.read_table(p, columns=list(READINGS.names)) for p in paths)
    assert sorted_rows(found) == sorted_rows(expected.slice(0, 600))
    assert compact(landing.path).segments == 0, "nothing is left to do"


def test_duckdb_finds_the_same_in_compacted_rows_and_pages(landing):
    expected = fill(landing)
    compact(landing.path)
    reader = edged.read_landing(landing.path, "curve")
    query = "SELECT key, count(*), sum(power), epoch_us(max(time)) FROM {} GROUP BY 1 ORDER BY 1"
    found = duckdb.sql(query.format("reader")).fetchall()
    assert found == duckdb.sql(query.format("expected")).fetchall()
    assert reader.schema.equals(READINGS.to_arrow()) and expected.num_rows == 800


def test_streams_versions_and_devices_are_kept_apart_and_filters_reach_the_files(landing):
    other = Schema.of(READINGS.fields[:1])
    landing.register("wind", READINGS)
    landing.register("curve", READINGS, version=2)
    landing.register("unused", other)
    pages = [readings(s, n=50, device=f"mill-{s % 3}") for s in range(1, 7)]
    pages += [readings(7, n=50, stream="wind"), readings(8, n=50, version=2)]
    landing.land(pages, name(1))
    seal(landing, 1)
    before = {
        asked: rows_of(landing, asked, metadata=True) for asked in ("curve@1", "curve@2", "wind")
    }
    filtered = {"devices": ["mill-1", "mill-2"], "since": "1970-01-01T00:00:00.020Z"}
    some = rows_of(landing, "curve@1", columns=["power"], **filtered)
    assert compact(landing.path).rows == 400
    assert {asked: rows_of(landing, asked, metadata=True) for asked in before} == before
    assert rows_of(landing, "curve@1", columns=["power"], **filtered) == some and len(some) == 120
    options = {"landing": str(landing.path), "stream": "curve@1", "devices": "mill-1,mill-2",
               "since": filtered["since"], "columns": "power"}  # fmt: skip
    reader = EdgedDataSource(options).reader(EdgedDataSource(options).schema())
    batches = [b for p in reader.partitions() for b in reader.read(p)]
    assert sorted_rows(pa.Table.from_batches(batches)) == some
    (path,) = [p for p, _ in compacted.snapshot(landing.path).files(landing.path, "curve@1")]
    devices = pq.read_table(path, columns=["_device"])["_device"].to_pylist()
    assert devices == sorted(devices)


def test_every_type_with_and_without_nulls_comes_back(landing):
    schema = Schema.of([Field(n, t, nullable=True) for n, t in TYPES.items()])
    landing.register("types", schema)
    values = (
        1, -5, -300, -70_000, -(2**63), 200, 60_000, 4_000_000_000, 2**64 - 1,
        1.5, float("-inf"), 1_700_000_000_123_456, "Wind é", b"\x00\xff",
    )  # fmt: skip
    landing.land([slotted_page(schema, [values, (None,) * 14], stream="types", seq=1)], name(1))
    seal(landing, 1)
    before = edged.read_landing(landing.path, "types", metadata=True).read_all()
    assert compact(landing.path).rows == 2
    after = edged.read_landing(landing.path, "types", metadata=True).read_all()
    assert after.equals(before) and after.num_rows == 2


def test_a_segment_with_a_damaged_page_stays_whole_and_is_named(landing):
    fill(landing)
    landing.damage(name(2), 1)
    with_damage = rows_of(landing)
    assert len(with_damage) == 700
    asked = ["--landing", str(landing.path), "--group-bytes", str(1 << 20)]
    said = CliRunner().invoke(command, [*asked, "--json"])
    assert said.exit_code == 65
    told = json.loads(said.output)
    assert told["segments"] == 2 and list(told["damaged"]) == [name(2)]
    assert "checksum" in told["damaged"][name(2)]
    assert rows_of(landing) == with_damage
    assert name(2) in compacted.snapshot(landing.path).position
    again = CliRunner().invoke(command, asked)
    assert again.exit_code == 65 and f"{name(2)} stays: " in again.output
    assert again.output.startswith("0 segments compacted")


def test_a_damaged_segment_that_retention_deletes_is_forgotten(landing):
    fill(landing)
    landing.damage(name(2), 0)
    assert list(compact(landing.path).damaged) == [name(2)]
    consumers.advance(landing.path, Consumer("a", "curve@1", segments.positions(landing.path)))
    assert name(2) in expire(landing.path, LATER).segments
    assert compact(landing.path).damaged == {} == compacted.read(landing.path).left


def test_a_segment_that_cannot_be_read_for_now_is_tried_again(landing, monkeypatch):
    expected = fill(landing)
    read_pages = segments.read_pages

    def failing(path, segment, rows):
        if segment == name(2):
            raise OSError(5, "Input/output error")
        return read_pages(path, segment, rows)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "read_pages", failing)
        done = compact(landing.path)
    assert done.segments == 2 and "Input/output error" in done.waiting[name(2)]
    assert rows_of(landing) == sorted_rows(expected)
    assert compact(landing.path).segments == 1
    assert rows_of(landing) == sorted_rows(expected)


def test_row_groups_of_other_devices_can_be_skipped(landing, monkeypatch):
    """Devices take turns page by page; in the file each has row groups of its own."""
    for segment in (1, 2):
        pages = [readings(s, n=100, device=f"mill-{s % 4}") for s in range(1, 21)]
        landing.land(pages, name(segment))
    seal(landing, 1, 2)
    monkeypatch.setattr("edged.central.compacted_writer.ROWS_MAX", 200)
    compact(landing.path)
    ((path, _),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    found = pq.read_metadata(path)
    at = found.schema.to_arrow_schema().get_field_index("_device")
    groups = [found.row_group(i).column(at) for i in range(found.num_row_groups)]
    devices = [(g.statistics.min, g.statistics.max) for g in groups]
    assert devices == [(f"mill-{d}", f"mill-{d}") for d in range(4) for _ in range(5)]
    assert all(g.has_column_index for g in groups)


def test_a_loop_goes_on_past_a_run_that_cannot_work(landing, tmp_path):
    expected = fill(landing)
    arguments = [sys.executable, "-m", "edged", "central", "compact", "--landing",
                 str(landing.path), "--every", "50ms", "--json"]  # fmt: skip
    with compactor._alone(landing.path):
        child = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert b"another compactor runs" in child.stderr.readline()
    try:
        assert json.loads(child.stdout.readline())["segments"] == 3
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=120)
    assert child.returncode == 0
    assert rows_of(landing) == sorted_rows(expected)


def test_a_stream_without_its_schema_waits_until_it_is_registered(landing):
    expected = fill(landing)
    schema = landing.path / "schemas" / "curve@1.json"
    text = schema.read_text()
    schema.unlink()
    done = compact(landing.path)
    assert done.segments == 0 and sorted(done.waiting) == [name(1), name(2), name(3)]
    schema.write_text(text)
    assert compact(landing.path).segments == 3
    assert rows_of(landing) == sorted_rows(expected)


def test_without_room_nothing_is_written(landing, monkeypatch):
    expected = fill(landing)
    monkeypatch.setattr(compactor, "FREE_BYTES_MIN", 1 << 60)
    done = compact(landing.path)
    assert done.segments == 0 and "bytes, " in done.no_room
    said = CliRunner().invoke(command, ["--landing", str(landing.path)])
    assert isinstance(said.exception, CentralError) and "no room" in str(said.exception)
    assert rows_of(landing) == sorted_rows(expected)
    assert not list(compacted.directory(landing.path).rglob("*.parquet*"))


def test_a_disk_that_is_full_while_it_writes_leaves_no_file(landing, monkeypatch):
    expected = fill(landing)
    fsync = os.fsync

    def full(fd):
        if ".parquet" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(28, "No space left on device")
        fsync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert "No space left" in compact(landing.path).no_room
    assert not list(compacted.directory(landing.path).rglob("*.parquet*"))
    assert rows_of(landing) == sorted_rows(expected)
    assert compact(landing.path).segments == 3


def test_row_groups_are_bounded(landing, monkeypatch):
    expected = fill(landing)
    monkeypatch.setattr("edged.central.compacted_writer.ROWS_MAX", 130)
    compact(landing.path)
    ((path, file),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    groups = pq.read_metadata(path)
    assert [groups.row_group(i).num_rows for i in range(5)] == [130, 130, 130, 130, 80]
    assert file.row_groups == 5
    assert rows_of(landing) == sorted_rows(expected)


def test_one_compactor_at_a_time(landing):
    fill(landing)
    with compactor._alone(landing.path), pytest.raises(CentralError, match="another compactor"):
        compact(landing.path)
    assert compact(landing.path).segments == 3


class Died(BaseException):
    """Simulates kill -9."""


@pytest.mark.parametrize("seed", range(count(6, 60)))
def test_dead_at_any_step_it_shows_each_row_once_and_goes_on(landing, monkeypatch, seed):
    rng = random.Random(seed)
    landing.register("wind", READINGS)
    expected = fill(landing)
    landing.land([readings(50, n=10, stream="wind")], name(9))
    seal(landing, 9)
    left = [rng.randrange(24)]

    def mortal(function):
        def called(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                raise Died
            return function(*args, **more)

        return called

    with monkeypatch.context() as patch:
        for place, step in ((Path, "unlink"), (Path, "replace"), (os, "fsync"), (os, "unlink")):
            patch.setattr(place, step, mortal(getattr(place, step)))
        with contextlib.suppress(Died):
            compact(landing.path, group_bytes=rng.choice([1, 1 << 20]))
            retire_compacted(landing.path, LATER, unread=["curve", "wind"])
    assert rows_of(landing) == sorted_rows(expected)
    compact(landing.path)
    retire_compacted(landing.path, LATER, unread=["curve", "wind"])
    assert rows_of(landing) == sorted_rows(expected) and len(rows_of(landing, "wind")) == 10
    assert segments.list_segments(landing.path) == [name(4)]
    assert not list(compacted.unnamed_files(landing.path, compacted.read(landing.path)))


def test_a_snapshot_sees_a_segment_that_is_compacted_and_deleted_while_it_is_taken(
    landing, monkeypatch
):
    """Between the two things that it reads, in whatever order."""
    expected, steps = fill(landing), []

    def step(function):
        def called(path):
            found = function(path)
            steps.append(function.__name__)
            if len(steps) == 1:
                compact(path)
                retire_compacted(path, LATER, unread=["curve"])
            return found

        return called

    with monkeypatch.context() as patch:
        patch.setattr(compacted, "read", step(compacted.read))
        patch.setattr(segments, "positions", step(segments.positions))
        snapshot = compacted.snapshot(landing.path)
    assert {"read", "positions"} <= set(steps) and len(snapshot.groups) == 1
    assert dict(snapshot.position) == {name(4): 2}
    assert segments.list_segments(landing.path) == [name(4)]
    assert rows_of(landing) == sorted_rows(expected)


def test_files_of_a_run_that_was_killed_are_deleted_by_the_next(landing):
    expected = fill(landing)
    strays = [compacted.directory(landing.path) / "wind@1" / f for f in ("x", ".00000009.new")]
    strays[0].parent.mkdir(parents=True)
    for stray in strays:
        stray.write_bytes(b"half a file")
    assert rows_of(landing) == sorted_rows(expected)
    assert compact(landing.path).segments == 3
    assert not any(stray.exists() for stray in strays)
    assert rows_of(landing) == sorted_rows(expected)


def test_a_segment_that_retention_deletes_meanwhile_does_not_come_back(landing, monkeypatch):
    expected = fill(landing)
    decode, once = compactor.decode, [True]

    def late(request, pages):
        yield from decode(request, pages)
        if once and once.pop():
            seals.retire(landing.path, name(1))

    monkeypatch.setattr(compactor, "decode", late)
    assert compact(landing.path).segments == 2
    assert rows_of(landing) == sorted_rows(expected.slice(200))


def test_compacted_segments_go_when_their_readers_are_past_them(landing):
    expected = fill(landing)
    ends = segments.positions(landing.path)
    consumers.advance(landing.path, Consumer("a", "curve@1", {**ends, name(2): 1}))
    assert retire_compacted(landing.path, LATER).segments == [], "nothing is compacted yet"
    compact(landing.path, group_bytes=1)
    assert retire_compacted(landing.path, 1).segments == [], "not so long ago"
    gone = retire_compacted(landing.path, LATER)
    assert gone.segments == [name(1), name(3)] and gone.kept == {"a has not read it": 1}
    assert rows_of(landing) == sorted_rows(expected)


def test_a_collector_goes_on_beside_it_and_knows_late_pages_of_deleted_segments(tmp_path):
    """Compacted while it lands; a device resends all after the segments and its record are gone."""
    with closing(open_landing(tmp_path, segment_bytes=1500)) as place:
        for seq in range(1, 31):
            send(place, make_page(seq), make_page(seq, partition=1))
            if seq % 5 == 0:
                compact(tmp_path, group_bytes=1)
                retire_compacted(tmp_path, LATER, unread=["power"])
        read = edged.read_landing(tmp_path, "power", metadata=True).read_all()
    pages = sorted(zip(*(read[c].to_pylist() for c in ("_partition", "_seq")), strict=True))
    assert pages == sorted((p, s) for p in (0, 1) for s in range(1, 31) for _ in range(3))
    assert compacted.read(tmp_path).groups and len(segments.list_segments(tmp_path)) < 5
    for record in (tmp_path / "devices").iterdir():
        record.unlink()
    with closing(open_landing(tmp_path, segment_bytes=1500)) as place:
        again = send(place, *(make_page(s, partition=p) for s in range(1, 31) for p in (0, 1)))
        assert again.duplicates == 60


def test_the_command_says_why_compacted_segments_stay(landing):
    fill(landing)
    asked = ["--landing", str(landing.path), "--retire-after", "0s"]
    said = CliRunner().invoke(command, asked)
    assert said.exit_code == 0, said.output
    assert said.output.splitlines()[1:] == ["3 compacted segments kept: curve@1 has no consumer"]
    said = CliRunner().invoke(command, [*asked, "--unread", "curve"])
    assert said.output.splitlines()[1].startswith("3 segments deleted: ")


def test_retention_deletes_compacted_rows_by_groups(landing):
    expected = fill(landing)
    rows = {n: segments.read_rows(landing.path, n) for n in segments.list_segments(landing.path)}
    assert [int(r["landed_at_us"].max()) for r in rows.values()] == [1_000_000] * 4
    compact(landing.path, group_bytes=1)
    consumers.advance(landing.path, Consumer("a", "curve@1", segments.positions(landing.path)))
    assert expire(landing.path, 500_000).files == 0
    consumers.advance(landing.path, Consumer("a", "curve@1", {name(1): 2}))
    told = expire(landing.path, LATER, dry_run=True)
    assert (told.files, told.segments) == (1, [name(1)])
    assert expire(landing.path, LATER) == told
    assert rows_of(landing) == sorted_rows(expected.slice(200))
    assert not list(compacted.unnamed_files(landing.path, compacted.read(landing.path)))
    assert compact(landing.path).segments == 0


def flip(file, bit):
    data = bytearray(file.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)


def test_a_flipped_bit_of_the_manifest_changes_nothing(landing):
    fill(landing)
    compact(landing.path)
    file = compacted.manifest_path(landing.path)
    whole, content = file.read_bytes(), compacted.read(landing.path)
    for bit in random.Random(3).sample(range(8 * len(whole)), 60):
        flip(file, bit)
        assert compacted.read(landing.path) == content
        assert [d.state for d in check(landing.path).findings] == [MENDABLE]
        assert repair(landing.path).left == 0 and file.read_bytes() == whole
    half = 8 * len(whole) // 2
    flip(file, 80)
    flip(file, half + 80)
    with pytest.raises(CentralError, match="both lines are damaged"):
        rows_of(landing)
    assert [d.state for d in check(landing.path).findings] == [LOST]


def test_a_damaged_file_is_found_and_made_again_while_its_segments_are_there(landing):
    expected = fill(landing)
    compact(landing.path)
    ((path, _),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    flip(path, 8 * 200)
    with pytest.raises(CentralError, match="see edged central check"):
        rows_of(landing)
    assert [d.state for d in check(landing.path).findings] == [MENDABLE]
    assert repair(landing.path).left == 0
    assert rows_of(landing) == sorted_rows(expected)
    assert compact(landing.path).segments == 3
    retire_compacted(landing.path, LATER, unread=["curve"])
    ((path, _),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    path.unlink()
    (found,) = check(landing.path).findings
    assert (found.state, found.lost[0].rows) == (LOST, 600)


def test_a_repair_keeps_a_group_whose_segments_are_deleted_before_it_changes_the_manifest(
    landing, monkeypatch
):
    fill(landing)
    compact(landing.path)
    ((path, _),) = compacted.snapshot(landing.path).files(landing.path, "curve@1")
    flip(path, 8 * 200)
    problem = compacted_checks._problem

    def late(*file):
        retire_compacted(landing.path, LATER, unread=["curve"])
        return problem(*file)

    monkeypatch.setattr(compacted_checks, "_problem", late)
    assert repair(landing.path).left == 1
    assert [d.state for d in check(landing.path).findings] == [LOST], "it is named, not forgotten"
    assert len(compacted.read(landing.path).groups) == 1


def test_killed_again_and_again_it_shows_each_row_once(tmp_path):
    figures = run_kills(tmp_path, kills=count(3, 40), seed=11)
    assert figures["kills"] == count(3, 40) and figures["reads"] > 0
