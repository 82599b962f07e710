"""The `file` source against real files, a real Staging, and DuckDB's own reading of them."""

from __future__ import annotations

import datetime
import select

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from edged.data.columns import Batch
from edged.data.schema import FLOAT64, INT32, STRING, TIMESTAMP, Field, Schema
from edged.data.staging import Staging
from edged.errors import ConfigError, JobError
from edged.job.plan import StreamPlan
from edged.platform.clock import boot_us
from edged.sources.file import FileSourcePlan
from edged.sources.reading import Reader, find_files

SCADA = "tests/data/scada_source_order.parquet"
POWER = Schema.of(
    [
        Field("turbine", STRING),
        Field("time", TIMESTAMP),
        Field("power_kw", FLOAT64, True),
        Field("pitch_deg", FLOAT64, True),
    ]
)
RENAMED = {"power_kw": "P_avg", "pitch_deg": "Ba_avg"}
SMALL = Schema.of([Field("k", INT32, True), Field("t", TIMESTAMP), Field("s", STRING)])
WALL_US = 1_800_000_000_000_000
SECOND = 1_000_000


def stream(schema, time="time", name="power"):
    return StreamPlan(name, schema, time, 0, 10 * SECOND, 3600 * SECOND, "drop", None)


def plan(schema=POWER, time="time", **document):
    return FileSourcePlan.parse("streams.power.source", document, stream(schema, time))


def staging(p, bytes_max=64 << 20):
    return Staging("power", p.schema, p.time, bytes_max, 3600 * SECOND)


def drain(p, into, ingests=10_000):
    """All rows that a source stages, consumed as a beat would, as one Arrow table."""
    source = p.build({"power": into}, {"power": p})
    source.start()
    parts = []
    for _ in range(ingests):
        source.ingest(1, WALL_US)
        parts.append(into.pending().to_arrow())
        into.consume(len(into.chunks()), into.rows)
        into.mark_logged()
        if source.finished():
            break
    source.close()
    return pa.Table.from_batches(parts)


