"""`edged export` and `edged.read_landing` against rows that were made without any page."""

import json
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import edged
from edged.data.schema import Schema
from edged.errors import CentralError, ConfigError, PageError
from tests.spark.landings import READINGS, Landing, readings, readings_table, slotted_page

DOC = Path(__file__).parents[2] / "docs/export.md"
DAY_US = 86_400_000_000
MIXED = Schema.from_json(
    '[{"name":"b","type":"bool"},{"name":"i","type":"int64"},{"name":"u","type":"uint64"},'
    '{"name":"f","type":"float64"},{"name":"t","type":"timestamp"},'
    '{"name":"s","type":"string","nullable":true},{"name":"x","type":"binary","nullable":true}]'
)
MIXED_ROWS = [
    (1, 2**63 - 1, 2**64 - 1, 1.5, 0, 'a,"b"\n\\', b"\x00\xff"),
    (0, -(2**63), 0, -0.0, 1_700_000_000_123_456, "é", None),
    (0, 0, 7, float("inf"), -1, None, b"\x10"),
]


@pytest.fixture
def landing(tmp_path):
    """Two devices, two segments: pages 1 to 3 of dev-7, page 9 of another."""
    place = Landing(tmp_path / "build/up/landing")
    place.register("curve", READINGS)
    place.land([readings(1, device="dev-7"), readings(9, device="other", first_time_us=DAY_US)])
    place.land([readings(2, device="dev-7"), readings(3, device="dev-7")], "seg-b-00000001")
    yield place
    place.close()


def whole(landing):
    """All rows in landing order."""
    parts = [readings_table([1]), readings_table([9], first_time_us=DAY_US), readings_table([2, 3])]
    return pa.concat_tables(parts)


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "edged", "export", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=cwd)


class TestReading:
    def test_all_rows_come_once_in_landing_order_with_the_jobs_types(self, landing):
        reader = edged.read_landing(landing.path, "curve")
        assert reader.schema == READINGS.to_arrow()
        assert reader.read_all().equals(whole(landing).cast(READINGS.to_arrow()))

    def test_unsigned_integers_stay_unsigned_and_extremes_arrive(self, tmp_path):
        place = Landing(tmp_path)
        place.register("mixed", MIXED)
        place.land([slotted_page(MIXED, MIXED_ROWS, stream="mixed", seq=1)])
        found = edged.read_landing(tmp_path, "mixed@1", metadata=True).read_all()
        assert found.schema.field("u").type == found.schema.field("_seq").type == pa.uint64()
        columns = [found.column(name).to_pylist() for name in ("b", "i", "u", "f", "s", "x")]
        assert list(zip(*columns, strict=True)) == [row[:4] + row[5:] for row in MIXED_ROWS]
        assert found.column("t").cast("int64").to_pylist() == [row[4] for row in MIXED_ROWS]
        place.close()

    def test_devices_are_those_named(self, landing):
        found = edged.read_landing(landing.path, "curve", devices=["dev-7"], metadata=True)
        rows = found.read_all()
        assert set(rows.column("_device").to_pylist()) == {"dev-7"}
        assert rows.select(READINGS.names).equals(
            readings_table([1, 2, 3]).cast(READINGS.to_arrow())
        )
        assert edged.read_landing(landing.path, "curve", devices=["none"]).read_all().num_rows == 0

    @pytest.mark.parametrize("since", [None, 0, 1, 500_000, 999_000, DAY_US])
    @pytest.mark.parametrize("until", [None, 0, 1, 500_001, DAY_US + 1])
    def test_a_time_range_includes_its_start_and_excludes_its_end(self, landing, since, until):
        def at(us):
            return None if us is None else datetime.fromtimestamp(us / 1e6, timezone.utc)

        found = edged.read_landing(
            landing.path, "curve", columns=["key"], since=at(since), until=at(until)
        )
        every = whole(landing)
        times = every.column("time").cast("int64").to_numpy()
        low, high = -1 if since is None else since, 2**62 if until is None else until
        expected = every.column("key").to_numpy()[(times >= low) & (times < high)]
        assert np.array_equal(found.read_all().column("key").to_numpy(), expected)

    def test_what_lands_later_is_not_in_it(self, landing):
        reader = edged.read_landing(landing.path, "curve")
        landing.land([readings(4)], "seg-c-00000001")
        assert reader.read_all().num_rows == 4000

    def test_a_damaged_page_is_left_out_or_raises(self, landing):
        landing.damage("seg-b-00000001", 0)
        assert edged.read_landing(landing.path, "curve").read_all().num_rows == 3000
        with pytest.raises(PageError):
            edged.read_landing(landing.path, "curve", corrupt="fail").read_all()
        assert not (landing.path / "corrupt").exists()

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            ({"stream": "wind"}, CentralError, "not registered"),
            ({"columns": ["volts"]}, ConfigError, "no column 'volts'"),
            ({"since": "yesterday"}, ConfigError, "is not a time"),
            ({"time": "key", "since": "2026-01-01"}, ConfigError, "name the time column"),
            ({"time": "time"}, ConfigError, "needs since or until"),
            ({"corrupt": "maybe"}, ConfigError, "neither skip nor fail"),
        ],
    )
    def test_wrong_arguments_are_named(self, landing, arguments, error, text):
        with pytest.raises(error, match=text):
            edged.read_landing(landing.path, **{"stream": "curve", **arguments})

    def test_a_directory_without_segments_is_no_landing(self, tmp_path):
        with pytest.raises(ConfigError, match="is not a landing"):
            edged.read_landing(tmp_path, "curve")


