"""CPU or GPU by energy: placement finds what simulating both finds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

import governors.profile
from edged.placement.placement import DECIDE_BEATS, Curve, KernelProfile
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, Setup, SimulationOutcome
from governors.cost import PLAN_ERROR, CostModel
from governors.placement_prices import KernelPart
from governors.profile import Figure, Term
from governors.work import RaceCost
from tests.simulate.common import ORIN, plain_work

WINDOW, ROWS = (1_000,), tuple(round(100 * 2 ** (i / 2)) for i in range(27))
TOP_HZ = 1_344_000_000
POLICIES = ("hands_off", "race_to_idle")
LATENCY_US = 200_000
CPU_CYCLES = 20_000.0
GPU_US = 0.5


def priced(wake_j: float | None) -> governors.profile.BoardProfile:
    """An Orin Nano whose GPU takes so much to wake, and 1 W/GHz while it works: made up."""
    others = tuple(t for t in ORIN.terms if t.name not in ("gpu_wake", "gpu_dynamic"))
    source = "made up"
    made = [Term("gpu_dynamic", "VDD_CPU_GPU_CV", Figure(1.0, 0.0, "W/GHz", source))]
    if wake_j is not None:
        made.append(Term("gpu_wake", "VDD_CPU_GPU_CV", Figure(wake_j, 0.0, "J", source)))
    return replace(ORIN, terms=(*others, *made))


def curve(device: str, fixed_us: float, each_us: float, cpu_us: float) -> Curve:
    """Times that are a straight line in the rows; `cpu_us`: of each µs, CPU time of all cores."""
    us = (tuple(fixed_us + each_us * rows for rows in ROWS),)
    return Curve(device, WINDOW, ROWS, us, tuple(tuple(cpu_us * x for x in r) for r in us), 0.0)


def setup(rate: float, policy: str = "hands_off") -> Setup:
    """A join that takes 20 000 cycles a row on one core, or half a microsecond on the GPU."""
    cpu = replace(plain_work(rate, 40.0, RaceCost(1e6, CPU_CYCLES)), window=1_000)
    gpu = replace(cpu, cost=RaceCost(0.0, 0.0, 3_000.0, GPU_US, cores=0.1), device="gpu")
    kernels = {
        "chain": curve("cpu", 1e6 * 1e6 / TOP_HZ, 1e6 * CPU_CYCLES / TOP_HZ, 1.0),
        "chain-cuda": curve("cuda", 3_000.0, GPU_US, 0.1),
    }
    return Setup(
        cpu, LATENCY_US, LATENCY_US, 1 << 30, policy, seconds=60.0,
        calibrated=KernelProfile(1, kernels),
        kernels={"chain": cpu, "chain-cuda": gpu},
    )  # fmt: skip


def run(
    made: Setup, board: governors.profile.BoardProfile, kernel: str | None
) -> SimulationOutcome:
    """Simulate with a kernel that is pinned, or placed."""
    engine = Engine(made, SimulatedDevice(board))
    if kernel is not None:
        engine.placer.pin(kernel)
        engine._work = made.kernels[kernel]
    return engine.run()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [200.0, 5_000.0, 10_000.0, 25_000.0])
def test_placement_takes_the_processor_that_simulating_both_finds_cheaper(rate, policy):
    board, made = priced(0.05), setup(rate, policy)
    watts = {}
    for kernel in made.kernels:
        found = run(made, board, kernel)
        watts[kernel] = found.joules / found.seconds
    assert run(made, board, None).kernel == min(watts, key=lambda k: watts[k])
    assert abs(watts["chain"] - watts["chain-cuda"]) > 0.05, "it matters"


@pytest.mark.parametrize(
    "policy, settings", [("hands_off", {}), ("race_to_idle", {}), ("power_cap", {"watts": 6.0})]
)
def test_under_a_policy_low_rates_stay_on_the_cpu_and_high_ones_leave_it(policy, settings):
    """An Orin Nano, CPU against GPU, over the rate."""
    kernels = [
        run(replace(setup(rate, policy), settings=settings), priced(0.05), None).kernel
        for rate in (200.0, 25_000.0)
    ]
    assert kernels == ["chain", "chain-cuda"]


def test_where_clocks_are_set_for_the_races_too_the_processor_may_be_another():
    """At 8 000 tuples/s a GPU is cheaper than a CPU whose short races meet low clocks, and dearer
    than one whose policy sets them: one decision cannot be made without the other."""
    placed = {p: run(setup(8_000.0, p), priced(0.05), None).kernel for p in POLICIES}
    assert placed == {"hands_off": "chain-cuda", "race_to_idle": "chain"}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_kernels_price_is_what_it_takes_in_simulation(policy):
    """Of the one that runs, and of the other in its place."""
    board, made, rows = priced(0.05), setup(10_000.0, policy), 2_000
    for kernel, runs in itertools.product(made.kernels, made.kernels):
        found = run(made, board, kernel)
        above_w = found.joules / found.seconds - found.idle_watts
        assert price_w(made, kernel, runs, rows) == pytest.approx(above_w, rel=PLAN_ERROR)


@pytest.mark.parametrize("rate", [1_000.0, 10_000.0, 20_000.0])
def test_a_kernel_in_the_place_of_another_is_planned_like_the_work_that_it_makes(rate):
    made, rows = setup(rate, "race_to_idle"), round(rate * LATENCY_US / 1e6)
    seen = Engine(made, SimulatedDevice(priced(0.05)))._observation(0.0)
    for kernel, runs in itertools.product(made.kernels, made.kernels):
        tariff, then = SimulatedDevice(priced(0.05)).tariff, made.kernels[kernel]
        work = replace(seen.work, costs={then.device: then.cost})
        plan = CostModel(tariff).plan(work, seen.dials, seen.write_j, seen.write_us)
        above_w = plan.watts - tariff.idle_watts
        assert price_w(made, kernel, runs, rows) == pytest.approx(above_w, rel=0.05)


def price_w(made: Setup, kernel: str, runs: str, rows: int) -> float:
    """A kernel's price while another runs, as the mean power above idle."""
    engine = Engine(made, SimulatedDevice(priced(0.05)))
    engine._work, engine._rows = made.kernels[runs], float(rows)
    assert made.calibrated is not None
    parts = {k: made.calibrated.part(k, WINDOW[0], rows) for k in (kernel, runs)}
    price = engine.placer.prices.beat_j(parts[kernel], parts[runs])
    return price * made.work.rows_per_s / rows


