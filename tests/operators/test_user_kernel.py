"""`kernel` row by row: equal to Python's run of the same file, for any batches and workers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.scratch import Scratch
from edged.data.workers import Workers
from tests.naive import user_code as naive
from tests.operators.user_kernels import (
    WORKERS,
    dicts,
    plan,
    run,
)
from tests.whole import examples

EDGES = """
class State:
    known: bool
    last: float64 = 0.5
    n: int64
    since: timestamp
    recent: float64[3] = 1.0

class Outputs:
    class edges:
        t: timestamp
        key: string | None
        delta: float64 | None
        n: int16
        up: bool
        u: uint64
        f: float32
    class counts:
        since: timestamp
        k: int64
        word: string

class Parameters:
    limit: float64 = 2.0

SIZE = 3

def kernel(a, b, c):
    total = 0.0
    for i in range(3):
        total += a if i == 0 else b if i == 1 else c
    return total / SIZE

def on_row(row, state, out, parameters):
    i = 0
    if row.key == "skip" or row.x == 4.0 or row.key in ("leave", "go"):
        return
    state.n += 1
    if row.x is not None:
        recent = kernel(state.recent[0], state.recent[1], state.recent[-1])
        delta = row.x - state.last
        if state.known and (delta > parameters.limit or delta < -parameters.limit):
            out.edges(t=row.t, key=row.key, delta=delta if delta != 7.0 else None, n=row.n,
                      up=not row.up, u=row.u, f=row.f)
        state.recent[state.n % SIZE] = row.x + recent
        state.last = row.x
        state.known = True
    while i < row.n % 4:
        i += 1
        if row.n == 13:
            raise ValueError("thirteen")
        out.counts(since=state.since, k=i * 10 // row.n, word="odd")
    state.since = row.t
"""
KEYS = st.none() | st.sampled_from(["a", "b", "ä", "", "skip", "go", "long enough a key"])
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40), KEYS, st.integers(-5, 14),
        st.none() | st.integers(-9, 9).map(float), st.booleans(), st.integers(0, 2**64 - 1),
        st.integers(-9, 9).map(float),
    ),
    max_size=30,
)  # fmt: skip
PLAN = plan(EDGES, keys=["key"])
TWELVE = Workers(12)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_and_records_are_those_of_python(beats):
    operator = PLAN.build(WORKERS)
    got = {"edges": [], "counts": []}
    for rows in beats:
        for name, found in run(operator, rows).items():
            got[name] += found
    rows = dicts([row for rows in beats for row in rows])
    want, records, errors = naive.run(EDGES, ("edges", "counts"), rows, ["key"], {"limit": 2.0})
    assert got == want
    assert operator.counters()["rows_in_error"] == len(errors)
    names, values = operator.records()
    shown = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in values}
    for (key,), record in records.items():
        assert shown[key]["n"] == record["n"] and shown[key]["recent"] == record["recent"]


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 3))
def test_workers_batches_and_a_restart_change_nothing(beats, cut):
    one, many = PLAN.build(WORKERS), PLAN.build(TWELVE)
    whole = {"edges": [], "counts": []}
    for number, rows in enumerate(beats):
        for name, found in run(one, rows).items():
            whole[name] += found
        if number == cut:
            state = {k: v.copy() for k, v in many.save(Scratch()).items()}
            many = PLAN.build(TWELVE)
            many.load(state)
    again = {"edges": [], "counts": []}
    other = PLAN.build(TWELVE)
    for rows in beats:
        for part in (rows[:2], rows[2:]):
            for name, found in run(other, part, TWELVE).items():
                again[name] += found
    assert again == whole
    for key, array in one.save(Scratch()).items():
        assert np.array_equal(array, other.save(Scratch())[key]), key
