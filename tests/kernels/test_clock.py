"""The chain that times a core."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.cpu import clock
from tests.naive import clock as naive

INT64S = st.integers(-(2**63), 2**63 - 1)


@given(value=INT64S, mask=INT64S, count=st.integers(0, 300))
def test_the_chain_is_its_reference(value, mask, count):
    assert clock.turn(value, mask, count) == naive.turn(value, mask, count)
