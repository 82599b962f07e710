"""The sampled entropy is the naive twin's, and what theory says of known bodies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu.entropy import sampled_bits
from tests.naive import entropy as naive


def bits(body):
    """The kernel's answer for some bytes."""
    array = np.frombuffer(bytes(body) + b"\0", np.uint8)
    return sampled_bits(address(array), len(body))


@given(st.binary(max_size=3000), st.integers(1, 120))
@example(b"", 1)
@example(b"a", 1)
@example(b"ab", 512)
@example(bytes(range(256)), 4)
@example(bytes(range(256)), 1024)
def test_the_entropy_is_the_naive_twins(piece, times):
    body = piece * times
    assert bits(body) == pytest.approx(naive.sampled_bits(body), abs=1e-9)


def test_known_bodies_have_their_entropy():
    rng = np.random.default_rng(1)
    assert bits(bytes(1 << 20)) == 0
    assert bits(bytes(range(256)) * 4096) == pytest.approx(8)
    assert bits(rng.integers(0, 16, 1 << 20, np.uint8).tobytes()) == pytest.approx(4, abs=0.01)
    assert 7.9 < bits(rng.bytes(1 << 20)) <= 8
    assert bits(rng.bytes(1 << 12)) > 7.7
