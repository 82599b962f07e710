"""Texts from anywhere are brought together into one column."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu import collect
from tests.naive import collect as naive


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_collected_texts_are_those_of_the_naive_twin(texts):
    sources = [np.frombuffer(bytearray(text or b"x"), np.uint8) for text in texts]
    sizes = np.array([len(text) for text in texts], np.int64)
    addresses = np.array([address(source) for source in sources], np.int64)
    offsets = np.empty(len(texts) + 1, np.int64)
    total = collect.collect_offsets(sizes, offsets)
    assert offsets.tolist() == naive.collect_offsets(sizes.tolist())
    assert total == offsets[-1]
    target = np.zeros(total + 1, np.uint8)
    middle = len(texts) // 2
    collect.collect_bytes(addresses, offsets, 0, middle, address(target))
    collect.collect_bytes(addresses, offsets, middle, len(texts), address(target))
    assert target[:total].tobytes() == naive.collect_bytes(texts)
