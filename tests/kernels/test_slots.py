"""Records by key: numbers in the order of first rows, for any lanes and growing tables."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.hashing import hash_columns
from edged.data.schema import FLOAT64, STRING, TIMESTAMP, Field, Schema
from edged.operators._kernel_records import RecordLane, lane_settings, record_shape
from tests.naive import slots as naive
from tests.operators.user_kernels import batch
from tests.whole import examples

SCHEMA = Schema.of([Field("t", TIMESTAMP), Field("s", STRING, True), Field("x", FLOAT64)])
KEYS = st.tuples(
    st.none() | st.text(max_size=5), st.sampled_from([0.0, -0.0, 1.5, float("nan")])
)  # fmt: skip


def normal(key):
    return key[0], "nan" if key[1] != key[1] else key[1] + 0.0


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(KEYS, max_size=200), st.integers(1, 3), st.integers(0, 200))
def test_each_row_finds_the_record_of_its_key(keys, lanes, cut):
    shape = record_shape(SCHEMA, ["s", "x"], 2)
    defaults = np.array([7, 8], np.int64)
    made = [RecordLane(shape, defaults) for _ in range(lanes)]
    found = [None] * len(keys)
    for base, part in ((0, keys[:cut]), (min(cut, len(keys)), keys[cut:])):
        rows = batch([(i, *key) for i, key in enumerate(part)], SCHEMA)
        hashes = hash_columns(rows, ["s", "x"])
        for number, lane in enumerate(made):
            got = lane.find(rows.addresses(), lane_settings(number, lanes, base), hashes, rows.rows)
            for row, slot in zip(got.rows.tolist(), got.slots.tolist(), strict=True):
                found[base + row] = (number, slot)
    numbers = naive.find_slots(found)
    assert numbers == naive.find_slots([normal(key) for key in keys])
    for lane in made:
        assert (lane.copy().rows[:, shape.first :] == defaults).all()
