"""`asof_join`: equal to a plain twin, to DuckDB's ASOF JOIN and to Polars' join_asof."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.hashing import hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.errors import JobError
from edged.operators.asof_join import AsofJoinPlan
from tests.naive import asof as naive
from tests.operators.keyed_cases import CELLS, SCHEMA, TIME, WORKERS, X, beats, out, plainly, wide
from tests.pages import shapes
from tests.whole import examples

RIGHT = Schema.of(
    [
        Field("at", TYPES["timestamp"]), Field("key", TYPES["string"], True),
        Field("x", TYPES["float64"], True), Field("v", TYPES["string"]),
    ]
)  # fmt: skip
AT, KEY, _, V = range(4)
RIGHT_CELLS = (CELLS[TIME], CELLS[0], CELLS[X], st.sampled_from(["p", "", "qqqqqqqqqq"]))
DIRECTIONS = ("backward", "forward", "nearest")


def plan(**document):
    columns = {"k": "left.k", "time": "left.time", "s": "left.s", "v": "right.v", "at": "right.at"}
    document = {"on": ["k = key"], "columns": columns, **document}
    return AsofJoinPlan.parse(
        "operators.a", "a", document, [Link(SCHEMA, "time"), Link(RIGHT, "at")]
    )


@st.composite
def both(draw):
    """Beats of left and right rows, with their watermarks, without late rows."""
    left, marks = draw(beats())
    cells = st.lists(st.tuples(*RIGHT_CELLS).map(list), max_size=10)
    right = [draw(cells) for _ in left]
    others = sorted(draw(st.lists(st.integers(-35, 35), min_size=len(left), max_size=len(left))))
    for before, beat in zip(others, right[1:], strict=False):
        beat[:] = [row for row in beat if row[AT] >= before]
    return left, right, marks, others


documents = st.fixed_dictionaries(
    {
        "direction": st.sampled_from(DIRECTIONS), "tolerance": st.integers(0, 25),
        "how": st.sampled_from(["inner", "left"]),
        "on": st.sampled_from([["k = key"], ["k = key", "x"], ["x"]]),
    }
)  # fmt: skip


def feed(operator, left, right, marks, workers):
    flows = [
        Flow(shapes.batch_of(schema, rows), mark)
        for schema, rows, mark in zip((SCHEMA, RIGHT), (left, right), marks, strict=True)
    ]
    flow = operator.run(BeatContext(1, 0, workers), flows)
    return out(flow), flow.watermark_us


def run(p, case, workers=1, cut=None, second=None, late=False):
    """The rows of each beat, and of the end; without late rows none is below a watermark."""
    number, operator = workers, p.build(WORKERS[workers])
    found, mark = [], None
    time = p.output.schema.index(p.output.time)
    ends = ([], [], WATERMARK_MAX_US, WATERMARK_MAX_US)
    for i, beat in enumerate([*zip(*case, strict=True), ends]):
        if i == cut:
            state = {name: a.copy() for name, a in operator.save(Scratch()).items()}
            feed(operator, *ends[:2], ends[2:], WORKERS[number])
            number = second or workers
            operator = p.build(WORKERS[number])
            operator.load(state)
            again = operator.save(Scratch())
            assert {n: a.tobytes() for n, a in again.items()} == {
                n: a.tobytes() for n, a in state.items()
            }
        rows, following = feed(operator, *beat[:2], beat[2:], WORKERS[number])
        assert late or mark is None or all(row[time] >= mark for row in rows)
        mark = following
        found.append(rows)
    return found


def expected(p, case):
    lefts = sorted((row for beat in case[0] for row in beat), key=lambda row: row[TIME])
    rights = [row for beat in case[1] for row in beat]
    keys = [[schema.index(pair[i]) for pair in p.on] for i, schema in enumerate((SCHEMA, RIGHT))]
    matches = naive.join(lefts, rights, keys, (TIME, AT), p.direction, p.tolerance_us)
    return [
        [row[0], row[TIME], row[5], *((m[V], m[AT]) if m else (None, None))]
        for row, m in zip(lefts, matches, strict=True)
        if m or p.how == "left"
    ]


def flat(found):
    """All rows by time; those of one time as they came."""
    return sorted((row for beat in found for row in beat), key=lambda row: row[1])


@settings(max_examples=examples(400), deadline=None)
@given(documents, both(), st.sampled_from([1, 2, 12]))
def test_rows_are_those_of_the_twin(document, case, workers):
    p = plan(**document)
    found = flat(run(p, case, workers))
    if p.direction == "backward":
        assert plainly(found) == plainly(expected(p, case))
    assert sorted(map(plainly, found)) == sorted(map(plainly, expected(p, case)))


@settings(max_examples=examples(150), deadline=None)
@given(documents, both(), st.integers(0, 5), st.sampled_from([(1, 2), (12, 1), (2, 12)]))
def test_a_restored_join_goes_on_byte_for_byte(document, case, cut, workers):
    p = plan(**document)
    assert plainly(run(p, case, workers[0], cut, workers[1])) == plainly(run(p, case))


@settings(max_examples=examples(100), deadline=None)
@given(documents, both(), beats(on_time=False), both(), st.integers(0, 5))
def test_late_rows_give_the_same_for_any_workers_and_over_restarts(document, case, late, more, cut):
    p = plan(**document)
    lates = late[0], reversed(more[1])
    sides = [
        [a + b for a, b in zip(side, [*some, *[[]] * 5], strict=False)]
        for side, some in zip(case[:2], lates, strict=True)
    ]
    case = (*sides, *case[2:])
    found = run(p, case, 12, cut, 2, late=True)
    assert plainly(found) == plainly(run(p, case, late=True))


@pytest.mark.parametrize("instances", [0, 2])
def test_a_late_right_row_takes_none_away_that_waiting_rows_have_met(instances):
    p = plan(direction="nearest", tolerance=5)
    operator = p.build(WORKERS[1])
    near, late = ["a", 0, 103, None, None, "u"], [["z", 0, 90, None, None, "v"]]
    assert feed(operator, [near], [[100, "a", None, "p"]], (104, 104), WORKERS[1])[0] == []
    others = [[t, "b", None, "q"] for t in (10, 11)]
    assert feed(operator, late, others, (104, 104), WORKERS[1])[0] == []
    states = [operator.save(Scratch())]
    if instances:
        hashed = [p.key_names(0), p.key_names(1)]
        states = p.redistribute(hashed, states, 2, lambda h: (h % np.uint64(2)).astype(np.int64))
    found = []
    for state in states:
        operator = p.build(WORKERS[1])
        operator.load(state)
        found += feed(operator, [], [], (120, 120), WORKERS[1])[0]
    assert found == [["a", 103, "u", "p", 100]]


def rescaled(p, case, cut, instances):
    """All rows, where after `cut` beats several instances go on, each with its keys."""
    by = [p.key_names(0), p.key_names(1)]
    ends = ([], [], WATERMARK_MAX_US, WATERMARK_MAX_US)

    def instance_of(hashes):
        return (hashes % np.uint64(instances)).astype(np.int64)

    def mine(schema, rows, names, number):
        goes = instance_of(hash_columns(shapes.batch_of(schema, rows), names))
        return [row for row, to in zip(rows, goes, strict=True) if to == number]

    first, cases = p.build(WORKERS[1]), [*zip(*case, strict=True)]
    found = [row for b in cases[:cut] for row in feed(first, *b[:2], b[2:], WORKERS[1])[0]]
    states = p.redistribute(by, [first.save(Scratch())], instances, instance_of)
    for number, state in enumerate(states):
        part = p.build(WORKERS[2])
        part.load(state)
        for left, right, *marks in cases[cut:]:
            some = mine(SCHEMA, left, by[0], number), mine(RIGHT, right, by[1], number)
            found += feed(part, *some, marks, WORKERS[2])[0]
        states[number] = part.save(Scratch())
    whole = p.build(WORKERS[1])
    whole.load(p.redistribute(by, states, 1, instance_of)[0])
    return found + feed(whole, *ends[:2], ends[2:], WORKERS[1])[0]


@settings(max_examples=examples(100), deadline=None)
@given(documents, both(), st.integers(0, 5), st.integers(1, 3))
def test_instances_that_take_over_give_the_same_rows(document, case, cut, instances):
    p = plan(**document)
    found = rescaled(p, case, min(cut, len(case[0])), instances)
    assert sorted(map(plainly, found)) == sorted(map(plainly, flat(run(p, case))))


@settings(max_examples=examples(60), deadline=None)
@given(both(), st.sampled_from(["inner", "left"]), st.sampled_from(DIRECTIONS[:2]))
def test_rows_are_those_of_duckdb(case, how, direction):
    rights = {}
    for row in [row for beat in case[1] for row in beat]:
        rights.setdefault((row[AT], row[KEY]), row)  # of equal times DuckDB takes any
    seen = set(map(id, rights.values()))
    case = (case[0], [[r for r in b if id(r) in seen] for b in case[1]], *case[2:])
    tolerance = {} if direction == "backward" else {"tolerance": 100}
    found = flat(run(plan(how=how, direction=direction, **tolerance), case))
    db = duckdb.connect()
    db.execute("create table l (k varchar, t bigint, s varchar)")
    db.execute("create table r (k varchar, t bigint, v varchar)")
    lefts = [[row[0], row[TIME], row[5]] for beat in case[0] for row in beat]
    rows = [[row[KEY], row[AT], row[V]] for beat in case[1] for row in beat]
    for name, data in (("l", lefts), ("r", rows)):
        if data:
            db.executemany(f"insert into {name} values (?, ?, ?)", data)
    sign = ">=" if direction == "backward" else "<="
    wanted = db.execute(
        f"select l.k, l.t, l.s, r.v, r.t from l asof {how} join r on l.k = r.k and l.t {sign} r.t"
    ).fetchall()
    assert sorted(map(plainly, found)) == sorted(plainly(list(row)) for row in wanted)


@settings(max_examples=examples(60), deadline=None)
@given(both(), st.sampled_from(DIRECTIONS), st.integers(0, 25))
def test_rows_are_those_of_polars(case, direction, tolerance):
    found = flat(run(plan(how="left", direction=direction, tolerance=tolerance), case))
    lefts = sorted((row for beat in case[0] for row in beat), key=lambda row: row[TIME])
    rights = sorted((row for beat in case[1] for row in beat), key=lambda row: row[AT])
    left = pl.DataFrame(
        [[r[0], r[TIME], r[5]] for r in lefts], {"k": pl.String, "t": pl.Int64, "s": pl.String},
        orient="row",
    )  # fmt: skip
    right = pl.DataFrame(
        [[r[KEY], r[AT], r[V]] for r in rights], {"k": pl.String, "t": pl.Int64, "v": pl.String},
        orient="row",
    ).with_columns(at=pl.col("t"))  # fmt: skip
    wanted = left.join_asof(
        right, on="t", by="k", strategy=direction, tolerance=tolerance, check_sortedness=False
    ).select("k", "t", "s", "v", "at")
    assert sorted(map(plainly, found)) == sorted(plainly(list(row)) for row in wanted.rows())


def test_a_row_comes_out_as_soon_as_no_better_one_can_come():
    left, right = [["a", 0, t, None, None, "u"] for t in (10, 20)], [[9, "a", None, "p"]]
    p = plan()
    operator = p.build(WORKERS[1])
    assert feed(operator, left, right, (20, 10), WORKERS[1])[0] == []
    assert feed(operator, [], [], (20, 11), WORKERS[1])[0] == [["a", 10, "u", "p", 9]]
    p = plan(direction="forward", tolerance=50)
    operator = p.build(WORKERS[1])
    rows, mark = feed(operator, left, [[15, "a", None, "p"]], (20, 15), WORKERS[1])
    assert rows == [["a", 10, "u", "p", 15]]
    assert mark <= 20
    assert operator.counters()["rows_undecided"] == 0
    assert operator.counters()["left_waiting"] == 1


def rights_of(data):
    """Rows of the left's schema as rows of the right."""
    text = shapes.Column(data["s"].values, None, data["s"].offsets)
    return shapes.Batch(RIGHT, data.rows, (data["time"], data["k"], data["x"], text))


