"""`kernel` by column: arrays in, arrays out, one record of state."""

from __future__ import annotations

import ast

import pytest

from edged.data.scratch import Scratch
from edged.errors import JobError, KernelError
from edged.expressions import cache
from tests.operators.user_kernels import SCHEMA, WORKERS, plan, run

TEXT = """
import numpy as np

class State:
    total: float64
    beats: int64
    recent: float64[2]

class Outputs:
    class high:
        t: timestamp
        x: float64
        n: int32 | None
    class beats:
        t: timestamp
        beats: int64

class Parameters:
    limit: float64 = 1.0

def on_batch(columns, state, out, parameters):
    good = np.where(columns.valid.x, columns.x, 0.0)
    keep = good > parameters.limit
    out.high(t=columns.t[keep], x=good[keep] * 2, n=(columns.n[keep], columns.n[keep] > 0))
    state.total += good.sum()
    state.recent[state.beats % 2] = good.max()
    if columns.n[0] == 99:
        state.recent[7] = 1.0
    state.beats += 1
    out.beats(t=columns.t[:1], beats=np.full(1, state.beats))
"""


def row(i, n, x):
    return (i, "a", n, x, True, 0, 0.0)


@pytest.fixture(scope="module")
def made():
    return plan(TEXT, SCHEMA)


def test_arrays_come_out_and_state_stays(made):
    operator = made.build(WORKERS)
    first = run(operator, [row(1, 5, 2.0), row(2, -5, None), row(3, -6, 9.0)])
    assert first == {
        "high": [{"t": 1, "x": 4.0, "n": 5}, {"t": 3, "x": 18.0, "n": None}],
        "beats": [{"t": 1, "beats": 1}],
    }
    state = {k: v.copy() for k, v in operator.save(Scratch()).items()}
    again = made.build(WORKERS)
    again.load(state)
    assert run(again, [row(4, 1, 0.5)])["beats"] == [{"t": 4, "beats": 2}]
    assert again.records()[1] == [[11.5, 2, [9.0, 0.5]]]


def test_an_error_sets_the_whole_batch_aside_and_undoes_it(made):
    operator = made.build(WORKERS)
    run(operator, [row(1, 5, 2.0)])
    found = run(operator, [row(2, 99, 3.0), row(3, 1, 4.0)])
    assert found == {"high": [], "beats": []}
    assert operator.set_aside[0].reasons[0].startswith("IndexError")
    assert len(operator.set_aside[0].reasons) == 2
    assert operator.records()[1] == [[2.0, 1, [2.0, 0.0]]]


def test_outputs_grow_as_the_arrays_need(made):
    rows = [row(i, i, float(i)) for i in range(3000)]
    found = run(made.build(WORKERS), rows)
    assert [r["x"] for r in found["high"]] == [2.0 * i for i in range(2, 3000)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("out.high(t=columns.t, x=columns.x, n=columns.n)", "x cannot be null"),
        ("out.high(t=columns.t, x=columns.f)", "high lacks n"),
        ("y = columns.key", "key is a text"),
        ("y = np.load('f')", "numpy.load is not part of kernels"),
        ("y = columns.t.tofile('f')", "is not part of kernels"),
        ("y = columns.z", "the input has no column z"),
    ],
)
def test_what_is_wrong_is_refused(line, problem):
    head = TEXT.partition("def on_batch")[0]
    with pytest.raises(JobError, match=problem):
        plan(f"{head}def on_batch(columns, state, out):\n    {line}", SCHEMA)


def test_names_and_texts_may_hold_the_word_that_marks_a_return():
    head = TEXT.partition("def on_batch")[0]
    lines = ("RETURNED = len(columns)", "if RETURNED > 3:", "    raise ValueError('RETURN')")
    made = plan(f"{head}def on_batch(columns, state, out):\n    " + "\n    ".join(lines), SCHEMA)
    text = ast.unparse(ast.parse(made.kernel.text))
    assert "RETURNED = _e_rows" in text and "raise ValueError('RETURN')" in text


def test_columns_cannot_be_written():
    head = TEXT.partition("def on_batch")[0]
    wrong = plan(
        f"{head}def on_batch(columns, state, out):\n    y = columns.n\n    y[0] = 1", SCHEMA
    )
    with pytest.raises(KernelError) as caught:
        cache.kernel(wrong.kernel.text, child=False)
    assert str(wrong.fault_of(caught.value)) == (
        "operators.k.file: own.py:23:5: elements of this cannot be assigned"
        " (an input's columns are read only: write columns.x.copy())"
    )


def test_keys_are_refused():
    with pytest.raises(JobError, match=r"operators.k.keys: on_batch has one record"):
        plan(TEXT, SCHEMA, keys=["key"])
