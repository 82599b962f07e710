"""`keep` of a kernel operator: records are forgotten as Python forgets them, whatever the beats,
the workers, a restart or a deal to other instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, Flow, Link
from edged.data.hashing import hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from tests.naive import user_code as naive
from tests.operators.user_kernels import WORKERS, batch, context, dicts, listed, plan
from tests.whole import examples

COUNTS = """
class State:
    n: int64
    low: float64 = 100.0

class Outputs:
    class counts:
        t: timestamp
        n: int64
        low: float64

def on_row(row, state, out):
    state.n += 1
    state.low = min(state.low, row.x)
    if row.x == 3.0:
        raise ValueError("three")
    out.counts(t=row.t, n=state.n, low=state.low)
"""
SCHEMA = Schema.of(
    [
        Field("t", TYPES["timestamp"]),
        Field("key", TYPES["string"], True),
        Field("x", TYPES["float64"]),
    ]
)
KEEP = 20
PLAN = plan(COUNTS, SCHEMA, Link(SCHEMA, "t", 5), keys=["key"], keep=KEEP)
ROWS = st.lists(
    st.tuples(
        st.integers(-60, 60), st.sampled_from(["a", "b", "", None, "longer than eight"]),
        st.integers(0, 5).map(float),
    ),
    max_size=12,
)  # fmt: skip
TWELVE, TWO = Workers(12), Workers(2)


@st.composite
def beats(draw, late=True):
    """Beats of rows with watermarks that rise; without rows behind them unless `late`."""
    rows = draw(st.lists(ROWS, min_size=1, max_size=5))
    marks = sorted(draw(st.lists(st.integers(-70, 70), min_size=len(rows), max_size=len(rows))))
    if not late:
        for before, part in zip(marks, rows[1:], strict=False):
            part[:] = [row for row in part if row[0] >= before]
    return list(zip(rows, marks, strict=True))


def feed(operator, rows, mark, workers=WORKERS):
    operator.run(context(workers), [Flow(batch(rows, SCHEMA), mark)])
    return listed(operator.outputs["counts"].batch)


def saved(operator):
    return {name: array.tobytes() for name, array in operator.save(Scratch()).items()}


def twin(found):
    """Outputs and records of Python's run."""
    rows, horizons, horizon = [], [], WATERMARK_MIN_US
    for part, mark in found:
        rows += part
        horizons += [horizon] * len(part)
        horizon = max(horizon, mark - KEEP)
    memory = naive.Keep("t", KEEP, horizons)
    outputs, records, _ = naive.run(COUNTS, ["counts"], dicts(rows, SCHEMA), ["key"], keep=memory)
    kept = {key: r for key, r in records.items() if memory.latest[key] >= horizon}
    return outputs["counts"], kept


@settings(max_examples=examples(40), deadline=None)
@given(beats())
def test_rows_and_records_are_those_of_python(found):
    operator = PLAN.build(WORKERS)
    got = [row for part in found for row in feed(operator, *part)]
    outputs, records = twin(found)
    assert got == outputs
    names, values = operator.records()
    shown = {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in values}
    assert shown == {key: record for (key,), record in records.items()}
    assert operator.counters()["records"] == len(records)


@settings(max_examples=examples(20), deadline=None)
@given(beats(), st.integers(0, 4))
def test_workers_and_a_restart_change_neither_rows_nor_states(found, cut):
    operators = [(PLAN.build(w), w) for w in (WORKERS, TWO, TWELVE)]
    again = PLAN.build(TWELVE)
    for number, part in enumerate(found):
        rows = [feed(operator, *part, workers) for operator, workers in operators]
        assert rows[0] == rows[1] == rows[2] == feed(again, *part, TWELVE)
        states = [saved(operator) for operator, _ in operators]
        assert states[0] == states[1] == states[2] == saved(again)
        if number == cut:
            state = {name: array.copy() for name, array in again.save(Scratch()).items()}
            again = PLAN.build(TWO)
            again.load(state)


