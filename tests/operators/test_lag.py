"""`lag`: the row before of the same key, equal to a plain twin and to DuckDB's lag()."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, Flow, Link
from edged.errors import JobError
from edged.operators.lag import LagPlan
from tests.naive import keyed as naive
from tests.operators.keyed_cases import (
    ON,
    SCHEMA,
    TIME,
    beats,
    feed,
    goes_on,
    plainly,
    run,
    takes_over,
    wide,
)  # fmt: skip
from tests.pages import shapes
from tests.whole import examples

COLUMNS = {"was": "on", "x_was": "x", "s_was": "s", "since": "time"}


def plan(**document):
    document = {"keys": ["k", "n"], "columns": COLUMNS, **document}
    return LagPlan.parse("operators.l", "l", document, [Link(SCHEMA, "time")])


def expected(p, rows, marks):
    """The output of each beat, from the twin."""
    released = [*rows, []]
    if p.order == "time":
        released = naive.in_time_order(rows, marks, TIME)
    found, columns = [], [SCHEMA.index(c) for _, c in p.columns]
    states = naive.States([SCHEMA.index(k) for k in p.by], TIME, p.keep_us)
    for beat, mark in zip(released, [*marks, math.inf], strict=True):
        before = naive.rows_before(beat, states, TIME, p.keep_us)
        kept = [True] * len(beat)
        if p.changes:
            kept = naive.changes(beat, before, [SCHEMA.index(c) for c in p.changes], p.first)
        found.append(
            [
                [*row, *(None if b is None else b[c] for c in columns)]
                for row, b, keep in zip(beat, before, kept, strict=True)
                if keep
            ]
        )
        states.advance(mark)
    return found


documents = st.fixed_dictionaries(
    {"keys": st.sampled_from([["k"], ["k", "n"], ["x"]])},
    optional={
        "order": st.sampled_from(["time", "arrival"]),
        "changes_only": st.sampled_from([True, ["on"], ["s", "x"]]),
        "keep": st.integers(1, 30),
    },
)


@settings(max_examples=examples(200), deadline=None)
@given(documents, beats(on_time=False), st.sampled_from([1, 2, 12]))
def test_rows_are_those_of_the_twin_beat_by_beat(document, case, workers):
    p = plan(**document)
    assert plainly(run(p, *case, workers)) == plainly(expected(p, *case))


@settings(max_examples=examples(100), deadline=None)
@given(documents, beats(), st.integers(0, 5), st.sampled_from([(1, 2), (12, 1), (2, 12)]))
def test_a_restored_operator_goes_on_byte_for_byte(document, case, cut, workers):
    goes_on(plan(**document), case, cut, workers)


@settings(max_examples=examples(60), deadline=None)
@given(documents, beats(), st.integers(0, 5), st.integers(1, 3))
def test_instances_that_take_over_give_the_same_rows(document, case, cut, instances):
    takes_over(plan(**document), case, cut, instances)


@settings(max_examples=examples(60), deadline=None)
@given(beats(), st.booleans())
def test_with_first_each_key_begins_with_its_first_row(case, first):
    p = plan(changes_only=True, first=first, columns={"was": "on"})
    rows = [row for beat in run(p, *case) for row in beat]
    keys = {naive.key_of(row, (0, 1)) for beat in case[0] for row in beat}
    firsts = {naive.key_of(row, (0, 1)) for row in rows}
    assert firsts == keys if first else firsts <= keys


@settings(max_examples=examples(60), deadline=None)
@given(beats())
def test_lag_is_that_of_duckdb(case):
    p = plan(columns={"was": "on", "x_was": "x", "s_was": "s"}, keep="9d")
    found = [row for beat in run(p, *case) for row in beat]
    rows = [[*row, i] for i, row in enumerate(row for beat in case[0] for row in beat)]
    db = duckdb.connect()
    db.execute(
        'create table r (k varchar, n smallint, "time" bigint, "on" boolean, x double, s varchar,'
        " i integer)"
    )
    if rows:
        db.executemany("insert into r values (?, ?, ?, ?, ?, ?, ?)", rows)
    wanted = db.execute(
        'select k, n, "time", "on", x, s, lag("on") over w, lag(x) over w, lag(s) over w from r'
        ' window w as (partition by k, n order by "time", i) order by "time", i'
    ).fetchall()
    assert plainly(found) == plainly([list(row) for row in wanted])


def test_a_boolean_s_edges_come_out_with_their_times():
    edges = LagPlan.parse(
        "operators.l", "l", {"columns": {"was": "on"}, "changes_only": True}, [Link(SCHEMA, "time")]
    )
    values = [False, False, True, True, False, None, False]
    rows = [["a", 0, 10 * i, on, None, None] for i, on in enumerate(values)]
    found = [(row[TIME], row[-1], row[ON]) for row in feed(edges.build(shapes.ONE), rows, 60)]
    assert found == [(20, False, True), (40, True, False), (50, False, None), (60, None, False)]


def test_keys_that_are_older_than_keep_leave_memory_and_state():
    p = plan(keep="10us", keys=["n", "time"], columns={"was": "on"})
    operator, batch = p.build(shapes.ONE), wide(4_000, 1, 0)
    for start in range(0, 160_000, 4_000):
        batch.columns[TIME].values[:] = np.arange(start, start + 4_000)
        operator.run(shapes.beat(), [Flow(batch, start + 3_999)])
    assert operator.counters()["keys"] <= 12_000
    assert operator.save(None)["groups"].shape[0] <= 11
    assert operator.state_bytes() < 16e6


def test_late_rows_follow_what_has_passed_and_are_counted():
    p = plan(columns={"since": "time"}, keys=["k"])
    operator = p.build(shapes.ONE)
    row = lambda t: ["a", 0, t, None, None, None]  # noqa: E731
    assert [r[-1] for r in feed(operator, [row(5), row(9)], 9)] == [None, 5]
    assert [(r[TIME], r[-1]) for r in feed(operator, [row(9), row(7)], 9)] == [(7, 9), (9, 7)]
    assert operator.counters() == {"keys": 1, "rows_waiting": 0, "rows_late": 1}
    feed(operator, [], WATERMARK_MAX_US)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"columns": {}}, "operators.l.columns"),
        ({"columns": {"x": "on"}}, "operators.l.columns.x"),
        ({"columns": {"was": "onn"}}, "operators.l.columns.was"),
        ({"columns": {"since": "time"}, "changes_only": True}, "operators.l.changes_only"),
        ({"changes_only": ["xx"]}, "operators.l.changes_only[0]"),
        ({"keys": ["kk"]}, "operators.l.keys[0]"),
        ({"order": "size"}, "operators.l.order"),
        ({"first": True}, "operators.l.first"),
        ({"keep": "0s"}, "operators.l.keep"),
    ],
)
def test_a_wrong_document_is_refused_with_its_path(document, path):
    with pytest.raises(JobError) as refused:
        plan(**document)
    assert path in str(refused.value)


def test_weighted_rows_are_refused():
    link = Link(SCHEMA, "time", weight="n")
    with pytest.raises(JobError, match="weights"):
        LagPlan.parse("operators.l", "l", {"columns": {"was": "on"}}, [link])
