"""The size of a join is estimated as its naive twin does, and near the truth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.data.columns import address
from edged.data.hashing import hash_columns
from edged.data.schema import Schema
from kernels.cpu import join_size
from kernels.cpu.join_size import BUCKETS, COUNTS, EVERY
from tests.beat.support import batch_of
from tests.naive import join_size as naive

HASHES = st.lists(st.integers(0, 3) | st.integers(0, 2**64 - 1), max_size=60)
SCHEMA = Schema.of([])


def table():
    return np.zeros((BUCKETS, COUNTS), np.int32)


def records(tags):
    """The records of some tags; times and rows are not read."""
    found = np.zeros((len(tags) + 1, 4), np.uint32)
    found[: len(tags), 2] = tags
    return found


def counted(made):
    """A table as the naive twin has it."""
    return Counter({
        (side, b): int(made[b, 2 * side] + made[b, 2 * side + 1])
        for side in (0, 1) for b in np.flatnonzero(made.any(axis=1)).tolist()
    })  # fmt: skip


@given(st.lists(st.tuples(HASHES, HASHES, st.integers(0, EVERY - 1)), min_size=1, max_size=4))
def test_observed_records_are_counted_and_met_as_the_naive_twin_does(beats):
    made, expected = table(), Counter()
    for left, right, first in beats:
        tags = [[naive.tag_of(h) for h in side] for side in (left, right)]
        left_records, right_records = map(records, tags)
        given_ = (
            address(left_records), len(left), address(right_records), len(right), first,
        )  # fmt: skip
        met = join_size.observe(address(made), *given_, EVERY)
        assert met == naive.observe(expected, *tags, first, EVERY)
    assert +counted(made) == +expected
    join_size.observe(address(made), *given_, -EVERY)
    naive.observe(expected, *tags, first, -EVERY)
    assert +counted(made) == +expected


@given(
    st.lists(st.none() | st.integers(0, 3) | st.integers(0, 2**64 - 1), max_size=50),
    st.lists(st.none() | st.integers(0, 3), max_size=50),
    HASHES, st.integers(0, 200), st.floats(0, 3), st.floats(0, 3),
)  # fmt: skip
def test_rows_fit_as_with_the_naive_twin(left, right, before, limit, chance, least):
    made, expected = table(), Counter()
    for side in (0, 1):
        join_size.count(address(made), side, np.array(before, np.uint64))
        naive.count(expected, side, before)
    hashes = [np.array([h or 0 for h in side], np.uint64) for side in (left, right)]
    valid = [np.array([h is not None for h in side] + [0], np.uint8) for side in (left, right)]
    taken = np.zeros(2, np.int64)
    join_size.fit(
        address(made), hashes[0], address(valid[0]), hashes[1], address(valid[1]), limit,
        np.full(2, chance), np.full(2, least), taken,
    )  # fmt: skip
    assert taken.tolist() == naive.fit(expected, left, right, limit, [chance] * 2, [least] * 2)
    assert +counted(made) == +expected


@pytest.mark.parametrize("keys", [1, 500, 100_000])
def test_an_estimate_is_near_the_number_of_pairs(keys):
    """Whether all rows have one key, or nearly each its own."""
    rng, made, rows = np.random.default_rng(keys), table(), 40_000
    schema = Schema.from_json('[{"name": "key", "type": "int64"}]')
    drawn = rng.integers(0, keys, (2, rows))
    sides = []
    for side in drawn:
        hashes = hash_columns(batch_of(schema, [(k,) for k in side.tolist()]), ["key"])
        sides.append(records([naive.tag_of(h) for h in hashes.tolist()]))
    met = join_size.observe(
        address(made), address(sides[0]), rows, address(sides[1]), rows, 3, EVERY
    )
    pairs = np.bincount(drawn[0], minlength=keys) @ np.bincount(drawn[1], minlength=keys)
    chance = rows * rows / BUCKETS
    assert met - chance == pytest.approx(float(pairs), rel=0.2, abs=rows)
