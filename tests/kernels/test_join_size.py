"""The size of a join is bounded as its naive twin does, never below the truth, and near it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.data.columns import address
from kernels.cpu import join_size
from kernels.cpu.join_size import CELL, COUNTS, LOGGED, SLICES_MAX, slices_of
from tests.naive import join_size as naive

KEYS = st.integers(0, 2) | st.integers(0, 2**64 - 1)
TIMES = st.integers(0, 40) | st.sampled_from([-(2**63), -(2**63) + 9, 2**63 - 40])
ROWS = st.lists(st.tuples(KEYS, TIMES), max_size=40)
REACH = st.integers(0, 30)
BITS = st.integers(6, 9)
SEED = 88172645463325252


class Counts:
    """A KeyCounts with its table and logs; `gaps` 0: of all rows."""

    def __init__(self, bits, before, after, gaps=0):
        self.table, self.bits = np.zeros((1 << bits, CELL // 4), np.uint32), bits
        self.logs, self._kept = (
            [np.zeros((1 << 17, 2), np.uint32) for _ in (0, 1)],
            np.zeros(16, int),
        )
        shift, slices = slices_of(before, after)
        for place, value in (
            (COUNTS.table, address(self.table)), (COUNTS.bits, bits), (COUNTS.before, before),
            (COUNTS.shift, shift), (COUNTS.slices, slices), (COUNTS.gaps, gaps),
            (COUNTS.random, SEED), (COUNTS.left_log, address(self.logs[0])),
            (COUNTS.right_log, address(self.logs[1])),
        ):  # fmt: skip
            self._kept[place] = value
        self.at, self.slices, self.terms = (
            address(self._kept),
            slices,
            (bits, before, shift, slices),
        )

    def logged(self, side):
        """The entries of a log."""
        stop = int(self._kept[(COUNTS.left_log, COUNTS.right_log)[side]])
        found = self.logs[side][: (stop - address(self.logs[side])) // LOGGED]
        return [tuple(entry) for entry in found.tolist()]

    def cells(self):
        """The table as the naive twin has it."""
        return Counter({(s, b): int(self.table[b, s]) for b, s in np.argwhere(self.table).tolist()})

    def observe(self, sides):
        """Count a beat's records."""
        places = [address(a) for _, found, counts in sides for a in (found, counts)]
        return join_size.observe(self.at, *places)

    @property
    def most(self):
        """The largest count that was written."""
        return int(self._kept[COUNTS.most])


def records(rows):
    """Records of rows (hash, time) and their counts by partition, as a join gets them."""
    tagged = sorted(((t, naive.tag_of(h)) for h, t in rows), key=lambda r: r[1] >> 26)
    found = np.array(tagged, np.int64).reshape(-1, 2)
    counts = np.bincount([tag >> 26 for _, tag in tagged], minlength=64).astype(np.int64)
    return tagged, found, counts


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


@given(
    st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=4), BITS, REACH, REACH,
    st.sampled_from([0, 0, 1, 7]),
)  # fmt: skip
def test_a_bound_is_the_naive_twins_and_no_less_than_the_pairs(beats, bits, before, after, gaps):
    made, expected, logs = Counts(bits, before, after, gaps), Counter(), ([], [])
    twins = naive.gaps_of(SEED, gaps) if gaps else None
    for n, beat in enumerate(beats if gaps == 0 else beats[:1]):
        sides = [records(rows) for rows in beat]
        marks = [len(log) for log in logs]
        met = made.observe(sides)
        tagged = [side[0] for side in sides]
        by_side = naive.observe(expected, logs, *made.terms, tagged, twins)
        assert made.cells() == +expected
        assert [made.logged(s) for s in (0, 1)] == list(logs)
        assert met == by_side
        assert gaps or met >= pairs_of(beats[: n + 1], before, after)
    assert made.most >= max(made.cells().values(), default=0)
    for side in (0, 1):
        new = address(made.logs[side]) + LOGGED * marks[side], len(logs[side]) - marks[side]
        join_size.recount(made.at, side, *new, -1)
        naive.recount(expected, bits, side, logs[side][marks[side] :], -1)
    assert made.cells() == +expected


@given(
    st.lists(st.tuples(st.none() | KEYS, TIMES), max_size=40),
    st.lists(st.tuples(st.none() | st.integers(0, 3), TIMES), max_size=40),
    ROWS, BITS, REACH, REACH, st.integers(0, 200), st.sampled_from([0, 3]),
)  # fmt: skip
def test_rows_fit_as_with_the_naive_twin(
    left, right, before_rows, bits, before, after, limit, gaps
):
    made, expected, logs = Counts(bits, before, after, gaps), Counter(), ([], [])
    twins = naive.gaps_of(SEED, gaps) if gaps else None
    for side, offset in ((0, before), (1, 0)):
        hashes, times = (np.array(list(c), t) for c, t in zip(
            zip(*before_rows, strict=True) if before_rows else ((), ()),
            (np.uint64, np.int64), strict=True))  # fmt: skip
        join_size.count(made.at, side, hashes, times)
        naive.count(
            expected, logs[side], bits, side, offset, made.terms[2], before_rows, twins
        )  # fmt: skip
    kept, places = [], []
    for rows in (left, right):
        hashes = np.array([h or 0 for h, _ in rows], np.uint64)
        times = np.array([t for _, t in rows] + [0], np.int64)
        valid = np.array([h is not None for h, _ in rows] + [0], np.uint8)
        kept.append((hashes, times, valid))
        places += [hashes, address(times), address(valid)]
    taken = np.zeros(2, np.int64)
    join_size.fit(made.at, *places, limit, taken)
    twin = naive.fit(expected, logs, *made.terms, (left, right), limit)
    assert taken.tolist() == twin
    assert made.cells() == +expected
    assert [made.logged(s) for s in (0, 1)] == list(logs)


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
    names = rng.integers(0, 2**64, keys, dtype=np.uint64)
    drawn, times = rng.integers(0, keys, (2, rows)), rng.integers(0, 20 * reach, (2, rows))
    sides = [
        records(list(zip(names[k].tolist(), t.tolist(), strict=True)))
        for k, t in zip(drawn, times, strict=True)
    ]
    made = Counts(bits, reach, reach)
    met = made.observe(sides)
    pairs = 0
    for key in range(keys) if keys < 1000 else ():
        left, right = (np.sort(t[d == key]) for d, t in zip(drawn, times, strict=True))
        within = [
            np.searchsorted(right, left + r, s) for r, s in ((-reach, "left"), (reach, "right"))
        ]
        pairs += int((within[1] - within[0]).sum())
    chance = 2 * made.slices * rows * rows / 2**bits
    assert pairs <= met <= 2 * pairs + chance
