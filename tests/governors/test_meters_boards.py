"""What each board's meters tell, and which rails are its whole input: nothing is summed twice."""

import random
import shutil
from pathlib import Path

import pytest

from governors.detect import detect
from governors.energy import Provenance, Rail
from governors.meters import battery, rails
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings, Modelled
from tests.governors.faults import Failing, nobody, open_tree
from tests.governors.trees import BOARDS, plant

SECOND = 1_000_000

EXPECTED = {
    "orin-nano-r36": {"VDD_IN": 4.651520, "VDD_CPU_GPU_CV": 0.561216, "VDD_SOC": 1.486464},
    "orin-nx-r35": {"VDD_IN": 4.651520, "VDD_CPU_GPU_CV": 0.561216, "VDD_SOC": 1.486464},
    "agx-orin-r35": {
        "VDD_GPU_SOC": 3.154, "VDD_CPU_CV": 1.52, "VIN_SYS_5V0": 4.95, "VDDQ_VDD2_1V8AO": 1.09,
    },
    "agx-orin-r39": {
        "VDD_GPU_SOC": 3.154, "VDD_CPU_CV": 1.52, "VIN_SYS_5V0": 4.95, "VDDQ_VDD2_1V8AO": 1.09,
    },
    "xavier-nx-r35": {"VDD_IN": 4.0384, "VDD_CPU_GPU_CV": 0.7572, "VDD_SOC": 1.403344},
    "jetson-nano-r32": {"POM_5V_IN": 2.13036, "POM_5V_GPU": 0.03936, "POM_5V_CPU": 0.31488},
    "thor-r38": {"VIN": 23.0, "VDD_GPU": 1.2, "VDD_CPU_SOC_MSS": 6.5, "VIN_SYS_5V0": 6.5},
}  # fmt: skip
"""Watts, from the millivolts and milliamperes of the trees by hand."""

WHOLE = {
    "orin-nano-r36": ("VDD_IN", 4.651520),
    "orin-nx-r35": ("VDD_IN", 4.651520),
    "agx-orin-r35": ("sum of VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0", 9.624),
    "agx-orin-r39": ("sum of VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0", 9.624),
    "xavier-nx-r35": ("VDD_IN", 4.0384),
    "jetson-nano-r32": ("POM_5V_IN", 2.13036),
    "thor-r38": ("VIN", 23.0),
}


def meters_of(tmp_path, board, settings=None):
    sysfs = plant(tmp_path, board)
    return survey(sysfs, detect(sysfs), settings).meters


def told(meters, now_us=0):
    return {
        (meter.name, reading.rail.name): reading
        for meter in meters
        for reading in meter.read(now_us)
    }


@pytest.mark.parametrize("board", EXPECTED)
def test_every_rail_tells_its_watts(tmp_path, board):
    readings = told(meters_of(tmp_path, board))
    watts = {rail: reading.watts for (_, rail), reading in readings.items()}
    assert watts == pytest.approx(EXPECTED[board])
    assert not any(reading.problem for reading in readings.values())


@pytest.mark.parametrize("board", WHOLE)
def test_the_whole_input_counts_each_rail_once(tmp_path, board):
    meters = meters_of(tmp_path, board)
    best = rails.wholes(meters)[0]
    name, watts = WHOLE[board]
    assert best.name == name
    read = {key: reading.watts for key, reading in told(meters).items()}
    assert rails.input_watts(best, read) == pytest.approx(watts)


def test_parts_are_named_as_parts_and_joint_rails_as_joint(tmp_path):
    (tmp_path / "nano").mkdir()
    (tmp_path / "agx").mkdir()
    (tmp_path / "thor").mkdir()
    nano = {r.name: r for m in meters_of(tmp_path / "nano", "orin-nano-r36") for r in m.rails}
    assert nano["VDD_CPU_GPU_CV"] == Rail("VDD_CPU_GPU_CV", ("cpu", "gpu", "cv"), "VDD_IN")
    agx = {r.name: r for m in meters_of(tmp_path / "agx", "agx-orin-r39") for r in m.rails}
    assert agx["VDDQ_VDD2_1V8AO"].part_of == "VIN_SYS_5V0"
    assert agx["VIN_SYS_5V0"].part_of is None  # there is no VIN to be a part of
    thor = {r.name: r for m in meters_of(tmp_path / "thor", "thor-r38") for r in m.rails}
    assert thor["VIN_SYS_5V0"].part_of == "VIN"


def test_a_sum_says_that_the_carrier_board_is_not_in_it(tmp_path):
    (whole,) = rails.wholes(meters_of(tmp_path, "agx-orin-r35"))
    assert "without the carrier board" in whole.covers


def test_a_sum_of_which_a_rail_is_missing_is_no_whole(tmp_path):
    sysfs = plant(tmp_path, "agx-orin-r39")
    chip = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    sysfs.write(f"{chip}/in2_enable", "0")
    meters = survey(sysfs, detect(sysfs)).meters
    assert rails.wholes(meters) == []


def test_of_a_laptop_psys_is_the_input_and_the_battery_tells_it_too(tmp_path):
    meters = meters_of(tmp_path, "x86-intel-pstate")
    assert [w.name for w in rails.wholes(meters)] == ["psys", "BAT0"]


def test_of_a_desktop_the_package_is_all_that_is_told(tmp_path):
    (whole,) = rails.wholes(meters_of(tmp_path, "x86-amd-pstate"))
    assert whole.keys == (("rapl", "package-0"),)
    assert "nothing else of the machine" in whole.covers