class TestFiles:
    @pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson", "arrow"])
    def test_duckdb_reads_the_same_rows_from_each_format(self, landing, tmp_path, kind):
        out = tmp_path / f"curve.{kind}"
        done = run(landing.path, out, "--stream", "curve@1", "--json")
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert (facts["rows"], facts["corrupt_pages"]) == (4000, 0)
        assert facts["bytes"] == out.stat().st_size
        ours = pa.ipc.open_file(out).read_all() if kind == "arrow" else None  # noqa: F841 - below
        source = {"arrow": "ours", "ndjson": f"read_json('{out}')"}.get(kind, f"'{out}'")
        expected = whole(landing)  # noqa: F841 - DuckDB reads it by name
        query = f"SELECT key::INT, epoch_us(time::TIMESTAMPTZ), power::DOUBLE FROM {source}"
        found = duckdb.sql(query).fetchall()
        assert found == duckdb.sql("SELECT key, epoch_us(time), power FROM expected").fetchall()

    def test_every_type_survives_csv_and_ndjson(self, tmp_path):
        place = Landing(tmp_path / "landing")
        place.register("mixed", MIXED)
        place.land([slotted_page(MIXED, MIXED_ROWS, stream="mixed", seq=1)])
        for kind, read in (("csv", "read_csv"), ("ndjson", "read_json")):
            done = run(place.path, tmp_path / "out", "--format", kind)
            assert done.returncode == 0, done.stderr
            found = duckdb.sql(
                "SELECT i::BIGINT, u::UBIGINT, f::DOUBLE, epoch_us(t::TIMESTAMPTZ), s, x::VARCHAR"
                f" FROM {read}('{tmp_path}/out/mixed@1.{kind}')"
            ).fetchall()
            assert found == [
                (i, u, f, t, s, None if x is None else x.hex())
                for _, i, u, f, t, s, x in MIXED_ROWS
            ]
        place.close()

    def test_damage_is_counted_and_the_rest_written(self, landing, tmp_path):
        landing.damage("seg-b-00000001", 0)
        done = run(landing.path, tmp_path / "c.parquet")
        assert done.returncode == PageError.exit_code
        assert b"1 damaged pages left out" in done.stderr
        assert pq.read_metadata(tmp_path / "c.parquet").num_rows == 3000

    def test_an_older_file_stays_until_the_new_one_is_whole(self, landing, tmp_path):
        out = tmp_path / "o/c.csv"
        out.parent.mkdir()
        out.write_text("old")
        page = landing.path / "segments/seg-b-00000001.pages"
        page.rename(page.with_suffix(".away"))
        assert run(landing.path, out).returncode == CentralError.exit_code
        assert out.read_text() == "old"
        assert [p.name for p in out.parent.iterdir()] == ["c.csv"]

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["c.parquet"], "one file takes one stream; choose with --stream: curve@1, wind@1"),
            (["-"], "one file takes one stream"),
            (["-", "--stream", "wind"], "give --format csv, ndjson or arrow"),
        ],
    )
    def test_an_output_that_does_not_fit_is_named(self, landing, tmp_path, arguments, text):
        landing.register("wind", READINGS)
        done = run(landing.path, *arguments, cwd=tmp_path)
        assert done.returncode == 78
        assert text in done.stderr.decode()


def test_the_commands_and_the_snippet_of_the_docs_run_as_printed(landing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.DOTALL)
    for line in block.splitlines():
        done = run(*shlex.split(line)[2:])
        assert done.returncode == 0, done.stderr
    assert pq.read_metadata("curve.parquet").num_rows == 4000
    names: dict = {}
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)
    exec(code, names)
    mine = readings_table([1, 2, 3])  # noqa: F841 - DuckDB reads it by name
    assert (
        names["means"]
        == duckdb.sql("SELECT key, avg(power) FROM mine GROUP BY 1 ORDER BY 1").fetchall()
    )
    assert names["frame"].height == 4000
