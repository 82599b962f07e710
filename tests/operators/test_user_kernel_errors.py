"""Kernels of users in error: the row is set aside, its effects are undone, loops end, and what is
wrong with the code is refused with line and column."""

from __future__ import annotations

import pytest

from edged.data.flow import Flow, Link
from edged.data.schema import INT32, TIMESTAMP, Field, Schema
from edged.data.workers import Workers
from edged.errors import JobError, KernelError
from edged.expressions import cache
from tests.operators.user_kernels import WORKERS, batch, context, plan, run

SCHEMA = Schema.of([Field("t", TIMESTAMP), Field("k", INT32), Field("n", INT32)])
OUT = """
class Outputs:
    class out:
        t: timestamp
        n: int8
"""
FAILING = (
    OUT
    + """
class State:
    sum: int64
    last: int64[2]

def spin(n):
    while n == 5:
        n = 5
    return n

def on_row(row, state, out):
    state.sum += row.n
    state.last[0] = row.n
    out.out(t=row.t, n=row.n)
    if row.n == 1:
        state.sum = state.sum // 0
    if row.n == 2:
        state.last[row.n] = 1
    if row.n == 3:
        raise ValueError("three")
    k = 0
    while row.n == 4:
        k += 1
    if row.n == 5:
        k = spin(row.n)
    for k in range(5000):
        if row.n == 6:
            out.out(t=row.t, n=0)
    if row.n == 9:
        out.out(t=row.t, n=int(row.n ** -row.n * 10 ** 9))
    state.last[1] = row.n
"""
)


@pytest.fixture(scope="module")
def failing():
    return plan(FAILING, SCHEMA, keys=["k"])


def test_a_row_in_error_changes_nothing_and_is_set_aside_with_its_reason(failing):
    operator = failing.build(WORKERS)
    rows = [(i, 1, n) for i, n in enumerate([7, 1, 2, 3, 4, 5, 300, 6, 9])]
    found = run(operator, rows, schema=SCHEMA)
    assert [r["n"] for r in found["out"]] == [7, 9, 2]
    (refused,) = operator.set_aside
    assert refused.batch["n"].values.tolist() == [1, 2, 3, 4, 5, 300, 6]
    assert [reason.partition(":")[0] for reason in refused.reasons] == [
        "ZeroDivisionError", "IndexError", "ValueError", "RuntimeError", "RuntimeError",
        "OverflowError", "RuntimeError",
    ]  # fmt: skip
    assert operator.records() == (["k", "sum", "last"], [[1, 16, [9, 9]]])
    assert operator.counters()["rows_in_error"] == 7 and operator.problem == ""
    run(operator, [(9, 1, 7)], schema=SCHEMA)
    assert operator.set_aside == ()


LARGE = (
    OUT
    + """
class State:
    done: int64
    last: int64[64]

def on_row(row, state, out):
    for i in range(row.n):
        state.last[i % 40] = row.n + i
    if row.n % 2 == 1:
        raise ValueError("odd")
    state.done += 1
    out.out(t=row.t, n=row.n)
"""
)


def test_what_a_row_in_error_wrote_to_a_large_record_is_undone():
    operator = plan(LARGE, SCHEMA, keys=["k"]).build(WORKERS)
    rows = [4, 3, 45, 65, 105, 2, 104, 103]  # places twice; as many writes as words, and more
    run(operator, [(i, i % 2, n) for i, n in enumerate(rows)], schema=SCHEMA)
    twin = {key: [0] * 64 for key in (0, 1)}
    for i, n in enumerate(rows):
        for at in range(n if n % 2 == 0 else 0):
            twin[i % 2][at % 40] = n + at
    _, records = operator.records()
    assert {key: last for key, _, last in records} == twin
    assert sum(done for _, done, _ in records) == 3
    assert operator.counters()["rows_in_error"] == 5


def test_stop_asks_for_a_pause_of_the_job(failing):
    operator = plan(FAILING, SCHEMA, keys=["k"], on_error="stop").build(WORKERS)
    run(operator, [(0, 1, 3)], schema=SCHEMA)
    assert operator.problem == "operators.k: ValueError: three"
    run(operator, [(0, 1, 7)], schema=SCHEMA)
    assert operator.problem == ""


def test_errors_of_all_workers_are_set_aside_in_order_of_rows(failing):
    twelve = Workers(12)
    operator = failing.build(twelve)
    rows = [(i, i % 7, i % 5) for i in range(100)]
    operator.run(context(twelve), [Flow(batch(rows, SCHEMA), 0)])
    (refused,) = operator.set_aside
    assert refused.batch["t"].values.tolist() == [i for i in range(100) if i % 5]


