"""Weights in joins: pairs have the product of both weights, as DuckDB says."""

from __future__ import annotations

from collections import Counter
from random import Random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import INT32, INT64, TIMESTAMP, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.interval_join import IntervalJoinPlan
from tests.whole import examples

BEAT = BeatContext(1, 0, Workers(1))
LEFT = Schema.of(
    [Field("k", INT64, True), Field("time", TIMESTAMP), Field("a", INT64), Field("w", INT32)]
)
RIGHT = Schema.of(
    [Field("v", INT32), Field("k", INT64, True), Field("time", TIMESTAMP), Field("b", INT64)]
)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(0, 3), st.integers(0, 20), st.integers(0, 2), st.integers(-3, 3)
    ),
    max_size=25,
)


def plan(weights=("w", "v"), **document):
    links = [Link(LEFT, "time", 0, weights[0]), Link(RIGHT, "time", 0, weights[1])]
    document = {"on": ["k"], "before": 5, "after": 3, **document}
    return IntervalJoinPlan.parse("operators.j", "j", document, links)


def batch(schema, rows):
    """Rows of (key, time, payload, weight)."""
    order = {"k": 0, "time": 1, "a": 2, "b": 2, "w": 3, "v": 3}
    arrays = [
        pa.array([r[order[f.name]] for r in rows], pa.int64()).cast(f.dtype.arrow) for f in schema
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow()), schema)


def settled(flows, weight):
    """The rows with their weights added, without those that come to nothing."""
    found = Counter()
    for flow in flows:
        table = flow.batch.to_arrow()
        names = [n for n in table.schema.names if n != weight]
        columns = [table.column(n) for n in names]
        plain = [c.cast(pa.int64()).to_pylist() for c in columns]
        weights = table.column(weight).to_pylist()
        for row, n in zip(zip(*plain, strict=True), weights, strict=True):
            found[row] += n
    return {row: n for row, n in found.items() if n}


def joined(plan, left, right, cuts=1, restart=False):
    """The flows of `cuts` beats and of the end."""
    join = plan.build(BEAT.workers)
    flows = []
    for i in range(cuts):
        parts = [
            batch(s, rows[len(rows) * i // cuts : len(rows) * (i + 1) // cuts])
            for s, rows in ((LEFT, left), (RIGHT, right))
        ]
        mark = WATERMARK_MAX_US if i == cuts - 1 else -100
        flow = join.run(BEAT, [Flow(p, mark) for p in parts])
        flows.append(Flow(Batch.from_arrow(flow.batch.to_arrow(), flow.batch.schema), mark))
        if restart:
            state = {k: a.copy() for k, a in join.save(Scratch()).items()}
            join = plan.build(BEAT.workers)
            join.load(state)
    return flows


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, ROWS, st.integers(1, 4), st.booleans(), st.sampled_from(["wv", "w", "v"]))
def test_pairs_have_the_product_of_the_weights_as_in_duckdb(left, right, cuts, restart, which):
    weights = tuple(c if c in which else "" for c in "wv")
    p = plan(weights, columns={n: s for n, s in COLUMNS.items() if n not in weights})
    found = settled(joined(p, left, right, cuts, restart), p.output.weight)
    names = [n for n in p.output.schema.names if n != p.output.weight]
    product = {"wv": "l.w * r.v", "w": "l.w", "v": "r.v"}[which]
    with duckdb.connect() as db:
        for name, rows in (("l", left), ("r", right)):
            db.execute(f"CREATE TABLE {name}_(k BIGINT, t BIGINT, x BIGINT, n BIGINT)")
            if rows:
                db.executemany(f"INSERT INTO {name}_ VALUES (?, ?, ?, ?)", rows)
        chosen = ", ".join(COLUMNS[n].replace("left.", "l.").replace("right.", "r.") for n in names)
        wanted = db.execute(
            f"SELECT {chosen}, sum({product}) FROM (SELECT k, t AS time, x AS a, n AS w FROM l_) l"
            " JOIN (SELECT k, t AS time, x AS b, n AS v FROM r_) r"
            " ON l.k = r.k AND r.time - l.time BETWEEN -5 AND 3 GROUP BY ALL"
        ).fetchall()
    assert found == {row[:-1]: row[-1] for row in wanted if row[-1]}


COLUMNS = {
    "time": "left.time", "k": "left.k", "a": "left.a", "b": "right.b", "t": "right.time",
    "w": "left.w", "v": "right.v",
}  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, ROWS, ROWS, st.integers(0, 2**32), st.integers(1, 4))
def test_rows_that_are_taken_back_leave_nothing(left, right, gone, seed, cuts):
    sides, random = [list(left), list(right)], Random(seed)
    for key, time, payload, n in gone:
        side = sides[random.randrange(2)]
        at = random.randrange(len(side) + 1)
        side.insert(at, (key, time, payload, n))
        side.insert(random.randrange(at, len(side)) + 1, (key, time, payload, -n))
    p = plan()
    with_gone = settled(joined(p, *sides, cuts), "w")
    assert with_gone == settled(joined(p, left, right, cuts), "w")


def test_a_weight_that_int32_cannot_hold_is_left_out_and_counted():
    p = plan()
    join = p.build(BEAT.workers)
    left = batch(LEFT, [(1, 0, 0, 2**16), (1, 0, 1, 3), (1, 0, 2, -(2**16))])
    flow = join.run(BEAT, [Flow(left, 0), Flow(batch(RIGHT, [(1, 0, 9, 2**15)]), 0)])
    assert settled([flow], "w") == {(1, 0, 1, 0, 9): 3 * 2**15}
    assert join.counters()["weights_overflowed"] == 2
    again = p.build(BEAT.workers)
    again.load(join.save(Scratch()))
    assert again.counters()["weights_overflowed"] == 2


def test_the_output_has_one_weight_column():
    assert plan().output.schema.names == ("k", "time", "a", "w", "time_right", "b")
    assert plan().output.weight == "w"
    assert plan(("", "v")).output.weight == "v"
    assert plan(("w", "")).output.weight == "w"
    times = {"time": "left.time"}
    assert plan(columns=times).output.schema.names == ("time", "w")
    assert plan(("", "v"), columns=times).output.schema.names == ("time", "v")
    named = plan(columns={**times, "n": "right.v"})
    assert (named.output.schema.names, named.output.weight) == (("time", "n"), "n")
    assert plan(("", "")).output.weight == ""
    assert "weights_overflowed" not in plan(("", "v")).build(BEAT.workers).counters()


def test_two_weight_columns_of_one_output_are_refused():
    times = {"time": "left.time"}
    with pytest.raises(JobError, match=r"operators\.j\.columns\.v: holds a weight column"):
        plan(columns={**times, "w": "left.w", "v": "right.v"})
    with pytest.raises(JobError, match=r"operators\.j\.columns\.w: .*weight column of that name"):
        plan(columns={**times, "w": "left.a"})
