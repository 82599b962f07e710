"""The simulated board: laid out as a board, behaving as a kernel, drawing what the model says."""

import errno
import json
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from governors.actuators.base import discover
from governors.actuators.ownership import Ownership, restore
from governors.actuators.writers import Direct, choose_writer
from governors.detect import detect
from governors.errors import ProfileError
from governors.meters.base import survey
from governors.profile import load, names
from governors.simulated.board import Background, SimulatedBoard, Work
from governors.simulated.kernel import is_simulated, open_root
from governors.simulated.layout import EMC_CAP, RAPL_RANGE_UJ
from governors.sysfs import Absent, Busy, Denied, Refused, Sysfs, SysfsError
from tests.governors import trees

POLICY = "/sys/devices/system/cpu/cpufreq/policy0"
GPU = "/sys/class/devfreq/17000000.gpu"
SECOND = 1_000_000


@pytest.fixture
def orin(tmp_path):
    return SimulatedBoard(load("orin-nano"), tmp_path)


def pinned(board, khz):
    """All clusters at one clock, written as an actuator would."""
    for cluster in board.profile.clusters:
        at = f"/sys/devices/system/cpu/cpufreq/{cluster.name[4:]}"
        parts = ["max", "min"] if khz > board.sysfs.read_int(f"{at}/scaling_max_freq") else []
        for part in parts or ["min", "max"]:
            board.sysfs.write(f"{at}/scaling_{part}_freq", str(khz))
    return board


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
    with pytest.raises(Refused) as problem:
        orin.sysfs.write(f"{POLICY}/scaling_min_freq", "1420800")
    assert problem.value.errno == errno.EINVAL
    with pytest.raises(Refused):
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
        (f"{POLICY}/scaling_max_freq", "fast", Refused),
        (f"{POLICY}/scaling_max_freq", "-1", Refused),
        (f"{POLICY}/scaling_max_freq", "", Refused),
        (f"{POLICY}/scaling_governor", "turbo", Refused),
        (f"{POLICY}/scaling_setspeed", "960000", Refused),
        (f"{POLICY}/cpuinfo_max_freq", "960000", Denied),
        ("/sys/devices/system/cpu/cpu1/online", "2", Refused),
        ("/sys/devices/system/cpu/cpu0/online", "0", Absent),
        (f"{GPU}/device/tpc_pg_mask", "240", Busy),
        (f"{GPU}/governor", "schedutil", Refused),
        (f"{GPU}/device/power/control", "off", Refused),
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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        except Refused as problem:
            assert problem.errno == errno.EINVAL
        low, high, now = (orin.sysfs.read_int(name.format(p)) for p in ("min", "max", "cur"))
        assert low <= high
        cluster, gpu = orin.profile.clusters[0], orin.profile.gpu
        table = [hz // 1000 for hz in cluster.table_hz] if "cpu" in name else [
            opp.hz for opp in gpu.opps
        ]  # fmt: skip
        assert now in table
        assert low <= now <= high or not any(low <= hz <= high for hz in table)


@settings(max_examples=30)
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
            except Refused as problem:
                outcomes.append(problem.errno)
        assert outcomes[0] == outcomes[1]
        for end in ("min", "max"):
            path = f"{POLICY}/scaling_{end}_freq"
            assert board.sysfs.read_int(path) == twin.read_int(path)


def test_the_clock_follows_the_load_under_the_kernels_governor_and_falls_asleep_with_it(orin):
    orin.advance(SECOND, Work(cycles=9e9))
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 1_344_000
    orin.advance(3 * SECOND)
    assert orin.sysfs.read_int(f"{POLICY}/scaling_cur_freq") == 729_600
    orin.advance(3 * SECOND + 1000, Work(gpu_us=500_000))
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
    orin.advance(SECOND, Work(cycles=1e8))
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
    orin.advance(SECOND, Work(gpu_us=900_000))
    assert 25_000 < orin.sysfs.read_int(kinds["gpu-thermal"]) < 60_000


def test_commanded_faults_hold_until_they_are_healed(orin):
    orin.fault("*/scaling_max_freq", "EACCES", "w")
    assert not orin.sysfs.writable(f"{POLICY}/scaling_max_freq")
    assert orin.sysfs.writable(f"{POLICY}/scaling_min_freq")
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_344_000
    with pytest.raises(Denied):
        orin.sysfs.write(f"{POLICY}/scaling_max_freq", "960000")
    orin.fault("*/policy0/*", "EIO", "r")
    with pytest.raises(Refused):
        orin.sysfs.read(f"{POLICY}/scaling_max_freq")
    orin.advance(SECOND, Work(cycles=1e8))
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
    assert done.stdout.split() == ["Refused", "729600"]
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
    orin.advance(SECOND, Work(cycles=1e9))
    lines = restore(orin.sysfs, Direct(orin.sysfs), tmp_path / "limits")
    assert lines
    assert orin.sysfs.read_int(f"{POLICY}/scaling_min_freq") == 729_600
    assert orin.sysfs.read_int(f"{POLICY}/scaling_max_freq") == 1_344_000


