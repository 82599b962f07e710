"""Windows of weighted rows: exact sums, rows taken back, groups that vanish, as in DuckDB."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.window import WindowPlan
from tests.naive import exact_sums as naive
from tests.pages import shapes
from tests.whole import examples

ONE = Workers(1)
SCHEMA = Schema.of(
    [
        Field("k", TYPES["string"], True),
        Field("i", TYPES["int64"], True),
        Field("u", TYPES["uint64"]),
        Field("x", TYPES["float64"], True),
        Field("y", TYPES["float32"]),
        Field("w", TYPES["int32"]),
        Field("time", TYPES["timestamp"]),
    ]
)
MEASURES = {
    "n": "count(*)", "ni": "count(i)", "si": "sum(i)", "su": "sum(u)", "sx": "sum(x)",
    "sy": "sum(y)", "mi": "mean(i)", "mx": "mean(x)", "vx": "variance(x)", "vu": "variance(u)",
}  # fmt: skip
SUMS = {name: call for name, call in MEASURES.items() if name[0] != "v"}


def plan(aggregates=MEASURES, **document):
    document = {"keys": ["k"], "size": 10, "aggregates": aggregates, **document}
    return WindowPlan.parse("operators.w", "w", document, [Link(SCHEMA, "time", 0, "w")])


def emitted(p, beats, workers=ONE, restart=False):
    """The rows of the end of stream, after beats of rows."""
    operator = p.build(workers)
    for n, rows in enumerate(beats):
        flow = Flow(shapes.batch_of(SCHEMA, rows), WATERMARK_MIN_US)
        operator.run(BeatContext(n, 0, workers), [flow])
        if restart:
            state = {k: a.copy() for k, a in operator.save(Scratch()).items()}
            operator = p.build(workers)
            operator.load(state)
    nothing = Flow(shapes.batch_of(SCHEMA, []), WATERMARK_MAX_US)
    batch = operator.run(BeatContext(99, 0, workers), [nothing]).batch
    return shapes.arrow_rows(batch.to_arrow(), batch.schema)


def image(rows):
    """Rows by key and window, floats as text: NaN equals itself, and 0.0 is not -0.0."""
    return sorted([repr(v) for v in row] for row in rows)


WEIGHTS = st.integers(-(2**31) + 1, 2**31 - 1)


def rows_of(floats, weights=WEIGHTS):
    return st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 2**64 - 1),
            st.none() | floats,
            st.floats(width=32),
            weights,
            st.integers(-15, 25),
        ).map(list),
        max_size=12,
    )


def exactly(function, pairs, integers):
    """The columns of an aggregate of (value, weight), by fractions."""
    n = sum(w for _, w in pairs)
    if function == "count":
        return [n]
    if integers:
        total = sum(v * w for v, w in pairs)
        if function == "mean":
            return [n, float(total)]
        fits = -(2**63) <= total < 2**63
        return [total if fits and (n or total) else None]
    nearest = naive.rounded(pairs)[0] + 0.0
    if function == "mean":
        return [n, nearest]
    return [nearest if n or nearest or gone(pairs) else None]


def gone(pairs):
    """Whether infinities or NaN weigh in: by kind, because they do not add."""
    kinds = {}
    for v, w in pairs:
        if not math.isfinite(v):
            kinds[repr(v)] = kinds.get(repr(v), 0) + w
    return any(kinds.values())


def expected(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row[0], row[6] // 10 * 10), []).append(row)
    found = []
    for (key, start), members in groups.items():
        out, left = [], False
        for call in SUMS.values():
            function, _, column = call[:-1].partition("(")
            at = SCHEMA.names.index("w" if column == "*" else column)
            pairs = [(r[at], r[5]) for r in members if r[at] is not None]
            out += exactly(function, pairs, at < 3)
            left = left or any(v not in (0, 0.0, None) for v in out) or gone_in(pairs)
        if left:
            found.append([key, start, start + 10, *out])
    return found


def gone_in(pairs):
    return any(isinstance(v, float) for v, _ in pairs) and gone(pairs)


ROUNDED_ONCE = [
    ["a", -(2**63), 0, 0.0, 0.0, 1, 0],
    ["a", -(2**63) + 2**61 + 2**10 + 1, 0, 0.0, 0.0, 1, 0],
]
"""Their sum is a little off the middle of two float64; its lower word, rounded alone, is not."""


@settings(max_examples=examples(150), deadline=None)
@given(rows_of(st.floats()), st.integers(1, 3), st.booleans(), st.integers(1, 3))
@example(ROUNDED_ONCE, 1, False, 1)
def test_sums_of_weighted_rows_are_exact(rows, cuts, restart, count):
    beats = [rows[len(rows) * i // cuts : len(rows) * (i + 1) // cuts] for i in range(cuts)]
    found = emitted(plan(SUMS), beats, Workers(count), restart)
    assert image(found) == image(expected(rows))


@settings(max_examples=examples(150), deadline=None)
@given(rows_of(st.floats()), rows_of(st.floats()), st.integers(0, 2**32), st.integers(1, 20))
def test_rows_that_are_taken_back_leave_nothing(rows, back, seed, every):
    random, mixed = Random(seed), list(rows)
    for row in back:
        at = random.randrange(len(mixed) + 1)
        mixed.insert(at, row)
        mixed.insert(random.randrange(at, len(mixed)) + 1, [*row[:5], -row[5], row[6]])
    p = plan(size=20, every=every)
    assert image(emitted(p, [mixed])) == image(emitted(p, [rows]))
    assert emitted(p, [[*back, *([*r[:5], -r[5], r[6]] for r in back)]]) == []


@settings(max_examples=examples(80), deadline=None)
@given(rows_of(st.floats(-1e6, 1e6), st.integers(0, 3)), st.data())
def test_windows_are_those_of_duckdb_over_the_rows_that_are_left(rows, data):
    """Rows are inserted, some copies of some are taken back; DuckDB sees what is left."""
    taken = [data.draw(st.integers(0, r[5])) for r in rows]
    rows = [[*r[:2], r[2] % 2**40, r[3], 0.5, *r[5:]] for r in rows]
    back = [[*r[:5], -n, r[6]] for r, n in zip(rows, taken, strict=True)]
    names = "n", "ni", "su", "sx", "mx_count", "vx_count", "vx_mean", "vx_m2", "vu_m2"
    p = plan()
    at = [p.output.schema.names.index(c) for c in ("k", "window_start", *names)]
    found = {(r[at[0]], r[at[1]]): [r[i] for i in at[2:]] for r in emitted(p, [rows, back])}
    with duckdb.connect() as db:
        db.execute("CREATE TABLE t(k VARCHAR, i BIGINT, u UBIGINT, x DOUBLE, w INT, t BIGINT)")
        left = [[*r[:4], r[5] - n, r[6]] for r, n in zip(rows, taken, strict=True)]
        if left:
            db.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)", left)
        wanted = db.execute(
            "SELECT k, CAST(floor(t / 10) * 10 AS BIGINT), count(*), count(i), sum(u)::BIGINT,"
            " fsum(x), count(x), count(x), avg(x), var_pop(x) * count(x), var_pop(u) * count(*)"
            " FROM t, range(w) GROUP BY 1, 2"
        ).fetchall()
    assert found.keys() == {row[:2] for row in wanted}
    for key, start, *values in wanted:
        scale = sum(r[3] ** 2 * 3 for r in rows if r[3] is not None)
        for a, b in zip(found[key, start], values, strict=True):
            if b is None or isinstance(b, int):
                assert a == b or (b is None and a == 0)
            else:
                assert a == pytest.approx(b, rel=1e-9, abs=1e-9 + scale * 1e-12)


def test_the_moments_of_numbers_far_from_zero_keep_their_digits():
    rows = [["a", 1, 1, 1e9 + d, 0.0, 2, 0] for d in (0.25, 0.5, 1.0)]
    back = [["a", 1, 1, 7e12, 0.0, w, 0] for w in (5, -5)]
    ((*_, n, mean, m2),) = emitted(plan({"v": "variance(x)"}), [[back[0], *rows, back[1]]])
    values = [Fraction(r[3]) for r in rows for _ in range(2)]
    middle = sum(values) / 6
    assert (n, mean) == (6, float(middle))
    assert m2 == pytest.approx(float(sum((v - middle) ** 2 for v in values)), rel=1e-12)


def test_a_partial_that_takes_back_what_an_earlier_one_counted_says_so():
    p = plan({"n": "count(*)", "s": "sum(x)", "v": "variance(x)"})
    update = [["a", 1, 1, 3.0, 0.0, -1, 0], ["a", 1, 1, 5.0, 0.0, 1, 0]]
    assert emitted(p, [update]) == [["a", 0, 10, 0, 2.0, 0, 2.0, 16.0]]
    assert emitted(p, [update[:1]]) == [["a", 0, 10, -1, -3.0, -1, 3.0, 0.0]]


@pytest.mark.parametrize("function", ["min", "max"])
def test_extremes_of_weighted_rows_are_refused(function):
    with pytest.raises(JobError, match=rf"operators\.w\.aggregates\.a: {function} cannot take a"):
        plan({"a": f"{function}(x)"})


def test_the_plan_says_that_rows_have_weights():
    assert "rows count by w; sums are exact" in plan().describe()
    document = {"size": 10, "aggregates": SUMS, "keys": ["k"]}
    unweighted = WindowPlan.parse("w", "w", document, [Link(SCHEMA, "time")])
    assert unweighted.signature() != plan(SUMS).signature()
    assert plan().output.weight == ""
