"""`deduplicate`, `throttle` and `sample`: equal to plain twins, and to DuckDB where SQL says it."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, Link
from edged.errors import JobError
from edged.operators.base import OPERATORS
from tests.naive import keyed as naive
from tests.operators.keyed_cases import (
    ONE,
    SCHEMA,
    TIME,
    WORKERS,
    beats,
    feed,
    goes_on,
    plainly,
    run,
    takes_over,
)
from tests.whole import examples

OPERATORS.load()
keys = {"keys": st.sampled_from([["k"], ["k", "n"], ["x"]])}
spans = st.integers(1, 25)
documents = st.one_of(
    st.fixed_dictionaries({"type": st.just("deduplicate"), **keys, "within": spans}),
    st.fixed_dictionaries(
        {
            "type": st.just("throttle"), **keys, "per": spans, "rows": st.integers(1, 3),
            "aligned": st.booleans(),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("sample"), **keys, "every": st.integers(1, 4), "keep": spans,
            "order": st.sampled_from(["time", "arrival"]),
        }
    ),
)  # fmt: skip


def plan(type, link=None, **document):
    kind = OPERATORS[type]
    return kind.parse("operators.o", "o", document, [link or Link(SCHEMA, "time")])


def passes(document, rows, states):
    """Whether each row passes, from the twin."""
    if document["type"] == "deduplicate":
        return naive.at_most(rows, states, TIME, 1, document["within"])
    if document["type"] == "sample":
        return naive.every_nth(rows, states, document["every"])
    step = naive.first_of_spans if document["aligned"] else naive.at_most
    return step(rows, states, TIME, document["rows"], document["per"])


def expected(document, p, rows, marks):
    released = [*rows, []]
    if p.order == "time":
        released = naive.in_time_order(rows, marks, TIME)
    states = naive.States([SCHEMA.index(k) for k in p.by], TIME, p.keep_us)
    found = []
    for beat, mark in zip(released, [*marks, math.inf], strict=True):
        flags = passes(document, beat, states)
        found.append([row for row, kept in zip(beat, flags, strict=True) if kept])
        states.advance(mark)
    return found


@settings(max_examples=examples(300), deadline=None)
@given(documents, beats(on_time=False), st.sampled_from([1, 2, 12]))
def test_rows_are_those_of_the_twin_beat_by_beat(document, case, workers):
    p = plan(**document)
    assert plainly(run(p, *case, workers)) == plainly(expected(document, p, *case))


@settings(max_examples=examples(100), deadline=None)
@given(
    documents, beats(on_time=False), st.integers(0, 5), st.sampled_from([(1, 2), (12, 1), (2, 12)])
)
def test_a_restored_operator_goes_on_byte_for_byte(document, case, cut, workers):
    goes_on(plan(**document), case, cut, workers)


@settings(max_examples=examples(60), deadline=None)
@given(documents, beats(), st.integers(0, 5), st.integers(1, 3))
def test_instances_that_take_over_give_the_same_rows(document, case, cut, instances):
    takes_over(plan(**document), case, cut, instances)


def by_duckdb(case, condition):
    """The rows of which `condition` holds, by time and arrival."""
    rows = [[*row, i] for i, row in enumerate(row for beat in case[0] for row in beat)]
    db = duckdb.connect()
    db.execute(
        'create table r (k varchar, n smallint, "time" bigint, "on" boolean, x double, s varchar,'
        " i integer)"
    )
    if rows:
        db.executemany("insert into r values (?, ?, ?, ?, ?, ?, ?)", rows)
    found = db.execute(
        f'select k, n, "time", "on", x, s from r qualify {condition} order by "time", i'
    ).fetchall()
    return [list(row) for row in found]


@settings(max_examples=examples(60), deadline=None)
@given(
    beats(),
    st.sampled_from(
        [
            ({"type": "deduplicate", "within": "9d"}, "over (partition by k, n ORDER) = 1"),
            ({"type": "sample", "every": 3}, "over (partition by k, n ORDER) % 3 = 1"),
            (
                {"type": "throttle", "per": 7, "rows": 2, "aligned": True},
                'over (partition by k, n, floor("time" / 7) ORDER) <= 2',
            ),
        ]
    ),
)
def test_rows_are_those_of_duckdb(case, which):
    document, condition = which
    found = [row for beat in run(plan(**document, keys=["k", "n"]), *case) for row in beat]
    condition = "row_number() " + condition.replace("ORDER", 'order by "time", i')
    assert plainly(found) == plainly(by_duckdb(case, condition))


def many(rows):
    return [["abc"[i % 3], i % 7, i, None, float(i), str(i % 1000)] for i in range(rows)]


def test_a_fraction_is_the_same_rows_everywhere_and_about_as_many():
    rows = many(20_000)
    tenth = plan("sample", fraction=0.1)
    found = feed(tenth.build(ONE), rows, WATERMARK_MAX_US)
    assert found == feed(tenth.build(WORKERS[12]), rows, WATERMARK_MAX_US)
    halves = [feed(tenth.build(ONE), part, 0) for part in (rows[:777], rows[777:])]
    assert found == halves[0] + halves[1]
    assert 1700 < len(found) < 2300
    half = feed(plan("sample", fraction=0.5).build(ONE), rows, 0)
    assert {tuple(row) for row in found} < {tuple(row) for row in half}
    assert feed(plan("sample", fraction=1).build(ONE), rows, 0) == rows


def test_a_fraction_by_key_takes_all_rows_of_a_key_or_none():
    found = feed(plan("sample", fraction=0.3, keys=["s"]).build(ONE), many(9000), 0)
    kept = {row[-1] for row in found}
    assert 230 < len(kept) < 370
    assert len(found) == 9 * len(kept)


def test_a_fraction_takes_a_row_back_that_it_has_given():
    link = Link(SCHEMA, "time", weight="n")
    part = plan("sample", link, fraction=0.3).build(ONE)
    rows = many(500)
    kept = feed(part, [[*row[:1], 1, *row[2:]] for row in rows], 0)
    back = feed(part, [[*row[:1], -1, *row[2:]] for row in rows], 0)
    assert kept
    assert [row[:1] + row[2:] for row in kept] == [row[:1] + row[2:] for row in back]


def test_dropped_rows_are_counted_over_a_restart():
    p = plan("deduplicate", keys=["k"], within="1s")
    operator = p.build(ONE)
    feed(operator, many(9), 9)
    assert operator.counters() == {"keys": 3, "rows_waiting": 0, "rows_late": 0, "duplicates": 6}
    again = p.build(ONE)
    again.load(operator.save(None))
    assert again.counters() == operator.counters()
    assert again.state_bytes() > 0
    assert np.array_equal(again.save(None)["groups"], operator.save(None)["groups"])


@pytest.mark.parametrize(
    ("type", "document", "path"),
    [
        ("deduplicate", {"within": "1s"}, "operators.o.keys"),
        ("deduplicate", {"keys": ["k"]}, "operators.o.within"),
        ("deduplicate", {"keys": ["kk"], "within": "1s"}, "operators.o.keys[0]"),
        ("throttle", {"rows": 0, "per": "1s"}, "operators.o.rows"),
        ("throttle", {"rows": 1001, "per": "1s"}, "operators.o.rows"),
        ("throttle", {"rows": 1}, "operators.o.per"),
        ("sample", {}, "every and fraction"),
        ("sample", {"every": 2, "fraction": 0.5}, "every and fraction"),
        ("sample", {"every": 0}, "operators.o.every"),
        ("sample", {"fraction": 0}, "operators.o.fraction"),
        ("sample", {"fraction": 1.5}, "operators.o.fraction"),
        ("sample", {"fraction": 0.5, "order": "time"}, "operators.o.order"),
    ],
)
def test_a_wrong_document_is_refused_with_its_path(type, document, path):
    with pytest.raises(JobError) as refused:
        plan(type, **document)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        {"type": "deduplicate", "keys": ["k"], "within": 1}, {"type": "throttle", "per": 1},
        {"type": "sample", "every": 2},
    ],
)  # fmt: skip
def test_weighted_rows_are_refused(document):
    with pytest.raises(JobError, match="weights"):
        plan(**document, link=Link(SCHEMA, "time", weight="n"))
