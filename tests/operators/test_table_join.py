"""`table_join`: random changes equal DuckDB's recompute after every beat, as multisets."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import JobError
from edged.operators.table_join import HOW, TableJoinPlan
from tests.operators.table_programs import (
    LEFT,
    MEMBERS,
    RIGHT,
    Model,
    Running,
    asked,
    beats,
    fields,
    link,
    terms,
)
from tests.whole import examples

WEIGHTED = terms("weight:w")
LEFT_NAMES, RIGHT_NAMES = ("k", "n", "v"), ("k", "n", "x", "name")
OUT = {"k": "left.k", "n": "left.n", "v": "left.v", "x": "right.x", "name": "right.name"}
SQL = {
    "inner": "SELECT l.k, l.n, l.v, r.x, r.name FROM l JOIN r ON {on}",
    "left": "SELECT l.k, l.n, l.v, r.x, r.name FROM l LEFT JOIN r ON {on}",
    "semi": "SELECT l.k, l.n, l.v FROM l SEMI JOIN r ON {on}",
    "anti": "SELECT l.k, l.n, l.v FROM l ANTI JOIN r ON {on}",
}


def plan(how="inner", on=("k",), left=WEIGHTED, right=WEIGHTED, **more):
    document = {"type": "table_join", "left": "l", "right": "r", "on": list(on), "how": how}
    if how in ("inner", "left"):
        document["columns"] = OUT
    else:
        document["columns"] = {name: OUT[name] for name in LEFT_NAMES}
    links = [link(LEFT, left), link(RIGHT, right)]
    return TableJoinPlan.parse("operators.j", "j", {**document, **more}, links)


def recomputed(how, on, left, right):
    """DuckDB's join of two models."""
    condition = " AND ".join(f"l.{name} = r.{name}" for name in on)
    tables = {"l": left.arrow(LEFT, LEFT_NAMES), "r": right.arrow(RIGHT, RIGHT_NAMES)}
    return Counter(asked(SQL[how].format(on=condition), **tables))


def models(left=WEIGHTED, right=WEIGHTED):
    return Model(LEFT, left, LEFT_NAMES), Model(RIGHT, right, RIGHT_NAMES)


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(HOW), st.sampled_from([("k",), ("n",), ("k", "n")]), beats,
    st.sampled_from([1, 2, 12]),
)  # fmt: skip
def test_random_weights_equal_a_recompute_after_every_beat(member, how, on, program, workers):
    made = plan(how, on)
    left = Model(LEFT, WEIGHTED, LEFT_NAMES)
    right_names = made.kept(1).names  # two rows are the same where the kept columns are equal
    right = Model(RIGHT, WEIGHTED, right_names)
    with Running(made, member=member, workers=workers) as join:
        for lefts, rights in program:
            # rows with a null key are not kept, so that their deletes cannot be checked
            rows = [(*row[:3], row[3] if None not in row[:2] else 1) for row in lefts], rights
            left.apply(rows[0])
            right.apply(rows[1])
            join.beat(*rows)
            condition = " AND ".join(f"l.{name} = r.{name}" for name in on)
            found = asked(
                SQL[how].format(on=condition),
                l=left.arrow(LEFT, LEFT_NAMES), r=right.arrow(RIGHT, right_names),
            )  # fmt: skip
            assert join.total == Counter(found)
        assert join.operator.counters()["left_refused"] <= left.refused


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(HOW), beats, st.sampled_from(["upsert", "insert"]))
def test_random_rows_with_a_key_equal_a_recompute_after_every_beat(member, how, program, changes):
    given_terms = terms(changes, ("n",))
    left, right = models(given_terms, given_terms)
    with Running(plan(how, ("k",), given_terms, given_terms), member=member) as join:
        for rows in program:
            left.apply(rows[0])
            right.apply(rows[1])
            join.beat(*rows)
            assert join.total == recomputed(how, ("k",), left, right)
        counters = join.operator.counters()
        assert (counters["left_refused"], counters["right_refused"]) == (
            left.refused,
            right.refused,
        )


@pytest.mark.parametrize("member", MEMBERS)
@settings(max_examples=examples(50), deadline=None)
@given(beats, st.sampled_from(HOW), st.integers(0, 5))
def test_a_saved_state_goes_on_with_the_same_rows_in_the_same_order(member, program, how, at):
    whole, first = (Running(plan(how), member=member, workers=n) for n in (1, 2))
    with whole, first, Running(plan(how), member=member, workers=12) as second:
        for rows in program:
            whole.beat(*rows)
        for rows in program[:at]:
            first.beat(*rows)
        saved = first.operator.save(None)
        first.operator.sync()
        second.directory.cleanup()
        second.directory = first.directory
        _move(second, first)
        second.operator.load(saved)
        for _ in program[:at]:
            next(second.numbers)
        for rows in program[at:]:
            second.beat(*rows)
        assert first.out + second.out == whole.out


