"""Sleeps that must be asked for, by the real daemon on a board that is not there."""

from __future__ import annotations

import itertools

import pytest

from edged.energy import sleeps as sleeps_module
from edged.energy import status
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.sleeps import Sleeps, parse_allowed
from edged.energy.tariffs import board_tariff
from edged.errors import ConfigError
from governors.actuators.base import switches
from governors.detect import detect
from governors.simulated.kernel import open_root
from tests.beat.support import SECOND, changed
from tests.energy.common import JOB, edged, energy, feed, running, switch
from tests.energy.test_runtime import Bench, StepClock
from tests.governors.owning import limits
from tests.governors.trees import plant

EMC = "/sys/kernel/nvpmodel_clk_cap/emc"
ASKED = ("--policy", "race_to_idle", "--governor", "sleep=true",
         "--governor", "allow=emc,offline:0.5,gpu_pm,uclamp")  # fmt: skip


PATIENT = changed(JOB, promises={"latency": "2s"})
"""Waits of seconds: switched off cores pay also where a busy machine takes 50 ms for a switch."""


def online(store):
    """The cores that are not cpu0, as their files stand."""
    sysfs = open_root(store / "board")
    return [sysfs.read(f"/sys/devices/system/cpu/cpu{n}/online").strip() for n in range(1, 6)]


def cap(store):
    return open_root(store / "board").read(EMC).strip()


def test_cores_and_the_memory_clock_are_slowed_between_and_in_races_and_come_back_on_every_way_out(
    tmp_path,
):
    store = tmp_path / "store"
    with running(tmp_path, *ASKED, document=PATIENT) as daemon:
        feed(daemon, lambda: "0" in online(store))
        feed(daemon, lambda: "emc" in energy(daemon)["costs"])
        assert energy(daemon)["costs"]["emc"]["leave_us"] > 0, "in races only"
        told = energy(daemon)["sleeps"]
        assert told["switches"] == ["core.1", "core.2", "core.3", "core.5", "gpu.power"]
        assert told["entered"] > 0 and told["enter_us"] > 0 and told["leave_us"] > 0
        assert "uclamp" in told["refused"]
        assert switch(daemon, "hands_off")["was"] == "race_to_idle"
        assert (online(store), cap(store)) == (["1"] * 5, "0")
        switch(daemon, "race_to_idle", sleep=True)
        feed(daemon, lambda: "0" in online(store))
        daemon.kill()
        assert "0" in online(store)
        daemon.arguments[daemon.arguments.index("race_to_idle")] = "hands_off"
        at = daemon.arguments.index("sleep=true")
        del daemon.arguments[at - 1 : at + 1]
        daemon.restart()
        daemon.ready()
        assert (online(store), cap(store)) == (["1"] * 5, "0"), "by the next start"
        switch(daemon, "fixed", memory_mhz=2133)
        feed(daemon, lambda: cap(store) == "2133000000")
        daemon.kill()
        assert cap(store) == "2133000000"
        words = ("--root", store / "board", "--journal", store / "limits.journal")
        done = edged("governor", "restore", *words)
        assert (done.returncode, cap(store)) == (0, "0"), "by the command"
        daemon.restart()
        daemon.ready()
        switch(daemon, "race_to_idle", sleep=True)
        feed(daemon, lambda: "0" in online(store))
    assert daemon.process.returncode == 0, "SIGTERM"
    assert (online(store), cap(store)) == (["1"] * 5, "0")
    assert not (store / "limits.journal").exists()


@pytest.mark.parametrize("allowed, watts", [((), 0.57), (("gpu_pm",), 0.0)])
def test_a_gpu_that_somebody_keeps_powered_is_gated_while_a_policy_runs_where_that_was_asked_for(
    tmp_path, allowed, watts
):
    """0.57 W: what the profile says that it draws powered, after its railgate delay of 0.5 s."""
    with Bench(tmp_path, "fixed", allowed=allowed, begin=False, cpu_mhz=960) as b:
        at = next(s.path for s in switches(b.site.sysfs, b.site.board) if s.name == "gpu.power")
        b.site.sysfs.write(at, "on")
        drawn = []
        for begins in (False, True):
            if begins:
                b.side.start()
            b.clock.now += 2 * SECOND
            b.board.advance(b.clock.now)
            before = b.board.input_joules
            b.clock.now += 10 * SECOND
            b.board.advance(b.clock.now)
            drawn.append((b.board.input_joules - before) / 10)
        idle_w = b.side.tariff.idle_watts
        assert drawn[0] == pytest.approx(idle_w + 0.57, abs=0.02), "before the policy"
        assert drawn[1] == pytest.approx(idle_w + watts, abs=0.02), "while it runs"
        b.side.switch("hands_off", {})
        assert b.site.sysfs.read(at).strip() == "on", "as it was"


def test_without_a_figure_of_what_it_saves_no_core_is_switched_off_and_the_reason_is_told(tmp_path):
    site = open_site(EnergySettings("simulated:orin-nano", allowed=("offline",)), tmp_path, int)
    assert site.sleeps.switches == []
    assert "offline:WATTS" in site.sleeps.refused["offline"]


@pytest.mark.parametrize("board", ["raspberry-pi-5", "x86-amd-pstate", "no-control"])
def test_a_kernel_that_lacks_it_is_named_and_the_rest_goes_on(tmp_path, board):
    sysfs = plant(tmp_path, board)
    found = Sleeps(sysfs, switches(sysfs, detect(sysfs)), parse_allowed(["offline:1", "gpu_pm"]))
    assert "gpu_pm" in found.refused


