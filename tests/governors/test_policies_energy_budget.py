"""energy_budget: what there is lasts, and what is left is told."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.policies.base import Battery, PolicyError
from governors.policies.energy_budget import DAY_US, HOLD_US, Undervoltage
from tests.governors.plant import TARIFFS, Plant

HOUR_US = 3_600_000_000
IDLE = TARIFFS["orin-nano"].idle_watts
beats = st.lists(
    st.tuples(st.floats(0, 5e7), st.integers(1_000, 120_000_000)), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(arrivals=beats, more=st.floats(0.001, 2.0), left=st.floats(0, 1))
def test_a_day_s_budget_is_never_overspent_whatever_arrives(arrivals, more, left):
    # ten minutes before midnight: the budget of the rest of the day
    rest_us = 600_000_000
    watts = IDLE * (1 + more)
    plant = Plant(
        "orin-nano",
        "energy_budget",
        {"joules_per_day": watts * 86_400, "reserve": 0.0},
        day_us=DAY_US - rest_us,
        left_share=left,
    )
    plant.beat(0, 1)
    for units, us in arrivals:
        if plant.at_us + us > rest_us:
            break
        plant.beat(units, us)
    if plant.at_us < rest_us:
        plant.spend(rest_us - plant.at_us, IDLE)
    assert plant.energy_at(rest_us) <= watts * 600 * (1 + 1e-6)
    assert plant.done + plant.waiting <= sum(u for u, _ in arrivals) + 1


@settings(max_examples=40, deadline=None)
@given(arrivals=beats, more=st.floats(0.01, 1.0))
def test_a_battery_lasts_until_the_time_that_was_asked_for(arrivals, more):
    until_us = 1_800_000_000
    plant = Plant(
        "orin-nano",
        "energy_budget",
        {"until": "06:00", "reserve": 0.0},
        day_us=6 * HOUR_US - until_us,
        battery_j=IDLE * 1800 * (1 + more),
    )
    for units, us in arrivals:
        if plant.at_us + us > until_us:
            break
        plant.beat(units, us)
    plant.spend(max(0, until_us - plant.at_us), IDLE)
    assert plant.battery_j - plant.joules >= -1e-3


def test_a_burst_is_paid_from_what_was_saved_up_and_the_rest_waits_for_the_pace():
    plant = Plant(
        "orin-nano", "energy_budget", {"joules_per_day": 1.05 * IDLE * 86_400, "reserve": 0.0}
    )
    for _ in range(300):
        plant.beat(100, 1_000_000)
    saved = plant.beat(2e6, 1_000_000)
    assert saved.admit_share == 1.0
    for _ in range(3):
        held = plant.beat(5e7, 1_000_000)
    assert held.admit_share < 1.0
    assert held.not_before_us > plant.times[-2] - 1_000_000


def test_a_budget_below_idle_races_nothing_and_the_forecast_says_when_it_ends():
    plant = Plant(
        "orin-nano", "energy_budget", {"until": "06:00"}, battery_j=3 * 3600 * IDLE, day_us=HOUR_US
    )
    plant.beat(100, 1_000_000)
    decision = plant.beat(100, 1_000_000)
    assert decision.admit_share == 0.0
    # 95 % of three hours from one o'clock
    assert "runs out at 03:5" in decision.reason and "before 06:00" in decision.reason


def test_the_forecast_of_a_budget_that_lasts_says_what_is_left():
    plant = Plant(
        "orin-nano", "energy_budget", {"until": "06:00", "reserve": 0.0},
        battery_j=6 * 3600 * IDLE, day_us=HOUR_US,
    )  # fmt: skip
    for _ in range(4):
        plant.beat(10, 30_000_000)
    text = plant.running.policy.forecast(plant.seen(1.0))
    left = float(text.split(", ")[1].split(" J")[0])
    assert left == pytest.approx(3600 * IDLE, rel=0.02)


def test_the_budget_in_figures_is_what_the_forecast_says():
    plant = Plant(
        "orin-nano", "energy_budget", {"until": "06:00", "reserve": 0.0},
        battery_j=4 * 3600 * IDLE, day_us=HOUR_US,
    )  # fmt: skip
    assert plant.running.policy.budget(plant.seen(1.0)) is None, "it begins with the first race"
    for _ in range(4):
        plant.beat(10, 30_000_000)
    seen = plant.seen(1.0)
    told = plant.running.policy.budget(seen)
    assert told.left_us == 5 * HOUR_US - seen.at_us
    assert told.left_j == pytest.approx(4 * 3600 * IDLE, rel=0.01)
    assert told.forecast_j == pytest.approx(-3600 * IDLE, rel=0.05)
    assert "runs out" in plant.running.policy.forecast(seen)
    assert plant.running.policy.budget(replace(seen, battery=None)) is None


def test_of_several_budgets_the_one_that_runs_out_first_is_told():
    plant = Plant("orin-nano", "energy_budget", {"joules_per_day": 10 * 86_400 * IDLE})
    plant.running.choose("a", "energy_budget", {"joules_per_day": 2 * 86_400 * IDLE})
    plant.running.choose("b", "hands_off", {})
    plant.beat(10, 1_000_000)
    policy = plant.running.policy
    told = policy.budget(plant.seen(1.0))
    assert told == policy.voices["a"].budget(plant.seen(1.0))
    assert told.forecast_j < policy.voices[""].budget(plant.seen(1.0)).forecast_j


class TestUndervoltage:
    """Stops once, resumes once."""

    def test_a_dip_that_does_not_last_stops_nothing(self):
        guard = Undervoltage(10.8, 11.4)
        for at in range(0, 60_000_000, 1_000_000):
            volts = 10.5 if at % 4_000_000 == 0 else 11.0
            assert not guard.see(at, volts)

    def test_it_stops_below_and_resumes_above_after_the_hold(self):
        guard = Undervoltage(10.8, 11.4)
        assert not guard.see(0, 10.7)
        assert guard.see(HOLD_US, 10.7)
        assert guard.see(HOLD_US + 1, 11.3)
        assert guard.see(2 * HOLD_US, 11.5)
        assert not guard.see(3 * HOLD_US, 11.5)

    @given(st.lists(st.floats(10.81, 11.39), max_size=200), st.booleans())
    def test_noise_between_the_thresholds_never_flaps(self, noise, stopped):
        guard = Undervoltage(10.8, 11.4)
        guard.stopped = stopped
        for i, volts in enumerate(noise):
            assert guard.see(i * 1_000_000, volts) == stopped

    @given(st.lists(st.floats(9, 13), max_size=200))
    def test_two_changes_are_never_closer_than_the_hold(self, volts):
        guard, changes, before = Undervoltage(10.8, 11.4), [], False
        for i, v in enumerate(volts):
            after = guard.see(i * 1_000_000, v)
            if after != before:
                changes.append(i * 1_000_000)
            before = after
        assert all(b - a >= HOLD_US for a, b in itertools.pairwise(changes))

    def test_a_policy_that_is_stopped_races_nothing_and_says_at_which_voltage_it_goes_on(self):
        plant = Plant(
            "orin-nano", "energy_budget",
            {"until": "06:00", "stop_volts": 10.8, "resume_volts": 11.4}, battery_j=1e9,
        )  # fmt: skip
        for at in (0, HOLD_US):
            plant.at_us = at
            seen = replace(plant.seen(10.0), battery=Battery(1e9, 10.0))
            decision = plant.running.race(seen)
        assert decision.admit_share == 0.0 and "11.4 V" in decision.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"joules_per_day": 1e5, "until": "06:00"},
        {"until": "25:00"},
        {"until": "6am"},
        {"joules_per_day": -5},
        {"until": "06:00", "stop_volts": 11, "resume_volts": 10},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PolicyError, match="energy_budget"):
        Plant("orin-nano", "energy_budget", wrong)