def _move(to, where):
    """Open `to` on the directory of another operator."""
    from edged.operators.base import OperatorPlace
    from edged.platform.disk import SystemDisk

    to.operator.place(OperatorPlace(SystemDisk(), where.directory.name, to.workers, 1 << 20))


def test_a_debt_is_joined_as_it_is_and_settled_by_its_insert():
    owed = terms("weight:w", missing="owe")
    with Running(plan(left=owed, right=owed)) as join:
        join.beat([("a", 1, 1.0, -1)], [("a", 5, 2.0, None, 1)])
        assert join.total == {("a", 1, 1.0, 2.0, None): -1}
        join.beat([("a", 1, 1.0, 1)], [])
        assert join.total == {}


def test_a_delete_of_an_absent_row_is_refused_with_its_place():
    refuse = terms("weight:w", missing="refuse")
    with Running(plan(left=refuse)) as join:
        join.beat([("a", 1, 1.0, 1)], [])
        join.beat([("a", 1, 1.0, -2), ("b", 1, 1.0, 0)], [])
        counters = join.operator.counters()
        assert counters["left_refused"] == 2
        assert "beat 2" in counters["left_refused_at"]
        assert "no such row is there" in counters["left_refused_at"]
        assert join.operator.counters()["left_rows"] == 0


def test_deletes_of_two_rows_of_one_key_are_each_checked():
    with Running(plan(on=("n",))) as join:
        join.beat([], [(None, 1, 0.0, None, 1)])
        join.beat([(None, 1, None, 1)], [(None, 1, 0.0, None, -2), (None, 1, 0.0, "x", -1)])
        assert join.total == {}
        assert join.operator.counters()["right_refused"] == 2


def test_a_weight_beyond_32_bits_is_refused_alone():
    with Running(plan()) as join:
        join.beat([("a", 1, 1.0, 2**31 - 1), ("b", 1, 1.0, 1)], [])
        join.beat([("a", 1, 1.0, 1), ("c", 1, 1.0, 1)], [])
        assert join.operator.counters()["left_refused"] == 1
        join.beat([], [("a", 1, 0.0, None, 1), ("b", 1, 0.0, None, 1), ("c", 1, 0.0, None, 1)])
        assert sorted(join.total.values()) == [1, 1, 2**31 - 1]
        join.beat([], [("a", 1, 1.5, None, 2)])
        assert len(join.total) == 3
        assert join.operator.counters()["weights_overflowed"] == 1


def test_the_other_side_is_told_when_a_side_has_its_rows():
    with Running(plan()) as join:
        left, right = join.operator._sides
        join.beat([("a", 1, 1.0, 1)], [])
        assert not left.rows.told and not right.rows.told
        join.beat([], [], ended=True)
        assert left.rows.told and right.rows.told


def test_time_of_the_output_is_the_beats_clock_and_never_falls():
    with Running(plan()) as join:
        join.beat([("a", 1, 1.0, 1)], [("a", 1, 1.0, "x", 1)])
        times = [row[-2] for row in join.out[-1]]
        assert [t.timestamp() for t in times] == [0.001]
        join.operator._now_us = 10**9
        join.beat([("a", 1, 1.0, 1)], [])
        assert [row[-2].timestamp() for row in join.out[-1]] == [1000.0]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"on": ["x"]}, "operators.j.on[0]"),
        ({"how": "outer"}, "operators.j.how"),
        ({"how": "semi", "columns": {"x": "right.x"}}, "operators.j.columns.x"),
        ({"columns": {"weight": "left.n"}}, "operators.j.columns.weight"),
        ({"columns": {"w": "left.w"}}, "operators.j.columns.w"),
    ],
)
def test_a_faulty_join_is_refused_with_its_path(change, path):
    with pytest.raises(JobError) as fault:
        plan(**change)
    assert path in str(fault.value)


def test_streams_of_changes_and_plain_streams_are_inputs_too():
    from edged.data.flow import Link

    schema = fields(k="string", t="timestamp", w="int32")
    stream = Link(schema, "t", 0, "w")
    other = Link(fields(k="string", t="timestamp"), "t")
    document = {"type": "table_join", "left": "l", "right": "r", "on": ["k"]}
    made = TableJoinPlan.parse("operators.j", "j", document, [stream, other])
    assert made.output.schema.names == ("k", "t", "t_right", "changed_at", "weight")
    with Running(made) as join:
        join.beat([("a", 5, 1)], [("a", 6)])
        join.beat([("a", 5, -1)], [])
        assert join.total == {}
