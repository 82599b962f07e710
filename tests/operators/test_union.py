"""`union`: rows of several links in order, against Arrow's concatenation."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.union import UnionPlan
from tests.whole import examples

SCHEMA = Schema.of(
    [
        Field("t", TYPES["timestamp"]),
        Field("flag", TYPES["bool"], True),
        Field("n", TYPES["uint16"]),
        Field("x", TYPES["float64"], True),
        Field("s", TYPES["string"]),
        Field("b", TYPES["binary"], True),
    ]
)
WORKERS = Workers(1)
BEAT = BeatContext(1, 0, WORKERS)

rows = st.tuples(
    st.integers(-(2**40), 2**40),
    st.none() | st.booleans(),
    st.integers(0, 2**16 - 1),
    st.none() | st.floats(allow_nan=False),
    st.text(max_size=9),
    st.none() | st.binary(max_size=9),
)
batches = st.lists(st.lists(rows, max_size=12), min_size=1, max_size=4)


def arrow(values):
    columns = list(zip(*values, strict=True)) if values else [[]] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(c), f.dtype.arrow) for c, f in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA.to_arrow(),
    )


def union(links, inputs=None):
    names = inputs or [f"in{i}" for i in range(len(links))]
    return UnionPlan.parse("operators.u", "u", {"type": "union", "inputs": names}, links)


def run(operator, values, watermarks=None):
    parts = [Batch.from_arrow(arrow(v), SCHEMA) for v in values]
    marks = watermarks or [0] * len(parts)
    flows = [Flow(p, w) for p, w in zip(parts, marks, strict=True)]
    return operator.run(BEAT, flows)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(batches, min_size=1, max_size=3), st.integers(0, 3))
def test_rows_come_out_in_the_order_of_the_inputs(beats, cut):
    width = max(len(b) for b in beats)
    operator = union([Link(SCHEMA, "t")] * width).build(WORKERS)
    for values in beats:
        padded = values + [[]] * (width - len(values))
        parts = [Batch.from_arrow(arrow(v), SCHEMA) for v in padded]
        parts = [p.slice(min(cut, p.rows), p.rows) for p in parts]
        got = operator.run(BEAT, [Flow(p, 0) for p in parts]).batch.to_arrow()
        want = pa.Table.from_batches([arrow(v[cut:]) for v in padded]).combine_chunks()
        assert got.to_pylist() == want.to_pylist()


def test_a_beat_with_rows_of_one_input_alone_is_passed_through_without_a_copy():
    operator = union([Link(SCHEMA, "t")] * 3).build(WORKERS)
    part = Batch.from_arrow(arrow([(1, True, 2, 3.0, "x", b"y")]), SCHEMA)
    none = empty_batch(SCHEMA)
    assert operator.run(BEAT, [Flow(none, 0), Flow(part, 0), Flow(none, 0)]).batch is part
    assert operator.run(BEAT, [Flow(none, 0)] * 3).batch.rows == 0


def test_the_watermark_is_the_least_of_the_inputs():
    operator = union([Link(SCHEMA, "t")] * 2).build(WORKERS)
    assert run(operator, [[], []], [5, 7]).watermark_us == 5
    assert run(operator, [[], []], [WATERMARK_MAX_US, 9]).watermark_us == 9


def test_the_output_is_as_disordered_as_the_worst_input():
    plan = union([Link(SCHEMA, "t", 5), Link(SCHEMA, "t", 9)])
    assert plan.output == Link(SCHEMA, "t", 9)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda f: [*f[:-1]], "lacks the column b"),
        (lambda f: [*f, Field("z", TYPES["int8"])], "has one column more, z"),
        (lambda f: [f[1], f[0], *f[2:]], "in another order: flag, t"),
        (lambda f: [f[0], Field("flag", TYPES["bool"]), *f[2:]], r"flag is bool, not bool\?"),
        (lambda f: [*f[:2], Field("n", TYPES["int16"]), *f[3:]], "n is int16, not uint16"),
    ],
)
def test_inputs_that_differ_are_refused_with_what_sets_them_apart(change, problem):
    other = Schema.of(change(list(SCHEMA.fields)))
    with pytest.raises(JobError, match=rf"operators\.u\.inputs\[1\]: .*{problem}"):
        union([Link(SCHEMA, "t"), Link(other, "t")], ["a", "b"])


def test_inputs_with_another_time_column_are_refused():
    schema = Schema.of([Field("t", TYPES["timestamp"]), Field("u", TYPES["timestamp"])])
    with pytest.raises(JobError, match="time column is u, not t"):
        union([Link(schema, "t"), Link(schema, "u")])
