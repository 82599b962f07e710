"""The simulated board: laid out as a board, behaving as a kernel, drawing what the model says."""

import errno
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governors.actuators.base import discover
from governors.actuators.ownership import Ownership, restore
from governors.actuators.writers import Direct, choose_writer
from governors.detect import detect
from governors.errors import ProfileError
from governors.meters.base import survey
from governors.profile_reader import load, names
from governors.simulated.board import BoardWork, SimulatedBoard
from governors.simulated.kernel import is_simulated
from governors.simulated.layout import EMC_CAP
from governors.sysfs import Absent, Busy, Denied, KernelRefused, Sysfs
from tests.governors import trees
from tests.governors.simulated import GPU, POLICY, SECOND, pinned
from tests.whole import examples


@pytest.fixture
def orin(tmp_path):
    return SimulatedBoard(load("orin-nano"), tmp_path)


# --- laid out as the board


@pytest.mark.parametrize("name", names())
def test_detection_and_discovery_find_the_board_that_was_built(tmp_path, name):
    board = SimulatedBoard(load(name), tmp_path)
    found = detect(board.sysfs)
    assert found.profile_name == name
    knobs = {knob.name: knob for knob in discover(board.sysfs, found)}
    for cluster in board.profile.clusters:
        knob = knobs[cluster.name]
        assert (knob.table_hz, knob.cores) == (cluster.table_hz, cluster.cores)
        assert (knob.floor_hz, knob.ceiling_hz) == (cluster.opps[0].hz, cluster.opps[-1].hz)
    if board.profile.gpu:
        assert knobs["gpu"].table_hz == tuple(opp.hz for opp in board.profile.gpu.opps)
    rails = {rail.name for meter in survey(board.sysfs, found).meters for rail in meter.rails}
    assert rails == {channel.rail for channel in board.profile.sensor.channels}


@pytest.mark.parametrize(
    ("name", "fixture"),
    [("orin-nano", "orin_nano_r36"), ("jetson-nano", "jetson_nano_r32"),
     ("raspberry-pi-5", "raspberry_pi_5")],
)  # fmt: skip
def test_files_are_where_the_hand_written_tree_of_the_board_has_them(tmp_path, name, fixture):
    board = SimulatedBoard(load(name), tmp_path / "simulated")
    tree = getattr(trees, fixture)()
    tree.plant(tmp_path / "fixture")
    by_hand = Sysfs(tmp_path / "fixture")
    patterns = (
        "/sys/devices/system/cpu/cpufreq/policy*/*", "/sys/devices/system/cpu/cpu*/online",
        "/sys/devices/system/cpu/cpu*/cpuidle/state*/*", "/sys/class/devfreq/*gpu/*",
        "/sys/class/devfreq/*gpu/device/railgate*", "/sys/class/thermal/thermal_zone*/type",
        "/sys/bus/i2c/drivers/*/*", "/sys/kernel/nvpmodel_clk_cap/*", "/proc/device-tree/*",
    )  # fmt: skip
    for pattern in patterns:
        for path in by_hand.glob(pattern):
            assert board.sysfs.exists(path), path
            if path.rpartition("/")[2] in ("scaling_available_frequencies", "type", "compatible"):
                assert board.sysfs.read(path).split() == by_hand.read(path).split()


def test_a_tree_is_gone_on_with_and_never_taken_for_another_board(tmp_path):
    pinned(SimulatedBoard(load("orin-nano"), tmp_path), 729_600)
    again = SimulatedBoard(load("orin-nano"), tmp_path)
    assert again.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 729_600
    with pytest.raises(ProfileError, match="holds a simulated orin-nano, not agx-orin"):
        SimulatedBoard(load("agx-orin"), tmp_path)
    assert is_simulated(tmp_path)
    assert not is_simulated("/")


# --- the kernel's rules


def test_a_minimum_above_the_maximum_is_refused_at_every_write(orin):
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_344_000
    with pytest.raises(KernelRefused) as problem:
        orin.sysfs.write(f"{POLICY}/scaling_min_freq", "1420800")
    assert problem.value.errno == errno.EINVAL
    with pytest.raises(KernelRefused):
        orin.sysfs.write(f"{POLICY}/scaling_max_freq", "115200")
    orin.sysfs.write(f"{POLICY}/scaling_max_freq", "1420800")
    orin.sysfs.write(f"{POLICY}/scaling_min_freq", "1420800")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 1_420_800


def test_cpu_limits_need_not_be_in_the_table_and_the_clock_is(orin):
    orin.sysfs.write(f"{POLICY}/scaling_min_freq", "1000000")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_min_freq") == 1_000_000
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 1_036_800
    orin.sysfs.write(f"{POLICY}/scaling_max_freq", "99999999")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_728_000


