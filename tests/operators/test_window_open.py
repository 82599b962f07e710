"""Sessions and windows of a number of rows: equal to plain Python and to DuckDB."""

from __future__ import annotations

from itertools import pairwise

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.window import WindowPlan
from tests.naive.window import normal
from tests.pages import shapes
from tests.whole import examples

WORKERS = {n: Workers(n) for n in (1, 2, 12)}
SCHEMA = Schema.of(
    [
        Field("k", TYPES["string"], True), Field("f", TYPES["float64"], True),
        Field("v", TYPES["int64"], True), Field("w", TYPES["int32"]), shapes.TIME,
    ]
)  # fmt: skip
CALLS = {"n": "count(*)", "s": "sum(v)", "low": "min(v)", "last": "last(v)"}


def plan(weight="", **document):
    document = {"keys": ["k", "f"], "aggregates": CALLS, **document}
    return WindowPlan.parse("operators.w", "w", document, [Link(SCHEMA, "time", 0, weight)])


def run(p, beats, workers=WORKERS[1], restart=None):
    """The rows of each beat and of the end, after beats of a batch and a watermark."""
    operator, found = p.build(workers), []
    for n, (batch, mark) in enumerate([*beats, (shapes.batch_of(SCHEMA, []), WATERMARK_MAX_US)]):
        flow = operator.run(BeatContext(n, 0, workers), [Flow(batch, mark)])
        assert flow.watermark_us == mark
        found.append(shapes.arrow_rows(flow.batch.to_arrow(), flow.batch.schema))
        if restart is not None:
            state = {k: a.copy() for k, a in operator.save(Scratch()).items()}
            workers = restart
            operator = p.build(workers)
            operator.load(state)
    return found


def windows(rows, gap, size):
    """[rows of a window] by key, of rows in order of time."""
    found, opened = [], {}
    for row in rows:
        key = (row[0], normal(row[1]))
        held = opened.get(key)
        if held is not None and gap and row[4] - held[-1][4] >= gap:
            held = None
        if held is None:
            held = opened[key] = []
            found.append(held)
        held.append(row)
        if size and len(held) == size:
            del opened[key]
    return found


