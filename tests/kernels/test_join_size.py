"""The size of a join is bounded as its naive twin does, never below the truth, and near it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu import join_size
from kernels.cpu.join_size import CELL, DISTANCE, SLICES_MAX, slices_of
from tests.naive import join_size as naive

KEYS = st.integers(0, 2) | st.integers(0, 2**64 - 1)
TIMES = st.integers(0, 40) | st.sampled_from([-(2**63), -(2**63) + 9, 2**63 - 40])
ROWS = st.lists(st.tuples(KEYS, TIMES), max_size=40)
REACH = st.integers(0, 30)
BITS = st.integers(6, 9)


def table(bits):
    return np.zeros((1 << bits, CELL // 4), np.uint32)


def records(rows):
    """Records of rows (hash, time) and their counts by partition, as a join gets them."""
    tagged = sorted(((t, naive.tag_of(h)) for h, t in rows), key=lambda r: r[1] >> 26)
    found = np.zeros((len(rows) + DISTANCE, 2), np.int64)
    found[: len(rows)] = np.array(tagged, np.int64).reshape(-1, 2)
    counts = np.bincount([tag >> 26 for _, tag in tagged], minlength=64).astype(np.int64)
    return tagged, found, counts


def counted(made):
    """A table as the naive twin has it."""
    return Counter({(c, b): int(made[b, c]) for b, c in np.argwhere(made).tolist()})


def observe(made, bits, columns, before, shift, slices, sides, weight):
    """A call of the kernel."""
    places = [address(a) for _, found, counts in sides for a in (found, counts)]
    return join_size.observe(
        address(made), bits, *columns, before, shift, slices, *places, weight
    )  # fmt: skip


def pairs_of(beats, before, after):
    """Pairs of the last beat with all beats."""
    *earlier, (left, right) = beats
    all_left, all_right = ([r for beat in beats for r in beat[side]] for side in (0, 1))
    old_right = [r for beat in earlier for r in beat[1]]

    def pairs(some, others):
        return sum(
            a == b and -before <= s - r <= after for a, r in some for b, s in others
        )  # fmt: skip

    return pairs(left, old_right) + pairs(all_left, right) if all_right else 0


@given(st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4), BITS, REACH, REACH)
def test_a_bound_is_the_naive_twins_and_no_less_than_the_pairs(beats, bits, before, after):
    made, expected = table(bits), Counter()
    shift, slices = slices_of(before, after)
    for n, beat in enumerate(beats):
        sides = [records(rows) for rows in beat]
        columns = n % 2, 2 + n // 2 % 2
        met = observe(made, bits, columns, before, shift, slices, sides, 1)
        tagged = [side[0] for side in sides]
        args = bits, columns, before, shift, slices, tagged
        assert met == naive.observe(expected, *args, 1)
        assert met >= pairs_of(beats[: n + 1], before, after)
    assert counted(made) == +expected
    observe(made, bits, columns, before, shift, slices, sides, -1)
    naive.observe(expected, *args, -1)
    assert counted(made) == +expected
    join_size.forget(address(made), bits, 1)
    naive.forget(expected, 1)
    assert counted(made) == +expected


@given(
    st.lists(st.tuples(st.none() | KEYS, TIMES), max_size=40),
    st.lists(st.tuples(st.none() | st.integers(0, 3), TIMES), max_size=40),
    ROWS, BITS, REACH, REACH, st.integers(0, 200),
)  # fmt: skip
def test_rows_fit_as_with_the_naive_twin(left, right, before_rows, bits, before, after, limit):
    made, expected = table(bits), Counter()
    shift, slices = slices_of(before, after)
    for column, offset in ((1, before), (2, 0)):
        hashes, times = (np.array(list(c), t) for c, t in zip(
            zip(*before_rows, strict=True) if before_rows else ((), ()),
            (np.uint64, np.int64), strict=True))  # fmt: skip
        join_size.count(address(made), bits, column, offset, shift, hashes, times)
        naive.count(expected, bits, column, offset, shift, before_rows)
    kept, places = [], []
    for rows in (left, right):
        hashes = np.array([h or 0 for h, _ in rows], np.uint64)
        times = np.array([t for _, t in rows] + [0], np.int64)
        valid = np.array([h is not None for h, _ in rows] + [0], np.uint8)
        kept.append((hashes, times, valid))
        places += [hashes, address(times), address(valid)]
    columns, taken = np.array([0, 3]), np.zeros(2, np.int64)
    join_size.fit(address(made), bits, columns, before, shift, slices, *places, limit, taken)
    twin = naive.fit(expected, bits, (0, 3), before, shift, slices, (left, right), limit)
    assert taken.tolist() == twin
    assert counted(made) == +expected


@given(st.integers(0, 2**50), st.integers(0, 2**50))
def test_slices_hold_all_partners_and_less_than_twice_their_time(before, after):
    shift, slices = slices_of(before, after)
    span = before + after
    assert slices <= SLICES_MAX
    assert (slices - 1) << shift >= span  # wherever in a slice it begins
    assert slices << shift < 2 * (span + 1) or span == 0


@pytest.mark.parametrize("keys", [1, 500, 100_000])
def test_a_bound_is_near_the_number_of_pairs(keys):
    """Whether all rows have one key, or nearly each its own: rows spread over ten windows."""
    rng, rows, bits, reach = np.random.default_rng(keys), 20_000, 16, 1000
    shift, slices = slices_of(reach, reach)
    names = rng.integers(0, 2**64, keys, dtype=np.uint64)
    drawn, times = rng.integers(0, keys, (2, rows)), rng.integers(0, 20 * reach, (2, rows))
    sides = [
        records(list(zip(names[k].tolist(), t.tolist(), strict=True)))
        for k, t in zip(drawn, times, strict=True)
    ]
    met = observe(table(bits), bits, (0, 2), reach, shift, slices, sides, 1)
    pairs = 0
    for key in range(keys) if keys < 1000 else ():
        left, right = (np.sort(t[d == key]) for d, t in zip(drawn, times, strict=True))
        within = [
            np.searchsorted(right, left + r, s) for r, s in ((-reach, "left"), (reach, "right"))
        ]
        pairs += int((within[1] - within[0]).sum())
    chance = 2 * slices * rows * rows / 2**bits
    assert pairs <= met <= 2 * pairs + chance