def test_gpu_limits_snap_to_the_table_as_captured_on_a_nano(tmp_path):
    """640 MHz of nvpmodel's 5W mode becomes 614.4 MHz."""
    board = SimulatedBoard(load("jetson-nano"), tmp_path)
    at = "/sys/class/devfreq/57000000.gpu"
    board.sysfs.write(f"{at}/max_freq", "640000000")
    assert board.sysfs.read_int(f"{at}/max_freq") == 614_400_000
    board.sysfs.write(f"{at}/min_freq", "400000000")
    assert board.sysfs.read_int(f"{at}/min_freq") == 460_800_000
    assert board.sysfs.read_int(f"{at}/cur_freq") == 460_800_000


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        (f"{POLICY}/scaling_max_freq", "fast", KernelRefused),
        (f"{POLICY}/scaling_max_freq", "-1", KernelRefused),
        (f"{POLICY}/scaling_max_freq", "", KernelRefused),
        (f"{POLICY}/scaling_governor", "turbo", KernelRefused),
        (f"{POLICY}/scaling_setspeed", "960000", KernelRefused),
        (f"{POLICY}/cpuinfo_max_freq", "960000", Denied),
        ("/sys/devices/system/cpu/cpu1/online", "2", KernelRefused),
        ("/sys/devices/system/cpu/cpu0/online", "0", Absent),
        (f"{GPU}/device/tpc_pg_mask", "240", Busy),
        (f"{GPU}/governor", "schedutil", KernelRefused),
        (f"{GPU}/device/power/control", "off", KernelRefused),
        ("/proc/device-tree/model", "x", Denied),
    ],
)
def test_what_the_kernel_refuses_is_refused_and_changes_nothing(orin, path, value, kind):
    before = orin.sysfs.get(path)
    with pytest.raises(kind):
        orin.sysfs.write(path, value)
    assert orin.sysfs.get(path) == before


def test_userspace_opens_setspeed_and_performance_goes_to_the_maximum(orin):
    assert orin.sysfs.read(f"{POLICY}/scaling_setspeed") == "<unsupported>"
    orin.sysfs.write(f"{POLICY}/scaling_governor", "userspace")
    orin.sysfs.write(f"{POLICY}/scaling_setspeed", "960000")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 960_000
    orin.sysfs.write(f"{POLICY}/scaling_governor", "performance")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 1_344_000


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from([f"{POLICY}/scaling_{{}}_freq", f"{GPU}/{{}}_freq"]),
            st.sampled_from(["min", "max"]),
            st.integers(0, 2_000_000) | st.integers(0, 2_000_000_000),
        ),
        max_size=12,
    )
)
def test_whatever_is_written_the_clock_stays_in_the_table_and_inside_the_limits(orin, writes):
    for name, part, value in writes:
        try:
            orin.sysfs.write(name.format(part), str(value))
        except KernelRefused as problem:
            assert problem.errno == errno.EINVAL
        low, high, now = (orin.sysfs.read_int(name.format(p)) for p in ("min", "max", "cur"))
        assert low <= high
        cluster, gpu = orin.profile.clusters[0], orin.profile.gpu
        table = [hz // 1000 for hz in cluster.table_hz] if "cpu" in name else [
            opp.hz for opp in gpu.opps
        ]  # fmt: skip
        assert now in table
        assert low <= now <= high or not any(low <= hz <= high for hz in table)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.sampled_from(["min", "max"]), st.integers(115_200, 1_728_000))))
def test_limits_are_taken_and_refused_as_by_a_plain_twin(tmp_path_factory, writes):
    root = tmp_path_factory.mktemp("twins")
    board = SimulatedBoard(load("orin-nano"), root / "board")
    trees.plant(root / "twin", "orin-nano-r36")
    twin = trees.Kernel(root / "twin")
    for part, khz in writes:
        outcomes = []
        for sysfs in (board.sysfs, twin):
            try:
                sysfs.write(f"{POLICY}/scaling_{part}_freq", str(khz))
                outcomes.append(0)
            except KernelRefused as problem:
                outcomes.append(problem.errno)
        assert outcomes[0] == outcomes[1]
        for end in ("min", "max"):
            path = f"{POLICY}/scaling_{end}_freq"
            assert board.sysfs.read_int(path) == twin.read_int(path)


def test_the_clock_follows_the_load_under_the_kernels_governor_and_falls_asleep_with_it(orin):
    orin.advance(SECOND, BoardWork(cycles=9e9))
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 1_344_000
    orin.advance(3 * SECOND)
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 729_600
    orin.advance(3 * SECOND + 1000, BoardWork(gpu_us=500_000))
    assert orin.sysfs.read_int(f"{GPU}/cur_freq") == 918_000_000
    orin.advance(5 * SECOND)
    assert orin.sysfs.read_int(f"{GPU}/cur_freq") == 306_000_000


def test_a_policy_without_cores_vanishes_and_comes_back_with_its_limits(orin):
    at = "/sys/devices/system/cpu/cpufreq/policy4"
    orin.sysfs.write(f"{at}/scaling_max_freq", "960000")
    orin.hotplug(4, False)
    assert orin.sysfs.read(f"{at}/affected_cpus") == "5"
    orin.hotplug(5, False)
    with pytest.raises(Absent):
        orin.sysfs.read(f"{at}/scaling_max_freq")
    orin.advance(SECOND, BoardWork(cycles=1e8))
    orin.hotplug(5, True)
    assert orin.sysfs.read_int(f"{at}/scaling_max_freq") == 960_000


