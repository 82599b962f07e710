"""Table states answer as a dictionary does, whatever is merged, spilled or loaded again."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from edged.bench.tables_data import members
from edged.data.columns import Batch, Column
from edged.data.schema import FLOAT64, INT64, Field, Schema
from edged.tables.base import COMPACTIONS
from tests import whole
from tests.naive.tables import Twin
from tests.tables import support

MEMBERS = members()
ORDINARY = Schema.of([Field("k", INT64), Field("v", FLOAT64)])


@st.composite
def histories(draw):
    """A shape, and beats of changes, of keys that are probed, and of what happens between."""
    name = draw(st.sampled_from(sorted(support.SHAPES)))
    schema, key = support.SHAPES[name]
    row = support.rows_of(schema)
    keys = st.tuples(*(support.values(f) for f in support.key_schema(schema, key).fields))
    beat = st.tuples(
        st.lists(st.tuples(row, st.sampled_from([1, 1, 1, -1, 2, 0])), max_size=12),
        st.lists(keys, max_size=8),
        st.sampled_from(["nothing", "nothing", "work", "work on", "reopen", "end"]),
    )
    return name, draw(st.lists(beat, min_size=1, max_size=12))


@pytest.mark.parametrize("member", MEMBERS)
@settings(
    max_examples=whole.examples(600), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    history=histories(),
    memory=st.sampled_from([1, 400, 3_000, 1 << 20]),
    compact=st.sampled_from(COMPACTIONS),
)
def test_after_every_beat_a_probe_finds_what_a_dictionary_has(
    tmp_path, member, history, memory, compact
):
    name, beats = history
    schema, key = support.SHAPES[name]
    state = support.make(tmp_path, schema, key, member, memory=memory, compact=compact)
    twin = Twin(schema, key)
    for changes, keys, then in beats:
        rows, weights = [row for row, _ in changes], [weight for _, weight in changes]
        state.apply(support.batch(schema, rows), np.array(weights, np.int32))
        twin.apply(rows, weights)
        probing = support.batch(support.key_schema(schema, key), keys)
        assert support.matches(state, probing) == twin.probe(keys)
        if then == "reopen":
            state = support.reopened(state)
        elif then == "end":
            state.probing_ends()
        elif then != "nothing":
            while state.work(3) and then == "work on":
                pass
    state.close()


def changes_of(rng, rows, keys):
    """A batch of changes that repeats keys and rows."""
    k = rng.integers(0, keys, rows)
    v = rng.integers(0, 3, rows).astype(np.float64)
    return Batch(ORDINARY, rows, (Column(k), Column(v))), rng.choice([1, 1, -1], rows)


@pytest.mark.parametrize("member", MEMBERS)
def test_the_bytes_of_a_probe_are_the_same_with_any_schedule_and_any_threads(tmp_path, member):
    arms = [
        (compact, threads, memory, budget)
        for compact, threads, memory, budget in [
            ("auto", 1, 1 << 24, 0), ("auto", 2, 20_000, 5_000), ("always", 12, 20_000, 1 << 30),
            ("never", 2, 20_000, 0), ("never", 1, 1 << 24, 0), ("seed", 1, 100_000, 1_000),
            ("auto", 12, 1, 100),
        ]
    ]  # fmt: skip
    seen = []
    for compact, threads, memory, budget in arms:
        rng = np.random.default_rng(7)
        state = support.make(tmp_path, ORDINARY, ("k",), member, None, threads, memory, compact)
        found = []
        for _ in range(12):
            state.apply(*changes_of(rng, 4_000, 700))
            asked = rng.integers(-5, 705, 3_000)
            keys = Batch(Schema.of([Field("k", INT64)]), asked.size, (Column(asked),))
            found.append(support.content(state, keys))
            if budget:
                state.work(budget)
        seen.append(found)
        state.close()
    assert all(found == seen[0] for found in seen)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_key_of_many_rows_and_rows_that_cancel_out(tmp_path, member):
    state = support.make(tmp_path, ORDINARY, ("k",), member, memory=1 << 16)
    v = np.arange(20_000, dtype=np.float64)
    rows = Batch(ORDINARY, v.size, (Column(np.full(v.size, 5)), Column(v)))
    key = Batch(Schema.of([Field("k", INT64)]), 1, (Column(np.array([5])),))
    for start in (0, 10_000):
        part = rows.slice(start, start + 10_000)
        state.apply(part, np.ones(part.rows, np.int32))
    assert state.probe(key).rows["v"].values.tolist() == v.tolist()
    state.apply(rows.slice(0, 19_999), np.full(19_999, -1, np.int32))
    assert state.probe(key).rows["v"].values.tolist() == [19_999.0]
    while state.work(1_000):
        pass
    assert state.probe(key).rows["v"].values.tolist() == [19_999.0]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_weight_that_leaves_int32_is_refused_and_changes_nothing(tmp_path, member):
    state = support.make(tmp_path, ORDINARY, ("k",), member)
    row = support.batch(ORDINARY, [(1, 2.0)])
    key = support.batch(Schema.of([Field("k", INT64, True)]), [(1,)])
    large = np.array([2**31 - 1], np.int32)
    state.apply(row, large)
    with pytest.raises(OverflowError):
        state.apply(row, np.array([1], np.int32))
    assert state.probe(key).weights.tolist() == [2**31 - 1]
    for weights in (-large, -large, large, large):
        state.apply(row, weights)
    assert state.probe(key).weights.tolist() == [2**31 - 1]
    with pytest.raises(OverflowError):
        state.apply(support.batch(ORDINARY, [(3, 0.0)] * 2), np.array([2**31 - 1, 1], np.int32))
    assert state.probe(support.batch(key.schema, [(3,)])).weights.size == 0
