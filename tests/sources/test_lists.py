"""Lists of a fixed length: in over TCP, HTTP and from files, through operators, out in pages."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest.decode import ARROW, decode
from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MIN_US, Flow, Link
from edged.data.gather import take
from edged.data.ndjson import ndjson
from edged.data.schema import Field, Schema, type_named
from edged.data.schema_document import columns
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import ExpressionError, JobError, PageError
from edged.operators.filter import FilterPlan
from edged.operators.map import MapPlan
from edged.operators.window import WindowPlan
from edged.pages.read import read_page
from edged.sinks.edge import EdgePlan
from edged.sources.reading import Reader
from tests.pages import shapes
from tests.sources.tcp_rig import NOW_US, Rig, dial, messages
from tests.whole import examples

ONE = Workers(1)
DOCUMENT = {
    "time": "timestamp", "key": "int32", "spec": "float32[5]?", "burst": "int16[3]",
    "w": "float64[2]?",
}  # fmt: skip
SCHEMA = columns("s", {"columns": DOCUMENT})
FLOATS = st.floats(width=32)


def arrow(rows):
    """(key, spec, burst, w) as an Arrow batch."""
    return pa.RecordBatch.from_pylist(
        [
            {"time": NOW_US + k, "key": k, "spec": spec, "burst": burst, "w": w}
            for k, spec, burst, w in rows
        ],
        SCHEMA.to_arrow(),
    )


def listed(batch):
    return [[r[n] for n in SCHEMA.names[1:]] for r in batch.to_pylist()]


ROWS = st.lists(
    st.tuples(
        st.integers(0, 9), st.none() | st.lists(FLOATS, min_size=5, max_size=5),
        st.lists(st.integers(-(2**15), 2**15 - 1), min_size=3, max_size=3),
        st.none() | st.lists(st.floats(), min_size=2, max_size=2),
    ),
    max_size=12,
)  # fmt: skip
FEW = [
    (0, [1.5, -2.0, 0.25, 8.0, 3.0], [1, -2, 3], [0.5, 1e300]), (1, None, [0, 0, 7], None),
    (2, [math.nan, 1.0, math.inf, -1.0, 0.0], [-5, -6, -7], [math.nan, -0.0]),
]  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(ROWS, st.integers(0, 3), st.data())
def test_lists_are_the_same_in_batches_and_pages(rows, skip, data):
    given_ = arrow(rows).slice(skip)
    batch = Batch.from_arrow(given_, SCHEMA)
    assert repr(listed(batch.to_arrow())) == repr(listed(given_))
    if not batch.rows:
        return
    order = data.draw(st.permutations(range(batch.rows)))
    taken = take(batch, np.array(order, np.int64), Scratch())
    assert repr(listed(taken.to_arrow())) == repr([listed(given_)[i] for i in order])
    (page,) = shapes.write_all(shapes.stream_of(SCHEMA), [taken])
    assert repr(listed(read_page(page.data, SCHEMA))) == repr(listed(taken.to_arrow()))


def test_a_page_with_a_list_of_another_length_is_damaged():
    binary = Schema.of(
        [Field("time", SCHEMA.field("time").dtype), Field("a", type_named("binary"))]
    )
    lists = Schema.of([binary.fields[0], Field("a", type_named("int16[2]"))])
    batch = shapes.batch_of(binary, [[1, b"1234"], [2, b"123"]])
    (page,) = shapes.write_all(shapes.stream_of(binary), [batch])
    with pytest.raises(PageError, match="lists of another length in column a"):
        read_page(page.data, lists)


@pytest.mark.parametrize("kind", ["float32[0]", "float32[65537]", "string[3]", "int64[3]", "f[2]"])
def test_a_wrong_type_of_list_is_refused(kind):
    with pytest.raises(JobError, match="is not a type") as caught:
        columns("s", {"columns": {"a": kind}})
    assert caught.value.path == "s.columns.a"


def test_lists_come_in_over_tcp_and_http():
    greeting = SCHEMA.to_arrow().with_metadata({"edged.stream": "s"})
    with Rig(schema=SCHEMA) as rig, dial(rig) as peer:
        peer.sendall(messages([arrow(FEW)] * 2, greeting))
        rig.until(lambda: rig.count() == 6)
        taken = rig.table()
    assert repr(listed(taken)) == repr([list(row) for row in FEW] * 2)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA.to_arrow()) as writer:
        writer.write_batch(arrow(FEW))
    found = decode(sink.getvalue().to_pybytes(), ARROW, SCHEMA.to_arrow())
    assert repr(listed(found)) == repr([list(row) for row in FEW])


def test_a_null_element_is_refused_and_one_under_a_null_list_is_not():
    good, bad = (
        pa.array([1, 2, 3, 4, 5, 6], pa.int16()),
        pa.array([1, None, 3, 4, 5, 6], pa.int16()),
    )
    schema = Schema.of([Field("a", type_named("int16[3]"), True)])
    for elements, mask, fine in (
        (good, None, True),
        (bad, None, False),
        (bad, [True, False], True),
    ):
        made = pa.FixedSizeListArray.from_arrays(
            elements, 3, mask=None if mask is None else pa.array(mask)
        )
        batch = pa.record_batch([made], names=["a"])
        if fine:
            assert Batch.from_arrow(batch, schema).to_arrow().column(0).equals(made)
        else:
            with pytest.raises(ValueError, match="element of a list is null"):
                Batch.from_arrow(batch, schema)


def test_lists_are_read_from_parquet_and_ndjson_and_written_as_ndjson(tmp_path):
    whole = pa.Table.from_batches([arrow(FEW[:2])])
    pq.write_table(whole, tmp_path / "a.parquet")
    text = b"".join(map(bytes, ndjson(whole)))
    assert [json.loads(line)["spec"] for line in text.splitlines()] == [FEW[0][1], None]
    (tmp_path / "b.ndjson").write_bytes(text)
    for name in ("a.parquet", "b.ndjson"):
        reader = Reader([str(tmp_path / name)], SCHEMA)
        reader.check()
        found = pa.Table.from_batches([b.to_arrow() for b in reader.batches()])
        assert listed(found) == [list(row) for row in FEW[:2]]


CALLS = {
    "sum": "list_sum(spec)", "mean": "list_mean(spec)", "rms": "list_rms(spec)",
    "low": "list_min(spec)", "high": "list_max(spec)", "second": "element(spec, 2)",
    "last": "list_extract(spec, -1)", "at": "list_element(spec, key)",
    "bsum": "list_sum(burst)", "bavg": "list_avg(burst)", "bmax": "list_max(burst)",
    "brms": "list_rms(burst)", "wmin": "list_min(w)",
}  # fmt: skip
TRUTH = {
    **CALLS, "sum": "list_sum(spec::double[])", "mean": "list_avg(spec::double[])",
    "rms": "sqrt(list_avg(list_transform(spec::double[], lambda v: v * v)))",
    "brms": "sqrt(list_avg(list_transform(burst::double[], lambda v: v * v)))",
    "bsum": "list_sum(burst)::bigint", "second": "list_extract(spec, 2)",
    "bmax": "list_max(burst)", "low": "list_min(spec)",
}  # fmt: skip


def mapped(batch, calls):
    link = Link(SCHEMA, "time")
    p = MapPlan.parse("o.m", "m", {"columns": {"time": "time", **calls}}, [link])
    flow = Flow(Batch.from_arrow(batch, SCHEMA), WATERMARK_MIN_US)
    return p, p.build(ONE).run(shapes.beat(), [flow]).batch.to_arrow()


def near(a, b):
    if isinstance(a, float) and isinstance(b, float) and not (math.isnan(a) or math.isnan(b)):
        return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)
    return repr(a) == repr(b)


@settings(max_examples=examples(60), deadline=None)
@given(ROWS)
def test_functions_of_lists_are_those_of_duckdb(rows):
    plain = [r for r in rows if r[1] is None or max(map(abs, r[1]), default=0) < 1e30 or r[0] > 7]
    p, found = mapped(arrow(plain), CALLS)
    kinds = [f.dtype.name for f in p.output.schema][1:]
    assert kinds == ["float64"] * 3 + ["float32"] * 5 + ["int64", "float64", "int16", "float64",
                                                         "float64"]  # fmt: skip
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_batches([arrow(plain)]))
        calls = ", ".join(f"{sql} as {name}" for name, sql in TRUTH.items())
        truth = connection.execute(f"select {calls} from rows").fetchall()
    for have, wanted in zip(found.to_pylist(), truth, strict=True):
        for name, b in zip(TRUTH, wanted, strict=True):
            assert near(have[name], b) or not_finite(have[name], b), (name, have[name], b)


def not_finite(a, b):
    """Sums of infinities and NaN: DuckDB's order of additions is its own."""
    return isinstance(a, float) and isinstance(b, float) and not math.isfinite(a + b)