def test_right_rows_that_none_can_meet_leave_the_memory():
    for document in ({"tolerance": 1000}, {"direction": "nearest", "tolerance": 1000}):
        p = plan(**document, columns={"time": "left.time", "v": "right.v"})
        operator = p.build(WORKERS[1])
        data = wide(8_000, 3, 0)
        for start in range(0, 200_000, 8_000):
            data.columns[TIME].values[:] = np.arange(start, start + 8_000)
            right = rights_of(data)
            flows = [Flow(data, start + 7_999), Flow(right, start + 7_999)]
            operator.run(shapes.beat(), flows)
        assert operator.counters()["matched"] > 150_000
        assert operator.state_bytes() < 12e6


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_workers_share_large_beats(direction):
    p = plan(direction=direction, tolerance=300, how="left")
    found = []
    for count in (1, 12):
        operator, rows = p.build(WORKERS[count]), []
        for number in range(2):
            left = wide(20_000, number, 20_000 * number, 50, 300)
            data = wide(20_000, 7 + number, 20_000 * number, 50, 300)
            right = rights_of(data)
            mark = 20_000 * (number + 1) - 60
            flows = [Flow(left, mark), Flow(right, mark)]
            rows.append(operator.run(BeatContext(1, 0, WORKERS[count]), flows).batch.to_arrow())
        state = operator.save(Scratch())
        found.append((rows, {name: a.tobytes() for name, a in state.items()}))
    assert all(a.equals(b) for a, b in zip(found[0][0], found[1][0], strict=True))
    assert found[0][1] == found[1][1]
    assert sum(batch.num_rows for batch in found[0][0]) > 30_000


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"direction": "forward"}, "operators.a.tolerance"),
        ({"direction": "nearest"}, "operators.a.tolerance"),
        ({"direction": "back"}, "operators.a.direction"),
        ({"how": "outer"}, "operators.a.how"),
        ({"on": ["k = v2"]}, "operators.a.on[0]"),
        ({"columns": {"v": "right.v"}}, "operators.a.columns"),
        ({"tolerance": "x"}, "operators.a.tolerance"),
    ],
)
def test_a_wrong_document_is_refused_with_its_path(document, path):
    with pytest.raises(JobError) as refused:
        plan(**document)
    assert path in str(refused.value)


@pytest.mark.parametrize("side", [0, 1])
def test_weighted_rows_are_refused(side):
    links = [Link(SCHEMA, "time"), Link(SCHEMA, "time")]
    links[side] = Link(SCHEMA, "time", weight="n")
    with pytest.raises(JobError, match="weights"):
        AsofJoinPlan.parse("operators.a", "a", {"on": ["k"]}, links)
