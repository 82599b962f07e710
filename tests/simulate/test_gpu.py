"""A GPU in simulation: placed by its rows, charged as a hand calculation says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import governors.profile_reader
from edged.beat.batcher import MARGIN_US_MIN
from edged.calibration.site import calibrate_board
from edged.cli.simulate import command
from edged.operators.interval_join import JOIN_PARALLEL_ROWS, IntervalJoinPlan
from edged.placement.placement import Curve, KernelProfile
from edged.placement.profile import save_energy, save_profile
from edged.simulate import gpu
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, Setup
from edged.simulate.report import _setup, answer
from edged.simulate.rows import clocks_of, default_mode, on_board, simulated_rows
from edged.simulate.work import COMMIT_US, KERNEL_CYCLES, ArrivalLoad, job_work
from governors.cost import PLAN_ERROR, CostModel
from governors.work import Dial, RaceCost, Work
from tests.simulate.common import ORIN, join_plan, plain_work, question
from tests.simulate.test_placement_by_energy import priced
from tests.test_calibration_gpu import asked

JOB = str(Path(__file__).parents[2] / "examples/power_curve.toml")
CPU_HZ, GPU_HZ = 1_344_000_000, 918_000_000
CLOCKS = {"cpu": CPU_HZ, "cuda": GPU_HZ}
WINDOWS, ROWS = (1_000, 1_000_000), (256, 2_000, 20_000, 1_048_576)
LAUNCH_US, ROW_US, STALLED = 2_000.0, 0.1, 0.4


def line(device: str, fixed_us: float, each_us: float, most: int = 1, **more) -> Curve:
    """CPU times on a straight line; large beats on the CPU are shared by so many cores."""
    cpu_us = tuple(fixed_us + each_us * rows for rows in ROWS)
    cores = [most if device == "cpu" and rows >= JOIN_PARALLEL_ROWS else 1 for rows in ROWS]
    us = tuple(x / n for x, n in zip(cpu_us, cores, strict=True))
    return Curve(device, WINDOWS, ROWS, (us, us), (cpu_us, cpu_us), 0.0, **more)


def rows(cpu_row_us: float = 1.0, cores: int = 6) -> KernelProfile:
    """As calibrated on an Orin Nano: a GPU that is slow to start and quick with many rows."""
    kernels = {
        "chain": line("cpu", 0.0, cpu_row_us, cores),
        "chain-cuda": line("cuda", LAUNCH_US, ROW_US, stalled=STALLED),
    }
    return KernelProfile(6, kernels, {}, {}, "orin-nano", CLOCKS)


# --- joules, by hand

IDLE, AWAKE, POWERED, WAKE_J = 3.37, 0.58, 0.57, 0.05
MEMORY = (0.48 + 0.43) * (3.199 - 0.204)
VOLTS = 0.77 + 0.23 * (1344 / 1728 - 0.34) / 0.66
CORE = 0.45 * 1.344 * VOLTS**2
GPU = 1.0 * 0.918
"""W, of the profile; the GPU's watt a GHz and what waking it takes are the test's (`priced`)."""
HOST = RaceCost(cycles=2e6, cycles_per_unit=100.0)
ON_GPU = RaceCost(
    0.0, (1 - STALLED) * ROW_US * GPU_HZ / 1e6, LAUNCH_US, STALLED * ROW_US, 1.0, host=HOST
)


def beat(rate: float, latency_us: int) -> tuple[float, float, float]:
    """Period, CPU part and GPU part (µs) of the steady state: what waits for the ingest, and the
    race of what came, fill the tolerance."""
    fixed = 1e6 * 2e6 / CPU_HZ + LAUNCH_US
    each = rate * (100.0 / CPU_HZ + ROW_US / 1e6)
    margin = max(MARGIN_US_MIN, latency_us // 50)
    period = (latency_us - COMMIT_US - margin - fixed) / (1 + each)
    n = rate * period / 1e6
    return period, 1e6 * (2e6 + 100.0 * n) / CPU_HZ, LAUNCH_US + ROW_US * n


@pytest.mark.parametrize("latency_us", [200_000, 2_000_000])
def test_a_beat_that_is_placed_on_the_gpu_takes_what_a_hand_calculation_says(latency_us):
    """At 2 s the GPU is gated 500 ms after each race and woken for the next; at 200 ms never."""
    rate, cpu_row_us = 200_000.0, 2.0
    cpu = plain_work(rate, 1e6, RaceCost(2e6, 100.0 + cpu_row_us * CPU_HZ / 1e6))
    cpu = replace(cpu, window=1_000, row_bytes=4.0)
    made = Setup(
        cpu, latency_us, latency_us, 1 << 30, "fixed",
        {"cpu_mhz": CPU_HZ / 1e6, "gpu_mhz": GPU_HZ / 1e6}, 400 * latency_us / 1e6,
        calibrated=rows(cpu_row_us, 1),
        kernels={"chain": cpu, "chain-cuda": replace(cpu, cost=ON_GPU, device="gpu")},
    )  # fmt: skip
    device = SimulatedDevice(priced(WAKE_J), log=[])
    outcome = Engine(made, device).run()
    assert outcome.kernel == "chain-cuda"
    begins = [p.start_us for p in device.log if p.state == "race"]
    from_us, until_us = begins[len(begins) // 2], begins[-1]
    late = [p for p in device.log if from_us <= p.start_us < until_us]
    watts = 1e6 * sum(p.watts * p.us / 1e6 + p.joules for p in late) / (until_us - from_us)
    period, cpu_us, gpu_us = beat(rate, latency_us)
    host_w, gpu_w = AWAKE + CORE + MEMORY, AWAKE + CORE + MEMORY + POWERED + GPU
    rests_us = period - gpu_us
    above_j = cpu_us / 1e6 * host_w + gpu_us / 1e6 * gpu_w
    above_j += POWERED * min(rests_us, 500_000) / 1e6 + WAKE_J * (rests_us > 500_000)
    above_j += 0.0012  # the wake that begins the race: the profile's
    assert watts - IDLE == pytest.approx(1e6 * above_j / period, rel=0.01)
    gated = latency_us > 1_000_000
    beats_on_gpu = sum(device.gpu_clocks_us.values()) / gpu_us
    assert (device.gpu_wakes / beats_on_gpu > 0.9) is gated
    assert set(device.gpu_clocks_us) == {GPU_HZ}


def test_a_plan_charges_the_cpus_part_and_the_gpus_at_each_of_the_gpus_clocks():
    device, latency_us, rate = SimulatedDevice(priced(WAKE_J)), 200_000, 100_000.0
    held = (Dial("cpu.policy0", "cpu", (CPU_HZ,), CPU_HZ, CPU_HZ, False), device.dials[-1])
    work = Work(20_000.0, rate, {"gpu": ON_GPU}, latency_us)
    n = rate * latency_us / 1e6
    options = CostModel(device.tariff).options(work, held)
    assert [option.hz for option in options] == [GPU_HZ, *device.dials[-1].choices_hz()]
    for option in options:
        cpu_us = 1e6 * (HOST.cycles + HOST.cycles_per_unit * n) / CPU_HZ
        gpu_us = ON_GPU.us(n, option.hz)
        gpu_w = AWAKE + CORE + MEMORY + POWERED + option.hz / 1e9
        joules = (cpu_us * (AWAKE + CORE + MEMORY) + gpu_us * gpu_w) / 1e6
        assert option.takes_us(n) == pytest.approx(cpu_us + gpu_us, rel=0.01)
        assert option.joules(n, 0.0) == pytest.approx(joules, rel=0.01)
        assert option.joules(n, 0.5) == pytest.approx(joules + 0.5 * bool(option.clocks), rel=0.01)
        assert option.most_joules(n, 0.0) >= 0.99 * joules


def test_the_gpu_is_taken_for_large_beats_and_the_cpu_for_small_ones():
    board = priced(WAKE_J)
    kernels = {
        rate: answer(
            replace(question(rate, "1s", calibrated=rows(4.0)), board=board, seconds=300.0)
        )["kernel"]
        for rate in (300.0, 100_000.0)
    }
    assert kernels == {300.0: "chain", 100_000.0: "chain-cuda"}


@pytest.mark.parametrize("policy", ["hands_off", "race_to_idle"])
@pytest.mark.parametrize("rate", [5_000.0, 50_000.0])
@pytest.mark.parametrize("runs, kernel", [("chain", "chain-cuda"), ("chain-cuda", "chain"),
                                          ("chain-cuda", "chain-cuda")])  # fmt: skip
def test_a_kernels_price_with_the_rest_of_the_beat_is_what_it_takes_in_simulation(
    policy, rate, runs, kernel
):
    asked = replace(question(rate, "200ms", calibrated=rows(0.4), sends=200.0), board=priced(0.05))
    asked = replace(asked, policy=policy, seconds=40.0)
    made = _setup(asked, SimulatedDevice(asked.board))

    def engine(name):
        found = Engine(made, SimulatedDevice(asked.board))
        found.placer.pin(name)
        found._work = made.kernels[name]
        return found

    outcome = engine(kernel).run()
    above_w = outcome.joules / outcome.seconds - outcome.idle_watts
    placing, n = engine(runs), round(2 * rate * 0.2)
    placing._rows = float(n)
    parts = {k: made.calibrated.part(k, made.work.window, n) for k in (kernel, runs)}
    price_w = placing.placer.prices.beat_j(parts[kernel], parts[runs]) * 2 * rate / n
    assert price_w == pytest.approx(above_w, rel=PLAN_ERROR)


def test_without_a_figure_of_what_waking_takes_a_gpu_that_would_be_gated_is_not_taken():
    asked = replace(question(100_000, "2s", calibrated=rows(4.0)), seconds=600.0)
    assert answer(replace(asked, board=priced(None)))["kernel"] == "chain"
    assert answer(replace(asked, board=priced(0.05)))["kernel"] == "chain-cuda"


def test_a_board_that_has_no_figure_of_a_busy_gpu_is_given_none_for_nothing():
    nano = governors.profile_reader.load("jetson-nano")
    device = SimulatedDevice(nano)
    assert not device.tariff.gating.priced
    calibrated = replace(rows(), board="jetson-nano", clocks={"cpu": 1479 * 10**6})
    asked = replace(question(20_000, "200ms", calibrated=calibrated), board=nano)
    assert answer(asked)["kernel"] == "chain"


# --- where the rows come from


def test_what_was_calibrated_on_such_a_board_is_taken_as_it_is():
    found, notes = on_board(rows(), ORIN, CLOCKS, 6)
    assert found.kernels == rows().kernels and "calibration of orin-nano" in notes[0]
    slower, _ = on_board(rows(), ORIN, {"cpu": CPU_HZ // 2, "cuda": GPU_HZ}, 6)
    assert slower.kernels["chain"].us[0][2] == pytest.approx(2 * rows().kernels["chain"].us[0][2])
    assert slower.kernels["chain-cuda"] == rows().kernels["chain-cuda"]


def test_a_gpu_of_another_machine_is_left_out_and_named():
    found, notes = on_board(replace(rows(), board="thor"), ORIN, CLOCKS, 6)
    assert set(found.kernels) == {"chain"}
    assert notes == ["chain-cuda is left out: its times are from another GPU"]


def test_the_work_on_the_gpu_leaves_the_rest_of_the_beat_to_the_cpu():
    plan, load = join_plan("1s"), ArrivalLoad(50_000)
    found, _ = on_board(rows(), ORIN, CLOCKS, 6)
    on_cpu = job_work(plan, ORIN, load, found, "chain")
    there = job_work(plan, ORIN, load, found, "chain-cuda")
    assert there.device == "gpu" and there.cost.host is not None
    assert there.cost.us(1e6, GPU_HZ) == pytest.approx(LAUNCH_US + 1e6 * ROW_US, rel=1e-6)
    half = there.cost.us(1e6, GPU_HZ // 2) - LAUNCH_US
    assert half == pytest.approx(1e6 * ROW_US * (STALLED + 2 * (1 - STALLED)), rel=1e-6)
    rest = there.cost.host
    assert rest.cycles == on_cpu.cost.cycles
    kernel_cycles = on_cpu.cost.cycles_per_unit - rest.cycles_per_unit
    assert kernel_cycles == pytest.approx(CPU_HZ / 1e6 / 6, rel=0.01)  # 1 us a row on six cores
    assert IntervalJoinPlan.cycles is not None
    assert IntervalJoinPlan.cycles[1] > KERNEL_CYCLES
    assert there.cost.commit_cycles == on_cpu.cost.commit_cycles > 0 == rest.commit_cycles


def test_what_a_simulated_board_was_calibrated_to_is_not_converted_twice():
    here = replace(rows(), board="generic-x86", clocks={})
    clocks = clocks_of(ORIN, default_mode(ORIN))
    kept = simulated_rows(here, ORIN, ["chain", "chain-cuda"])
    assert (kept.board, kept.clocks) == ("orin-nano", clocks)
    again, _ = on_board(kept, ORIN, clocks, 6)
    assert again.kernels == kept.kernels
    assert {c.times_from for c in kept.kernels.values()} == {"simulated"}


def test_kernels_are_modelled_by_the_data_sheet_only_where_that_is_asked_for():
    assert on_board(None, ORIN, CLOCKS, 6) == (None, [])
    found, notes = on_board(None, ORIN, CLOCKS, 6, on_gpu=True)
    assert set(found.kernels) == {"chain", "chain-cuda", "bucket-cuda"}
    assert {c.times_from for c in found.kernels.values()} == {"modelled"}
    assert notes == [f"times of GPU kernels are {gpu.PROVENANCE}"]
    nano = governors.profile_reader.load("jetson-nano")
    _, notes = on_board(None, nano, {"cpu": CPU_HZ, "cuda": GPU_HZ}, 4, on_gpu=True)
    assert notes == ["the GPU of jetson-nano has no figures: CPU only"]


def test_a_rate_that_only_the_gpu_keeps_up_with_is_bound_by_both():
    plain = answer(question(1_000, "1s", calibrated=rows(20.0)))
    bounds = plain["bounds_rows_per_s_per_stream"]
    assert "cpu + gpu" in bounds and bounds["cpu + gpu"] > 100_000
    without = replace(rows(20.0), kernels={"chain": rows(20.0).kernels["chain"]})
    alone = answer(question(1_000, "1s", calibrated=without))["bounds_rows_per_s_per_stream"]
    assert alone["cpu"] < bounds["cpu + gpu"] / 4


# --- the command


def test_simulate_takes_times_and_watts_of_a_store_and_tells_the_gpus_clocks(tmp_path, monkeypatch):
    energy = calibrate_board(
        asked("simulated:orin-nano", tmp_path, "chain", "chain-cuda", seconds=90.0)
    )
    save_energy(energy, tmp_path)
    save_profile(rows(8.0), tmp_path)
    words = [JOB, "--rate", "100k", "--latency", "200ms", "--seconds", "60", "--store",
             str(tmp_path), "--json", "-"]  # fmt: skip
    told = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)
    assert told["kernel"] == "chain-cuda" and told["provenance"] == "simulated"
    assert list(told["gpu_clock_shares_hz"]) == [str(GPU_HZ)]
    assert any("power of races from a calibration (simulated" in note for note in told["notes"])
    assert told["gpu_wakes_per_s"] < 0.1, "beats come before it is gated"
    for rate in (10_000.0, 300_000.0):  # races on one core, and on six
        by_model, by_it = (answer(question(rate, "200ms", energy=e)) for e in (None, energy))
        assert by_it["watts"]["above_idle"] == pytest.approx(
            by_model["watts"]["above_idle"], rel=0.05
        ), "a board that is its model draws what the model says"


def test_simulate_by_the_data_sheet_says_modelled():
    words = [JOB, "--rate", "1k", "--seconds", "20", "--gpu", "--json", "-"]
    told = json.loads(CliRunner().invoke(command, words, catch_exceptions=False).stdout)
    assert any("no GPU has run these kernels" in note for note in told["notes"])