@pytest.mark.parametrize("word", ["offline:much", "offline:-1", "emc:1", "offline:1e9"])
def test_a_saving_that_is_none_is_refused(word):
    with pytest.raises(ConfigError, match="allow"):
        parse_allowed([word])


CORE5 = "/sys/devices/system/cpu/cpu5/online"


def told_of(bench, at_s=0):
    """The reported sleeps, after a beat at a later time."""
    bench.clock.now += at_s * SECOND
    bench.beat()
    return status.status(bench.side, bench.clock.now)["sleeps"]


def test_a_core_that_could_not_be_switched_off_at_the_start_is_tried_again(tmp_path):
    with Bench(tmp_path, "fixed", allowed=("offline:0.5",), begin=False, cpu_mhz=960) as b:
        b.board.fault("*/cpu5/online", "EACCES", "w")
        b.side.start()
        assert "core.5" in told_of(b)["refused"]
        assert b.side.tariff.sleeps[0].watts == pytest.approx(0.5 * 3 / 4), "of three of four"
        b.board.heal()
        assert "core.5" in told_of(b)["refused"], "not at each beat"
        assert told_of(b, at_s=6)["refused"] == {}
        assert b.side.tariff.sleeps[0].watts == 0.5


def test_what_was_dear_at_one_bad_moment_is_priced_again_though_nobody_uses_it(
    tmp_path, monkeypatch
):
    with Bench(tmp_path, "fixed", allowed=("offline:0.5",), begin=False, cpu_mhz=960) as b:
        with monkeypatch.context() as slow:
            stall_ns = itertools.count(step=100_000_000)
            slow.setattr(sleeps_module, "perf_counter_ns", lambda: next(stall_ns))
            b.side.start()
        (dear,) = b.side.tariff.sleeps
        assert dear.us == pytest.approx(4 * 2 * 100_000)
        told_of(b)
        told_of(b, at_s=6)
        (priced,) = b.side.tariff.sleeps
        assert priced.us < dear.us / 2
        count = b.site.sleeps.costs["core.5"][0].count
        told_of(b, at_s=9)
        assert b.site.sleeps.costs["core.5"][0].count == count, "less and less often"
        told_of(b, at_s=2)
        assert b.site.sleeps.costs["core.5"][0].count == count + 1


@pytest.mark.parametrize("value, stays", [("0", "1"), ("1", "0")])
def test_a_core_that_refuses_later_is_left_as_it_is_and_tried_again(tmp_path, value, stays):
    """To leave and to come back: a core that is off is not forgotten."""
    with Bench(tmp_path, "fixed", allowed=("offline:0.5",), cpu_mhz=960) as b:
        sleeps, sysfs = b.site.sleeps, b.site.sysfs
        if value == "1":
            sleeps.enter(["offline"], b.clock.now)
        b.board.fault("*/cpu5/online", "EBUSY", "w")
        if value == "0":
            sleeps.enter(["offline"], b.clock.now)
        sleeps.leave(b.clock.now)
        assert sysfs.read(CORE5) == stays and list(sleeps.refused) == ["core.5"]
        b.board.heal()
        sleeps.leave(b.clock.now)
        assert sysfs.read(CORE5) == stays
        assert told_of(b, at_s=6)["refused"] == {}
        assert sysfs.read(CORE5) == "1"
        sleeps.enter(["offline"], b.clock.now)
        assert sysfs.read(CORE5) == "0"
    assert sysfs.read(CORE5) == "1", "and comes back at the end"


def test_what_each_sleep_takes_to_enter_and_to_leave_is_measured_when_a_policy_begins(tmp_path):
    sysfs, clock = plant(tmp_path / "board", "orin-nano-r36"), StepClock()
    before = limits(sysfs), sysfs.read(EMC), sysfs.read(CORE5)
    allowed = ("offline:0.5", "gpu_pm", "emc")
    settings = EnergySettings(str(sysfs.root), "fixed", {"memory_mhz": 2133}, allowed)
    site = open_site(settings, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(settings, site, board_tariff(site), clock, 2)
    side.start()
    told = status.status(side, clock.now)
    for name in ("core.1", "core.5", "gpu.power", "emc", "gpu", "cpu.policy0"):
        cost = told["costs"][name]
        assert cost["enter_us"] > 0 and cost["leave_us"] > 0, name
    assert told["sleeps"]["enter_us"] == pytest.approx(
        sum(told["costs"][f"core.{n}"]["enter_us"] for n in (1, 2, 3, 5)), abs=1
    )
    dials = {dial.kind: dial for dial in side.limits.dials}
    assert dials["memory"].write_us > 0 and dials["gpu"].write_us > 0, "what plans count with"
    assert (limits(sysfs), sysfs.read(EMC), sysfs.read(CORE5)) == before, "nothing is set by it"
    side.close()


def test_a_clock_domain_whose_cores_are_garbled_does_not_end_the_start(tmp_path):
    sysfs = plant(tmp_path, "orin-nano-r36")
    place = tmp_path / "sys/devices/system/cpu/cpufreq/policy4/related_cpus"
    place.write_text("<unknown>\n")
    found = Sleeps(sysfs, switches(sysfs, detect(sysfs)), parse_allowed(["offline:1"]))
    assert [switch.name for switch in found.switches] == ["core.1", "core.2", "core.3"]