REFUSED = [
    ("def on_row(row, state, out:\n    pass", r"own.py:\d+:\d+: syntax error"),
    ("import os\n", r"own.py:\d+:1: os cannot be imported"),
    ("def on_row(row, state, out):\n    out.out(t=row.t, n=row.m)",
     r"own.py:7:24: the input has no column m \(it has t, k, n"),
    ("def on_row(row, state, out):\n    state.sun = 1",
     r"own.py:7:5: the state sun is not declared \(did you mean sum"),
    ("def on_row(row, state, out):\n    out.ot(t=row.t, n=1)",
     r"own.py:7:5: the output ot is not declared \(did you mean out"),
    ("def on_row(row, state, out):\n    out.out(t=row.t)", r"own.py:7:5: out lacks n"),
    ("def on_row(row, state, out):\n    out.out(t=row.t, m=1, n=1)", r"out has no column m"),
    ("def on_row(row, state, out):\n    x = [1]", r"own.py:7:9: \[1\] is not part of kernels"),
    ("def on_row(row, state, out):\n    x = open('f')", r"own.py:7:9: open is no function"),
    ("def on_row(row, state, out):\n    for x in 3:\n        pass", r"7:14: loops go over range"),
    ("def on_row(row, state, out):\n    x = row.__class__", r"no column __class__"),
    ("def on_row(row, state, out):\n    row.n = 1", r"own.py:7:5: a row cannot be changed"),
    ("def on_row(row, state, out):\n    import os", r"own.py:7:5: Import is not part of kernels"),
    ("def on_row(row, state, out):\n    x = y + 1", r"own.py:7:9: y is not defined"),
    ("def on_row(row, state, out):\n    state.sum = 'a'", r"'a' has no place here"),
    ("def on_row(row, state):\n    pass", r"own.py:6:1: on_row takes 2 arguments"),
    ("def f(x):\n    return f(x)\ndef on_row(row, state, out):\n    x = f(1)", r"f calls itself"),
    ("class State:\n    last: int64[2]\ndef on_row(row, state, out):\n    x = len(row.last)",
     r"own.py:9:9: len takes an array of the state"),
    ("LIMIT = 3\ndef f(LIMIT):\n    return LIMIT\ndef on_row(row, state, out):\n    x = f(1)",
     r"own.py:7:7: LIMIT cannot be assigned"),
    ("def on_row(row, state, out):\n    x = " + "+".join(["row.n"] * 2000),
     r"own.py:1:1: an expression or a block is nested too deeply"),
    ("class Stat:\n    n: int64", r"class Stat has no meaning here \(did you mean State"),
    ("class Parameters:\n    p: int64\ndef on_row(row, state, out):\n    pass",
     r"operators.k.parameters.p: is missing"),
    ("x = 1", r"has no function that is called"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_what_is_wrong_is_refused_with_its_place(text, problem):
    head = "class Outputs:\n    class out:\n        t: timestamp\n        n: int8\n"
    with pytest.raises(JobError, match=problem):
        plan(head + "class State: sum: int64\n" + text, SCHEMA)


DECLARED = [
    ("class State:\n    s: string", r"own.py:2:8: s: texts cannot be state \(make it a key"),
    ("class State:\n    s: int32", r"own.py:2:8: s: int32 cannot be state"),
    ("class State:\n    s: int64[0]", r"s: an array has a number of elements"),
    ("class State:\n    s: int64 = 0.5", r"own.py:2:16: s: 0.5 is no int64"),
    ("class Outputs:\n    class o:\n        x: int64", r"own.py:2:5: o has no event time"),
    (
        "class Outputs:\n    class o:\n        t: timestmp",
        r"timestmp is no type \(did you mean tim",
    ),
    ("print(1)", r"own.py:1:1: a statement of this kind"),
    ("", r"own.py:1:1: declares no output"),
]


@pytest.mark.parametrize(("text", "problem"), DECLARED)
def test_wrong_declarations_are_refused_with_their_place(text, problem):
    with pytest.raises(JobError, match=problem):
        plan(text, SCHEMA)


def test_keys_and_weights_are_checked():
    text = OUT + "def on_row(row, state, out):\n    pass"
    with pytest.raises(JobError, match=r"operators.k.keys\[0\]: no column 'x'"):
        plan(text, SCHEMA, keys=["x"])
    with pytest.raises(JobError, match=r"operators.k.input: is a stream of changes"):
        plan(text, SCHEMA, Link(SCHEMA, "t", weight="n"))
    with pytest.raises(JobError, match=r"operators.k.on_error"):
        plan(text, SCHEMA, on_error="panic")


def test_a_type_that_numba_refuses_has_line_column_and_advice():
    text = (
        OUT
        + "class State:\n    sum: int64\ndef on_row(row, state, out):\n    state.sum = row.n / 2"
    )
    wrong = plan(text, SCHEMA)
    with pytest.raises(KernelError) as caught:
        cache.kernel(wrong.kernel.text, child=False)
    fault = str(wrong.fault_of(caught.value))
    assert fault == (
        "operators.k.file: own.py:9:5: expected an integer, not float64: write int(...)"
    )