def table(rows, **columns):
    return pa.table(
        {
            "k": pa.array([i % 7 for i in range(rows)], pa.int32()),
            "t": pa.array(range(rows), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "s": pa.array([f"s{i}" for i in range(rows)]),
            **columns,
        }
    )


def test_a_parquet_file_is_staged_row_for_row_in_file_order():
    p = plan(path=SCADA, columns=RENAMED)
    into = staging(p, 8 << 20)
    got = drain(p, into)
    want = duckdb.sql(
        f"select turbine, time, P_avg as power_kw, Ba_avg as pitch_deg from '{SCADA}'"
    ).to_arrow_table()
    assert got.num_rows == 420_480
    assert got.equals(want.cast(got.schema))
    number = into.producers.number(f"file:{SCADA}")
    assert into.producers.seq[number] == 420_480
    assert into.producers.ended[number] == 1


def test_csv_and_ndjson_say_what_parquet_says(tmp_path):
    rows = table(1000)
    pq.write_table(rows, tmp_path / "a.parquet")
    pa.csv.write_csv(rows, tmp_path / "a.csv")
    copy = f"copy (from '{tmp_path}/a.parquet') to '{tmp_path}/a.ndjson' (format json)"
    duckdb.sql(copy)
    for name in ("a.parquet", "a.csv", "a.ndjson"):
        p = plan(SMALL, "t", path=str(tmp_path / name))
        assert drain(p, staging(p)).to_pydict() == rows.to_pydict(), name


def test_a_replay_goes_on_with_the_row_after_the_last_committed_one(tmp_path):
    rows = table(5000)
    for i in range(5):
        part = rows.slice(i * 1000, 1000)
        pq.write_table(part, tmp_path / f"{i}.parquet", row_group_size=300)
        pa.csv.write_csv(part, tmp_path / f"{i}.csv")
    for glob in ("*.parquet", "*.csv"):
        for done in (0, 1, 299, 300, 999, 1000, 1001, 2345, 4999, 5000):
            p = plan(SMALL, "t", path=str(tmp_path / glob))
            into = staging(p)
            number = into.producers.number(p.producer)
            into.producers.seq[number] = done
            got = drain(p, into)
            assert got.column("s").to_pylist() == [f"s{i}" for i in range(done, 5000)]
            assert into.producers.seq[number] == 5000


def test_a_replay_that_had_ended_stages_nothing_again(tmp_path):
    pq.write_table(table(10), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"))
    into = staging(p)
    number = into.producers.number(p.producer)
    into.producers.seq[number], into.producers.ended[number] = 10, 1
    assert drain(p, into).num_rows == 0 and into.producers.ended[number] == 1


def test_staging_that_is_full_stops_the_replay_and_is_told_by_more(tmp_path):
    pq.write_table(table(50_000), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"))
    into = staging(p, 1 << 16)
    source = p.build({"power": into}, {"power": p})
    source.start()
    source.ingest(1, WALL_US)
    assert source.more()
    assert not source.finished()
    assert 0 < into.live_bytes() < 1 << 16
    before = into.rows
    source.ingest(2, WALL_US)
    assert into.rows == before
    source.close()
    assert drain(p, staging(p, 1 << 16)).num_rows == 50_000


def test_an_empty_file_ends_at_once(tmp_path):
    pq.write_table(table(0), tmp_path / "a.parquet")
    (tmp_path / "a.ndjson").write_text("\n\n")
    (tmp_path / "a.csv").write_text("k,t,s\n")
    for name in ("a.parquet", "a.ndjson", "a.csv"):
        p = plan(SMALL, "t", path=str(tmp_path / name))
        into = staging(p)
        assert drain(p, into, ingests=1).num_rows == 0
        assert into.producers.ended[1] == 1


def test_a_paced_replay_stages_rows_when_they_are_due(tmp_path):
    pq.write_table(table(100, t=_seconds(range(100))), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"), pace="60x")
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    start = 5_000_000
    seen = []
    for passed in (0, 1_000_000 // 60, 1_000_000 // 60 + 1, 500_000, 1_000_000, 2_000_000):
        source.ingest(start + passed, WALL_US)
        seen.append(into.rows)
    assert seen == [1, 1, 2, 31, 61, 100]
    assert source.finished()
    source.close()


def test_a_row_behind_the_largest_time_so_far_waits_for_the_row_before_it(tmp_path):
    pq.write_table(table(4, t=_seconds([10, 30, 5, 40])), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"), pace="real_time")
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    seen = []
    for second in (0, 19, 20, 29, 30):
        source.ingest(second * SECOND, WALL_US)
        seen.append(into.rows)
    assert seen == [1, 1, 3, 3, 4]
    source.close()


def test_streams_of_one_pace_share_their_clock(tmp_path):
    pq.write_table(table(2, t=_seconds([100, 110])), tmp_path / "a.parquet")
    pq.write_table(table(2, t=_seconds([103, 104])), tmp_path / "b.parquet")
    plans = {
        name: plan(SMALL, "t", path=str(tmp_path / f"{name}.parquet"), pace=1) for name in "ab"
    }
    assert plans["a"].share_key() == plans["b"].share_key()
    into = {name: staging(p) for name, p in plans.items()}
    source = plans["a"].build(into, plans)
    source.start()
    seen = []
    for second in (0, 2, 3, 4, 10):
        source.ingest(second * SECOND, WALL_US)
        seen.append((into["a"].rows, into["b"].rows))
    assert seen == [(1, 0), (1, 0), (1, 1), (1, 2), (2, 2)]
    source.close()


def test_a_replay_whose_next_row_is_not_due_yet_is_not_silent(tmp_path):
    pq.write_table(table(2, t=_seconds([100, 110])), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"), pace=1)
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    for second in (1, 4, 7):
        source.ingest(second * SECOND, WALL_US)
        assert into.rows == 1
        assert into.producers.seen_us[into.producers.number(p.producer)] == second * SECOND
    source.close()


def test_the_descriptor_is_readable_when_a_row_is_due_and_silent_at_the_end(tmp_path):
    pq.write_table(table(2, t=_seconds([0, 1])), tmp_path / "a.parquet")
    p = plan(SMALL, "t", path=str(tmp_path / "a.parquet"), pace="20x")
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    assert _readable(source, 1.0)
    source.ingest(boot_us(), WALL_US)
    assert into.rows == 1
    assert not _readable(source, 0.0)
    assert _readable(source, 1.0)
    source.ingest(boot_us(), WALL_US)
    assert into.rows == 2
    assert source.finished()
    assert not _readable(source, 0.1)
    source.close()


@pytest.mark.parametrize(
    "text", ["2020-01-01T00:00:00.5Z", "2020-01-01 01:00:00.5+01:00", "2020-01-01 00:00:00.5",
             "1577836800500000"],
)  # fmt: skip
def test_times_in_csv_are_iso_8601_or_microseconds(tmp_path, text):
    (tmp_path / "a.csv").write_text(f"t,s,k\n{text},x,1\n")
    p = plan(SMALL, "t", path=str(tmp_path / "a.csv"))
    utc = datetime.timezone.utc
    want = datetime.datetime(2020, 1, 1, 0, 0, 0, 500_000, utc)
    assert drain(p, staging(p)).column("t").to_pylist() == [want]


def test_an_empty_csv_field_is_a_null_and_in_text_that_is_not_nullable_empty(tmp_path):
    (tmp_path / "a.csv").write_text('t,s,k\n0,,\n1,"a\nb",2\n2,NA,3\n')
    p = plan(SMALL, "t", path=str(tmp_path / "a.csv"))
    got = drain(p, staging(p)).to_pydict()
    assert got["s"] == ["", "a\nb", "NA"]
    assert got["k"] == [None, 2, 3]


def test_compressed_text_is_read_like_plain_text(tmp_path):
    for name in ("a.csv.gz", "a.ndjson.gz"):
        body = b"t,s,k\n0,x,1\n" if "csv" in name else b'{"t":"1970-01-01T00:00:00Z","s":"x"}\n'
        with pa.CompressedOutputStream(str(tmp_path / name), "gzip") as out:
            out.write(body)
        p = plan(SMALL, "t", path=str(tmp_path / name))
        assert drain(p, staging(p)).column("s").to_pylist() == ["x"]


def test_long_ndjson_is_cut_into_blocks_at_line_ends(tmp_path):
    line = '{"t": "1970-01-01T00:00:00Z", "s": "%s", "k": %d}\n'
    with open(tmp_path / "a.ndjson", "w") as out:
        out.writelines(line % ("x" * 200, i) for i in range(40_000))
    p = plan(SMALL, "t", path=str(tmp_path / "a.ndjson"))
    assert drain(p, staging(p)).column("k").to_pylist() == list(range(40_000))


def test_what_a_file_cannot_be_read_as_names_the_file_and_the_rows(tmp_path):
    pq.write_table(table(3, k=pa.array([1, 2, 2**40])), tmp_path / "big.parquet")
    pq.write_table(table(2, s=pa.array(["a", None])), tmp_path / "null.parquet")
    pq.write_table(table(2).drop_columns(["s"]), tmp_path / "lacks.parquet")
    (tmp_path / "broken.ndjson").write_text('{"t": "1970\n')
    (tmp_path / "torn.parquet").write_bytes(b"PAR1nonsense")
    (tmp_path / "words.csv").write_text("t,s,k\nsoon,x,1\n")
    (tmp_path / "what.dat").write_text("")
    for name, words in {
        "big.parquet": "rows 1 to 3",
        "null.parquet": "s holds nulls",
        "lacks.parquet": "no column s",
        "broken.ndjson": "JSON",
        "torn.parquet": "torn.parquet",
        "words.csv": "soon",
        "what.dat": "set format",
        "none.parquet": "no such file",
    }.items():
        p = plan(SMALL, "t", path=str(tmp_path / name))
        text = said(p)
        assert name in text and words in text


def said(p):
    """What is said of files that cannot be read, at the start or later."""
    into, refused = staging(p), []
    source = p.build({"power": into}, {"power": p})
    source.on_refused = lambda reason, text: refused.append(text)
    try:
        source.start()
    except ConfigError as problem:
        return str(problem)
    for _ in range(3):
        source.ingest(1, WALL_US)
    assert not into.rows and not into.producers.ended[1], "it is not at its end"
    assert source.counters()["refused_unreadable"] == 1
    source.close()
    [text] = refused
    return text


def test_rows_before_those_that_cannot_be_read_are_staged(tmp_path):
    pq.write_table(table(70_000), tmp_path / "a.parquet")
    pq.write_table(table(2, s=pa.array(["a", None])), tmp_path / "b.parquet")
    p = plan(SMALL, "t", path=str(tmp_path))
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    source.ingest(1, WALL_US)
    assert into.rows == into.producers.seq[1] == 70_000 and not into.producers.ended[1]
    source.close()


@pytest.mark.parametrize("pace", [1e-9, 1e9])
def test_rows_that_are_an_age_apart_overflow_no_timer(tmp_path, pace):
    far = pa.array([-(2**62), 2**62]).cast(pa.timestamp("us", tz="UTC"))
    pq.write_table(table(2, t=far), tmp_path / "far.parquet")
    p = plan(SMALL, "t", path=str(tmp_path), pace=pace)
    into = staging(p)
    source = p.build({"power": into}, {"power": p})
    source.start()
    source.ingest(1, WALL_US)
    source.ingest(10**14, WALL_US)
    assert into.rows == 1
    source.close()


def test_directories_are_read_in_the_order_of_names_without_hidden_files(tmp_path):
    for name in ("b.csv", "a.csv", ".c.csv", "_d.csv"):
        (tmp_path / name).write_text("t,s,k\n")
    assert find_files(str(tmp_path)) == [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    for relative in ("b.csv", "[b].csv", "./b.csv"):
        assert find_files(relative, tmp_path) == [str(tmp_path / "b.csv")]
    with pytest.raises(ConfigError, match=f"{tmp_path}/c.csv: no such file"):
        find_files("c.csv", tmp_path)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({}, "path: is missing"),
        ({"path": "a", "pace": "fast"}, "pace"),
        ({"path": "a", "pace": 0}, "pace"),
        ({"path": "a", "pace": True}, "pace"),
        ({"path": "a", "pace": "x"}, "pace"),
        ({"path": "a", "pace": "nanx"}, "pace"),
        ({"path": "a", "format": "avro"}, "format"),
        ({"path": "a", "columns": {"powr_kw": "P"}}, "columns.powr_kw.*did you mean power_kw"),
        ({"path": "a", "columns": {"power_kw": 3}}, "columns.power_kw"),
    ],
)
def test_a_faulty_source_table_is_refused_at_its_path(document, where):
    with pytest.raises(JobError, match=f"streams.power.source.{where}"):
        plan(**document)


def test_a_reader_gives_what_is_asked_for_whatever_is_skipped(tmp_path):
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=64)
    reader = Reader([str(tmp_path / "a.parquet")], SMALL)
    for skip in range(0, 1001, 37):
        rows = [b.columns[1].values for b in reader.batches(skip)]
        times = np.concatenate([*rows, np.empty(0, np.int64)])
        assert times.tolist() == list(range(skip, 1000))
        assert all(isinstance(b, Batch) for b in reader.batches(skip))


def _seconds(values):
    return pa.array([v * SECOND for v in values], pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def _readable(source, timeout):
    return bool(select.select([source.fileno()], [], [], timeout)[0])