def test_sums_of_integers_are_exact_and_lists_pass_through():
    rows = [(k, None, [2**15 - 1, 2**15 - 1, -(2**15)], None) for k in range(3)]
    _, found = mapped(arrow(rows), {"s": "list_sum(burst)", "b": "burst", "n": "spec IS NULL"})
    assert found.column("s").to_pylist() == [2**15 - 2] * 3
    assert found.column("b").type == pa.list_(pa.int16(), 3)
    assert found.column("n").to_pylist() == [True] * 3
    mean = float(Fraction(2**15 - 2, 3))
    p = FilterPlan.parse(
        "o.f", "f", {"where": f"list_mean(burst) >= {mean!r}"}, [Link(SCHEMA, "time")]
    )
    flow = p.build(ONE).run(shapes.beat(), [Flow(Batch.from_arrow(arrow(rows), SCHEMA), 0)])
    assert flow.batch.rows == 3


@pytest.mark.parametrize(
    "sql",
    [
        "spec = spec", "spec < burst", "CAST(spec AS VARCHAR)", "spec || spec", "length(spec)",
        "list_sum(key)", "list_sum(spec, 1)", "element(spec)", "element(spec, 1.5)",
        "coalesce(spec, spec)", "spec + 1", "greatest(w, w)", "spec IN (spec)", "[1, 2]",
    ],
)  # fmt: skip
def test_other_uses_of_lists_are_refused(sql):
    with pytest.raises(ExpressionError):
        MapPlan.parse("o.m", "m", {"columns": {"time": "time", "a": sql}}, [Link(SCHEMA, "time")])


def test_windows_take_lists_as_keys_by_their_bytes_and_links_refuse_them():
    link = Link(SCHEMA, "time")
    document = {"keys": ["burst"], "size": "1h", "aggregates": {"n": "count(spec)"}}
    p = WindowPlan.parse("o.w", "w", document, [link])
    operator = p.build(ONE)
    for number, mark in ((0, WATERMARK_MIN_US), (1, 2**63 - 1)):
        batch = Batch.from_arrow(arrow(FEW if mark < 0 else []), SCHEMA)
        flow = operator.run(shapes.beat(number), [Flow(batch, mark)])
    found = flow.batch.to_arrow()
    assert sorted(found.column("burst").to_pylist()) == sorted(row[2] for row in FEW)
    for call in ("sum(spec)", "min(spec)", "first(spec)"):
        with pytest.raises(JobError, match="does not take float32"):
            WindowPlan.parse("o.w", "w", {"size": "1h", "aggregates": {"a": call}}, [link])
    with pytest.raises(JobError, match="which links do not carry") as caught:
        EdgePlan.parse("sinks.e", "e", {"to": "localhost:7000"}, link)
    assert caught.value.path == "sinks.e.input"
