"""Sleep: what idle states tell, clamps of this kernel, and a discrete GPU that really tells."""

import ctypes
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.actuators import nvml, uclamp
from governors.actuators.base import ClockLimits, discover, switches
from governors.actuators.ownership import Ownership
from governors.actuators.sleep import IdleCounts, IdleStates, State, idle_between
from governors.actuators.uclamp import Clamp, UtilClamp
from governors.actuators.writers import Direct
from governors.detect import DetectedBoard, detect
from governors.errors import ActuatorError
from governors.sysfs import Sysfs
from tests.governors.trees import BOARDS, CPU, Tree, plant

STATES = {"tegra": {"WFI", "c7"}, "xavier": {"C1", "c6"}, "x86": {"POLL", "C1", "C6"}}


def sleep(root, core, state, time_us, usage):
    """The kernel has counted."""
    at = root / f"{CPU[1:]}/cpu{core}/cpuidle/state{state}"
    (at / "time").write_text(f"{time_us}\n")
    (at / "usage").write_text(f"{usage}\n")


class TestIdleStates:
    @pytest.mark.parametrize("board", BOARDS)
    def test_every_board_tells_what_it_has(self, tmp_path, board):
        states = IdleStates(plant(tmp_path, board))
        counts = states.read(7)
        has_idle = board != "raspberry-pi-5"
        assert bool(counts.cores) == has_idle
        assert counts.at_us == 7
        if has_idle:
            names = {state.name for core in counts.cores.values() for state in core}
            assert names in STATES.values()
            assert states.cost.usual_us > 0

    def test_residency_and_wakeups_are_what_the_counters_say(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        states = IdleStates(sysfs)
        before = states.read(1_000_000)
        for core in range(4):
            sleep(tmp_path, core, 0, 100_000, 50)
            sleep(tmp_path, core, 1, 1_700_000, 10)
        idle = idle_between(before, states.read(3_000_000))
        assert idle.cores == (0, 1, 2, 3)
        assert idle.share == {"WFI": 0.05, "c7": 0.85}
        assert idle.wakeups_per_s == 4 * 60 / 2
        assert idle.awake_share == pytest.approx(0.1)

    def test_a_core_that_went_offline_is_left_out_and_not_taken_for_awake(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        states = IdleStates(sysfs)
        before = states.read(0)
        for core in range(4):
            sleep(tmp_path, core, 1, 1_000_000, 1)
        (tmp_path / f"{CPU[1:]}/cpu2/cpuidle").rename(tmp_path / "away")
        idle = idle_between(before, states.read(1_000_000))
        assert idle.cores == (0, 1, 3)
        assert idle.share["c7"] == 1.0

    def test_counters_that_went_back_say_nothing(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        states = IdleStates(sysfs)
        sleep(tmp_path, 0, 1, 500, 5)
        before = states.read(0)
        sleep(tmp_path, 0, 1, 400, 6)
        assert 0 not in idle_between(before, states.read(1_000)).cores

    @pytest.mark.parametrize("content", ["", "x", "\x00\xff"])
    def test_a_garbled_counter_is_a_core_left_out(self, tmp_path, content):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        states = IdleStates(sysfs)
        (tmp_path / f"{CPU[1:]}/cpu1/cpuidle/state1/time").write_text(content, "latin-1")
        assert states.read(0).cores.keys() == {0, 2, 3}

    def test_states_that_jetson_clocks_switched_off_are_named(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        states = IdleStates(sysfs)
        (tmp_path / f"{CPU[1:]}/cpu1/cpuidle/state1/disable").write_text("1\n")
        assert idle_between(states.read(0), states.read(10)).disabled == ("c7",)

    def test_nothing_is_told_where_no_time_passed_or_no_core_tells(self, tmp_path):
        states = IdleStates(plant(tmp_path, "jetson-nano-r32"))
        assert idle_between(states.read(5), states.read(5)) is None
        assert idle_between(IdleCounts(0, {}), IdleCounts(10, {})) is None

    @given(
        st.integers(1, 10**9),
        st.dictionaries(
            st.integers(0, 11),
            st.tuples(*[st.integers(0, 2**40)] * 4, st.floats(0, 1), st.integers(0, 10**6)),
            min_size=1,
            max_size=6,
        ),
    )
    def test_shares_are_of_the_whole_time_whatever_stood_before(self, spent_us, cores):
        """A core that slept a known share from any counts on is found again."""
        before, after, slept, woken = {}, {}, 0, 0
        for core, (time, usage, other, entries, share, wakeups) in cores.items():
            asleep = int(share * spent_us)
            slept, woken = slept + asleep, woken + wakeups
            before[core] = (State("a", time, usage, False), State("b", other, entries, False))
            after[core] = (
                State("a", time + asleep, usage + wakeups, False),
                State("b", other, entries, False),
            )
        idle = idle_between(IdleCounts(3, before), IdleCounts(3 + spent_us, after))
        assert idle.share["a"] == pytest.approx(slept / (spent_us * len(cores)))
        assert idle.share["b"] == 0
        assert idle.wakeups_per_s == pytest.approx(woken * 1e6 / spent_us)
        assert 0 <= idle.awake_share <= 1


class TestCores:
    @pytest.mark.parametrize("board", BOARDS)
    def test_every_core_but_the_first_can_be_switched_off(self, tmp_path, board):
        sysfs = plant(tmp_path, board)
        present = sysfs.read(f"{CPU}/present")
        last = int(present.rpartition("-")[2])
        found = [s.name for s in switches(sysfs, detect(sysfs)) if s.kind == "core"]
        assert sorted(found) == sorted(f"core.{core}" for core in range(1, last + 1))

    def test_the_first_core_is_left_on_even_where_it_has_a_file(self, tmp_path):
        sysfs = plant(tmp_path, "x86-intel-pstate")
        (tmp_path / f"{CPU[1:]}/cpu0/online").write_text("1\n")
        assert "core.0" not in [s.name for s in switches(sysfs, detect(sysfs))]


def clamps():
    """This kernel's clamps, or its refusal."""
    try:
        return UtilClamp()
    except ActuatorError as problem:
        return problem


class TestClamps:
    def test_the_structure_is_the_kernels(self):
        """SCHED_ATTR_SIZE_VER1, include/uapi/linux/sched/types.h."""
        assert ctypes.sizeof(uclamp._Attributes) == 56

    def test_this_kernel_clamps_and_gives_back_or_says_that_it_has_none(self):
        found = clamps()
        if isinstance(found, ActuatorError):
            assert "uclamp" in str(found)
            return
        task = threading.get_native_id()
        before = found.read(task)
        found.clamp(task, Clamp(0, 512))
        assert found.read(task) == Clamp(0, 512)
        found.release()
        assert found.read(task) == before
        assert (found.entering.count, found.leaving.count) == (2, 1)

    @pytest.mark.parametrize("clamp", [Clamp(-1, 5), Clamp(6, 5), Clamp(0, 1025)])
    def test_what_is_no_range_is_refused_before_the_kernel_is_asked(self, clamp):
        unasked = object.__new__(UtilClamp)
        with pytest.raises(ActuatorError, match="not within"):
            unasked.clamp(0, clamp)

    def test_an_unknown_machine_is_told(self, monkeypatch):
        monkeypatch.setattr(uclamp.platform, "machine", lambda: "pdp11")
        with pytest.raises(ActuatorError, match="pdp11"):
            UtilClamp()


class FakeNvml(types.ModuleType):
    """A driver's library: the only part of the world here that no fixture tree can be."""

    NVML_CLOCK_GRAPHICS = 0

    class NVMLError(Exception):
        """As pynvml's."""

        def __init__(self, value):
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, power_mw=35_000, clock_mhz=210, table=(210, 900, 1980)):
        super().__init__("pynvml")
        self.power_mw, self.clock_mhz, self.table = power_mw, clock_mhz, table
        self.lock = None
        self.asked = 0

    def nvmlInit(self):
        self.asked += 1

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-1"
        return 0

    def nvmlDeviceGetUUID(self, device):
        return "GPU-1"

    def nvmlDeviceGetPowerUsage(self, device):
        if self.power_mw is None:
            raise self.NVMLError(3)
        return self.power_mw

    def nvmlDeviceGetClockInfo(self, device, kind):
        return self.clock_mhz

    def nvmlDeviceGetSupportedMemoryClocks(self, device):
        return [405, 2619]

    def nvmlDeviceGetSupportedGraphicsClocks(self, device, memory):
        assert memory == 2619
        return list(self.table)

    def nvmlDeviceSetGpuLockedClocks(self, device, low, high):
        self.lock = (low, high)

    def nvmlDeviceResetGpuLockedClocks(self, device):
        self.lock = None


@pytest.fixture
def machine(tmp_path):
    """A PC with an NVIDIA GPU that is awake; `Sysfs` as of the real root, but for its place."""
    tree = BOARDS["x86-acpi-cpufreq"]()
    gpu = "/sys/bus/pci/devices/0000:01:00.0"
    tree.add(gpu, vendor="0x10de")
    tree.files[f"{gpu}/class"] = "0x030200\n"
    tree.add(f"{gpu}/power", runtime_status="active")
    sysfs = tree.plant(tmp_path)
    sysfs.root = Path("/")  # where NVML is allowed to speak
    return sysfs


def found(machine, library, monkeypatch, board=None):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return list(nvml.locks(machine, board or DetectedBoard("x86", "", "", "", None)))


class TestNvml:
    def test_a_gpu_that_really_tells_can_be_capped_and_is_unlocked_after(
        self, machine, monkeypatch, tmp_path
    ):
        library = FakeNvml()
        (knob,) = found(machine, library, monkeypatch)
        assert (knob.floor_hz, knob.ceiling_hz, knob.optional) == (210 * 10**6, 1980 * 10**6, True)
        monkeypatch.setattr(nvml.os, "geteuid", lambda: 0)
        with Ownership(machine, Direct(machine), tmp_path / "journal", [knob]) as ours:
            assert ours.allowed(knob) == ClockLimits(210 * 10**6, 1980 * 10**6)
            assert ours.pin(knob, 1000 * 10**6) == 900 * 10**6
            assert library.lock == (210, 900)
            assert ours.watch() == []
        assert library.lock is None

    @pytest.mark.parametrize(
        "library",
        [FakeNvml(power_mw=0), FakeNvml(power_mw=None), FakeNvml(clock_mhz=0), FakeNvml(table=())],
        ids=["zero power", "power not supported", "no clock", "no table"],
    )
    def test_that_it_starts_says_nothing(self, machine, monkeypatch, library):
        assert found(machine, library, monkeypatch) == []
        assert library.asked

    def test_a_tegras_is_never_asked(self, machine, monkeypatch):
        library = FakeNvml()
        board = DetectedBoard("orin-nano", "", "tegra234", "R36.4.3", "orin-nano")
        assert found(machine, library, monkeypatch, board) == []
        assert not library.asked

    def test_a_suspended_gpu_is_not_woken_by_asking(self, machine, monkeypatch, tmp_path):
        library = FakeNvml()
        status = tmp_path / "sys/bus/pci/devices/0000:01:00.0/power/runtime_status"
        status.write_text("suspended\n")
        assert found(machine, library, monkeypatch) == []
        assert not library.asked

    def test_no_gpu_no_question(self, monkeypatch, tmp_path):
        library = FakeNvml()
        sysfs = Tree().plant(tmp_path)
        sysfs.root = Path("/")
        sysfs._base = str(tmp_path)
        assert found(sysfs, library, monkeypatch) == []
        assert not library.asked

    def test_fixture_trees_never_reach_the_machines_own_gpu(self, tmp_path, monkeypatch):
        library = FakeNvml()
        monkeypatch.setitem(sys.modules, "pynvml", library)
        sysfs = plant(tmp_path, "x86-acpi-cpufreq")
        assert all(not knob.name.startswith("gpu") for knob in discover(sysfs, detect(sysfs)))
        assert isinstance(sysfs, Sysfs)
        assert not library.asked
