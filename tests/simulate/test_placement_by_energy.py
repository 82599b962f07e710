"""CPU or GPU by energy: placement finds what simulating both finds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import governors.profile
from edged.placement import DECIDE_BEATS, Curve, Profile
from edged.simulate.device import Device
from edged.simulate.engine import Engine, Outcome, Setup
from governors.policies.base import Cost
from governors.profile import Figure, Term
from governors.tariff import BeatPrices
from tests.simulate.common import ORIN, plain_work

WINDOW, ROWS = (1_000,), (100, 1_000_000)
TOP_HZ, GPU_HZ = 1_344_000_000, 918_000_000
LATENCY_US = 200_000
CPU_CYCLES = 20_000.0
GPU_US = 0.5


def priced(wake_j: float | None) -> governors.profile.Profile:
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


def setup(rate: float) -> Setup:
    """A join that takes 20 000 cycles a row on one core, or half a microsecond on the GPU."""
    cpu = replace(plain_work(rate, 40.0, Cost(1e6, CPU_CYCLES)), window=1_000)
    gpu = replace(cpu, cost=Cost(0.0, 0.0, 3_000.0, GPU_US, cores=0.1), device="gpu")
    kernels = {
        "chain": curve("cpu", 1e12 / TOP_HZ / 1e6, 1e6 * CPU_CYCLES / TOP_HZ, 1.0),
        "chain-cuda": curve("cuda", 3_000.0, GPU_US, 0.1),
    }
    return Setup(
        cpu, LATENCY_US, LATENCY_US, 1 << 30, seconds=60.0, calibrated=Profile(1, kernels),
        kernels={"chain": cpu, "chain-cuda": gpu},
    )  # fmt: skip


def run(made: Setup, board: governors.profile.Profile, kernel: str | None) -> Outcome:
    """Simulate with a kernel that is pinned, or placed."""
    engine = Engine(made, Device(board))
    if kernel is not None:
        engine.placer.pin(kernel)
        engine._work = made.kernels[kernel]
    return engine.run()


@pytest.mark.parametrize("rate", [200.0, 5_000.0, 25_000.0])
def test_placement_takes_the_processor_that_simulating_both_finds_cheaper(rate):
    board, made = priced(0.05), setup(rate)
    watts = {}
    for kernel in made.kernels:
        found = run(made, board, kernel)
        watts[kernel] = found.joules / found.seconds
    assert run(made, board, None).kernel == min(watts, key=lambda k: watts[k])
    assert abs(watts["chain"] - watts["chain-cuda"]) > 0.05, "it matters"


def test_low_rates_stay_on_the_cpu_and_high_ones_leave_it():
    kernels = {rate: run(setup(rate), priced(0.05), None).kernel for rate in (200.0, 25_000.0)}
    assert kernels == {200.0: "chain", 25_000.0: "chain-cuda"}


@pytest.mark.parametrize("period_us, woken", [(300_000, False), (900_000, True)])
def test_a_gpu_is_paid_for_until_it_is_gated_and_then_for_being_woken(period_us, woken):
    """Railgate delay 500 ms; 0.57 W powered: the profile's figures."""
    prices = BeatPrices(Device(priced(0.05)).tariff, TOP_HZ, GPU_HZ)
    prices.units_per_s = 1e6
    found = prices.beat_j("cuda", 10_000.0, 1_000.0, period_us)
    busy_w = prices.tariff.race_watts("gpu", GPU_HZ, 0.1) - prices.tariff.idle_watts
    stays_us = min(500_000, period_us - 10_000)
    assert found == pytest.approx((busy_w * 1e4 + 0.57 * stays_us) / 1e6 + 0.05 * woken)


def test_a_wake_that_nobody_published_is_not_guessed():
    prices = BeatPrices(Device(ORIN).tariff, TOP_HZ, GPU_HZ)
    prices.units_per_s = 1e6
    assert prices.beat_j("cuda", 10_000.0, 1_000.0, 900_000) is None
    assert prices.beat_j("cuda", 10_000.0, 1_000.0, 300_000) is not None


def test_the_energy_of_the_gpu_is_in_the_log():
    made = setup(25_000.0)
    device = Device(priced(0.05), log=[])
    engine = Engine(made, device)
    outcome = engine.run()
    assert device.states_us["race on gpu"] > 0 and outcome.beats > 2 * DECIDE_BEATS
    logged = sum(p.watts * p.us / 1e6 + p.joules for p in device.log)
    assert logged == pytest.approx(outcome.joules, rel=1e-9)
