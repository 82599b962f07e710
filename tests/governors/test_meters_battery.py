"""Batteries: energy from gauges, signs from the status, contracts that are no measurements."""

import pytest

from governors.detect import detect
from governors.meters import battery
from governors.meters.base import survey
from governors.meters.sampler import Sampler
from tests.governors.trees import Tree, plant

SECOND = 1_000_000
SUPPLIES = "/sys/class/power_supply"


def supply(tree, name, **files):
    tree.add(f"{SUPPLIES}/{name}", **{"type": "Battery", "status": "Discharging"} | files)


def opened(tree, root):
    sysfs = tree.plant(root)
    return sysfs, next(m for m in survey(sysfs, detect(sysfs)).meters if m.name == "battery")


class TestJoules:
    def test_energy_now_is_microwatt_hours(self, tmp_path):
        tree = Tree()
        supply(tree, "BAT0", energy_now=50_000_000, voltage_now=11_000_000)
        sysfs, meter = opened(tree, tmp_path)
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        sampler.sample(0)
        sysfs.write(f"{SUPPLIES}/BAT0/energy_now", "49900000")  # 0.1 Wh
        sampler.sample(60 * SECOND)
        assert sampler.totals["battery", "BAT0"].joules == pytest.approx(360.0)

    def test_a_dip_of_the_voltage_is_no_energy(self, tmp_path):
        """Charge times the voltage of the moment would say that 3.3 Ah x 0.6 V = 7 kJ went."""
        tree = Tree()
        supply(tree, "BAT0", charge_now=3_300_000, voltage_now=12_000_000)
        sysfs, meter = opened(tree, tmp_path)
        meter.read(0)
        sysfs.write(f"{SUPPLIES}/BAT0/voltage_now", "11400000")
        sysfs.write(f"{SUPPLIES}/BAT0/charge_now", "3290000")  # 10 mAh at 11.7 V
        (reading,) = meter.read(60 * SECOND)
        assert reading.joules == pytest.approx(0.010 * 11.7 * 3600)

    @pytest.mark.parametrize("sign", [-1, 1])
    def test_the_sign_of_a_current_means_nothing_beside_the_status(self, tmp_path, sign):
        tree = Tree()
        supply(tree, "BAT0", current_now=sign * 640_000, voltage_now=11_900_000)
        _, meter = opened(tree, tmp_path)
        (reading,) = meter.read(0)
        assert reading.watts == pytest.approx(7.616)

    def test_two_batteries_of_which_one_gives_are_one_supply(self, tmp_path):
        tree = Tree()
        supply(tree, "BAT0", energy_now=9_000_000, voltage_now=11_000_000, status="Not charging")
        supply(tree, "BAT1", energy_now=8_000_000, voltage_now=11_000_000)
        sysfs, meter = opened(tree, tmp_path)
        meter.read(0)
        sysfs.write(f"{SUPPLIES}/BAT1/energy_now", "7990000")
        (reading,) = meter.read(10 * SECOND)
        assert (reading.rail.name, reading.joules) == ("BAT0 + BAT1", pytest.approx(36.0))

    def test_a_gauge_that_is_corrected_upwards_is_a_gap(self, tmp_path):
        tree = Tree()
        supply(tree, "BAT0", energy_now=9_000_000, voltage_now=11_000_000)
        sysfs, meter = opened(tree, tmp_path)
        meter.read(0)
        sysfs.write(f"{SUPPLIES}/BAT0/energy_now", "9500000")
        (reading,) = meter.read(10 * SECOND)
        assert "recalibrated" in reading.problem


class TestStatus:
    @pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown"])
    def test_what_is_not_discharging_tells_nothing_of_the_board(self, tmp_path, status):
        tree = Tree()
        supply(tree, "BAT0", energy_now=9_000_000, voltage_now=11_000_000, status=status)
        _, meter = opened(tree, tmp_path)
        (reading,) = meter.read(0)
        assert (reading.watts, reading.joules) == (None, None)
        assert status.lower() in reading.problem

    def test_time_on_the_charger_is_a_gap(self, tmp_path):
        tree = Tree()
        supply(tree, "BAT0", energy_now=9_000_000, voltage_now=11_000_000)
        sysfs, meter = opened(tree, tmp_path)
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        story = (
            ("Discharging", 9_000_000), ("Discharging", 8_990_000), ("Charging", 8_995_000),
            ("Charging", 9_400_000), ("Discharging", 9_395_000), ("Discharging", 9_385_000),
        )  # fmt: skip
        for step, (status, energy) in enumerate(story):
            sysfs.write(f"{SUPPLIES}/BAT0/status", status)
            sysfs.write(f"{SUPPLIES}/BAT0/energy_now", str(energy))
            sampler.sample(step * 20 * SECOND)
        total = sampler.totals["battery", "BAT0"]
        assert total.joules == pytest.approx(72.0)
        assert total.gap_us == 60 * SECOND


class TestWhichOnes:
    def test_contracts_and_mice_are_no_meters(self, tmp_path):
        tree = Tree()
        supply(tree, "ucsi-source-psy-2-0008", voltage_now=20_000_000, current_now=3_000_000)
        supply(tree, "tcpm-source-psy-1-0025", voltage_now=5_000_000, current_now=3_000_000)
        supply(tree, "hid-00:11", scope="Device", capacity=90)
        supply(tree, "AC", type="Mains", online=1)
        sysfs = tree.plant(tmp_path)
        assert battery.batteries(sysfs) == []
        assert survey(sysfs, detect(sysfs)).meters == ()

    def test_what_a_battery_holds_is_told_in_joules(self, tmp_path):
        sysfs = plant(tmp_path, "x86-intel-pstate")
        state = battery.state(sysfs, "BAT0")
        assert state.remaining_j == pytest.approx(3.3 * 11.9 * 3600)
        assert state.full_j == pytest.approx(4.3 * 11.9 * 3600)
        assert (state.capacity, state.volts, state.status) == (0.76, 11.9, "Discharging")
        assert state.watts == pytest.approx(0.64 * 11.9)

    def test_what_a_battery_does_not_say_is_not_known(self, tmp_path):
        tree = Tree()
        supply(tree, "BAT0")
        state = battery.state(tree.plant(tmp_path), "BAT0")
        assert (state.remaining_j, state.capacity, state.watts, state.volts) == (None,) * 4
