"""The file sink: DuckDB reads the files back, and a repeated beat writes the same file."""

from __future__ import annotations

import json
import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.ndjson import ndjson
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import JobError, StoreError
from edged.sinks.base import SINKS, Flush, SinkContext
from edged.sinks.file import FileSink, FileSinkPlan
from tests.whole import examples

SCHEMA = Schema.of(
    [
        Field("time", TYPES["timestamp"]),
        Field("n", TYPES["int64"]),
        Field("text", TYPES["string"], True),
        Field("x", TYPES["float64"], True),
        Field("ok", TYPES["bool"], True),
    ]
)
WORKERS = Workers(1)


def plan(**document) -> FileSinkPlan:
    return FileSinkPlan.parse(
        "sinks.copy", "copy", {"path": "out", **document}, Link(SCHEMA, "time")
    )


def build(tmp_path, **document) -> FileSink:
    return plan(**document).build(SinkContext("d1", 0xABC, str(tmp_path), WORKERS, str(tmp_path)))


def flow(start: int, rows: int) -> Flow:
    n = list(range(start, start + rows))
    batch = pa.record_batch(
        {
            "time": pa.array([i * 1000 for i in n], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "n": n,
            "text": [None if i % 7 == 0 else f"é{i}\n" for i in n],
            "x": [None if i % 5 == 0 else i / 3 for i in n],
            "ok": pa.array([i % 2 == 0 for i in n], pa.bool_()),
        }
    )
    return Flow(Batch.from_arrow(batch, SCHEMA), 0)


def run(sink: FileSink, beat: int, rows: Flow, flush: bool = False, wall_us: int = 0) -> None:
    context = BeatContext(beat, wall_us, WORKERS)
    sink.write(context, rows)
    assert sink.seal(context, Flush.ALL if flush else Flush.PROMPT) == []


def names(tmp_path) -> list[str]:
    return sorted(p.name for p in (tmp_path / "out").iterdir())


def numbers(tmp_path) -> list[int]:
    query = f"SELECT n FROM read_parquet('{tmp_path}/out/*.parquet') ORDER BY n"
    return [row[0] for row in duckdb.sql(query).fetchall()]


def test_the_sink_is_registered():
    assert SINKS["file"] is FileSinkPlan


@pytest.mark.parametrize("kind", ["parquet", "ndjson"])
def test_duckdb_reads_back_what_was_written(tmp_path, kind):
    sink = build(tmp_path, format=kind)
    whole = flow(0, 300)
    for beat, start in enumerate(range(0, 300, 100), 1):
        run(sink, beat, Flow(whole.batch.slice(start, start + 100), 0), flush=beat > 1)
    wanted = pa.Table.from_batches([whole.batch.to_arrow()])
    reader = {
        "parquet": "read_parquet('{}/out/*')",
        "ndjson": "read_json('{}/out/*', columns = {{time: 'TIMESTAMPTZ', n: 'BIGINT', "
        "text: 'VARCHAR', x: 'DOUBLE', ok: 'BOOLEAN'}}, format = 'newline_delimited')",
    }[kind].format(tmp_path)
    query = "SELECT * REPLACE (epoch_us(time) AS time) FROM {} ORDER BY n"
    rows = duckdb.sql(query.format(reader)).fetchall()
    assert rows == duckdb.sql(query.format("wanted")).fetchall()
    assert len(names(tmp_path)) == 2
    assert sink.counters()["rows"] == len(wanted) == 300


def test_a_file_ends_with_the_beat_that_fills_it(tmp_path):
    sink = build(tmp_path, rows=250)
    for beat in range(1, 8):
        run(sink, beat, flow(beat * 100, 100))
    assert names(tmp_path) == [
        "part-copy-0000000000000abc-000000000001-000000000003.parquet",
        "part-copy-0000000000000abc-000000000004-000000000006.parquet",
    ]
    assert sink.open_rows() == 100
    assert numbers(tmp_path) == list(range(100, 700))


def test_a_relative_path_starts_at_the_root_for_files(tmp_path):
    sink = build(tmp_path / "here")
    assert sink.writes_to() == str(tmp_path / "here" / "out")
    absolute = build(tmp_path / "here", path=str(tmp_path / "there"))
    assert absolute.writes_to() == str(tmp_path / "there")


def test_a_restart_from_elsewhere_goes_on_in_the_same_directory(tmp_path):
    first = build(tmp_path / "a")
    run(first, 1, flow(0, 10), flush=True)
    again = build(tmp_path / "b")
    again.load(first.save())
    assert again.writes_to() == str(tmp_path / "a" / "out")
    moved = build(tmp_path / "b", path="new")  # a changed document
    moved.load(first.save())
    assert moved.writes_to() == str(tmp_path / "b" / "new")
    (tmp_path / "a").rename(tmp_path / "c")  # the whole project, with the working directory
    renamed = build(tmp_path / "c")
    renamed.load(first.save())
    assert renamed.writes_to() == str(tmp_path / "c" / "out")


def test_state_of_the_version_that_kept_files_in_the_store_still_finds_them(tmp_path):
    context = SinkContext("d1", 0xABC, str(tmp_path / "sinks" / "copy"), WORKERS, str(tmp_path))
    before = {k: v for k, v in build(tmp_path).save().items() if k != "place"}
    fresh = plan().build(context)
    fresh.load(before)
    assert fresh.writes_to() == str(tmp_path / "out")
    (tmp_path / "sinks" / "copy" / "out").mkdir(parents=True)
    kept = plan().build(context)
    kept.load(before)
    assert kept.writes_to() == str(tmp_path / "sinks" / "copy" / "out")
    later = plan().build(context)
    later.load(kept.save())
    assert later.writes_to() == kept.writes_to()


def test_bytes_and_age_finish_a_file_too_also_when_the_clock_steps_back(tmp_path):
    sink = build(tmp_path, bytes="1KiB")
    run(sink, 1, flow(0, 100))
    assert len(names(tmp_path)) == 1

    sink = build(tmp_path, every="1min")
    run(sink, 2, flow(100, 1), wall_us=10_000_000)
    run(sink, 3, flow(101, 1), wall_us=69_999_999)
    assert len(names(tmp_path)) == 1
    run(sink, 4, flow(102, 0), wall_us=70_000_000)
    assert len(names(tmp_path)) == 2
    run(sink, 5, flow(103, 1), wall_us=500_000_000)
    run(sink, 6, flow(104, 1), wall_us=3_000_000)
    assert len(names(tmp_path)) == 3


def test_beats_without_rows_make_no_files(tmp_path):
    sink = build(tmp_path)
    for beat in range(1, 4):
        run(sink, beat, flow(0, 0), flush=True)
    assert names(tmp_path) == []


def test_a_replay_of_the_same_beats_writes_the_same_bytes(tmp_path):
    lives = []
    for _ in range(2):
        sink = build(tmp_path, rows=150)
        for beat in range(1, 6):
            run(sink, beat, flow(beat * 100, 100), flush=beat == 5)
        lives.append({p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()})
    assert lives[0] == lives[1]
    assert len(lives[0]) == 3
    assert numbers(tmp_path) == list(range(100, 600))


def test_a_saved_sink_goes_on_with_its_open_rows(tmp_path):
    sink = build(tmp_path)
    run(sink, 1, flow(0, 10))
    run(sink, 2, flow(10, 10))
    state = sink.save()
    again = build(tmp_path)
    again.load(state)
    assert again.open_rows() == 20
    run(again, 3, flow(20, 5), flush=True)
    assert numbers(tmp_path) == list(range(25))
    (name,) = names(tmp_path)
    assert "-000000000001-000000000003." in name


def test_an_empty_sink_can_be_saved(tmp_path):
    state = build(tmp_path).save()
    sink = build(tmp_path)
    sink.load(state)
    assert sink.open_rows() == 0
    assert all(isinstance(a, np.ndarray) and a.flags.writeable for a in state.values())


@pytest.mark.parametrize("first_beat_after", [4, 6])
def test_a_file_of_a_beat_that_was_never_committed_does_not_double_its_rows(
    tmp_path, first_beat_after
):
    sink = build(tmp_path)
    run(sink, 1, flow(0, 10), flush=True)
    run(sink, 2, flow(10, 10))
    run(sink, 3, flow(20, 0))
    state = sink.save()
    run(sink, 4, flow(20, 10), flush=True)
    assert numbers(tmp_path) == list(range(30))

    again = build(tmp_path)
    again.load(state)
    run(again, first_beat_after, flow(20, 3))
    assert numbers(tmp_path) == list(range(10))
    run(again, 7, flow(23, 20), flush=True)
    assert numbers(tmp_path) == list(range(43))


def test_a_sink_that_starts_without_state_leaves_older_files_alone(tmp_path):
    run(build(tmp_path), 1, flow(0, 10), flush=True)
    other = tmp_path / "out" / "part-copy-0000000000000def-000000000009-000000000009.parquet"
    other.write_bytes((tmp_path / "out" / names(tmp_path)[0]).read_bytes())
    run(build(tmp_path), 5, flow(100, 10), flush=True)
    assert len(names(tmp_path)) == 3


def test_half_written_files_have_another_ending_and_go_away(tmp_path):
    sink = build(tmp_path)
    run(sink, 1, flow(0, 10), flush=True)
    (tmp_path / "out" / (names(tmp_path)[0].replace("1.parquet", "2.parquet") + ".tmp")).touch()
    again = build(tmp_path)
    again.load(sink.save())
    run(again, 2, flow(10, 1), flush=True)
    assert not [n for n in names(tmp_path) if n.endswith(".tmp")]
    assert numbers(tmp_path) == list(range(11))


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(StoreError, match=r"sinks\.copy: writing to .*/out failed"):
        run(build(tmp_path), 1, flow(0, 1), flush=True)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"path": "../elsewhere"}, "sinks.copy.path"),
        ({"path": 3}, "sinks.copy.path"),
        ({"format": "csv"}, "sinks.copy.format"),
        ({"rows": 0}, "sinks.copy.rows"),
        ({"bytes": "lots"}, "sinks.copy.bytes"),
        ({"every": "0s"}, "sinks.copy.every"),
    ],
)
def test_a_wrong_document_is_refused_with_the_path_to_the_fault(document, path):
    with pytest.raises(JobError) as refused:
        plan(**document)
    assert refused.value.path == path


