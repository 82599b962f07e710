"""Structs arrive as columns `a.b`: over TCP and HTTP, from files, and in operators."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest.decode import ARROW, decode
from edged.data.flow import Link
from edged.data.nested import flat_schema, flattened, nested_schema
from edged.data.schema import FLOAT64, INT16, INT32, TIMESTAMP, Field, Schema
from edged.data.schema_document import columns
from edged.errors import ExpressionError, JobError, ProtocolError
from edged.operators.interval_join import IntervalJoinPlan
from edged.operators.map import MapPlan
from edged.operators.window import WindowPlan
from edged.sources._tcp_greeting import read_greeting
from edged.sources.reading import Reader
from tests.sources.tcp_rig import NOW_US, Rig, dial, messages
from tests.whole import examples

DOCUMENT = {
    "time": "timestamp",
    "key": "int32",
    "pos": {"lat": "float64?", "fix": {"quality": "int16?", "age": "float64?"}},
}
SCHEMA = Schema.of(
    [
        Field("time", TIMESTAMP), Field("key", INT32), Field("pos.lat", FLOAT64, True),
        Field("pos.fix.quality", INT16, True), Field("pos.fix.age", FLOAT64, True),
    ]
)  # fmt: skip
WIRE = pa.schema(
    [
        pa.field("pos", pa.struct([
            pa.field("fix", pa.struct({"age": pa.float64(), "quality": pa.int16()})),
            pa.field("lat", pa.float64()),
        ])),
        pa.field("key", pa.int32()), pa.field("time", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
FIX = st.none() | st.fixed_dictionaries(
    {"age": st.none() | st.floats(-9, 9), "quality": st.none() | st.integers(0, 9)}
)
POS = st.none() | st.fixed_dictionaries({"fix": FIX, "lat": st.none() | st.floats(-90, 90)})


def batch(positions):
    rows = [{"pos": p, "key": i, "time": NOW_US + i} for i, p in enumerate(positions)]
    return pa.RecordBatch.from_pylist(rows, WIRE)


def flat(positions):
    """The same rows as the stream has them."""
    found = []
    for i, pos in enumerate(positions):
        fix = (pos or {}).get("fix") or {}
        found.append((i, (pos or {}).get("lat"), fix.get("quality"), fix.get("age")))
    return found


def listed(rows):
    return [tuple(row[n] for n in SCHEMA.names[1:]) for row in rows.to_pylist()]


def test_a_document_names_structs_as_tables_or_by_their_paths():
    assert columns("s", {"columns": DOCUMENT}) == SCHEMA
    plain = {"time": "timestamp", "pos.lat": "float64?"}
    assert columns("s", {"columns": plain}).names == ("time", "pos.lat")


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"pos": {}}, "s.columns.pos"), ({"pos": {"lat": "float"}}, "s.columns.pos.lat"),
        ({"pos": {"l-t": "float64"}}, "s.columns.pos.l-t"), ({"pos.": "int8"}, "s.columns.pos."),
        ({"pos": {"Lat": "int8"}, "POS.lat": "int8"}, "s.columns.POS.lat"),
    ],
)  # fmt: skip
def test_a_wrong_struct_is_refused_at_its_path(given, path):
    with pytest.raises(JobError) as caught:
        columns("s", {"columns": given})
    assert caught.value.path == path


def test_a_struct_of_a_document_is_not_deeper_than_eight():
    given = {"a": "int8"}
    for _ in range(9):
        given = {"a": given}
    with pytest.raises(JobError, match="nested deeper than 8"):
        columns("s", {"columns": given})


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(POS, max_size=9), st.integers(0, 3))
def test_leaves_of_null_structs_are_null(positions, skip):
    rows = flattened(batch(positions).slice(skip))
    assert rows.schema.names == flat_schema(WIRE).names
    assert listed(rows) == flat(positions)[skip:]
    leaves = [(f.name, f.type) for f in flat_schema(WIRE)]
    assert flat_schema(nested_schema(leaves)).names == [name for name, _ in leaves]


POSITIONS = [
    {"fix": {"age": 1.5, "quality": 3}, "lat": 50.25}, None, {"fix": None, "lat": -1.0},
    {"fix": {"age": None, "quality": 7}, "lat": None},
]  # fmt: skip


def test_structs_come_in_over_tcp_beside_plain_columns():
    greeting = WIRE.with_metadata({"edged.stream": "s"})
    with Rig(schema=SCHEMA) as rig, dial(rig) as peer:
        peer.sendall(messages([batch(POSITIONS)] * 3, greeting))
        rig.until(lambda: len(rig.all_keys()) == 12)
        taken = pa.Table.from_batches(rig.taken["s"])
    assert listed(taken) == flat(POSITIONS) * 3


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(pa.list_(pa.int8()), "is no struct"), (None, "structs are nested deeper than 8")],
)
def test_other_nested_columns_are_refused_in_a_greeting(kind, problem):
    if kind is None:
        kind = pa.int8()
        for _ in range(10):
            kind = pa.struct({"a": kind})
    schema = pa.schema([pa.field("deep", kind)], {"edged.stream": "s"})
    with pytest.raises(ProtocolError, match=problem):
        read_greeting(schema.serialize().to_pybytes(), None)


def test_structs_are_read_from_parquet_and_ndjson(tmp_path):
    whole = pa.Table.from_batches([batch(POSITIONS)])
    pq.write_table(whole, tmp_path / "a.parquet")
    lines = [json.dumps({**row, "time": row["time"].isoformat()}) for row in whole.to_pylist()]
    (tmp_path / "b.ndjson").write_text("\n".join(lines) + "\n")
    for name in ("a.parquet", "b.ndjson"):
        reader = Reader([str(tmp_path / name)], SCHEMA)
        reader.check()
        found = pa.Table.from_batches([b.to_arrow() for b in reader.batches()])
        assert listed(found) == flat(POSITIONS)


def test_structs_come_in_over_http_as_arrow():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, WIRE) as writer:
        writer.write_batch(batch(POSITIONS))
    found = decode(sink.getvalue().to_pybytes(), ARROW, SCHEMA.to_arrow())
    assert listed(found) == flat(POSITIONS)


def test_operators_take_leaves_by_their_paths():
    link = Link(SCHEMA, "time")
    sql = {"time": "time", "a": "pos.lat * 2", "b": 'POS.fix."quality"', "c": '"pos.fix.age"'}
    made = MapPlan.parse("o.m", "m", {"columns": sql}, [link])
    assert [f.dtype.name for f in made.output.schema] == [
        "timestamp",
        "float64",
        "int16",
        "float64",
    ]
    for wrong in ("pos", "pos.lon", "pos.lat.more"):
        with pytest.raises(ExpressionError, match=r"is not (there|a column)"):
            MapPlan.parse("o.m", "m", {"columns": {"time": "time", "a": wrong}}, [link])
    calls = {"a": "mean(pos.lat)", "b": "regr_slope(pos.fix.age, time)"}
    document = {"keys": ["pos.fix.quality"], "size": "1s", "aggregates": calls}
    made = WindowPlan.parse("o.w", "w", document, [link])
    assert made.output.schema.names[0] == "pos.fix.quality"
    document = {"on": ["key"], "columns": {"time": "left.time", "lat": "right.pos.lat"}}
    made = IntervalJoinPlan.parse("o.j", "j", document, [link, link])
    assert made.output.schema.names == ("time", "lat")
