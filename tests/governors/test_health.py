"""Temperatures, throttling and GPU load, as the trees of boards have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.actuators.base import discover
from governors.detect import detect
from governors.health import LOOK_US, PI_BITS, HealthReader, pi_throttling
from governors.profile_reader import load
from governors.simulated.board import SimulatedBoard
from tests.governors import trees
from tests.governors.trees import Tree

THERMAL = "/sys/class/thermal"


def reader(sysfs, simulated=False):
    return HealthReader(sysfs, discover(sysfs, detect(sysfs)), simulated)


def causes(health):
    return {found.cause: found for found in health.throttling}


def test_zones_have_degrees_trip_points_and_gaps(tmp_path):
    tree = trees.BOARDS["orin-nano-r36"]()
    tree.add(f"{THERMAL}/thermal_zone0", trip_point_0_type="passive", trip_point_0_temp=99_000,
             trip_point_1_type="critical", trip_point_1_temp=104_500,
             trip_point_2_type="passive", trip_point_2_temp=97_000)  # fmt: skip
    tree.add(f"{THERMAL}/thermal_zone1", temp="garbled")
    found = {z.name: z for z in reader(tree.plant(tmp_path)).look(0).zones}
    assert (found["cpu-thermal"].celsius, found["gpu-thermal"].celsius) == (48.0, None)
    assert dict(found["cpu-thermal"].trips) == {"passive": 97.0, "critical": 104.5}


def test_the_nanos_zone_that_measures_nothing_is_left_out_and_equal_names_are_told_apart(tmp_path):
    sysfs = trees.plant(tmp_path / "nano", "jetson-nano-r32")
    assert "PMIC-Die" not in {z.name for z in reader(sysfs).look(0).zones}
    twins = Tree()
    for number in (0, 1):
        twins.add(f"{THERMAL}/thermal_zone{number}", type="acpitz", temp=40_000 + number * 1000)
    health = reader(twins.plant(tmp_path / "twins")).look(0)
    assert [(z.name, z.celsius) for z in health.zones] == [("acpitz.0", 40.0), ("acpitz.1", 41.0)]
    assert health.hottest.name == "acpitz.1"


def test_figures_are_read_when_asked_and_not_again_at_once(tmp_path):
    sysfs = trees.plant(tmp_path, "raspberry-pi-5")
    read, zone = reader(sysfs), tmp_path / "sys/class/thermal/thermal_zone0/temp"
    assert read.look(0).hottest.celsius == 51.0
    zone.write_text("60000\n")
    assert read.look(LOOK_US - 1).hottest.celsius == 51.0
    assert read.look(LOOK_US).hottest.celsius == 60.0


def test_jetsons_over_current_events_are_counted_since_boot(tmp_path):
    tree = trees.BOARDS["orin-nano-r36"]()
    tree.add("/sys/devices/platform/soctherm-oc-event/hwmon/hwmon1",
             oc1_event_cnt=0, oc2_event_cnt=3, oc3_event_cnt=17, oc3_throt_en=1)  # fmt: skip
    found = causes(reader(tree.plant(tmp_path)).look(0))
    assert (found["under_voltage"].events, found["under_voltage"].since_boot) == (0, False)
    assert (found["over_current_peak"].events, found["over_current_peak"].now) == (17, None)
    assert found["over_current_average"].since_boot is True


def test_x86_events_count_each_core_and_package_once(tmp_path):
    tree = Tree()
    for cpu, (core, package) in enumerate(((0, 0), (1, 0), (0, 0), (1, 0))):  # two threads a core
        at = f"/sys/devices/system/cpu/cpu{cpu}"
        tree.add(f"{at}/topology", physical_package_id=package, core_id=core)
        tree.add(f"{at}/thermal_throttle", core_throttle_count=5 + core, package_throttle_count=4)
    found = causes(reader(tree.plant(tmp_path)).look(0))
    assert found["core_thermal"].events == 5 + 6
    assert found["package_thermal"].events == 4


def test_a_cooling_device_at_work_throttles_and_a_fan_does_not(tmp_path):
    tree = Tree()
    for number, (kind, state) in enumerate(
        (("Processor", 0), ("Processor", 2), ("pwm-fan", 3), ("intel_powerclamp", -1))
    ):
        tree.add(f"{THERMAL}/cooling_device{number}", type=kind, cur_state=state, max_state=3)
    found = causes(reader(tree.plant(tmp_path)).look(0))
    assert {cause: one.now for cause, one in found.items()} == {
        "cooling:Processor": True, "cooling:intel_powerclamp": False
    }  # fmt: skip


def test_a_clock_below_its_lower_limit_is_throttled(tmp_path):
    sysfs = trees.plant(tmp_path, "raspberry-pi-5")
    policy = tmp_path / "sys/devices/system/cpu/cpufreq/policy0"
    limit = int((policy / "scaling_min_freq").read_text())
    for khz, now in ((limit, False), (limit // 2, True)):
        (policy / "scaling_cur_freq").write_text(f"{khz}\n")
        assert causes(reader(sysfs).look(0))["clock_below_limit"].now is now


def test_a_raspberry_pis_bits_come_from_its_file_or_from_its_firmware(tmp_path):
    sysfs = trees.plant(tmp_path, "raspberry-pi-5")
    script = tmp_path / "usr/bin/vcgencmd"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\necho throttled=0x50005\n")
    script.chmod(0o755)
    asked = causes(reader(sysfs).look(0))
    assert asked["under_voltage"].now and asked["throttled"].since_boot
    assert not asked["frequency_capped"].now and not asked["soft_temperature"].since_boot
    file = tmp_path / "sys/devices/platform/soc/soc:firmware/get_throttled"
    file.parent.mkdir(parents=True)
    file.write_text("20002\n")
    read = causes(reader(sysfs).look(0))
    assert [c for c in PI_BITS if read[c].now] == ["frequency_capped"]


@given(st.integers(0, (1 << 20) - 1))
def test_every_bit_has_its_place(bits):
    told = pi_throttling(f"throttled={bits:#x}\n")
    assert sum(t.now << at for at, t in enumerate(told)) == bits & 0xF
    assert sum(t.since_boot << at for at, t in enumerate(told)) == bits >> 16


@given(st.text())
def test_other_answers_tell_nothing(text):
    assert pi_throttling(text) == []


def test_gpu_load_is_a_share_of_time(tmp_path):
    sysfs = trees.plant(tmp_path, "orin-nano-r36")
    place = tmp_path / "sys/devices/platform/bus@0/17000000.gpu/load"
    for text, share in (("374", 0.374), ("0", 0.0), ("garbled", None)):
        place.write_text(f"{text}\n")
        assert reader(sysfs).look(0).gpu_load == (("17000000.gpu", share),)


@pytest.mark.parametrize("name", ["orin-nano", "jetson-nano", "raspberry-pi-5", "generic-x86"])
def test_simulated_boards_have_the_files_of_their_kind(tmp_path, name):
    board = SimulatedBoard(load(name), tmp_path)
    health = reader(board.sysfs, simulated=True).look(0)
    assert health.hottest is not None and 20.0 < health.hottest.celsius < 60.0
    assert not any(found.now or found.since_boot for found in health.throttling)
    expected = {
        "orin-nano": {"over_current_peak", "cooling:cpufreq-cpu0", "clock_below_limit"},
        "jetson-nano": {"cooling:thermal-cpufreq-0"},
        "raspberry-pi-5": {"cooling:cpufreq-cpu0"},
        "generic-x86": {"core_thermal", "package_thermal"},
    }
    assert causes(health).keys() >= expected[name]
    assert bool(health.gpu_load) == (board.profile.gpu is not None)
