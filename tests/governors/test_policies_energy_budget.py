"""energy_budget: what there is lasts, and what is left is told."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from governors.policies.base import Battery, PolicyError
from governors.policies.energy_budget import CLOCK_US, DAY_US, HOLD_US, Undervoltage
from tests.governors.plant import TARIFFS, Plant
from tests.whole import examples

HOUR_US = 3_600_000_000
IDLE = TARIFFS["orin-nano"].idle_watts
beats = st.lists(
    st.tuples(st.floats(0, 5e7), st.integers(1_000, 120_000_000)), min_size=1, max_size=40
)


loads = st.lists(st.tuples(st.floats(0, 1e8), st.floats(0.01, 0.3)), min_size=1, max_size=12)
"""Tuples, and the part of the time in which they come."""


def load(plant, loads, until_us):
    """Until then the same over and over; the rest of the time nothing comes."""
    span_us = until_us - plant.at_us
    for units, share in itertools.cycle(loads):
        us = max(1, round(span_us * share))
        if plant.at_us + us + plant.latency_us > until_us:
            break
        plant.beat(units, us)
    plant.spend(max(0, until_us - plant.at_us), IDLE)


@settings(max_examples=examples(60), deadline=None)
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


@settings(max_examples=examples(40), deadline=None)
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


@settings(max_examples=10, deadline=None)
@given(loads=loads, more=st.floats(0.01, 1.0))
def test_a_battery_without_a_gauge_lasts_too_and_is_full_again_after_its_end(loads, more):
    until_us = 1_800_000_000
    held_j = IDLE * 1800 * (1 + more)
    given = {"until": "06:00", "battery": f"{held_j / 3.6:.9f}mWh", "reserve": 0.0}
    plant = Plant("orin-nano", "energy_budget", given, day_us=6 * HOUR_US - until_us)
    assert plant.running.policy.needs == ()
    plant.beat(0, 1)
    load(plant, loads, until_us)
    assert plant.energy_at(until_us) <= held_j * (1 + 1e-6)
    plant.at_us = until_us + 1
    seen = plant.seen(0.0)
    plant.running.race(seen)
    assert plant.running.policy.budget(seen).left_j == pytest.approx(held_j, rel=1e-3)


@settings(max_examples=examples(15), deadline=None)
@given(loads=loads, more=st.floats(0.01, 1.0), reserve=st.floats(0.0, 0.9))
def test_of_what_a_battery_held_the_reserve_is_there_at_the_end(loads, more, reserve):
    until_us = 1_800_000_000
    held_j = IDLE * 1800 * (1 + more) / (1 - reserve)
    plant = Plant("orin-nano", "energy_budget", {"until": "00:00", "reserve": reserve},
                  day_us=DAY_US - until_us, battery_j=held_j)  # fmt: skip
    plant.beat(0, 1)
    load(plant, loads, until_us)
    assert held_j - plant.energy_at(until_us) >= (reserve - 1e-6) * held_j


@settings(max_examples=examples(40), deadline=None)
@given(
    loads=loads,
    before_us=st.integers(1_000_000, 3 * HOUR_US),
    thought_us=st.integers(0, 3 * HOUR_US) | st.integers(0, DAY_US - 4 * HOUR_US),
    truly_us=st.integers(60_000_000, 3 * HOUR_US),
    more=st.floats(0.0, 2.0),
    battery=st.booleans(),
)
@example([(2e7, 0.02)], 600_000_000, 600_000_000, 7_200_000_000, 0.02, True)
@example([(2e7, 0.02)], 600_000_000, 600_000_000, 7_200_000_000, 0.02, False)
def test_a_clock_that_is_set_moves_the_end_and_what_there_is_lasts_all_the_same(
    loads, before_us, thought_us, truly_us, more, battery
):
    """Whatever was thought before: NTP after a boot at some hour, an hour of summer time."""
    end_us = before_us + truly_us
    budget_j = IDLE * end_us / 1e6 * (1 + more)
    said = {"until": "06:00"} if battery else {"joules_per_day": 86_400e6 * budget_j / end_us}
    at_end_us = 6 * HOUR_US if battery else DAY_US
    plant = Plant("orin-nano", "energy_budget", {**said, "reserve": 0.0},
                  day_us=at_end_us - before_us - thought_us,
                  battery_j=budget_j if battery else None)  # fmt: skip
    plant.beat(0, 1)
    load(plant, loads, before_us)
    plant.day_us = at_end_us - end_us
    done, could = plant.done, plant.joules + IDLE * (end_us - plant.at_us) / 1e6 <= budget_j
    load(plant, loads, end_us)
    near = abs(before_us + thought_us - end_us) <= CLOCK_US
    slack_j = 2 * plant.joules / end_us * CLOCK_US if near else 1e-5 * budget_j
    assert plant.energy_at(end_us) <= budget_j + slack_j if could else plant.done == done


@settings(max_examples=8, deadline=None)
@given(
    loads=st.lists(st.tuples(st.floats(0, 1e8), st.integers(60, 30_000)), min_size=1, max_size=20),
    more=st.floats(0.01, 1.0),
    start_s=st.integers(0, 86_399),
)
def test_no_day_of_many_is_overspent_and_nothing_is_dropped(loads, more, start_s):
    daily_j = IDLE * 86_400 * (1 + more)
    plant = Plant("orin-nano", "energy_budget", {"joules_per_day": daily_j, "reserve": 0.0},
                  day_us=10**6 * start_s)  # fmt: skip
    plant.beat(0, 1)
    first_us, arrived = DAY_US - 10**6 * start_s, 0.0
    for units, seconds in itertools.cycle(loads):
        if plant.at_us > first_us + 3 * DAY_US:
            break
        plant.beat(units, 10**6 * seconds)
        arrived += units
    assert plant.done + plant.waiting == pytest.approx(arrived)
    midnights = [first_us + n * DAY_US for n in range(4)]
    for begin, end in itertools.pairwise(midnights):
        assert plant.energy_at(end) - plant.energy_at(begin) <= daily_j * (1 + 1e-6)
    assert plant.energy_at(first_us) <= daily_j * first_us / DAY_US * (1 + 1e-6)


@settings(max_examples=examples(40), deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(1, 3600), st.floats(-500, 500), st.booleans()),
        min_size=1, max_size=60,
    ),
    day_us=st.integers(-DAY_US, 3 * DAY_US),
    reserve=st.floats(0, 1),
)  # fmt: skip
def test_a_battery_that_charges_empties_and_cannot_be_read_never_confuses_it(
    moves, day_us, reserve
):
    plant = Plant("orin-nano", "energy_budget", {"until": "06:00", "reserve": reserve},
                  battery_j=1000.0, day_us=day_us)  # fmt: skip
    arrived = 0.0
    for units, seconds, charged_j, there in moves:
        held = plant.battery_j = max(plant.joules, (plant.battery_j or plant.joules) + charged_j)
        plant.battery_j = held if there else None
        arrived += units
        done = plant.done
        decision = plant.beat(units, 10**6 * seconds)
        told = plant.running.policy.forecast(plant.seen(1.0))
        assert told and "nan" not in told and "inf" not in told
        if not there or (held - plant.joules <= 0):
            assert plant.done == done
        if not there:
            assert "battery cannot be read" in decision.reason
        plant.battery_j = held
    assert plant.done + plant.waiting == pytest.approx(arrived)


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
            assert not guard.update(at, volts)

    def test_it_stops_below_and_resumes_above_after_the_hold(self):
        guard = Undervoltage(10.8, 11.4)
        assert not guard.update(0, 10.7)
        assert guard.update(HOLD_US, 10.7)
        assert guard.update(HOLD_US + 1, 11.3)
        assert guard.update(2 * HOLD_US, 11.5)
        assert not guard.update(3 * HOLD_US, 11.5)

    @given(st.lists(st.floats(10.81, 11.39), max_size=200), st.booleans())
    def test_noise_between_the_thresholds_never_flaps(self, noise, stopped):
        guard = Undervoltage(10.8, 11.4)
        guard.stopped = stopped
        for i, volts in enumerate(noise):
            assert guard.update(i * 1_000_000, volts) == stopped

    @given(st.lists(st.floats(9, 13), max_size=200))
    def test_two_changes_are_never_closer_than_the_hold(self, volts):
        guard, changes, before = Undervoltage(10.8, 11.4), [], False
        for i, v in enumerate(volts):
            after = guard.update(i * 1_000_000, v)
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
        {"joules_per_day": "5W"},
        {"joules_per_day": "200kJ", "battery": "50Wh"},
        {"battery": "50Wh"},
        {"until": "06:00", "battery": "50"},
        {"until": "06:00", "stop_volts": 11, "resume_volts": 10},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PolicyError, match="energy_budget"):
        Plant("orin-nano", "energy_budget", wrong)