def expected(rows, gap, size):
    """The operator's rows, by end and arrival; windows that lack rows come out at the end."""
    ordered = sorted(rows, key=lambda r: r[4])
    out = []
    for number, held in enumerate(windows(ordered, gap, size)):
        times, values = [r[4] for r in held], [r[2] for r in held if r[2] is not None]
        newest = [(r[4], r[2]) for r in held if r[2] is not None]
        last = max(newest) if newest else (None, None)
        total = sum(values) if values and abs(sum(values)) < 2**63 else None
        end = max(times) + gap
        key = [held[0][0], 0.0 if held[0][1] == 0.0 else held[0][1]]
        low = min(values, default=None)
        out.append(
            (
                len(held) < size,
                end,
                number,
                [*key, min(times), end, len(held), total, low, last[1], last[0]],
            )
        )
    return [row for *_, row in sorted(out, key=lambda o: o[:3])]


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "longer than a word", None]),
        st.sampled_from([0.0, -0.0, float("nan"), 1.5, None]),
        st.none() | st.integers(-(2**62), 2**62), st.just(1), st.integers(-40, 40),
    ).map(list),
    max_size=40,
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(ROWS, st.integers(0, 12), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_windows_are_those_of_plain_python(rows, gap, size, cuts, restart, data):
    """Rows come out of order, within the watermark; sessions and numbers of rows."""
    p = plan(gap=gap) if gap else plan(rows=size)
    beats, left = [], list(rows)
    for mark in sorted(data.draw(st.lists(st.integers(-45, 45), max_size=cuts))):
        beats.append((shapes.batch_of(SCHEMA, left[: len(left) // 2]), mark))
        left = [r for r in left[len(left) // 2 :] if r[4] >= mark]
    beats.append((shapes.batch_of(SCHEMA, left), 41))
    kept = [r for batch, _ in beats for r in shapes.arrow_rows(batch.to_arrow(), SCHEMA)]
    kept = [[*r[:4], r[4]] for r in kept]
    found = run(p, beats, restart=WORKERS[2] if restart else None)
    for row, (_, mark) in (
        (row, beat) for out, beat in zip(found, beats, strict=False) for row in out
    ):
        assert row[3] <= mark
    late = any(
        r[4] < mark
        for n, (_, mark) in enumerate(beats)
        for batch, _ in beats[n + 1 :]
        for r in shapes.arrow_rows(batch.to_arrow(), SCHEMA)
    )
    assert not late
    assert repr([r for out in found for r in out]) == repr(expected(kept, gap, 0 if gap else size))


def readings(count, seed):
    """Rows out of order by at most 50 ms, of skewed keys."""
    random = np.random.default_rng(seed)
    keys = [f"T{t:04d}" for t in random.zipf(1.3, count) % 900]
    time = np.cumsum(random.choice([1, 50, 400_000], count, p=[0.5, 0.45, 0.05]))
    columns = (
        Column(
            np.frombuffer(bytearray("".join(keys).encode()), np.uint8), np.ones(count, np.uint8),
            np.arange(0, 5 * count + 1, 5),
        ),
        Column(random.integers(0, 3, count) / 2, (random.random(count) < 0.9).astype(np.uint8)),
        Column(random.integers(-999, 999, count), (random.random(count) < 0.9).astype(np.uint8)),
        Column(np.ones(count, np.int32)), Column(time + random.integers(0, 50_000, count)),
    )  # fmt: skip
    return Batch(SCHEMA, count, columns)


TRUTH = """
    with ordered as (
      select *, row_number() over (order by time, n) as place from (
        select k, f, v, epoch_us(time) as time, row_number() over () as n from rows)),
    before as (select *, lag(time) over key as before from ordered
      window key as (partition by k, f order by place)),
    placed as (select *, {number} as number from before
      window key as (partition by k, f order by place))
    select k, f, min(time), max(time) + {gap}, count(*), sum(v)::bigint, min(v)
    from placed group by k, f, number order by count(*) < {size}, 4, min(place)
"""
SESSIONS = "sum(case when time - before < {gap} then 0 else 1 end) over key"


@pytest.mark.parametrize(("gap", "size"), [(200_000, 0), (5_000_000, 0), (0, 7), (0, 1)])
def test_windows_are_those_of_duckdb_for_any_workers(gap, size):
    batch = readings(30_000, 9)
    p = plan(gap=gap) if gap else plan(rows=size)
    times = batch["time"].values
    cuts = [0, 9000, 9001, 22_000, 30_000]
    beats = [(batch.slice(a, b), int(times[b:].min(initial=2**62))) for a, b in pairwise(cuts)]
    found = [run(p, beats, w) for w in WORKERS.values()]
    assert found[0] == found[1] == found[2] == run(p, beats, WORKERS[2], WORKERS[1])
    number = SESSIONS.format(gap=gap) if gap else f"(row_number() over key - 1) // {size}"
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_batches([batch.to_arrow()]))
        truth = connection.execute(TRUTH.format(gap=gap, size=size, number=number)).fetchall()
    assert [tuple(r[:7]) for out in found[0] for r in out] == truth


def test_a_late_row_joins_a_session_near_by_and_is_one_of_its_own_elsewhere():
    p = plan(gap=10)
    row = lambda v, time: ["a", 1.0, v, 1, time]  # noqa: E731
    beats = [
        (shapes.batch_of(SCHEMA, [row(1, 30), row(2, 35)]), 36),
        (shapes.batch_of(SCHEMA, [row(4, 21), row(8, 5), row(16, 38)]), 39),
    ]
    found = [[r[2:6] for r in out] for out in run(p, beats)]
    assert found == [[], [[5, 15, 1, 8]], [[21, 48, 4, 23]]]


def test_states_of_keys_go_to_other_instances():
    batch = readings(4000, 2)
    for p in (plan(gap=300_000), plan(rows=11)):
        whole = run(p, [(batch, 0), (batch, 10**9)])
        operator = p.build(WORKERS[1])
        operator.run(BeatContext(0, 0, WORKERS[1]), [Flow(batch, 0)])
        states = p.redistribute(
            [["k"]], [operator.save(Scratch())], 3, lambda h: (h % 3).astype(np.int64)
        )
        assert sum(int(s["input.waiting"][0]) for s in states) == 4000
        (back,) = p.redistribute([["k"]], states, 1, lambda h: h)
        operator = p.build(WORKERS[1])
        operator.load(back)
        nothing = shapes.batch_of(SCHEMA, [])
        found = []
        for rows, mark in ((batch, 10**9), (nothing, WATERMARK_MAX_US)):
            flow = operator.run(BeatContext(1, 0, WORKERS[1]), [Flow(rows, mark)])
            found += shapes.arrow_rows(flow.batch.to_arrow(), flow.batch.schema)
        assert sorted(map(repr, found)) == sorted(repr(r) for out in whole for r in out)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({}, "operators.w.size"), ({"gap": "0s"}, "operators.w.gap"),
        ({"rows": 0}, "operators.w.rows"), ({"gap": "1s", "rows": 5}, "operators.w.rows"),
        ({"gap": "1s", "every": "1s"}, "operators.w.every"),
        ({"size": "1s", "gap": "1s"}, "operators.w.gap"),
    ],
)  # fmt: skip
def test_a_wrong_extent_is_refused_with_its_path(document, path):
    with pytest.raises(JobError) as caught:
        plan(**document)
    assert caught.value.path == path


def test_weights_are_refused_and_plans_describe_themselves():
    with pytest.raises(JobError, match="cannot take a row back") as caught:
        plan("w", gap="5s")
    assert caught.value.path == "operators.w.input"
    sessions, fixed = plan(gap="5min"), plan(rows=100)
    assert sessions.describe()[0].startswith("sessions that end after 5min without rows by k, f: ")
    assert fixed.describe()[0].startswith("windows of 100 rows by k, f: count(*)")
    assert sessions.output.time == "window_end"
    others = [sessions, fixed, plan(rows=99), plan(gap="4min"), plan(size="5min")]
    assert len({p.signature() for p in others}) == 5
