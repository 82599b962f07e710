"""Eviction: the tail moves by marks, over exactly the rows that the reference evicts."""

from __future__ import annotations

import ctypes

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu import rings
from kernels.cpu.rings import BLOCK, ENTRY, MARK
from tests.kernels.chain_model import Model
from tests.whole import examples

P = 5
"""The partition of all rows here."""
BEATS = st.lists(
    st.tuples(
        st.integers(0, 3 * BLOCK + 1),  # rows a side
        st.sampled_from([0, 0, 0, 1, 30]),  # how late the middle one is
        st.integers(0, 3),  # how far times go on from row to row
        st.integers(0, 120),  # how far behind the last the watermark stays
        st.sampled_from([False, False, True]),  # the rings grow afterwards
    ),
    min_size=1,
    max_size=8,
)


def held(model, side):
    """Times and tags of the partition's live entries, read from the ring."""
    table = model.rings.tables[side]
    ring, mask = int(table[P, rings.RING.entries]), int(table[P, rings.RING.mask])
    entries = [
        ctypes.string_at(ring + ENTRY * (position & mask), ENTRY)
        for position in range(int(table[P, rings.RING.tail]), int(table[P, rings.RING.head]))
    ]
    return [(int.from_bytes(e[:8], "little", signed=True), e[8]) for e in entries]


def rows_of(first, count, late, step):
    """Rows one after the other, the middle one late."""
    times = first + step * np.arange(count)
    if count:
        times[count // 2] -= late
    return [(t, i % 3, P) for i, t in enumerate(times.tolist())]


@settings(max_examples=examples(300), deadline=None)
@given(BEATS, st.sampled_from([0, 0, rings.POSITION_MAX - 200]))
def test_the_tail_is_the_twins_after_each_beat(beats, start):
    model, now = Model(3, 9, start), 1000
    for count, late, step, behind, grows in beats:
        rows, now = rows_of(now, count, late, step), now + step * count
        found, expected = model.beat(rows, rows[::2], (now - behind, now - behind))
        assert found == expected
        for side, twin in enumerate((model.twin.left, model.twin.right)):
            assert held(model, side) == [(t, k) for t, (k, _), _ in twin[P]]
        if grows:
            model.grow()


def test_a_long_beat_looks_at_marks_and_at_one_block_of_what_leaves():
    """Entries whose times are spoilt, but for the last block's, are not read: the marks say it."""
    model = Model(0, 0)
    model.beat([(t, 1, P) for t in range(10 * BLOCK)], [], (0, 0))
    table = model.rings.tables[0]
    ring, first = int(table[P, rings.RING.entries]), int(table[P, rings.RING.tail])
    for position in range(first, first + 6 * BLOCK):
        ctypes.c_int64.from_address(ring + ENTRY * position).value = 2**62
    gone = 7 * BLOCK - 3
    model.beat([], [(10 * BLOCK, 2, P)], (gone, gone))
    assert table[P, rings.RING.tail] == first + gone


def test_marks_are_the_last_times_of_their_blocks():
    model = Model(0, 0)
    model.beat([(7 * t, 1, P) for t in range(5 * BLOCK)], [], (0, 0))
    table = model.rings.tables[0]
    ring, mask = int(table[P, rings.RING.entries]), int(table[P, rings.RING.mask])
    first, head = int(table[P, rings.RING.tail]), int(table[P, rings.RING.head])
    blocks = range(first // BLOCK, head // BLOCK)
    marks = [
        ctypes.c_int64.from_address(ring + ENTRY * (mask + 1) + MARK * b).value for b in blocks
    ]
    assert marks == [7 * (BLOCK * (b + 1) - 1 - first) for b in blocks]