@settings(max_examples=examples(20), deadline=None)
@given(beats(late=False), st.integers(1, 4))
def test_rows_on_time_do_not_depend_on_beats(found, size):
    one, other = PLAN.build(WORKERS), PLAN.build(WORKERS)
    whole = [row for part in found for row in feed(one, *part)]
    rows = [row for part, _ in found for row in part]
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    assert [row for part in parts for row in feed(other, part, WATERMARK_MIN_US)] == whole


@settings(max_examples=examples(15), deadline=None)
@given(beats(), st.integers(0, 4), st.integers(2, 3))
def test_other_instances_go_on_with_their_keys(found, cut, instances):
    def instance_of(hashes):
        return (hashes % np.uint64(instances)).astype(np.int64)

    first, whole = PLAN.build(WORKERS), PLAN.build(WORKERS)
    for part in found[:cut]:
        assert feed(first, *part) == feed(whole, *part)
    states = PLAN.redistribute([["key"]], [first.save(Scratch())], instances, instance_of)
    parts = [PLAN.build(WORKERS) for _ in states]
    for part, state in zip(parts, states, strict=True):
        part.load(state)
    for rows, mark in found[cut:]:
        goes = instance_of(hash_columns(batch(rows, SCHEMA), ["key"]))
        dealt = [[r for r, to in zip(rows, goes, strict=True) if to == i] for i in range(instances)]
        got = [
            row for part, mine in zip(parts, dealt, strict=True) for row in feed(part, mine, mark)
        ]
        assert sorted(map(repr, got)) == sorted(map(repr, feed(whole, rows, mark)))
    (merged,) = PLAN.redistribute([["key"]], [p.save(Scratch()) for p in parts], 1, instance_of)
    one = PLAN.build(WORKERS)
    one.load(merged)
    assert sorted(map(repr, one.records()[1])) == sorted(map(repr, whole.records()[1]))


@pytest.mark.parametrize("marked", [True, False], ids=["watermark", "pauses alone"])
def test_memory_follows_the_keys_that_are_kept(marked):
    """100 000 keys pass; with watermarks those of one `keep` stay, with pauses one key's."""
    operator = PLAN.build(WORKERS)
    largest = 0
    for number in range(100):
        key = "{:05}" if marked else "one"
        rows = [(KEEP * number * 3, key.format(number * 1000 + i), 1.0) for i in range(1000)]
        if not marked:
            rows = [(KEEP * 3 * (number * 1000 + i), "one", 1.0) for i in range(1000)]
        feed(operator, rows, KEEP * number * 3 if marked else WATERMARK_MIN_US)
        largest = max(largest, operator.state_bytes())
    assert largest < 1 << 20
    assert operator.counters()["records"] == (1000 if marked else 1)


def test_the_end_of_a_stream_forgets_nothing():
    operator = PLAN.build(WORKERS)
    feed(operator, [(0, "a", 1.0)], 0)
    feed(operator, [], WATERMARK_MAX_US)
    assert feed(operator, [(KEEP, "a", 0.5)], WATERMARK_MAX_US)[0]["n"] == 2


def test_the_plan_says_how_long_and_another_bound_is_another_state():
    assert "for 20us" in PLAN.describe()[1] or "for 20 us" in PLAN.describe()[1]
    forever = plan(COUNTS, SCHEMA, Link(SCHEMA, "t", 5), keys=["key"])
    other = plan(COUNTS, SCHEMA, Link(SCHEMA, "t", 5), keys=["key"], keep="1h")
    facts = [str(p.signature_facts()) for p in (PLAN, forever, other)]
    assert len({*facts}) == 3


@pytest.mark.parametrize(("document", "text", "message"), [
    ({"keep": "1h"}, COUNTS, "one record for all rows"),
    ({"keep": 0, "keys": ["key"]}, COUNTS, "keep"),
    ({"keep": "soon", "keys": ["key"]}, COUNTS, "keep"),
    ({"keep": "1h", "keys": ["key"]}, None, "the code has no state"),
])  # fmt: skip
def test_a_bound_that_means_nothing_is_refused(document, text, message):
    text = text or COUNTS.replace("class State:\n    n: int64\n    low: float64 = 100.0\n", "")
    with pytest.raises(JobError, match=message) as refused:
        plan(text, SCHEMA, Link(SCHEMA, "t", 5), **document)
    assert str(refused.value).startswith("operators.k.keep")
