"""Heat: the ladder against small steps, throttling as the drivers do it, and the limit."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from governors.health import HealthReader
from governors.heat_limit import HYSTERESIS_C, MARGIN_C, RAISE_US, HeatLimit
from governors.policies.running import Running
from governors.profile_reader import load, names
from governors.simulated.board import BoardWork, SimulatedBoard
from governors.simulated.throttle import ThermalThrottle
from governors.thermal import ThermalNetwork, thermal_nodes
from tests.governors.plant import TARIFFS, CostModel, Plant
from tests.whole import examples

SECOND = 1_000_000
watts_list = st.lists(st.floats(0, 30), min_size=1, max_size=6)


# --- the ladder


@settings(max_examples=examples(50), deadline=None)
@given(name=st.sampled_from(names()), ambient=st.floats(-20, 70), steps=watts_list)
def test_thermal_ladder_agrees_with_the_differential_equations(name, ambient, steps):
    nodes = thermal_nodes(load(name))
    network = ThermalNetwork(nodes, ambient, 2.0)
    celsius = [float(c) for c in network.celsius]
    for watts in steps:
        network.pass_time(0.7 * SECOND, watts)
        for _ in range(700):
            flows = [
                (c - after) / node.kelvin_per_watt
                for c, after, node in zip(celsius, [*celsius[1:], ambient], nodes, strict=True)
            ]
            into = [watts, *flows]
            celsius = [
                c + 0.001 * (into[i] - flows[i]) / nodes[i].joules_per_kelvin
                for i, c in enumerate(celsius)
            ]
    assert network.celsius == pytest.approx(celsius, abs=0.02)


@pytest.mark.parametrize("name", names())
def test_thermal_figures_have_sources_and_settle_at_the_sum_of_the_resistances(name):
    thermal = load(name).thermal
    network = ThermalNetwork(thermal.nodes, 25.0, 0.0)
    rise = 5.0 * sum(node.kelvin_per_watt for node in thermal.nodes)
    assert network.settled(5.0)[0] == pytest.approx(25.0 + rise)
    network.pass_time(1e12, 5.0)
    assert network.chip_celsius == pytest.approx(25.0 + rise)
    assert thermal.throttle.source and all(node.source for node in thermal.nodes)


# --- throttling


def throttle(name):
    profile = load(name)
    return ThermalThrottle(profile.thermal.throttle, profile.clusters[0].choices_hz)


def test_thermal_step_wise_goes_one_clock_down_while_it_rises_and_up_while_it_falls():
    made = throttle("orin-nano")
    states = []
    for celsius in (98.9, 99.0, 99.1, 99.1, 99.05, 98.9, 98.95, 98.8, 98.7):
        made.look(celsius)
        states.append(made.state)
    assert states == [0, 1, 2, 2, 2, 1, 1, 0, 0]
    for i in range(40):
        made.look(100 + i)
    assert made.ceiling_hz() == load("orin-nano").clusters[0].opps[0].hz and made.events == 2


def test_thermal_pulse_skipping_leaves_15_percent_and_has_no_hysteresis_as_programmed():
    made = throttle("jetson-nano")
    shares = []
    for celsius in (98.4, 98.5, 99.0, 98.4):
        made.look(celsius)
        shares.append(made.share)
    assert shares == [1.0, 0.15, 0.15, 1.0]
    assert made.ceiling_hz() == 1_479_000_000


def test_thermal_firmware_of_a_pi_lowers_the_clock_from_80_to_85_degrees():
    made = throttle("raspberry-pi-5")
    clocks = []
    for celsius in (79.9, 82.5, 85.0, 90.0, 79.0):
        made.look(celsius)
        clocks.append(made.ceiling_hz() // 100_000_000)
    assert clocks == [24, 17, 10, 10, 24]


@pytest.mark.parametrize("name", ["orin-nano", "jetson-nano"])
def test_thermal_board_throttles_and_its_files_show_it(tmp_path, name):
    board = SimulatedBoard(load(name), tmp_path)
    hot = load(name).thermal.throttle.celsius
    board.heat.network.ambient_celsius = hot
    board.heat.network.celsius = board.heat.network.settled(0.0)
    work = BoardWork(cycles=1.2e10)
    reader = HealthReader(board.sysfs, [], True)
    found = []
    for second in range(1, 13):
        board.advance(second * SECOND, work)
        found.append(reader.look(second * SECOND))
    causes = {t.cause: t for t in found[-1].throttling if t.cause.startswith("cooling:")}
    acting = {cause for cause, t in causes.items() if t.now}
    wanted = {"cooling:heavy"} if name == "jetson-nano" else {"cooling:cpufreq-cpu0"}
    assert wanted <= acting
    assert all(causes[cause].seen_s > 0 for cause in wanted)
    shown = HealthReader(board.sysfs, [], True).look(0).hottest.celsius
    assert shown == pytest.approx(board.heat.celsius, abs=0.001)
    cool = SimulatedBoard(load(name), tmp_path / "cool")
    for second in range(1, 13):
        cool.advance(second * SECOND, work)
    assert board.backlog_us > cool.backlog_us


# --- the limit


@dataclass
class HotPlant(Plant):
    """A plant whose chip warms with what it draws."""

    ambient: float = 50.0
    limit: float = 85.0
    peaks: list[float] = field(default_factory=list)
    ceilings: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes = thermal_nodes(load(self.board))
        model = CostModel(self.tariff)
        heat = HeatLimit(self.limit, nodes, model)
        self.running = Running(self.policy, self.settings, model, heat=heat)
        self.network = ThermalNetwork(nodes, self.ambient, self.tariff.idle_watts)

    def seen(self, rate, raced=None):
        made = super().seen(rate, raced)
        state = self.running.heat.state
        self.ceilings.append((self.at_us, state.ceiling_hz))
        return type(made)(**{**_fields(made), "celsius": self.network.chip_celsius})

    def spend(self, us, watts, joules=0.0):
        super().spend(us, watts, joules)
        us = round(us)
        if us:
            self.network.pass_time(us, watts + 1e6 * joules / us)
            self.peaks.append(self.network.chip_celsius)


def _fields(made):
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def hot(board, policy, given, ambient, over, **more):
    """A plant in warm air whose limit lies `over` degrees above its idle temperature."""
    idle = ambient + TARIFFS[board].idle_watts * sum(
        node.kelvin_per_watt for node in thermal_nodes(load(board))
    )
    return HotPlant(board, policy, given, ambient=ambient, limit=idle + over + MARGIN_C, **more)


POLICIES = [
    ("hands_off", {}), ("race_to_idle", {}), ("cool", {}), ("fixed", {"cpu_mhz": 1400}),
    ("power_cap", {"watts": 30.0}),
]  # fmt: skip


@settings(max_examples=examples(40), deadline=None)
@given(
    board=st.sampled_from(sorted(TARIFFS)),
    policy=st.sampled_from(POLICIES),
    ambient=st.floats(0, 70),
    over=st.floats(0.5, 20),
    known=st.floats(0.3, 1),
    arrivals=st.lists(
        st.tuples(st.floats(0, 4e6), st.integers(20_000, 2_000_000)), min_size=1, max_size=40
    ),
)
def test_thermal_limit_is_kept_whatever_arrives_and_whatever_the_policy(
    board, policy, ambient, over, known, arrivals
):
    plant = hot(board, *policy, ambient, over, known=known, left_share=1.0)
    for units, us in arrivals:
        plant.beat(units, us)
    assert max(plant.peaks) <= plant.limit
    assert plant.done + plant.waiting == pytest.approx(sum(u for u, _ in arrivals))


@settings(max_examples=examples(20), deadline=None)
@given(board=st.sampled_from(sorted(TARIFFS)), policy=st.sampled_from(POLICIES[:2]),
       load=st.floats(0.05, 0.4))  # fmt: skip
def test_thermal_limit_far_away_changes_nothing(board, policy, load):
    plant = hot(board, *policy, 20.0, 60.0, left_share=1.0)
    free = Plant(board, *policy, left_share=1.0)
    each = free.cost.us(1e6, free.dials[0].max_hz)
    for _ in range(20):
        decisions = [p.beat(load * 1e6 * 1e6 / each, 1e6) for p in (plant, free)]
        assert decisions[0].clocks == decisions[1].clocks
        assert decisions[0].admit_share == decisions[1].admit_share == 1.0
    assert plant.running.heat.state.changes == 0 and not plant.running.heat.state.held_us


def busy(board, over, seconds=240, policy=("race_to_idle", {})):
    """Nearly full load for some minutes."""
    plant = hot(board, *policy, 40.0, over, left_share=1.0)
    each = plant.cost.us(1e6, plant.dials[0].max_hz)
    while plant.at_us < seconds * SECOND:
        plant.beat(0.8e6 * 0.5e6 / each, 0.1e6)
    return plant


@pytest.mark.parametrize("over", [2.0, 8.0])
def test_thermal_limit_changes_the_highest_clock_a_bounded_number_of_times(over):
    plant = busy("jetson-nano", over)
    changed = [
        at for (at, hz), (_, before) in zip(plant.ceilings[1:], plant.ceilings, strict=False)
        if hz != before
    ]  # fmt: skip
    most = 2 * 60 * SECOND // RAISE_US + len(plant.dials[0].table_hz)
    assert all(sum(at <= a < at + 60 * SECOND for a in changed) <= most for at in changed)
    assert len(changed) == plant.running.heat.state.changes
    assert max(plant.peaks) <= plant.limit


def test_thermal_limit_bends_clocks_before_it_holds_races_and_not_below_the_cheapest():
    plant = busy("jetson-nano", 6.0, policy=("hands_off", {}))
    lowered = [hz for _, hz in plant.ceilings if hz]
    first_bent = next(at for at, hz in plant.ceilings if hz)
    held = [at for at, d in zip(plant.times, plant.decisions, strict=False) if not d.admit_share]
    assert lowered and plant.running.heat.state.held_us and (not held or held[0] >= first_bent)
    model = TARIFFS["jetson-nano"]

    def joules(hz):
        return (model.race_watts("cpu", hz, 4.0) - model.idle_watts) * plant.cost.us(1e5, hz)

    assert min(lowered) >= min(plant.dials[0].table_hz, key=joules)


def test_thermal_limit_below_the_idle_temperature_takes_nothing_and_says_why():
    plant = hot("orin-nano", "race_to_idle", {}, 50.0, -3.0)
    decision = plant.beat(1000.0, SECOND)
    assert decision.admit_share == 0.0 and "races are held" in decision.reason
    assert plant.running.heat.state.holds and plant.done == 0


def test_thermal_limit_follows_a_box_that_is_hotter_than_it_began():
    plant = hot("orin-nano", "race_to_idle", {}, 30.0, 30.0)
    for _ in range(30):
        plant.beat(1000.0, SECOND)
    plant.network.celsius = plant.network.celsius + np.array([0.0, 25.0, 25.0])
    for _ in range(60):
        plant.beat(3e5, 0.5 * SECOND)
    seen = plant.running.heat._network.celsius
    assert seen[1] == pytest.approx(plant.network.celsius[1], abs=1.0)
    assert max(plant.peaks[60:]) <= plant.limit + HYSTERESIS_C


def test_thermal_limit_without_a_model_acts_on_the_measured_temperature():
    model = CostModel(TARIFFS["orin-nano"])
    plant = Plant("orin-nano", "hands_off", {})
    limit = HeatLimit(80.0, (), model)
    for celsius, share in ((70.0, 1.0), (79.5, 0.0), (78.5, 1.0)):
        plant.waiting, plant.at_us = 1000.0, plant.at_us + SECOND
        observed = limit.observe(replace(plant.seen(1000.0), celsius=celsius), None)
        decision = limit.race(plant.running.policy.race(observed), observed)
        assert math.isclose(decision.admit_share, share)


def test_thermal_policy_cool_widens_its_beats_near_the_limit_and_shortens_them_again():
    plant = HotPlant("orin-nano", "cool", {"comfort": 0.25}, ambient=20.0, limit=90.0)
    shares = []
    for warm in (20.0, 68.0, 20.0):
        plant.network.ambient_celsius = warm
        plant.network.celsius = plant.network.settled(plant.tariff.idle_watts)
        plant.beat(5000.0, SECOND)
        shares.append(plant.decisions[-1].wait_share)
    assert shares[0] == shares[2] <= 0.25 < shares[1]
