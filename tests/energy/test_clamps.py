"""Clocks asked for by clamps: on this kernel, whatever it has, and on one that has them.

The kernel below stands in at the system call, with the numbers and the structure of
include/uapi/linux/sched/types.h; what the calls do to a clock no machine here can show.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import threading
from types import SimpleNamespace

import pytest

from edged.data.workers import Workers
from edged.energy import clamps as module
from edged.energy import status
from edged.energy.board import open_site
from edged.energy.clamps import Clamps
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.tariffs import board_tariff
from governors.actuators import uclamp
from governors.actuators.uclamp import FULL
from governors.actuators.writers import ReselectingWriter
from governors.base import Done, Forecast
from governors.errors import ActuatorError
from governors.sysfs import Sysfs
from tests.energy.test_runtime import StepClock
from tests.governors.helping import Unprivileged
from tests.governors.trees import CPU, plant

BOARD = "orin-nano-r36"
FREE = (0, FULL)


class Kernel:
    """sched_setattr and sched_getattr of a kernel with CONFIG_UCLAMP_TASK: clamps by task."""

    def __init__(self):
        self.tasks: dict[int, tuple[int, int]] = {}
        self.calls = 0

    def syscall(self, number, task, attributes, *_):
        numbers = uclamp._NUMBERS[platform.machine()]
        told, task = attributes._obj, task or threading.get_native_id()
        self.calls += 1
        if number == numbers[1]:
            told.size = ctypes.sizeof(told)
            told.util_min, told.util_max = self.tasks.get(task, FREE)
            return 0
        assert told.flags == 0x08 | 0x10 | 0x20 | 0x40, "policy and niceness stay as they are"
        if not told.util_min <= told.util_max <= FULL:
            ctypes.set_errno(errno.EINVAL)
            return -1
        self.tasks[task] = (told.util_min, told.util_max)
        return 0

    def held(self):
        """Clamps that stand, of tasks that are clamped at all."""
        return {task: clamp for task, clamp in self.tasks.items() if clamp != FREE}


@pytest.fixture
def kernel(monkeypatch):
    """The system call is this one's; Linux 6.8."""
    found = Kernel()
    monkeypatch.setattr(
        uclamp.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syscall=found.syscall)
    )
    monkeypatch.setattr(module.platform, "release", lambda: "6.8.12-tegra")
    return found


