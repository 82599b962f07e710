"""Weights through the operators: columns with a role, kept and checked."""

from __future__ import annotations

from collections import Counter
from random import Random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, empty_batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import FLOAT64, INT32, TIMESTAMP, Field, Schema
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.filter import FilterPlan
from edged.operators.map import MapPlan
from edged.operators.union import UnionPlan
from tests.whole import examples

PLAIN = Schema.of([Field("time", TIMESTAMP), Field("x", FLOAT64)])
SCHEMA = Schema.of([PLAIN.fields[0], Field("w", INT32), PLAIN.fields[1]])
LINK = Link(SCHEMA, "time", 3, "w")
BEAT = BeatContext(1, 0, Workers(1))


def batch(rows, schema=SCHEMA):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(schema)
    arrays = [pa.array(list(c), f.dtype.arrow) for c, f in zip(columns, schema, strict=True)]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow()), schema)


def values(flow, *names):
    table = flow.batch.to_arrow()
    columns = [table.column(n) for n in names]
    plain = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in columns]
    return list(zip(*[c.to_pylist() for c in plain], strict=True))


def mapped(columns):
    return MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])


def test_a_filter_passes_weights_with_their_rows():
    plan = FilterPlan.parse("operators.f", "f", {"where": "x > 0"}, [LINK])
    assert plan.output is LINK
    flow = plan.build(BEAT.workers).run(BEAT, [Flow(batch([(1, 1, 2.0), (1, -1, -3.0)]), 0)])
    assert values(flow, "time", "w", "x") == [(1, 1, 2.0)]


def test_a_map_keeps_the_weight_column_under_its_own_name_or_a_given_one():
    plan = mapped({"time": "time", "y": "x * 2"})
    assert plan.output.weight == "w"
    assert plan.output.schema.names == ("time", "y", "w")
    flow = plan.build(BEAT.workers).run(BEAT, [Flow(batch([(1, -2, 2.0)]), 0)])
    assert values(flow, "y", "w") == [(4.0, -2)]
    assert mapped({"n": "w", "time": "time"}).output.weight == "n"
    assert mapped({"n": "w", "w": "w", "time": "time"}).output.weight == "w"
    assert mapped({"n": "w", "w": "x", "time": "time"}).output.weight == "n"


def test_a_map_may_not_compute_the_weight_column():
    with pytest.raises(JobError, match=r"operators\.m\.columns\.w: is the weight column"):
        mapped({"w": "-w", "time": "time"})


def test_a_map_of_rows_without_weights_names_none():
    plan = MapPlan.parse("m", "m", {"columns": {"w": "w", "time": "time"}}, [Link(SCHEMA, "time")])
    assert plan.output.weight == ""


def test_a_union_gives_weight_1_to_rows_of_inputs_without_weights():
    names = ["a", "b"]
    links = [Link(PLAIN, "time"), LINK]
    plan = UnionPlan.parse("operators.u", "u", {"inputs": names}, links)
    assert plan.output == Link(SCHEMA, "time", 3, "w")
    operator = plan.build(BEAT.workers)
    plain, weighted = batch([(1, 5.0), (2, 6.0)], PLAIN), batch([(3, -4, 7.0)])
    for beat, want in (
        ((plain, weighted), [(1, 1, 5.0), (2, 1, 6.0), (3, -4, 7.0)]),
        ((plain, empty_batch(SCHEMA)), [(1, 1, 5.0), (2, 1, 6.0)]),
        ((empty_batch(PLAIN), weighted), [(3, -4, 7.0)]),
        ((empty_batch(PLAIN), empty_batch(SCHEMA)), []),
    ):
        flow = operator.run(BEAT, [Flow(b, 0) for b in beat])
        assert flow.batch.schema == SCHEMA
        assert values(flow, *SCHEMA.names) == want


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (Link(SCHEMA, "time"), r"inputs\[1\]: has one column more, w"),
        (Link(Schema.of([*SCHEMA, Field("v", INT32)]), "time", 0, "v"), "one column more, v"),
        (Link(Schema.of(SCHEMA.fields[1:]), "time"), "lacks the column time"),
    ],
)
def test_a_union_refuses_weights_that_differ(other, problem):
    with pytest.raises(JobError, match=problem):
        UnionPlan.parse("operators.u", "u", {"inputs": ["a", "b"]}, [LINK, other])
    both = Schema.of([*SCHEMA, Field("v", INT32)])
    links = [Link(both, "time", 0, "w"), Link(both, "time", 0, "v")]
    with pytest.raises(JobError, match="its weight column is v, not w"):
        UnionPlan.parse("operators.u", "u", {"inputs": ["a", "b"]}, links)


ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.integers(-3, 3),
        st.floats(-100, 100).map(lambda x: round(x, 2)),
    ),
    max_size=30,
)
PIPELINE = [
    FilterPlan.parse("operators.f", "f", {"where": "x > 0"}, [LINK]),
    MapPlan.parse("m", "m", {"columns": {"time": "time", "x": "x * 2", "n": "w"}}, [LINK]),
]
UNION = UnionPlan.parse("u", "u", {"inputs": ["a", "b"]}, [Link(PLAIN, "time"), LINK])
RUNNING = [plan.build(BEAT.workers) for plan in (UNION, *PIPELINE)]


def piped(plain, weighted):
    """The weights of the rows of union, filter and map, without those that come to nothing."""
    flow = RUNNING[0].run(BEAT, [Flow(batch(plain, PLAIN), 0), Flow(batch(weighted), 0)])
    for operator in RUNNING[1:]:
        flow = operator.run(BEAT, [flow])
    found = Counter()
    for time, x, n in values(flow, "time", "x", "n"):
        found[time, x] += n
    return {row: n for row, n in found.items() if n}


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, ROWS, ROWS, st.integers(0, 2**32))
def test_union_filter_and_map_of_weighted_rows_are_those_of_duckdb(plain, weighted, gone, seed):
    random, mixed = Random(seed), list(weighted)
    for time, n, x in gone:
        at = random.randrange(len(mixed) + 1)
        mixed.insert(at, (time, n, x))
        mixed.insert(random.randrange(at, len(mixed)) + 1, (time, -n, x))
    ones = [(time, x) for time, _, x in plain]
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t(time BIGINT, n BIGINT, x DOUBLE)")
        if rows := [(time, 1, x) for time, x in ones] + weighted:
            db.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        wanted = db.execute(
            "SELECT time, x * 2, sum(n) FROM t WHERE x > 0 GROUP BY 1, 2 HAVING sum(n) <> 0"
        ).fetchall()
    assert piped(ones, mixed) == {(time, x): n for time, x, n in wanted}
