"""The sliding quantile, beside a twin that sorts all that it keeps."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from edged.beat.sliding_quantile import VALUES, SlidingQuantile


def check(values):
    quantile = SlidingQuantile()
    for i, value in enumerate(values):
        quantile.add(value)
        last = sorted(values[max(0, i + 1 - VALUES) : i + 1])
        assert quantile.value == (last[-2] if len(last) > 1 else 0)


@given(st.lists(st.integers(0, 50), max_size=30))
def test_the_quantile_is_the_largest_but_one(values):
    check(values)


@settings(max_examples=5)
@given(st.integers(0, 1 << 30), st.sampled_from([50, 1 << 40]))
def test_values_older_than_the_last_thousand_are_forgotten(seed, most):
    r = random.Random(seed)
    check([r.randrange(most) for _ in range(2 * VALUES + 100)])
