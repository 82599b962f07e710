"""`enrich`: each beat's rows meet the table as of the beat, in order, as DuckDB joins them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import Link
from edged.errors import JobError
from edged.operators.enrich import HOW, EnrichPlan
from tests.operators.naive_state import batch_of
from tests.operators.table_programs import (
    MEMBERS,
    RIGHT,
    Model,
    Running,
    asked,
    fields,
    keys,
    link,
    numbers,
    right_rows,
    terms,
)
from tests.whole import examples

STREAM = fields(t="timestamp", k="string?", n="int64", i="int64")
NAMES = ("k", "n", "x", "name")
COLUMNS = {"t": "input.t", "i": "input.i", "x": "table.x", "name": "table.name"}
SQL = """
    SELECT s.i, r.x, r.name FROM s {how} JOIN r ON {on}
    ORDER BY s.i, r.k NULLS FIRST, r.n NULLS FIRST, r.x NULLS FIRST, r.name NULLS FIRST
"""
stream_rows = st.lists(st.tuples(keys, numbers), max_size=6)
programs = st.lists(st.tuples(stream_rows, st.lists(right_rows, max_size=8)), max_size=6)


def plan(how="inner", on=("k",), table=None, stream=None, **more):
    document = {"type": "enrich", "input": "s", "table": "r", "on": list(on), "how": how}
    document |= {"columns": COLUMNS, **more}
    links = [stream or Link(STREAM, "t", 7), link(RIGHT, table or terms("weight:w"))]
    return EnrichPlan.parse("operators.e", "e", document, links)


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(HOW),
    st.sampled_from([("k",), ("n",), ("k", "n")]),
    st.sampled_from(["weight:w", "upsert", "insert", "debezium"]),
    programs,
    st.sampled_from([1, 2, 12]),
)
def test_every_beat_equals_duckdb_in_order(member, how, on, changes, program, workers):
    given_terms = terms(changes, ("n",) if changes != "weight:w" else ())
    made = plan(how, on, given_terms)
    names = [name for name in NAMES if name in made.kept()]
    model = Model(RIGHT, given_terms, names, on)
    where = " AND ".join(f"s.{name} = r.{name}" for name in on)
    with Running(made, member=member, workers=workers) as enrich:
        for rows, changed in program:
            sent = [(i, k, n, i) for i, (k, n) in enumerate(rows)]
            model.apply(changed)
            table = model.arrow(RIGHT, names)
            for name in set(NAMES) - set(names):
                table = table.append_column(name, [[None] * table.num_rows])
            stream = batch_of(STREAM, sent).to_arrow()
            sql = SQL.format(how=how.upper(), on=where)
            wanted = asked(sql, s=stream, r=table)
            assert [row[1:] for row in enrich.beat(sent, changed)] == wanted
        assert enrich.operator.counters().get("table_refused") == model.refused


def test_the_output_keeps_the_streams_time_disorder_and_weight():
    stream = Link(fields(t="timestamp", k="string", c="int32"), "t", 7, "c")
    made = plan(
        stream=stream, columns={"at": "input.t", "c": "input.c", "x": "table.x"}, how="left"
    )
    assert (made.output.time, made.output.disorder_us, made.output.weight) == ("at", 7, "c")
    assert made.output.schema.field("x").nullable


def test_without_columns_the_output_has_both_sides_without_the_tables_weight():
    made = EnrichPlan.parse(
        "operators.e",
        "e",
        {"on": ["k"], "input": "s", "table": "r"},
        [Link(STREAM, "t"), link(RIGHT, terms("weight:w"))],
    )
    assert made.output.schema.names == ("k", "t", "n", "i", "n_right", "x", "name")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"on": ["x"]}, "operators.e.on[0]"),
        ({"how": "anti"}, "operators.e.how"),
        ({"wait": "no"}, "operators.e.wait"),
        ({"columns": {"t": "input.t", "x": "right.x"}}, "operators.e.columns.x"),
        ({"columns": {"x": "table.x"}}, "operators.e.columns"),
        ({"columns": {"t": "input.t", "w": "table.w"}}, "operators.e.columns.w"),
    ],
)
def test_a_faulty_enrichment_is_refused_with_its_path(change, path):
    with pytest.raises(JobError) as fault:
        plan(**change)
    assert path in str(fault.value)


def test_the_table_must_be_one():
    with pytest.raises(JobError, match="is not a table"):
        document = {"on": ["k"], "input": "s", "table": "r"}
        EnrichPlan.parse("operators.e", "e", document, [Link(STREAM, "t"), Link(STREAM, "t")])


def test_counters_say_what_matched_and_what_was_refused():
    with Running(plan(table=terms("insert", ("n",)))) as enrich:
        enrich.beat(
            [(0, "a", 1, 0), (1, "b", 1, 1)], [("a", 1, 0.5, None, 1), ("c", 1, 0.5, "x", 1)]
        )
        counters = enrich.operator.counters()
        assert (counters["matched"], counters["unmatched"]) == (1, 1)
        assert (counters["table_rows"], counters["table_refused"]) == (1, 1)
        saved = enrich.operator.save(None)
        assert np.array_equal(saved["counted"], [1, 1])