@pytest.mark.parametrize("board", ["raspberry-pi-5", "x86-acpi-cpufreq", "no-control"])
def test_boards_without_a_sensor_have_no_meter_and_no_error(tmp_path, board):
    assert not meters_of(tmp_path, board)


def test_a_model_steps_in_where_nothing_is_measured(tmp_path):
    model = Modelled((Rail("input", ("input",)),), lambda now_us: {"input": 3.5})
    meters = meters_of(tmp_path, "raspberry-pi-5", MeterSettings(model=model))
    sampler = Sampler(meters, cpu_us=lambda: 0.0)
    for second in range(11):
        sampler.sample(second * SECOND)
    energy = sampler.input_energy({})
    assert (energy.joules, energy.provenance) == (pytest.approx(35.0), Provenance.MODELLED)


def test_a_measured_input_is_preferred_to_the_modelled_one(tmp_path):
    model = Modelled((Rail("VDD_IN", ("input",)),), lambda now_us: {"VDD_IN": 100.0})
    meters = meters_of(tmp_path, "orin-nano-r36", MeterSettings(model=model))
    sampler = Sampler(meters, cpu_us=lambda: 0.0)
    for second in range(11):
        sampler.sample(second * SECOND)
    energy = sampler.input_energy({})
    assert energy.joules == pytest.approx(46.5152)
    assert energy.provenance is Provenance.MEASURED
    assert len(sampler.totals) == 4  # the modelled VDD_IN is there beside the measured one


def test_readings_of_a_simulated_tree_are_marked_simulated(tmp_path):
    settings = MeterSettings(provenance=Provenance.SIMULATED)
    meters = meters_of(tmp_path, "thor-r38", settings)
    assert {meter.provenance for meter in meters} == {Provenance.SIMULATED}


class TestFaults:
    """Whatever a board's files do, a meter answers for each of its rails and raises nothing."""

    @pytest.mark.parametrize("board", BOARDS)
    def test_garbled_files(self, tmp_path, board):
        sysfs = plant(tmp_path, board)
        meters = survey(sysfs, detect(sysfs)).meters
        for garbage in ("", "\0\0", "NaN", "12 34 56", "0x10", "-", "9" * 400, "\xff\xfe"):
            for file in tmp_path.rglob("*_input*"):
                file.write_text(garbage)
            for file in [*tmp_path.rglob("energy_uj"), *tmp_path.rglob("charge_now")]:
                file.write_text(garbage)
            for meter in meters:
                readings = meter.read(0)
                assert [r.rail for r in readings] == list(meter.rails)
            anew = Sampler(survey(sysfs, detect(sysfs)).meters, cpu_us=lambda: 0.0)
            for second in range(20):
                anew.sample(second * SECOND, busy_cores=second % 7)
            for name in battery.batteries(sysfs):
                assert battery.state(sysfs, name).name == name

    @pytest.mark.parametrize("board", BOARDS)
    def test_files_that_vanish_and_come_back(self, tmp_path, board):
        live, away = tmp_path / "live", tmp_path / "away"
        live.mkdir()
        sysfs = plant(live, board)
        sampler = Sampler(survey(sysfs, detect(sysfs)).meters, cpu_us=lambda: 0.0)
        sampler.sample(0)
        live.rename(away)
        live.mkdir()
        sampler.sample(15 * SECOND)
        assert set(sampler.problems()) == set(sampler.totals)
        shutil.rmtree(live)
        away.rename(live)
        for reading in sampler.sample(31 * SECOND):
            assert (reading.watts, reading.joules) != (None, None), reading.rail
        for energy in sampler.totals.values():
            assert energy.joules >= 0.0
            assert 0 <= energy.gap_us <= energy.until_us - energy.since_us

    @pytest.mark.parametrize("board", BOARDS)
    def test_files_that_may_not_be_read_are_named(self, board):
        with open_tree() as root:
            sysfs = plant(root, board)
            board_found = detect(sysfs)
            open_before = {r for m in survey(sysfs, board_found).meters for r in m.rails}
            for directory in ("sys/devices", "sys/class"):
                for file in (root / directory).rglob("*"):
                    if file.is_file() and "label" not in file.name and "rail_name" not in file.name:
                        file.chmod(0o600)
            with nobody():
                found = survey(sysfs, board_found)
            readable = {r for m in found.meters for r in m.rails}
            sensors = {m.meter for m in found.missing} - {"uplink", "model", "pmic"}  # no files
            hwmon = [r for r in open_before if not r.name.startswith(("BAT", "VIN"))]
            assert not readable & set(hwmon)
            assert bool(sensors) == bool(hwmon)

    @pytest.mark.parametrize("board", EXPECTED)
    def test_devices_that_fail_at_random(self, tmp_path, board):
        plant(tmp_path, board)
        sysfs = Failing(Path(tmp_path))
        sampler = Sampler(survey(sysfs, detect(sysfs)).meters, cpu_us=lambda: 0.0)
        dice = random.Random(7)
        for tick in range(400):
            names = ("in1", "curr2", "ui_input_1", "power1", "curr1")
            sysfs.failures = {
                f"/{name}": dice.choice((5, 11, 13, 19, 61, 110))
                for name in names
                if dice.random() < 0.1
            }
            sampler.sample(tick * 500_000)
        for (_, rail), energy in sampler.totals.items():
            covered_s = (energy.until_us - energy.since_us - energy.gap_us) / SECOND
            assert energy.joules == pytest.approx(EXPECTED[board][rail] * covered_s, rel=1e-3)
        assert any(energy.gap_us for energy in sampler.totals.values())