@pytest.mark.parametrize("period_us, woken", [(300_000, False), (900_000, True)])
def test_a_gpu_is_paid_for_until_it_is_gated_and_then_for_being_woken(period_us, woken):
    """Railgate delay 500 ms; 0.57 W powered: the profile's figures."""
    gating = SimulatedDevice(priced(0.05)).tariff.gating
    found = float(gating.joules(np.array(10_000.0), np.array(float(period_us))))
    stays_us = min(500_000, period_us - 10_000)
    assert found == pytest.approx(0.57 * stays_us / 1e6 + 0.05 * woken)


@pytest.mark.parametrize("latency_us, known", [(200_000, True), (5_000_000, False)])
def test_a_wake_that_nobody_published_is_not_guessed(latency_us, known):
    """Beats every 5 s would let the GPU be gated; plans are made for every share of that."""
    made = replace(setup(1_000.0, "hands_off"), latency_us=latency_us)
    engine = Engine(made, SimulatedDevice(ORIN))
    engine._rows = 100.0
    part = KernelPart("cuda", 100, 3_050.0, 305.0, GPU_US)
    assert (engine.placer.prices.beat_j(part, None) is not None) is known


def test_the_energy_of_the_gpu_is_in_the_log():
    made = setup(25_000.0)
    device = SimulatedDevice(priced(0.05), log=[])
    engine = Engine(made, device)
    outcome = engine.run()
    assert device.states_us["race on gpu"] > 0 and outcome.beats > 2 * DECIDE_BEATS
    logged = sum(p.watts * p.us / 1e6 + p.joules for p in device.log)
    assert logged == pytest.approx(outcome.joules, rel=1e-9)
