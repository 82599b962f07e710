"""Beats of rows with keys, for operators with state by key: strategies, runs and cuts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow
from edged.data.hashing import hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from tests.pages import shapes

WORKERS = {n: Workers(n) for n in (1, 2, 12)}
ONE = WORKERS[1]
SCHEMA = Schema.of(
    [
        Field("k", TYPES["string"], True), Field("n", TYPES["int16"]), shapes.TIME,
        Field("on", TYPES["bool"], True), Field("x", TYPES["float64"], True),
        Field("s", TYPES["string"], True),
    ]
)  # fmt: skip
K, N, TIME, ON, X, S = range(6)
CELLS = (
    st.sampled_from(["a", "b", "longer than eight", None]), st.integers(0, 2),
    st.integers(-30, 30), st.sampled_from([True, False, None]),
    st.sampled_from([1.5, 0.0, -0.0, float("nan"), None]), st.sampled_from(["", "u", "uv", None]),
)  # fmt: skip


@st.composite
def beats(draw, cells=CELLS, marks=5, on_time=True):
    """Beats of rows and their watermarks; without late rows unless `on_time` is false."""
    rows = draw(st.lists(st.lists(st.tuples(*cells).map(list), max_size=10), max_size=marks))
    found = sorted(draw(st.lists(st.integers(-35, 35), min_size=len(rows), max_size=len(rows))))
    if on_time:
        for before, beat in zip(found, rows[1:], strict=False):
            beat[:] = [row for row in beat if row[TIME] >= before]
    return rows, found


def wide(rows, seed, start, late=0, keys=700):
    """A batch of rows with nulls, many keys, and times up to `late` out of order."""
    random = np.random.default_rng(seed)
    names = [f"key {n}".encode() for n in random.integers(0, keys, rows)]
    texts = [b"u" * n for n in random.integers(0, 3, rows)]
    valid = [(random.random(rows) < 0.9).astype(np.uint8) for _ in range(4)]
    times = start + np.arange(rows) - random.integers(0, late + 1, rows)
    return Batch(
        SCHEMA,
        rows,
        (
            _texts(names, valid[0]), Column(random.integers(0, 3, rows).astype(np.int16)),
            Column(times.astype(np.int64)), Column(random.integers(0, 2, rows, np.uint8), valid[1]),
            Column(random.integers(0, 3, rows).astype(np.float64), valid[2]),
            _texts(texts, valid[3]),
        ),
    )  # fmt: skip


def _texts(values, valid):
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    return Column(np.frombuffer(b"".join(values), np.uint8), valid, offsets)


def out(flow):
    """A flow's rows as lists of plain values."""
    return shapes.arrow_rows(flow.batch.to_arrow(), flow.batch.schema)


def feed(operator, rows, watermark, workers=ONE, schema=SCHEMA):
    """One beat of one input."""
    flow = Flow(shapes.batch_of(schema, rows), watermark)
    return out(operator.run(BeatContext(1, 0, workers), [flow]))


def run(plan, rows, marks, workers=1, cut=None, second=None):
    """The rows of each beat, and of the end; after `cut` beats another operator, with `second`
    workers, goes on with the saved state."""
    operator, found = plan.build(WORKERS[workers]), []
    number = workers
    for i, (beat, mark) in enumerate([*zip(rows, marks, strict=True), ([], WATERMARK_MAX_US)]):
        if i == cut:
            state = {name: a.copy() for name, a in operator.save(Scratch()).items()}
            feed(operator, rows[0] if rows else [], WATERMARK_MAX_US, WORKERS[number])
            number = second or workers
            operator = plan.build(WORKERS[number])
            operator.load(state)
        found.append(feed(operator, beat, mark, WORKERS[number]))
    return found


def rescaled(plan, rows, marks, cut, instances, by):
    """All rows, where after `cut` beats several instances go on, each with its keys."""

    def instance_of(hashes):
        return (hashes % np.uint64(instances)).astype(np.int64)

    first = plan.build(ONE)
    found = [feed(first, *beat) for beat in zip(rows[:cut], marks[:cut], strict=True)]
    states = plan.redistribute([by], [first.save(Scratch())], instances, instance_of)
    parts = [plan.build(ONE) for _ in states]
    for part, state in zip(parts, states, strict=True):
        part.load(state)
    for beat, mark in [*zip(rows[cut:], marks[cut:], strict=True), ([], WATERMARK_MAX_US)]:
        goes = instance_of(hash_columns(shapes.batch_of(SCHEMA, beat), by))
        for i, part in enumerate(parts):
            mine = [row for row, to in zip(beat, goes, strict=True) if to == i]
            found.append(feed(part, mine, mark))
    merged = plan.redistribute([by], [part.save(Scratch()) for part in parts], 1, instance_of)
    plan.build(ONE).load(merged[0])
    return [row for beat in found for row in beat]


def goes_on(plan, case, cut, workers):
    """Assert that an operator that is restored after `cut` beats gives the same rows."""
    assert plainly(run(plan, *case, workers[0], cut, workers[1])) == plainly(run(plan, *case))


def takes_over(plan, case, cut, instances):
    """Assert that so many instances, after `cut` beats, together give the same rows."""
    found = rescaled(plan, *case, min(cut, len(case[0])), instances, plan.by)
    wanted = [row for beat in run(plan, *case) for row in beat]
    assert sorted(map(plainly, found)) == sorted(map(plainly, wanted))


def plainly(rows):
    """Rows for comparison: NaN equals NaN."""
    return repr(rows)
