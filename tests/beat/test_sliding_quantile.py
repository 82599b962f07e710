"""The sliding quantile, beside a twin that sorts all that it keeps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edged.beat.sliding_quantile import VALUES, SlidingQuantile


@given(st.lists(st.integers(0, 50), max_size=3 * VALUES))
def test_the_quantile_is_that_of_the_last_values_sorted(values):
    quantile = SlidingQuantile()
    for i, value in enumerate(values):
        quantile.add(value)
        last = sorted(values[max(0, i + 1 - VALUES) : i + 1])
        left_out = max(1, len(last) // 100)
        assert quantile.value == (last[-1 - left_out] if len(last) > left_out else 0)
