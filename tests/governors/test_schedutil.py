"""The kernel's governor as a law, against small steps, and the tariffs against the model."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.board_tariffs import Measured, MeasuredTariff
from governors.curve import CalibrationCurve, CurvePoint
from governors.energy import Provenance
from governors.schedutil import Schedutil, Utilisation
from tests.governors.plant import MODELS, TARIFFS
from tests.whole import examples

TABLE = tuple(hz * 100_000_000 for hz in range(2, 16))


def stepwise(cycles: float, stall_us: float, u: float, estimate: float) -> tuple[float, float]:
    """Time of a race and the utilisation after it, in steps of 50 µs."""
    step, decay = 50.0, 0.5 ** (50.0 / 32_000)
    left, spent, capacity, at = 1.0, 0.0, TABLE[-1], 0
    while left > 0:
        wanted = 1.25 * max(u, estimate if spent == 0 else 0.0) * capacity
        at = max(at, next((i for i, hz in enumerate(TABLE) if hz >= wanted), len(TABLE) - 1))
        hz = TABLE[at]
        left -= step / (1e6 * cycles / hz + stall_us)
        u = decay * u + (1 - decay) * hz / capacity
        spent += step
    return spent, u


@settings(max_examples=examples(30), deadline=None)
@given(ms=st.floats(1, 800), stall=st.floats(0, 0.9), u=st.floats(0, 1), estimate=st.floats(0, 1))
def test_a_race_meets_the_clocks_that_small_steps_find(ms, stall, u, estimate):
    cycles, stall_us = (1 - stall) * ms * 1e3 * 1500, stall * ms * 1e3
    state = Utilisation(u, estimate)
    pieces = Schedutil(TABLE, TABLE[-1]).race(cycles, stall_us, state)
    spent, after = stepwise(cycles, stall_us, u, estimate)
    assert sum(us for _, us in pieces) == pytest.approx(spent, rel=0.02, abs=300)
    assert state.now == pytest.approx(after, abs=0.02)
    done = sum(us / (1e6 * cycles / hz + stall_us) for hz, us in pieces)
    assert done == pytest.approx(1.0)


def test_a_short_race_after_a_sleep_stays_low_and_a_long_one_reaches_the_top():
    kernel = Schedutil(TABLE, TABLE[-1])
    assert {hz for hz, _ in kernel.race(1e6, 0, Utilisation())} == {TABLE[0]}
    assert kernel.race(1e9, 0, Utilisation())[-1][0] == TABLE[-1]


def test_what_the_last_activation_needed_is_asked_for_at_once():
    kernel, u = Schedutil(TABLE, TABLE[-1]), Utilisation()
    kernel.race(1e9, 0, u)
    u.sleep(10_000_000)
    assert u.now < 1e-9
    assert kernel.race(1e6, 0, u)[0][0] == TABLE[-1]


def test_limits_are_kept():
    kernel = Schedutil(TABLE[3:6], TABLE[-1])
    assert {hz for hz, _ in kernel.race(1e9, 0, Utilisation(1.0, 1.0))} == {TABLE[5]}
    assert {hz for hz, _ in kernel.race(1e5, 0, Utilisation())} == {TABLE[3]}


@pytest.mark.parametrize("board", sorted(TARIFFS))
def test_a_tariff_charges_what_the_model_says(board):
    model, tariff = MODELS[board], TARIFFS[board]
    cores = model.profile.core_count
    hz = model.profile.clusters[0].table_hz[5]
    full = model.full_load(hz=dict.fromkeys(range(len(model.profile.clusters)), hz))
    full = replace(full, memory_hz=tariff.memory_hz)
    assert tariff.race_watts("cpu", hz, cores) == pytest.approx(model.input_watts(full))
    assert tariff.idle_watts == pytest.approx(model.idle_watts())
    assert tariff.standing_watts(hz, model.profile.clusters[0].table_hz[0]) == 0.0


def test_measured_watts_take_the_place_of_modelled_ones():
    base = TARIFFS["jetson-nano"]
    points = (CurvePoint(10**9, 50.0, 3.0), CurvePoint(2 * 10**9, 30.0, 6.0))
    curve = CalibrationCurve("cpu.policy0", 1, points, 1.2, Provenance.MEASURED)
    measured = MeasuredTariff(base, Measured(curve, 4))
    assert measured.race_watts("cpu", 10**9, 4) == pytest.approx(3.0)
    two, four = (base.race_watts("cpu", 10**9, n) - base.idle_watts for n in (2, 4))
    assert measured.race_watts("cpu", 10**9, 2) == pytest.approx(1.2 + 1.8 * two / four)
    assert 0.5 < two / four < 0.9, "what keeps the board awake does not halve"
    assert 3.0 < measured.race_watts("cpu", 1_500_000_000, 4) < 6.0
    above = base.race_watts("gpu", 10**9, 1) - base.idle_watts
    assert measured.race_watts("gpu", 10**9, 1) == pytest.approx(1.2 + above)
    assert measured.byte_j == base.byte_j and not math.isnan(measured.wake_j)