# --- work at the simulated clock


@given(st.sampled_from([115_200, 729_600, 1_344_000]), st.floats(1e5, 1e9), st.integers(1, 6))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_service_time_is_cycles_over_clock_and_bytes_over_bandwidth(orin, khz, cycles, cores):
    pinned(orin, khz)
    expected = cycles / cores / (khz * 1e3) * 1e6
    assert orin.service_us(cycles, cores=cores) == pytest.approx(expected)
    more = orin.service_us(cycles, memory_bytes=102.4e6, cores=cores)
    assert more == pytest.approx(expected + 1000)


def test_a_capped_memory_clock_stalls_longer(orin):
    pinned(orin, 1_344_000)
    before = orin.service_us(0.1, memory_bytes=102.4e6)
    orin.sysfs.write(EMC_CAP, "2133000000")
    assert orin.service_us(0.1, memory_bytes=102.4e6) == pytest.approx(
        before * 3199 / 2133, rel=1e-3
    )


def test_the_kernels_governor_takes_longer_for_a_short_race_than_a_pinned_clock(orin):
    left_alone = orin.service_us(1e8)
    assert pinned(orin, 1_344_000).service_us(1e8) < 0.7 * left_alone


def test_work_that_does_not_fit_waits_and_is_told_as_overload(orin):
    pinned(orin, 729_600)
    cycles = 6 * 729_600e3 * 1.5
    orin.advance(SECOND, Work(cycles=cycles))
    assert orin.busy_share == pytest.approx(1.5)
    assert orin.backlog_us == pytest.approx(0.5 * SECOND, rel=1e-6)
    busy = orin.joules["VDD_CPU_GPU_CV"]
    pinned(orin, 1_344_000)
    assert orin.backlog_us == pytest.approx(0.5 * SECOND * 729.6 / 1344, rel=1e-6)
    orin.advance(2 * SECOND)
    assert orin.backlog_us == 0
    assert orin.busy_share == pytest.approx(0.75)
    assert orin.joules["VDD_CPU_GPU_CV"] > busy