class Side:
    """The governor on a tree of files, with three threads that race."""

    def __init__(self, path, policy="fixed", **settings):
        (path / "tree").mkdir()
        plant(path / "tree", BOARD)
        asked = EnergySettings(str(path / "tree"), policy, settings, ("uclamp",))
        self.clock, self.workers = StepClock(), Workers(3)
        self.site = open_site(asked, path, self.clock.monotonic_us)
        self.energy = EnergyGovernor(
            asked, self.site, board_tariff(self.site), self.clock, 3, tasks=self.workers.tasks
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.energy.close()
        self.workers.close()

    def beat(self):
        """A race, of as little as there is."""
        now = self.clock.now = self.clock.now + 100_000
        self.energy.race(Forecast(now, 0, now + 100_000, 100_000, 3_000))
        self.energy.ingested()
        self.energy.idle(Done(1000, 1000))

    def limits(self):
        """As they stand in the files, kHz."""
        at = f"{CPU}/cpufreq/policy0"
        return tuple(self.site.sysfs.read_int(f"{at}/scaling_{end}_freq") for end in ("min", "max"))


@pytest.mark.parametrize("release, headroom", [("6.8.12-tegra", 1.0), ("5.15.148-tegra", 1.25)])
def test_a_pinned_clock_becomes_a_clamp_of_the_racing_threads_alone_and_nobodys_limits_move(
    tmp_path, kernel, monkeypatch, release, headroom
):
    monkeypatch.setattr(module.platform, "release", lambda: release)
    with Side(tmp_path, cpu_mhz=960) as side:
        before = side.limits()
        side.energy.start()
        side.beat()
        util = int(FULL * 960_000 / 1_728_000 / headroom)
        racing = {threading.get_native_id(), *side.workers.tasks()}
        assert len(racing) == 3
        assert kernel.held() == dict.fromkeys(racing, (util, util))
        assert side.limits() == before
        told = status.status(side.energy, side.clock.now)
        assert told["costs"]["uclamp"]["enter_us"] > 0 and told["costs"]["uclamp"]["leave_us"] > 0
        assert "uclamp" not in told["sleeps"]["refused"]
        calls = kernel.calls
        side.beat()
        assert kernel.calls == calls, "what stands is not set again"
        side.energy.switch("hands_off", {})
        assert kernel.held() == {}


def test_clamps_are_given_back_at_the_end_and_what_a_thread_had_before_stands_again(
    tmp_path, kernel
):
    mine = threading.get_native_id()
    kernel.tasks[mine] = (100, 900)
    with Side(tmp_path, cpu_mhz=960) as side:
        side.energy.start()
        side.beat()
        assert kernel.tasks[mine] != (100, 900)
    assert kernel.held() == {mine: (100, 900)}


def test_a_race_to_idle_is_clamped_for_its_race_and_not_beyond(tmp_path, kernel):
    seen = []
    with Side(tmp_path, policy="race_to_idle") as side:
        side.energy.start()
        acting = side.energy.acting
        after = acting.after
        acting.after = lambda *told: (seen.append(bool(kernel.held())), after(*told))
        for _ in range(20):
            side.beat()
            assert kernel.held() == {}, "between races"
    assert any(seen), "in one of them at least a clock paid"


def test_who_may_not_write_a_limit_may_still_clamp_its_own_threads(tmp_path, kernel):
    with Side(tmp_path, cpu_mhz=960) as side:
        sysfs = Unprivileged(side.site.sysfs.root)
        side.site.writer = ReselectingWriter(sysfs, side.site.knobs, tmp_path / "no helper")
        side.energy.start()
        side.beat()
        assert len(kernel.held()) == 3
        told = status.status(side.energy, side.clock.now)
        assert told["policy"]["policy"] == "fixed" and told["policy"]["problem"] == ""


def test_a_clamp_that_the_kernel_refuses_leaves_the_clock_alone_and_is_told(
    tmp_path, kernel, monkeypatch
):
    with Side(tmp_path, cpu_mhz=960) as side:
        side.energy.start()
        refuse = SimpleNamespace(errno=errno.EPERM)
        monkeypatch.setattr(side.site.sleeps.clamps._kernel, "_store", lambda *_: broken(refuse))
        for _ in range(3):
            side.beat()
        told = status.status(side.energy, side.clock.now)
        assert told["policy"]["policy"] == "fixed", "the beats and the policy go on"
        assert "refused here" in told["changes"][0]["text"] and len(told["changes"]) == 2


def broken(_):
    raise ActuatorError("uclamp: refused here")


def test_this_kernel_clamps_or_its_own_refusal_is_told(tmp_path):
    """The real system call, on a tree whose governor obeys clamps."""
    sysfs = plant(tmp_path, BOARD)
    try:
        found = Clamps(sysfs)
    except ActuatorError as problem:
        assert "uclamp" in str(problem)
        assert "Operation not supported" in str(problem) or "none (before 5.3)" in str(problem)
        return
    before = found._kernel.read(threading.get_native_id())
    assert found.measure() > 0
    assert found._kernel.read(threading.get_native_id()) == before


def test_a_governor_that_ignores_clamps_and_a_board_that_is_not_there_are_told(tmp_path, kernel):
    sysfs = plant(tmp_path, "raspberry-pi-5")
    governor = sysfs.get(f"{CPU}/cpufreq/policy0/scaling_governor")
    assert isinstance(sysfs, Sysfs) and governor != "schedutil"
    with pytest.raises(ActuatorError, match=governor):
        Clamps(sysfs)
    asked = EnergySettings("simulated:orin-nano", allowed=("uclamp",))
    site = open_site(asked, tmp_path / "store", int)
    assert "unknown" in site.sleeps.refused["uclamp"] and site.sleeps.clamps is None