def test_the_plan_describes_itself_and_its_state_depends_on_the_schema_alone():
    assert plan(every="1min").describe() == [
        "parquet files in out",
        "a new file every 1min, 1000000 rows or 64MiB",
    ]
    assert plan(rows=5, path="/data").signature() == plan().signature()


TEXT = st.text(max_size=8)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "s": st.none() | TEXT,
            "b": st.none() | st.binary(max_size=8),
            "f": st.none() | FLOATS,
            "h": st.none() | st.floats(width=32),
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "u": st.none() | st.integers(0, 2**64 - 1),
            "o": st.none() | st.booleans(),
        }
    ),
    max_size=6,
)
KINDS = pa.schema(
    {
        "s": pa.string(), "b": pa.binary(), "f": pa.float64(), "h": pa.float32(),
        "i": pa.int64(), "u": pa.uint64(), "o": pa.bool_(),
    }
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(rows=ROWS, skip=st.integers(0, 2))
def test_every_line_of_ndjson_is_the_row_that_python_would_write(rows, skip):
    table = pa.Table.from_pylist(rows, KINDS).slice(skip)
    text = b"".join(ndjson(table)).decode()
    lines = text.split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [expected(r) for r in rows[skip:]]


def expected(row: dict) -> dict:
    spelled = {"b": None if row["b"] is None else row["b"].hex()}
    for name in ("f", "h"):
        x = row[name]
        if x is not None and math.isnan(x):
            spelled[name] = "NaN"
        elif x is not None and math.isinf(x):
            spelled[name] = "Infinity" if x > 0 else "-Infinity"
        elif x is not None and name == "h":
            spelled[name] = pytest.approx(x, rel=1e-7, abs=1e-45)
    return {**row, **spelled}
