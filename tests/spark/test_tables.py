"""A table's directory: the published version is complete, and everything else is ignored."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edged.central.tables import Manifest, TableDirectory, read
from edged.errors import CentralError


def write_version(table, number, value, part="state"):
    place = table.version(number) / part
    place.mkdir(parents=True)
    pq.write_table(pa.table({"n": [value]}), place / "part-0.parquet")
    (place / "_SUCCESS").touch()


def manifest(version, **more):
    return Manifest(**{"version": version, "query": "q", "mode": "merge", "format": "parquet",
                       "shown": "state", **more})  # fmt: skip


def test_nothing_is_read_before_something_was_published(tmp_path):
    table = TableDirectory(tmp_path / "t")
    assert table.current() is None
    write_version(table, 0, 10)
    with pytest.raises(CentralError, match="no table was published"):
        read(tmp_path / "t")


def test_the_published_version_is_read_and_not_a_newer_half_written_one(tmp_path):
    table = TableDirectory(tmp_path / "t")
    for number in range(3):
        write_version(table, number, number * 10)
    table.publish(manifest(1))
    assert read(tmp_path / "t").to_pylist() == [{"n": 10}]
    assert (tmp_path / "t" / "final").readlink() == Path("v=1/state")
    table.publish(manifest(2))
    assert read(tmp_path / "t").to_pylist() == [{"n": 20}]
    assert pq.read_table(tmp_path / "t" / "final", partitioning=None).to_pylist() == [{"n": 20}]


def test_the_view_is_shown_and_the_state_stays_readable(tmp_path):
    table = TableDirectory(tmp_path / "t")
    write_version(table, 4, 1)
    write_version(table, 4, 2, "final")
    table.publish(manifest(4, shown="final"))
    assert read(tmp_path / "t").to_pylist() == [{"n": 2}]
    assert read(tmp_path / "t", "state").to_pylist() == [{"n": 1}]


def test_old_versions_go_but_a_few_stay_for_readers(tmp_path):
    table = TableDirectory(tmp_path / "t")
    for number in range(12):
        write_version(table, number, number)
        table.publish(manifest(number))
        table.prune(manifest(number))
    assert sorted(p.name for p in (tmp_path / "t").glob("v=*")) == ["v=10", "v=11", "v=9"]


def test_appended_batches_count_up_to_the_published_one(tmp_path):
    table = TableDirectory(tmp_path / "t")
    for number in (0, 2, 10, 11):
        table.batch(number).mkdir(parents=True)
        pq.write_table(pa.table({"n": [number]}), table.batch(number) / "part-0.parquet")
    table.publish(manifest(10, mode="append", shown="batch"))
    assert read(tmp_path / "t")["n"].to_pylist() == [0, 2, 10]


def test_a_damaged_manifest_is_named(tmp_path):
    (tmp_path / "_current").write_text('{"version": 1')
    with pytest.raises(CentralError, match="_current: not a table's manifest"):
        TableDirectory(tmp_path).current()
