"""What a beat takes: against what was measured, and over boards, windows and bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

import edged.simulate.work as work_module
import governors.profile
import governors.profile_reader
from edged.placement.placement import Curve, KernelProfile
from edged.simulate.report import answer
from edged.simulate.rows import clocks_of, on_board
from edged.simulate.work import HOST_HZ, HOST_WIDTH, KERNEL_CYCLES, ArrivalLoad, job_work
from governors.errors import ProfileError
from tests.simulate.common import ORIN, join_plan, question

PLAN = join_plan()


def here(monkeypatch) -> governors.profile.BoardProfile:
    """A board with this machine's core and cache."""
    monkeypatch.setitem(work_module.CORES, "here", HOST_WIDTH)
    cluster = replace(ORIN.clusters[0], core="here", l3_bytes=work_module.HOST_CACHE_BYTES)
    return replace(ORIN, clusters=(cluster, *ORIN.clusters[1:]))


def test_on_the_machine_that_was_measured_it_is_what_was_measured(monkeypatch):
    # seven loads of the real daemon, small windows: 2.74 ms a beat, 39.7 ns a row, 2.0 us a message
    plan = join_plan(latency="1ms", bound="2s")
    found = job_work(plan, here(monkeypatch), ArrivalLoad(1_000, sends_per_s=1e-9), cores=1)
    assert found.window == 4_000
    cost = found.cost
    assert (cost.cycles + cost.beside_cycles) / HOST_HZ == pytest.approx(2.739e-3, rel=0.03)
    a_row = cost.cycles_per_unit / HOST_HZ + cost.stall_us_per_unit / 1e6
    assert a_row == pytest.approx(39.7e-9, rel=0.03)
    chatty = job_work(plan, here(monkeypatch), ArrivalLoad(1_000, sends_per_s=1_000), cores=1)
    more = (chatty.cost.cycles_per_unit - cost.cycles_per_unit) / HOST_HZ
    assert more == pytest.approx(2.02e-6, rel=0.03)


def test_a_wider_core_takes_fewer_cycles_and_an_unknown_one_is_refused():
    nano = job_work(PLAN, governors.profile_reader.load("jetson-nano"), ArrivalLoad(100))
    orin = job_work(PLAN, ORIN, ArrivalLoad(100))
    assert nano.cost.cycles / orin.cost.cycles == pytest.approx(4 / 3)
    other = replace(ORIN, clusters=(replace(ORIN.clusters[0], core="Z80"),))
    with pytest.raises(ProfileError, match=r"'Z80'.*Cortex-A57"):
        job_work(PLAN, other, ArrivalLoad(100))


def test_a_window_beyond_the_cache_waits_for_memory_and_the_clock_does_not_shorten_that():
    small, large = (
        job_work(join_plan(bound=b), ORIN, ArrivalLoad(1_000)) for b in ("100ms", "10min")
    )
    assert small.cost.stall_us_per_unit == 0.0 < large.cost.stall_us_per_unit
    assert small.cost.cycles_per_unit == large.cost.cycles_per_unit


def test_large_beats_use_all_cores_and_small_ones_one():
    small = job_work(PLAN, ORIN, ArrivalLoad(100)).cost
    large = job_work(join_plan(latency="1s"), ORIN, ArrivalLoad(1e5)).cost
    assert small.cores == pytest.approx(1.0)
    assert 1.0 < large.cores < 6.0


def test_a_calibration_of_this_machine_takes_the_place_of_the_kernels_constants():
    # 0.1 us a row in the smallest window, 0.4 in the largest
    curve = Curve(
        "cpu", (10_000, 1_000_000), (1_000, 100_000),
        ((200.0, 10_100.0), (500.0, 40_100.0)), ((200.0, 10_100.0), (500.0, 40_100.0)), 0.01,
    )  # fmt: skip
    gpu = replace(curve, device="cuda")
    calibrated = KernelProfile(2, {"chain": curve, "chain_cuda": gpu})
    rows, notes = on_board(calibrated, ORIN, clocks_of(ORIN, None), 6)
    assert set(rows.kernels) == {"chain"}
    assert any("chain_cuda is left out" in note for note in notes)
    assert rows.kernels["chain"].us[0][0] == pytest.approx(200 * 2 * HOST_HZ / 1.728e9)
    plain = job_work(PLAN, ORIN, ArrivalLoad(1_000))
    found = job_work(join_plan(bound="10000s"), ORIN, ArrivalLoad(1_000), rows)
    more = found.cost.cycles_per_unit - plain.cost.cycles_per_unit
    assert more == pytest.approx(2 * (0.1e-6 * HOST_HZ - KERNEL_CYCLES), rel=0.01)
    assert found.cost.stall_us_per_unit == pytest.approx(0.3, rel=0.01)


def test_the_placer_runs_the_kernel_that_the_calibration_found_cheapest():
    axes = ((10_000, 1_000_000), (1_000, 100_000))
    slow = Curve("cpu", *axes, ((400.0, 20_000.0),) * 2, ((400.0, 20_000.0),) * 2, 0.001)
    quick = Curve("cpu", *axes, ((90.0, 4_000.0),) * 2, ((90.0, 4_000.0),) * 2, 0.001)
    calibrated = KernelProfile(2, {"chain": slow, "bucket": quick})
    placed = answer(question(20_000, calibrated=calibrated))
    assert placed["kernel"] == "bucket"
    assert answer(question(20_000))["kernel"] == "chain"
    stayed = answer(question(20_000, calibrated=KernelProfile(2, {"chain": slow})))
    assert placed["busy_share"] < stayed["busy_share"]


@pytest.mark.parametrize("factor, saturated", [(0.6, False), (1.5, True)])
def test_the_cpu_s_bound_is_where_the_simulated_board_stops_keeping_up(factor, saturated):
    first = answer(question(1_000, latency="1s", mode="7W"))
    cpu = first["bounds_rows_per_s_per_stream"]["cpu"]
    asked = question(factor * cpu, latency="1s", mode="7W", policy="fixed",
                     settings={"cpu_mhz": 960.0}, seconds=20.0)  # fmt: skip
    result = answer(asked)
    assert result["saturated"] == saturated
    assert ("cpu" in result["beyond"]) == saturated


def test_the_bound_that_is_named_is_the_lowest():
    memory = answer(replace(question(), plan=join_plan(memory="1MiB")))
    assert memory["bounded_by"] == "memory"
    assert memory["beyond"] == ["memory"]
    bounds = memory["bounds_rows_per_s_per_stream"]
    assert bounds["memory"] == min(bounds.values())
    # 16 bytes a row, two streams, a tenth of headers, on a gigabit
    assert bounds["network"] == pytest.approx(1e9 / 8 / 1.1 / 32)
