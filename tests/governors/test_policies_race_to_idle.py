"""race_to_idle: the least energy of those in time, or nothing; and what all policies keep to."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.policies.base import Act, ClockSetting, PolicyError, find_policy, load_all
from governors.work import Dial, RaceCost
from tests.governors.plant import TARIFFS, Plant, dials
from tests.whole import examples

COMPUTING = RaceCost(cycles=0, cycles_per_unit=300.0, cores=4.0)
WAITING = RaceCost(cycles=0, cycles_per_unit=300.0, stall_us_per_unit=2.0, cores=4.0)
NANO = dials("jetson-nano", low=403_200_000)


def pins(clocks: dict[str, ClockSetting]) -> set[int]:
    """The clocks that a decision pins."""
    return {s.hz for s in clocks.values() if s.act is Act.PIN}


class TestTheClock:
    """Where it races."""

    def test_work_that_waits_for_memory_is_raced_below_the_highest_clock(self):
        raced = {}
        for name, cost in (("computing", COMPUTING), ("waiting", WAITING)):
            plant = Plant("jetson-nano", "race_to_idle", {}, 10_000_000, cost, dials=NANO)
            (raced[name],) = pins(plant.beat(100_000, 1_000_000).clocks)
        assert raced["waiting"] < raced["computing"] < NANO[0].max_hz

    def test_it_is_the_clock_of_a_plain_search(self):
        plant = Plant("jetson-nano", "race_to_idle", {}, 10_000_000, WAITING, dials=NANO)
        (hz,) = pins(plant.beat(100_000, 1_000_000).clocks)
        tariff = TARIFFS["jetson-nano"]

        def joules(clock: int) -> float:
            watts = tariff.race_watts("cpu", clock, 4.0) - tariff.idle_watts
            return watts * WAITING.us(100_000, clock)

        assert hz == min((h for h in NANO[0].choices_hz()), key=joules)

    def test_a_short_deadline_raises_it(self):
        slow = Plant("jetson-nano", "race_to_idle", {}, 10_000_000, COMPUTING, dials=NANO)
        fast = Plant("jetson-nano", "race_to_idle", {}, 46_000, COMPUTING, dials=NANO)
        assert max(pins(slow.beat(100_000, 10**6).clocks)) < min(
            pins(fast.beat(100_000, 10**6).clocks)
        )
        assert fast.late == 0

    def test_it_writes_nothing_where_writing_costs_more_than_it_saves(self):
        plant = Plant("jetson-nano", "race_to_idle", {}, cost=COMPUTING, write_j=10.0)
        decision = plant.beat(1000, 1_000_000)
        assert not decision.clocks
        assert "no clock set" in decision.reason

    def test_it_says_what_being_in_time_takes_where_left_alone_it_would_be_late(self):
        plant = Plant(
            "jetson-nano", "race_to_idle", {}, 46_000, COMPUTING, write_j=10.0, dials=NANO
        )
        decision = plant.beat(100_000, 1_000_000)
        assert decision.clocks
        assert re.search(
            r"takes [0-9.]+ mJ more: without a set clock it would be late$", decision.reason
        )

    def test_a_small_beat_is_left_alone_and_a_large_one_is_not(self):
        plant = Plant(
            "jetson-nano", "race_to_idle", {}, 10_000_000, COMPUTING, write_j=2e-3, dials=NANO
        )
        assert not plant.beat(10, 1_000_000).clocks
        assert plant.beat(1_000_000, 1_000_000).clocks


class TestBetweenBeats:
    """What stands while nothing runs."""

    def test_all_is_let_go_on_leaving_the_beat(self):
        plant = Plant("jetson-nano", "race_to_idle", {}, 10_000_000, COMPUTING, dials=NANO)
        assert pins(plant.beat(100_000, 1_000_000).clocks)
        assert {s.act for s in plant.decisions[-1].clocks.values()} == {Act.RELEASE}
        assert not plant.running.standing

    def test_the_maximum_stays_where_lowering_it_saves_nothing(self):
        plant = Plant("jetson-nano", "race_to_idle", {"lower_between": True}, dials=NANO)
        plant.beat(100_000, 1_000_000)
        assert not plant.running.standing

    @pytest.mark.parametrize("others, lowered", [(0.0, True), (0.5, False)])
    def test_it_is_lowered_where_asked_for_but_never_while_others_are_busy(
        self, monkeypatch, others, lowered
    ):
        plant = Plant("jetson-nano", "race_to_idle", {"lower_between": True}, dials=NANO)
        monkeypatch.setattr(plant.tariff, "standing_watts", lambda high, low: 0.5)
        plant.others_cores = others
        plant.beat(100_000, 1_000_000)
        caps = [s for s in plant.running.standing.values() if s.act is Act.CAP]
        assert [s.hz for s in caps] == ([NANO[0].min_hz] if lowered else [])


NAMES = {
    "cool": {},
    "hands_off": {},
    "race_to_idle": {"lower_between": True, "sleep": True},
    "power_cap": {"watts": 4.0},
    "energy_budget": {"joules_per_day": 350_000.0},
    "fixed": {"cpu_mhz": 1000.0},
}


class TestEveryPolicy:
    """What all of them keep to."""

    def test_these_are_all_there_are(self):
        assert set(load_all()) == set(NAMES)

    def test_one_that_does_not_exist_is_refused_by_name(self):
        with pytest.raises(PolicyError, match=r"'turbo'.*hands_off"):
            find_policy("turbo")
        with pytest.raises(PolicyError, match="unknown setting"):
            Plant("orin-nano", "hands_off", {"watts": 3})

    @settings(max_examples=examples(60), deadline=None)
    @given(
        name=st.sampled_from(sorted(NAMES)),
        board=st.sampled_from(sorted(TARIFFS)),
        steps=st.lists(
            st.tuples(
                st.floats(0, 1e6), st.integers(1000, 10**6), st.floats(1e8, 2e9),
                st.floats(1e8, 2e9), st.booleans(),
            ),
            min_size=1, max_size=15,
        ),
    )  # fmt: skip
    def test_a_clock_is_always_one_of_the_table_and_within_the_limits_of_the_moment(
        self, name, board, steps
    ):
        plant = Plant(board, name, NAMES[name])
        for units, us, one, other, writable in steps:
            plant.dials = dials(board, min(one, other), max(one, other), writable)
            plant.beat(units, us)
            allowed = {d.name: d for d in plant.dials}
            for decision in plant.decisions[-2:]:
                for knob, setting in decision.clocks.items():
                    if setting.act is not Act.RELEASE:
                        assert setting.hz in allowed[knob].table_hz
                        assert allowed[knob].min_hz <= setting.hz <= allowed[knob].max_hz
                        assert writable

    def test_hands_off_sets_nothing_and_takes_everything(self):
        plant = Plant("orin-nano", "hands_off", {})
        for units in (0, 10, 10**6, 10**8):
            decision = plant.beat(units, 500_000)
            assert not decision.clocks and decision.admit_share == 1.0
        assert not any(d.clocks or d.sleep or d.not_before_us for d in plant.decisions)

    def test_fixed_sets_its_clock_once_and_again_when_it_was_lost(self):
        plant = Plant("orin-nano", "fixed", {"cpu_mhz": 1000.0})
        assert pins(plant.beat(10, 1000).clocks) == {1_036_800_000}
        assert not plant.beat(10, 1000).clocks
        plant.running.lost("cpu.policy0")
        assert set(plant.beat(10, 1000).clocks) == {"cpu.policy0"}

    def test_a_continuous_range_is_set_too(self):
        plant = Plant("orin-nano", "fixed", {"cpu_mhz": 1000.0})
        plant.dials = (Dial("cpu.policy0", "cpu", (), 800_000_000, 1_600_000_000),)
        assert pins(plant.running.race(plant.seen(1.0)).clocks) == {1_000_000_000}


class TestSwitching:
    """From one policy to another while it runs."""

    @pytest.mark.parametrize("name", sorted(NAMES))
    def test_nothing_that_the_old_one_pinned_survives_unless_the_new_one_pins_it(self, name):
        plant = Plant("orin-nano", "fixed", {"cpu_mhz": 1000.0})
        plant.beat(10, 1000)
        assert len(plant.running.standing) == 2
        plant.running.switch(name, NAMES[name] | ({"cpu_mhz": 1500.0} if name == "fixed" else {}))
        plant.beat(10, 1000)
        left = {s.hz for s in plant.running.standing.values() if s.act is Act.PIN}
        assert left == ({1_574_400_000} if name == "fixed" else set())

    def test_what_was_spent_before_counts_for_the_new_one(self):
        idle = TARIFFS["orin-nano"].idle_watts
        plant = Plant("orin-nano", "hands_off", {}, left_share=1.0)
        for _ in range(20):
            plant.beat(500_000, 200_000)
        plant.running.switch("power_cap", {"watts": idle + 0.1, "window_s": 5.0})
        assert plant.beat(1000, 1000).admit_share == 0.0

    def test_a_switch_that_fails_changes_nothing(self):
        plant = Plant("orin-nano", "fixed", {"cpu_mhz": 1000.0})
        plant.beat(10, 1000)
        with pytest.raises(PolicyError):
            plant.running.switch("power_cap", {})
        assert plant.running.policy.name == "fixed"
        assert not plant.beat(10, 1000).clocks

    def test_a_dial_that_is_gone_is_not_released(self):
        plant = Plant("orin-nano", "fixed", {"cpu_mhz": 1000.0})
        plant.beat(10, 1000)
        plant.running.switch("hands_off", {})
        seen = replace(plant.seen(1.0), dials=plant.dials[:1])
        assert set(plant.running.race(seen).clocks) == {"cpu.policy0"}