def test_the_same_work_costs_the_same_however_time_is_cut(tmp_path):
    joules = []
    for n in (1, 7, 50):
        board = pinned(SimulatedBoard(load("orin-nano"), tmp_path / str(n)), 1_344_000)
        board.advance(1, Work(cycles=4e9, memory_bytes=1e8, gpu_us=300_000))
        for i in range(1, n + 1):
            board.advance(1 + 2 * SECOND * i // n)
        joules.append(board.input_joules)
    assert joules == pytest.approx([joules[0]] * 3, rel=1e-4)


def test_a_race_costs_what_the_model_says_for_its_time(orin):
    pinned(orin, 1_344_000)
    orin.advance(SECOND, Work(cycles=6 * 1.344e9 * 0.25))
    model = orin.model
    busy = model.full_load({0: 1_344_000_000, 1: 1_344_000_000})
    racing = model.input_watts(
        type(busy)(**{**{f: getattr(busy, f) for f in busy.__slots__}, "memory_hz": 3_199_000_000})
    )
    idle = model.idle_watts()
    assert orin.input_joules == pytest.approx(0.25 * racing + 0.75 * idle, rel=1e-6)


def test_a_gpu_stays_powered_for_its_railgate_delay(orin):
    orin.advance(100_000, Work(gpu_us=50_000))
    assert orin.sysfs.read(f"{GPU}/device/power/runtime_status") == "active"
    assert orin.sysfs.read(f"{GPU}/device/is_railgated") == "no"
    orin.advance(SECOND)
    assert orin.sysfs.read(f"{GPU}/device/power/runtime_status") == "suspended"
    start = orin.joules["VDD_CPU_GPU_CV"]
    orin.sysfs.write(f"{GPU}/device/railgate_delay", "100")
    orin.advance(2 * SECOND, Work(gpu_us=1))
    awake_j = orin.joules["VDD_CPU_GPU_CV"] - start - 0.56
    assert awake_j == pytest.approx(0.57 * 0.1, rel=0.02)


def test_background_and_uplink_are_part_of_the_input(orin):
    orin.background = Background(cores=1.0, uplink_watts=0.5)
    orin.advance(SECOND)
    assert orin.input_joules > 3.37 + 0.5 + 0.58


def test_idle_counters_tell_sleep_and_wakeups(orin):
    pinned(orin, 1_344_000)
    orin.advance(SECOND, Work(cycles=6 * 1.344e9 * 0.25, wakeups=60))
    at = "/sys/devices/system/cpu/cpu3/cpuidle/state1"
    assert orin.sysfs.read_int(f"{at}/time") == pytest.approx(750_000, abs=10)
    assert orin.sysfs.read_int(f"{at}/usage") == 10


# --- sensors


def channels(board):
    """Rail -> watts of the hwmon files."""
    at = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    return {
        board.sysfs.read(f"{at}/in{n}_label"): board.sysfs.read_int(f"{at}/in{n}_input")
        * board.sysfs.read_int(f"{at}/curr{n}_input") / 1e6
        for n in (1, 2, 3)
    }  # fmt: skip


def test_two_reads_within_a_refresh_are_the_same_and_a_jump_shows_after_it(tmp_path):
    board = SimulatedBoard(load("orin-nano"), tmp_path, noise=True)
    seen = []
    for i in range(1, 45):
        board.advance(i * 100_000, Work(cycles=8e8 if i > 20 else 0))
        seen.append(channels(board)["VDD_IN"])
    changes = [i for i, (a, b) in enumerate(pairwise(seen)) if a != b]
    assert all(later - earlier >= 4 for earlier, later in pairwise(changes))
    assert max(seen[:20]) < 3.6 < 5 < seen[-1]


works = st.lists(
    st.tuples(st.integers(1000, 700_000), st.floats(0, 3e9), st.floats(0, 2e5)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=15)
@given(works, st.sampled_from(["orin-nano", "agx-orin", "jetson-nano", "generic-x86"]))
def test_readings_without_noise_integrate_to_the_models_energy(tmp_path_factory, steps, name):
    """Each reading is a mean over its time: what it is off by is its steps of 8 mV and 40 uV."""
    board = SimulatedBoard(load(name), tmp_path_factory.mktemp("board"), noise=False)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    refresh_us = int((board.profile.sensor.refresh_ms or 0) * 1000)
    refresh_us = refresh_us if name.endswith("orin") or name == "orin-nano" else 0
    told = dict.fromkeys(board.joules, 0.0)
    first = {r.rail.name: r.joules for r in meter.read(0)}
    for us, cycles, gpu_us in steps:
        board.advance(board.now_us, Work(cycles=cycles, gpu_us=gpu_us))
        until = board.now_us + us
        if refresh_us:  # up to whole refreshes, each read once
            until = -(-until // refresh_us) * refresh_us
        step = refresh_us or us
        while board.now_us < until:
            board.advance(board.now_us + step)
            for reading in meter.read(board.now_us):
                told[reading.rail.name] += (reading.watts or 0.0) * step / 1e6
    last = {r.rail.name: r.joules for r in meter.read(board.now_us)}
    for channel in board.profile.sensor.channels:
        if board.profile.sensor.meter == "rapl":
            counted = last[channel.rail] - first[channel.rail]
            assert counted == pytest.approx(board.joules[channel.rail], abs=2e-6)
            continue
        half_step_w = (channel.volts or 0) * 0.5 * 40e-6 / (channel.shunt_uohm / 1e6) + 0.003
        bound = half_step_w * board.now_us / 1e6
        assert told[channel.rail] == pytest.approx(board.joules[channel.rail], abs=bound + 1e-9)


def test_noise_is_seeded_and_averages_out(tmp_path):
    runs = []
    for part in ("a", "b"):
        board = SimulatedBoard(load("jetson-nano"), tmp_path / part, seed=7)
        (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
        seen = []
        for i in range(1, 201):
            board.advance(i * 50_000)
            seen.append([r.watts for r in meter.read(board.now_us)])
        runs.append(seen)
    assert runs[0] == runs[1]
    of_input = [watts[0] for watts in runs[0]]
    assert len(set(of_input)) > 3
    assert sum(of_input) / 200 == pytest.approx(1.03, abs=0.01)


def test_a_nanos_conversions_find_a_load_of_one_half_about_half_of_the_time(tmp_path):
    board = SimulatedBoard(load("jetson-nano"), tmp_path, seed=1)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    pinned(board, 1_428_000)
    told = []
    for i in range(1, 401):
        board.advance(i * 100_000, Work(cycles=4 * 1.428e9 * 0.05))
        told.append(meter.read(board.now_us)[0].watts)
    mean = board.input_joules / 40
    assert 2.5 < mean < 3.5
    assert sum(told) / 400 == pytest.approx(mean, abs=0.3)
    assert min(told) < 1.3 < 4.5 < max(told)


def test_rapls_counter_wraps_and_the_meter_undoes_it(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.sensors.offset_uj["package-0"] = RAPL_RANGE_UJ - 3_000_000
    board.advance(SECOND)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    raw = [board.sysfs.read_int("/sys/class/powercap/intel-rapl:0/energy_uj")]
    start = meter.read(board.now_us)[0].joules
    before = board.joules["package-0"]
    for i in range(2, 8):
        board.advance(i * SECOND, Work(cycles=1e9))
        raw.append(board.sysfs.read_int("/sys/class/powercap/intel-rapl:0/energy_uj"))
        read = meter.read(board.now_us)[0].joules
    assert min(raw[1:]) < raw[0]
    assert read - start == pytest.approx(board.joules["package-0"] - before, abs=1e-5)


def test_counters_go_on_where_the_process_before_left_them(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.advance(SECOND, Work(cycles=1e9, wakeups=40))
    paths = (
        "/sys/class/powercap/intel-rapl:0/energy_uj",
        "/sys/devices/system/cpu/cpu0/cpuidle/state2/time",
        "/sys/devices/system/cpu/cpu0/cpuidle/state2/usage",
    )
    before = [board.sysfs.read_int(path) for path in paths]
    again = SimulatedBoard(load("generic-x86"), tmp_path)
    assert [again.sysfs.read_int(path) for path in paths] == before
    again.advance(SECOND, Work(wakeups=40))
    after = [again.sysfs.read_int(path) for path in paths]
    assert after[0] - before[0] == pytest.approx(again.joules["package-0"] * 1e6, abs=2)
    assert after[1] - before[1] == SECOND and after[2] - before[2] == 10


def test_rapl_may_be_forbidden(tmp_path):
    board = SimulatedBoard(load("generic-x86"), tmp_path)
    board.fault("*/energy_uj", "EACCES", "r")
    found = survey(board.sysfs, detect(board.sysfs))
    assert not [m for m in found.meters if m.name == "rapl"]
    assert any("root only" in str(missing) for missing in found.missing)


def test_a_frozen_sensor_goes_on_telling_what_it_told(orin):
    orin.advance(SECOND)
    before = channels(orin)
    orin.freeze("1-0040")
    orin.advance(10 * SECOND, Work(cycles=5e10))
    assert channels(orin) == before
    orin.thaw("1-0040")
    orin.background = Background(cores=3.0)
    orin.advance(20 * SECOND)
    assert channels(orin)["VDD_IN"] > before["VDD_IN"] + 0.5


@pytest.mark.parametrize(("name", "device"), [("orin-nano", "1-0040"), ("jetson-nano", "6-0040")])
def test_an_unbound_sensor_is_gone_and_is_found_again_under_another_number(tmp_path, name, device):
    board = SimulatedBoard(load(name), tmp_path)
    (meter,) = survey(board.sysfs, detect(board.sysfs)).meters
    board.advance(SECOND)
    board.unbind(device)
    board.advance(2 * SECOND)
    assert all(r.watts is None and r.problem for r in meter.read(board.now_us))
    board.bind(device)
    board.advance(3 * SECOND)
    assert all(r.watts is not None for r in meter.read(board.now_us))


def test_with_a_clock_sensors_are_up_to_date_when_they_are_read(tmp_path):
    now = [5 * SECOND]
    board = SimulatedBoard(load("orin-nano"), tmp_path, clock_us=lambda: now[0])
    board.background = Background(cores=6.0)
    idle = channels(board)["VDD_IN"]
    now[0] += SECOND
    assert channels(board)["VDD_IN"] > idle + 1
    assert board.now_us == 6 * SECOND


def test_unconnected_channels_answer_as_on_a_board(tmp_path):
    board = SimulatedBoard(load("agx-orin"), tmp_path)
    at = "/sys/bus/i2c/drivers/ina3221/1-0041/hwmon/hwmon4"
    assert board.sysfs.read(f"{at}/in1_label") == "NC"
    with pytest.raises(SysfsError):
        board.sysfs.read(f"{at}/in1_input")


def test_what_is_no_part_of_the_board_is_kept_apart(orin, tmp_path):
    marker = json.loads((tmp_path / ".simulated" / "board.json").read_text())
    assert marker["profile"] == "orin-nano"
    assert type(open_root(tmp_path)) is not type(open_root("/"))
