"""A GPU that other processes use too: when joins keep off it, and when they return."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.tariffs import board_tariff
from edged.placement.gpu_share import RETURN_US, RETURN_US_MAX, GpuShare
from edged.placement.placement import DECIDE_BEATS, Placer
from edged.simulate.device import SimulatedDevice
from edged.simulate.engine import Engine, GpuLoad
from governors import gpu_tenants
from governors.gpu_tenants import GpuTenants
from governors.policies.base import RELEASE, Act, ClockSetting
from governors.profile_reader import load
from governors.simulated.board import SimulatedBoard
from governors.simulated.layout import gpu_paths
from tests.energy.common import StepClock
from tests.simulate.test_placement_by_energy import priced, setup
from tests.test_placement import CHAIN, GPU, LATENCY, profile
from tests.whole import count, examples

SECOND = 1_000_000


class Looks:
    """Looks once a second."""

    def __init__(self, limit=0.5):
        self.share, self.now, self.own_us = GpuShare(limit), 0, 0.0

    def run(self, seconds, load, own=0.0, memory=None):
        for _ in range(seconds):
            self.now += SECOND
            self.own_us += own * SECOND
            self.share.look(self.now, load, self.own_us, memory)
        return self.share.away


class TestWhoseLoadItIs:
    def test_edged_s_own_kernels_are_no_reason_to_keep_off(self):
        looks = Looks()
        assert not looks.run(60, load=0.9, own=0.9)
        assert looks.share.others == pytest.approx(0.0, abs=0.01)

    def test_what_others_use_beside_them_is(self):
        looks = Looks()
        assert looks.run(10, load=0.95, own=0.3)
        assert looks.share.others == pytest.approx(0.65, abs=0.01)
        assert "65%" in looks.share.reason or "64%" in looks.share.reason

    def test_a_load_that_cannot_be_read_keeps_nothing_off(self):
        assert not Looks().run(10, load=None)

    def test_without_a_limit_nothing_does(self):
        assert not Looks(limit=1.0).run(10, load=1.0, memory=0.99)

    def test_memory_of_others_does_without_any_load(self):
        looks = Looks()
        assert looks.run(1, load=0.0, memory=0.95) and "memory" in looks.share.reason


class TestReturning:
    def test_a_single_busy_look_is_passed_over(self):
        looks = Looks()
        looks.run(5, load=0.0)
        assert not looks.run(1, load=0.9) and not looks.run(5, load=0.0)

    def test_it_returns_after_a_calm_while_below_half_the_limit(self):
        looks = Looks()
        assert looks.run(10, load=0.8)
        assert looks.run(120, load=0.4)
        assert looks.run(RETURN_US // SECOND, load=0.1)
        assert not looks.run(5, load=0.1)

    @given(
        share=st.floats(0.55, 1.0), on_s=st.integers(1, 400), off_s=st.integers(1, 400)
    )  # fmt: skip
    @settings(max_examples=examples(100), deadline=None)
    def test_a_load_that_comes_and_goes_moves_a_join_a_bounded_number_of_times(
        self, share, on_s, off_s
    ):
        looks, hours = Looks(), count(2, 24)
        for second in range(hours * 3600 // 4):
            busy = second * 4 % (on_s + off_s) >= off_s
            looks.now += 4 * SECOND
            looks.share.look(looks.now, share if busy else 0.0, 0.0)
        doublings = (RETURN_US_MAX // RETURN_US).bit_length()
        # a stay of five minutes or more is no flapping, and there are so many of them at most
        stays = hours * 3600 // 300
        slow = hours * 3600 * SECOND // RETURN_US_MAX + 1
        assert looks.share.moves <= 2 * (doublings + slow + (stays if off_s > 300 else 0))


class TestPlacing:
    def placed(self):
        watts = {"cpu": 8.0, "cuda": 1.0}
        placer = Placer(profile(watts, chain=CHAIN, chain_cuda=GPU), LATENCY, "chain")
        placer.keeps_off = lambda: self.off
        self.off = False
        return placer

    def beats(self, placer, number):
        return [placer.beat(10_000, 1_000) for _ in range(number)]

    def test_a_join_leaves_the_gpu_after_the_beat_and_returns_by_two_decisions(self):
        placer = self.placed()
        self.beats(placer, 2 * DECIDE_BEATS)
        assert placer.kernel == "chain-cuda" and placer.on_gpu
        self.off = True
        assert self.beats(placer, 1) == ["chain"] and not placer.on_gpu
        assert set(self.beats(placer, 4 * DECIDE_BEATS)) == {None}
        self.off = False
        assert set(self.beats(placer, DECIDE_BEATS)) == {None}
        self.beats(placer, DECIDE_BEATS)
        assert placer.kernel == "chain-cuda"

    def test_a_kernel_that_an_operator_has_pinned_stays(self):
        placer = self.placed()
        placer.pin("chain-cuda")
        self.off = True
        assert set(self.beats(placer, 4)) == {None} and placer.kernel == "chain-cuda"


class TestReading:
    def test_the_integrated_gpu_tells_its_load_per_mille(self, tmp_path):
        sysfs = SimulatedBoard(load("orin-nano"), tmp_path).sysfs
        tenants = GpuTenants(sysfs, simulated=True)
        sysfs.store(f"{gpu_paths(load('orin-nano'))[0]}/load", 730)
        assert tenants.load() == pytest.approx(0.73)

    def test_its_memory_is_the_machine_s_without_one_s_own(self, tmp_path):
        sysfs = SimulatedBoard(load("orin-nano"), tmp_path).sysfs
        (tmp_path / "proc").mkdir(exist_ok=True)
        (tmp_path / "proc/meminfo").write_text(
            "MemTotal:      8000000 kB\nMemAvailable:   400000 kB\n"
        )
        assert 0.7 < GpuTenants(sysfs, simulated=True).memory() < 0.95

    def test_a_machine_without_a_gpu_has_none(self, tmp_path):
        tenants = GpuTenants(SimulatedBoard(load("raspberry-pi-5"), tmp_path).sysfs, True)
        assert tenants.load() is None and tenants.memory() is None and tenants.name == ""

    def test_nvml_s_memory_is_without_one_s_own(self):
        import os

        mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=30)
        other = SimpleNamespace(pid=1, usedGpuMemory=40)
        library = SimpleNamespace(
            nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda _: 0,
            nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=80, total=100),
            nvmlDeviceGetComputeRunningProcesses=lambda _: [mine, other],
        )  # fmt: skip
        assert gpu_tenants._nvml_memory(library) == pytest.approx(0.5)


def test_the_clock_of_a_gpu_that_another_process_uses_is_given_back_and_not_set(tmp_path):
    clock = StepClock()
    asked = EnergySettings("simulated:orin-nano", "fixed", {"gpu_mhz": 612.0})
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, board_tariff(site), clock, 1)
    side.start()
    device, node = gpu_paths(site.profile)
    (gpu,) = (knob for knob in site.knobs if knob.kind == "gpu")

    def clocks():
        return [site.sysfs.read_int(f"{node}/{end}_freq") for end in ("min", "max")]

    def pin():
        side.limits.apply({gpu.name: ClockSetting(Act.PIN, 612_000_000)}, clock.now)

    before = clocks()
    pin()
    assert clocks() == [612_000_000, 612_000_000]
    site.sysfs.settle = None
    site.sysfs.store(f"{device}/load", 400)
    clock.now += 2 * SECOND
    side.limits.watch(clock.now)
    assert clocks() == before
    pin()
    assert clocks() == before and not next(d for d in side.limits.dials if d.kind == "gpu").writable
    site.sysfs.store(f"{device}/load", 0)
    for _ in range(40):
        clock.now += 2 * SECOND
        side.limits.watch(clock.now)
    pin()
    assert clocks() == [612_000_000, 612_000_000]
    side.limits.apply({gpu.name: RELEASE}, clock.now)
    side.close()


class TestSimulated:
    """A load of 85 % that comes for a minute and goes for one and a half."""

    def run(self, limit, reserve=True):
        made = setup(8_000.0)
        work = {name: replace(one, messages_per_s=4_000.0) for name, one in made.kernels.items()}
        asked = replace(
            made, work=work["chain"], kernels=work, seconds=600.0,
            gpu_load=GpuLoad(0.85, 60.0, 90.0), gpu_share=limit,
        )  # fmt: skip
        engine = Engine(asked, SimulatedDevice(priced(0.0)))
        engine.placer.shares &= reserve
        outcome = engine.run()
        worst_us = max(latest for _, latest, _ in engine._latency[1:])
        """Without the first beat, before which no cost is known."""
        return outcome, worst_us / engine.setup.latency_us

    def test_joins_leave_it_to_others_none_flaps_and_no_beat_is_late(self):
        """A tenth of a millisecond is what the simulator's own planning is off by."""
        shared, worst = self.run(0.5)
        assert shared.gpu_clocks_us and 2 <= shared.gpu_moves <= 6
        assert worst <= 1.0005 and shared.waiting < 8_000

    def test_the_time_left_for_a_slower_race_is_what_keeps_the_promise(self):
        assert self.run(0.5, reserve=False)[1] > 1.05

    def test_without_a_limit_they_stay(self):
        alone, shared = (self.run(limit)[0] for limit in (1.0, 0.5))
        assert alone.gpu_moves == 0
        assert sum(alone.gpu_clocks_us.values()) > 2 * sum(shared.gpu_clocks_us.values())
