"""A state that begins after many beats and ends after a calm stretch, and does not flap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.beat.hysteresis import CALM_US, ENTER_US, RISE, TOP, Hysteresis

SECOND = 1_000_000
ROW = TOP // RISE
gaps = st.integers(1, 3 * SECOND)
beats = st.lists(st.tuples(gaps, st.booleans()), max_size=400)


def run(found, idle_us=300 * SECOND):
    """The times of changes, with the state that began then."""
    state, now, changes = Hysteresis(idle_us), 0, []
    for gap_us, present in found:
        now += gap_us
        before = state.active
        changed = state.observe(now, present)
        assert changed == (state.active != before)
        if changed:
            changes.append((now, state.active))
    return changes


@given(beats)
def test_between_two_changes_lie_many_beats_and_seconds(found):
    now, times = 0, []
    for gap_us, present in found:
        now += gap_us
        times.append((now, present))
    last_us = 0
    for at_us, active in run(found):
        within = [present for t, present in times if last_us < t <= at_us]
        if active:
            assert sum(within) >= ROW and within[-1]
            assert at_us - last_us >= ENTER_US
        else:
            calm = [t for t, present in times if last_us < t <= at_us and present]
            assert len(within) - sum(within) >= TOP
            assert at_us - max(calm, default=last_us) >= CALM_US
        last_us = at_us


@given(st.lists(st.tuples(gaps, st.integers(3, 30)), max_size=60))
def test_one_beat_in_four_or_fewer_never_begins_it(groups):
    found = [(gap, i == 0) for gap, size in groups for i in range(1 + size)]
    assert run(found) == []


@pytest.mark.parametrize("share", [0.08, 0.10, 0.12, 0.14])
@pytest.mark.parametrize("gap_us", [10_000, 250_000, SECOND])
def test_it_does_not_flap_where_a_tenth_of_the_beats_is_late(share, gap_us):
    dice = random.Random(7)
    late = [(gap_us, True)] * (ROW + ENTER_US // gap_us + 1)
    some = [(gap_us, dice.random() < share) for _ in range(20_000)]
    assert run(some) == []
    changes = run(late + some)
    assert changes[0][1] and len(changes) <= 2, "it began once, and ended at most once"


@given(gaps)
def test_beats_in_a_row_begin_it_and_a_calm_stretch_ends_it(gap_us):
    late = ROW + ENTER_US // gap_us + 1
    calm = TOP + CALM_US // gap_us + 1
    changes = run([(gap_us, True)] * late + [(gap_us, False)] * calm)
    assert [active for _, active in changes] == [True, False]


def test_it_ends_without_any_beat_too():
    state = Hysteresis(10 * SECOND)
    for n in range(1, 40):
        state.observe(n * SECOND, True)
    assert state.active and not state.settle(48 * SECOND)
    assert state.settle(49 * SECOND) and not state.active
    assert not state.settle(50 * SECOND), "told once"
    assert not state.observe(51 * SECOND, True), "and begins from the bottom"
