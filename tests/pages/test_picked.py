"""Rows picked by row numbers are written as their copies are: the same bytes, no copy between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.columns import Column
from edged.data.flow import Flow
from edged.data.picked import Picked, PickedFlow
from edged.data.schema import FLOAT64, INT32, STRING, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.sinks.base import Flush
from edged.sinks.pages import PICKED_ROWS_MAX
from tests.pages import shapes
from tests.sinks.test_pages import running
from tests.whole import examples

DENSE = Schema.of([Field("k", INT32, True), shapes.TIME, Field("v", FLOAT64)])
SLOTTED = Schema.of([*DENSE, Field("name", STRING, True)])


def pairs_of(schema, sides, picks, origins):
    """Picked rows whose column c comes from side `origins[c]`."""
    return Picked(
        schema, picks[0].size,
        tuple(sides[side].columns[c] for c, side in enumerate(origins)),
        tuple(picks[side] for side in origins),
    )  # fmt: skip


def table(schema, rng, count):
    rows = [
        [int(k) if k else None, i, float(k), None if k % 3 == 0 else "ö" * int(k % 30)]
        for i, k in enumerate(rng.integers(0, 50, count))
    ]
    return shapes.batch_of(schema, [row[: len(schema)] for row in rows])


def pages_of(flows, schema, workers, **document):
    sink, pages = running(schema, **document), []
    for number, flow in enumerate(flows, 1):
        sink.write(shapes.beat(number, workers), flow)
        pages += sink.seal(shapes.beat(number, workers), Flush(number % 3 == 0))
    return [(page.key, page.data) for page in pages], sink.save()


@pytest.mark.parametrize("schema", [DENSE, SLOTTED], ids=["dense", "slotted"])
@pytest.mark.parametrize("partitions", [1, 7])
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 3000), min_size=1, max_size=5))
def test_picked_rows_give_the_pages_of_their_copies(schema, partitions, seed, sizes):
    rng, scratch, more = np.random.default_rng(seed), Scratch(), Workers(3)
    document = {"page": "16KiB", "partitions": partitions}
    document |= {"partition_by": ["k", "v"]} if partitions > 1 else {}
    sides = [table(schema, rng, n) for n in (200, 300)]
    flows, copies = [], []
    for size in sizes:
        picks = [rng.integers(0, side.rows, size) for side in sides]
        origins = rng.integers(0, 2, len(schema)).tolist()
        picked = pairs_of(schema, sides, picks, origins)
        flows.append((picked, PickedFlow(picked, 5, scratch, None)))
        batch = picked.batch(Scratch())
        for c, side in enumerate(origins):
            given = sides[side].columns[c].values
            if not schema.fields[c].dtype.variable:
                assert np.array_equal(batch.columns[c].values, given[picks[side]])
        copies.append(Flow(batch, 5))
    try:
        expected, state = pages_of(copies, schema, shapes.ONE, **document)
        for workers in (shapes.ONE, more):
            fresh = [PickedFlow(picked, 5, scratch, None) for picked, _ in flows]
            found, saved = pages_of(fresh, schema, workers, **document)
            assert found == expected
            assert {n: a.tobytes() for n, a in saved.items()} == {
                n: a.tobytes() for n, a in state.items()
            }
            assert not any(flow.copied for flow in fresh)
    finally:
        more.close()


def test_many_picked_rows_are_copied_first():
    rng, schema = np.random.default_rng(1), DENSE
    side = table(schema, rng, 100)
    for size, copied in ((PICKED_ROWS_MAX, False), (PICKED_ROWS_MAX + 1, True)):
        picks = [rng.integers(0, side.rows, size)] * 2
        flow = PickedFlow(pairs_of(schema, [side], picks, [0] * 3), 5, Scratch(), None)
        pages_of([flow], schema, shapes.ONE)
        assert flow.copied == copied


def test_a_flow_of_picked_rows_is_a_flow_for_any_other_reader():
    values = Column(np.array([10, 20, 30]))
    schema = Schema.of([shapes.TIME])
    flow = PickedFlow(Picked(schema, 2, (values,), (np.array([2, 0]),)), 9, Scratch(), None)
    assert (flow.watermark_us, flow.populated, flow.copied) == (9, True, False)
    assert flow.batch.columns[0].values.tolist() == [30, 10]
    assert flow.copied and flow.batch is flow.batch
    assert running(schema).write(shapes.beat(), flow) is None
