"""A beat that a sample lets pass makes no more pairs than its bound, however its keys are spread.

Windows hold all rows of the last beats, all of them close in time, so that the number of pairs is
that of rows with equal keys, which numpy counts.
"""

from __future__ import annotations

import numpy as np
import pytest

from edged.data.schema import Schema
from edged.joins.base import Records
from edged.operators import _join_size
from edged.operators._join_size import JoinSize

ROWS, BEATS, LIMIT = 30_000, 4, 1 << 19
REACH = 1000
NAMES = np.random.default_rng(0).integers(0, 2**64, 1 << 20, dtype=np.uint64)


class Window:
    """Keys of one side, beat by beat; each key is a number that stands for a hash."""

    def __init__(self):
        self.beats = []

    def live(self):
        """Hashes and times of the rows held."""
        keys = np.concatenate([*self.beats, np.empty(0, np.int64)])
        return NAMES[keys], np.zeros(keys.size, np.int64)


def records(keys):
    """Records of keys, all of the same time, partition by partition."""
    hashes = NAMES[keys]
    tags = (hashes >> np.uint64(58) << np.uint64(26)) | (hashes & np.uint64(2**26 - 1))
    order = np.argsort(tags >> np.uint64(26), kind="stable")
    data = np.zeros((keys.size + 64, 2), np.int64)
    data[: keys.size, 1] = tags[order].astype(np.int64)
    counts = np.bincount((tags >> np.uint64(26)).astype(np.int64), minlength=64)
    return Records(data.reshape(-1), counts.astype(np.int64))


def pairs_of(lefts, rights, windows):
    """Pairs that a beat makes."""
    counts = [
        np.bincount(k, minlength=NAMES.size)
        for k in (lefts, rights, *(np.concatenate([*w.beats, k[:0]]) for w, k in zip(
            windows, (lefts, rights), strict=True)))
    ]  # fmt: skip
    left, right, old_left, old_right = counts
    return int(left @ (old_right + right) + right @ old_left)


def keys_of(kind, rng, side):
    """Keys of a beat: each about its own, some heavier ones, or one that is in many rows."""
    keys = rng.integers(0, NAMES.size, ROWS)
    if kind == "heavy":  # few keys with many rows on one side, and few on the other
        rows = 20_000 if side else rng.integers(1, 60)
        keys[rng.choice(ROWS, rows, replace=False)] = rng.integers(0, NAMES.size // 2**18)
    elif kind == "middling":
        keys[: ROWS // 2] = rng.integers(0, 2 ** rng.integers(5, 14), ROWS // 2)
    elif kind == "burst":
        keys[: rng.integers(100, 3000)] = 7
    return keys


@pytest.fixture
def size():
    """Bounds of a join whose beats make LIMIT pairs at most."""
    made = JoinSize(Schema(()), 64 * LIMIT, REACH, 0)
    assert made.pairs_max == LIMIT
    return made


def play(size, kinds, rng):
    """Beats of these kinds; yields for each the pairs it makes, and whether it was cut."""
    windows = Window(), Window()
    for kind in kinds:
        keys = [keys_of(kind, rng, side) for side in (0, 1)]
        held = [sum(k.size for k in w.beats) for w in windows]
        pairs = pairs_of(*keys, windows)
        cut = size.too_large(
            [records(k) for k in keys], [ROWS, ROWS], held, lambda side: windows[side].live()
        )
        for window, new in zip(windows, keys, strict=True):
            window.beats = (window.beats + ([] if cut else [new]))[-BEATS:]
        yield pairs, cut


@pytest.mark.parametrize("seed", range(6))
def test_what_passes_is_within_the_bound_and_what_is_far_below_it_passes(size, seed):
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["even", "even", "even", "heavy", "middling", "burst"], 60)
    found = list(play(size, kinds, rng))
    assert max(pairs for pairs, cut in found if not cut) <= LIMIT
    assert not any(cut for pairs, cut in found if pairs < LIMIT // 3)
    assert max(pairs for pairs, _ in found) > 2 * LIMIT


def test_beats_of_even_keys_are_judged_by_a_sample(size, monkeypatch):
    rng, observed = np.random.default_rng(1), []
    counted = _join_size.join_size.observe
    monkeypatch.setattr(
        _join_size.join_size, "observe", lambda *args: observed.append(0) or counted(*args)
    )
    assert not any(cut for _, cut in play(size, ["even"] * 20, rng))
    assert 15 <= len(observed) <= 20  # none was judged twice
    assert size._exact == 0
    assert size.nbytes() < 2 * ROWS * 2 * BEATS * 4
