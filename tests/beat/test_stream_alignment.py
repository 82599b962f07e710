"""Stream alignment: a fast stream does not run ahead of a slow one, and no stream gets stuck."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.beat.stream_alignment import Coupling, StagedChunks, decide_take

MANY = 1 << 40


def waiting(
    times: list[int], horizon: int | None, rows: int = 10, full: bool = False
) -> StagedChunks:
    """One chunk of `rows` rows for each time."""
    stop = np.arange(1, len(times) + 1, dtype=np.int64) * rows
    return StagedChunks(stop, np.array(times, np.int64), horizon, full)


def both(ahead: int) -> list[Coupling]:
    return [Coupling("r", "s", ahead), Coupling("s", "r", ahead)]


def test_a_fast_stream_stops_at_the_slow_ones_horizon_plus_the_bound():
    got, _ = decide_take(
        {"r": waiting([0, 50, 100, 151, 200], 250), "s": waiting([40], 50)}, both(100), MANY
    )
    assert got == {"r": 3, "s": 1}


def test_a_streams_fast_producers_stop_at_its_slow_ones_horizon_plus_both_bounds():
    """Regression: rows that they could match were kept for the slow one, and the window grew."""
    fast, couplings = [20, 170, 171, 500], [Coupling("r", "s", 100), Coupling("s", "r", 50)]
    held = {"r": waiting(fast, 20), "s": waiting([], 10**6)}
    assert decide_take(held, couplings, MANY)[0] == {"r": 2, "s": 0}
    full = {"r": waiting(fast, 20, full=True), "s": waiting([], 10**6)}
    assert decide_take(full, couplings, MANY)[0] == {"r": 4, "s": 0}, "the slow one may lie unread"


def test_a_stream_without_active_producers_holds_no_stream_back():
    got, _ = decide_take({"r": waiting([0, 10**9], 10**9), "s": waiting([], None)}, both(100), MANY)
    assert got == {"r": 2, "s": 0}


def test_uncoupled_streams_are_taken_whole():
    got, _ = decide_take({"r": waiting([0, 10**9], 10**9), "s": waiting([5], 5)}, [], MANY)
    assert got == {"r": 2, "s": 1}


def test_a_stream_waits_for_one_that_has_nothing_waiting_yet():
    got, _ = decide_take({"r": waiting([1000], 1000), "s": waiting([], 10)}, both(100), MANY)
    assert got == {"r": 0, "s": 0}


def test_streams_that_hold_each_other_back_crosswise_still_move():
    held = {"r": waiting([1000, 1001], 10), "s": waiting([900, 950, 1001], 10)}
    got, _ = decide_take(held, both(100), MANY)
    assert got == {"r": 1, "s": 2}


def test_rows_are_bounded_in_proportion_but_a_chunk_is_always_taken():
    got, cut = decide_take({"r": waiting([0] * 80, 0), "s": waiting([0] * 20, 0)}, both(0), 500)
    assert cut
    assert got == {"r": 40, "s": 10}
    assert decide_take({"r": waiting([0], 0, rows=9999)}, [], 10) == ({"r": 1}, False)


@given(
    r=st.lists(st.integers(0, 1000), max_size=20),
    s=st.lists(st.integers(0, 1000), max_size=20),
    ahead=st.integers(0, 300),
)
def test_alternating_beats_always_drain_both_streams(r, s, ahead):
    """With every producer's horizon at its staged maximum, repeated takes end with nothing left."""
    left = {"r": list(r), "s": list(s)}
    horizon = {name: max(times, default=None) for name, times in left.items()}
    for _ in range(100):
        state = {n: waiting(t, horizon[n]) for n, t in left.items()}
        take, _ = decide_take(state, both(ahead), MANY)
        for name, count in take.items():
            del left[name][:count]
            if not left[name]:
                horizon[name] = None
    assert left == {"r": [], "s": []}