def test_zones_of_blocks_without_power_answer_eagain(orin):
    kinds = {
        orin.sysfs.read(path): path.replace("/type", "/temp")
        for path in orin.sysfs.glob("/sys/class/thermal/*/type")
    }
    for kind in ("cv0-thermal", "gpu-thermal"):
        with pytest.raises(Busy):
            orin.sysfs.read(kinds[kind])
    orin.advance(SECOND, BoardWork(gpu_us=900_000))
    assert 25_000 < orin.sysfs.read_int(kinds["gpu-thermal"]) < 60_000


def test_commanded_faults_hold_until_they_are_healed(orin):
    orin.fault("*/scaling_max_freq", "EACCES", "w")
    assert not orin.sysfs.writable(f"{POLICY}/scaling_max_freq")
    assert orin.sysfs.writable(f"{POLICY}/scaling_min_freq")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_344_000
    with pytest.raises(Denied):
        orin.sysfs.write(f"{POLICY}/scaling_max_freq", "960000")
    orin.fault("*/policy0/*", "EIO", "r")
    with pytest.raises(KernelRefused):
        orin.sysfs.read(f"{POLICY}/scaling_max_freq")
    orin.advance(SECOND, BoardWork(cycles=1e8))
    orin.heal()
    assert orin.sysfs.writable(f"{POLICY}/scaling_max_freq")


def test_a_second_process_writes_the_same_board_by_the_same_rules(orin, tmp_path):
    code = (
        "import sys; from governors.simulated.kernel import open_root; s = open_root(sys.argv[1])\n"
        f"p = '{POLICY}/scaling_'\n"
        "try: s.write(p + 'min_freq', '1728000')\n"
        "except Exception as e: print(type(e).__name__)\n"
        "s.write(p + 'max_freq', '960000'); print(s.read(p + 'cur_freq'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["KernelRefused", "729600"]
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 960_000


# --- power modes


def test_nvpmodel_writes_the_limits_of_its_modes(orin):
    assert orin.sysfs.read("/var/lib/nvpmodel/status") == "pmode:0001"
    orin.nvpmodel("MAXN_SUPER")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_728_000
    assert orin.sysfs.read_int(f"{GPU}/max_freq") == 1_020_000_000
    orin.nvpmodel(3)
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 960_000
    assert orin.sysfs.read_int(f"{GPU}/max_freq") == 408_000_000
    assert orin.sysfs.read_int(EMC_CAP) == 2_133_000_000
    assert orin.sysfs.read("/sys/devices/system/cpu/online") == "0,1,2,3"
    orin.nvpmodel(0)
    assert (
        orin.sysfs.read_int("/sys/devices/system/cpu/cpufreq/policy4/scaling_max_freq") == 1_497_600
    )
    with pytest.raises(ProfileError, match="known: 0 15W, 1 25W"):
        orin.nvpmodel(9)


def test_locked_clocks_draw_when_idle_what_captures_show(orin):
    orin.nvpmodel("MAXN_SUPER")
    orin.jetson_clocks()
    orin.advance(10 * SECOND)
    assert orin.input_joules / 10 == pytest.approx(7.256, rel=0.01)
    assert orin.joules["VDD_CPU_GPU_CV"] / 10 == pytest.approx(1.711, rel=0.01)


# --- under the real actuators


def test_limits_are_owned_followed_by_the_clock_and_given_back(orin, tmp_path):
    knobs = discover(orin.sysfs, detect(orin.sysfs))
    writer = choose_writer(orin.sysfs, knobs, tmp_path / "no-helper")
    (knob,) = [k for k in knobs if k.name == "cpu.policy0"]
    with Ownership(orin.sysfs, writer, tmp_path / "limits", knobs) as ours:
        assert ours.pin(knob, 1_000_000_000) == 1_036_800_000
        assert orin.sysfs.read_int(knob.current_path) == 1_036_800
        orin.nvpmodel("15W")
        assert {change.name for change in ours.watch()} >= {"cpu.policy0", "gpu"}
        assert ours.allowed(knob).max_hz == 1_497_600_000
        assert ours.pin(knob, 1_728_000_000) == 1_497_600_000
    assert orin.sysfs.read_int(knob.min_path) == 729_600


def test_a_process_killed_while_pinned_leaves_limits_that_another_restores(orin, tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from governors.actuators.base import discover
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct
from governors.actuators.ownership import Ownership, restore
from governors.actuators.writers import Direct, choose_writer
from governors.detect import detect
from governors.simulated.kernel import open_root
sysfs = open_root(sys.argv[1])
knobs = discover(sysfs, detect(sysfs))
ours = Ownership(sysfs, Direct(sysfs), Path(sys.argv[1]) / "limits", knobs)
ours.take()
for knob in knobs:
    if knob.kind == "cpu":
        ours.pin(knob, 960_000_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -9
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 960_000
    orin.advance(SECOND, BoardWork(cycles=1e9))
    lines = restore(orin.sysfs, Direct(orin.sysfs), tmp_path / "limits")
    assert lines
    assert orin.sysfs.read_int(f"{POLICY}/scaling_min_freq") == 729_600
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_344_000
