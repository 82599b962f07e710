"""INA3221 behind its two drivers: units, channels that are not there, numbers that change."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.meters.base import survey
from governors.meters.rail_labels import rail
from governors.meters.sampler import Sampler
from governors.meters.settings import MeterSettings
from governors.sysfs import Sysfs
from tests.governors.faults import Failing, busy
from tests.governors.trees import Tree, ina3221, ina3221x, plant

SECOND = 1_000_000
NANO = "/sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
ORIN = "/sys/bus/i2c/drivers/ina3221/1-0040"


def meter_of(sysfs, settings=None):
    (meter,) = survey(sysfs, detect(sysfs), settings).meters
    return meter


def watts(meter, now_us=0):
    return {reading.rail.name: reading.watts for reading in meter.read(now_us)}


class TestUnits:
    @given(mv=st.integers(0, 32_760), ma=st.integers(-32_000, 32_000))
    def test_hwmon_is_millivolts_times_milliamperes(self, tmp_path_factory, mv, ma):
        tree = Tree()
        ina3221(tree, "1-0040", (("VDD_IN", mv, ma),))
        meter = meter_of(tree.plant(tmp_path_factory.mktemp("board")))
        (reading,) = meter.read(7)
        assert reading.watts == pytest.approx((mv / 1000) * (ma / 1000))
        assert reading.at_us == 7

    def test_shunt_voltages_and_their_sum_are_no_rails(self, tmp_path):
        meter = meter_of(plant(tmp_path, "orin-nano-r36"))
        assert [r.name for r in meter.rails] == ["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"]

    def test_iio_channels_count_from_0_and_one_conversion_gives_both(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        sysfs.write(f"{NANO}/ui_input_1", "4904 880")
        sysfs.write(f"{NANO}/in_power1_input", "1")
        sysfs.write(f"{NANO}/in_power1_trigger_input", "0")
        assert watts(meter_of(sysfs))["POM_5V_GPU"] == pytest.approx(4.31552)

    def test_iio_without_ui_input_says_milliwatts(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        meter = meter_of(sysfs)
        for n in range(3):
            (tmp_path / f"{NANO[1:]}/ui_input_{n}").unlink()
        assert watts(meter) == pytest.approx(
            {"POM_5V_IN": 2.130, "POM_5V_GPU": 0.039, "POM_5V_CPU": 0.314}
        )

    def test_a_negative_offset_is_told_as_it_is(self, tmp_path):
        """Thor's VDD_GPU was seen at -392 mW."""
        sysfs = plant(tmp_path, "thor-r38")
        sysfs.write("/sys/bus/i2c/drivers/ina3221/2-0040/hwmon/hwmon3/curr1_input", "-20")
        meters = {m.name: m for m in survey(sysfs, detect(sysfs)).meters}
        assert watts(meters["ina3221"])["VDD_GPU"] == pytest.approx(-0.4)

    def test_what_no_board_draws_is_a_gap(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        sysfs.write(f"{ORIN}/hwmon/hwmon3/curr1_input", "99999999999")
        readings = meter_of(sysfs).read(0)
        assert readings[0].watts is None
        assert "is impossible" in readings[0].problem
        assert readings[1].watts is not None


class TestChannels:
    @pytest.mark.parametrize("label", ["", "NC", " "])
    def test_channels_without_a_name_are_not_connected(self, tmp_path, label):
        tree = Tree()
        ina3221(tree, "1-0041", (("VDD_IN", 5000, 10), (label, 0, 0)))
        assert [r.name for r in meter_of(tree.plant(tmp_path)).rails] == ["VDD_IN"]

    @pytest.mark.parametrize("failure", [errno.EIO, errno.ENODATA, errno.EINVAL])
    def test_channels_that_fail_when_opened_are_skipped(self, tmp_path, failure):
        plant(tmp_path, "orin-nano-r36")
        sysfs = Failing(tmp_path, {"in3_input": failure})
        assert [r.name for r in meter_of(sysfs).rails] == ["VDD_IN", "VDD_CPU_GPU_CV"]

    def test_a_channel_that_is_busy_when_opened_is_there(self, tmp_path):
        plant(tmp_path, "orin-nano-r36")
        sysfs = Failing(tmp_path, {"in3_input": errno.EAGAIN})
        meter = meter_of(sysfs)
        sysfs.failures = {}
        assert watts(meter)["VDD_SOC"] == pytest.approx(1.486464)

    def test_a_rail_that_nobody_knows_is_shown_and_added_to_nothing(self, tmp_path):
        tree = Tree()
        ina3221(tree, "1-0040", (("VDD_12V_FAN", 12_000, 100), ("VDD_IN", 5000, 900)))
        meter = meter_of(tree.plant(tmp_path))
        assert watts(meter)["VDD_12V_FAN"] == pytest.approx(1.2)
        assert (meter.rails[0].feeds, meter.rails[0].part_of) == ((), None)

    def test_one_name_on_two_chips_is_told_apart(self, tmp_path):
        tree = Tree()
        ina3221(tree, "1-0040", (("VDD_IN", 5000, 10),))
        ina3221(tree, "1-0041", (("VDD_IN", 5000, 20),), hwmon=4)
        names = [r.name for r in meter_of(tree.plant(tmp_path)).rails]
        assert names == ["VDD_IN", "VDD_IN@1-0041/1"]

    def test_a_driver_without_a_chip_says_what_to_do(self, tmp_path):
        (tmp_path / "sys/bus/i2c/drivers/ina3221").mkdir(parents=True)
        sysfs = Sysfs(tmp_path)
        found = survey(sysfs, detect(sysfs))
        assert any("bound to no chip" in m.what and "bind" in m.remedy for m in found.missing)


class TestTime:
    def test_hwmon_is_found_again_under_another_number(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        meter = meter_of(sysfs)
        device = tmp_path / sysfs.resolve(f"{ORIN}/hwmon")[1:]
        (device / "hwmon3").rename(device / "hwmon7")
        assert watts(meter)["VDD_IN"] == pytest.approx(4.65152)

    def test_a_driver_that_let_go_leaves_a_gap_and_is_found_when_it_is_back(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        sampler = Sampler([meter_of(sysfs)], cpu_us=lambda: 0.0)
        bound = tmp_path / ORIN[1:]
        target = bound.readlink()
        for second in range(11):
            if second == 4:
                bound.unlink()
            if second == 7:
                bound.symlink_to(target)
            sampler.sample(second * SECOND)
            gone = 4 <= second < 7
            assert bool(sampler.problems()) == gone
            if gone:
                problem = sampler.problems()["ina3221", "VDD_IN"]
                assert "echo 1-0040 > /sys/bus/i2c/drivers/ina3221/bind" in problem
        total = sampler.totals["ina3221", "VDD_IN"]
        assert total.gap_us == 4 * SECOND  # from 3 s to 7 s
        assert total.joules == pytest.approx(4.65152 * 6)

    def test_eagain_is_a_gap_and_the_next_reading_is_made_when_it_is_due(self, tmp_path):
        sysfs = plant(tmp_path, "jetson-nano-r32")
        sampler = Sampler([meter_of(sysfs)], cpu_us=lambda: 0.0)
        sampler.sample(0)
        with busy(sysfs, f"{NANO}/ui_input_0"):
            sampler.sample(SECOND)
            assert set(sampler.problems()) == {("ina3221", "POM_5V_IN")}
            assert sampler.due_us(SECOND) > SECOND + 200_000
        sampler.sample(2 * SECOND)
        assert sampler.totals["ina3221", "POM_5V_IN"].gap_us == 2 * SECOND
        assert sampler.totals["ina3221", "POM_5V_CPU"].gap_us == 0

    def test_a_chip_that_averages_longer_is_read_less_often(self, tmp_path):
        sysfs = plant(tmp_path, "orin-nano-r36")
        assert meter_of(sysfs).interval_us == 500_000
        sysfs.write(f"{ORIN}/hwmon/hwmon3/update_interval", "4000")
        assert meter_of(sysfs).interval_us == 4 * SECOND

    def test_steps_follow_from_shunt_and_voltage(self, tmp_path):
        """5 mΩ at 4.9 V: 39 mW (seen); AGX Orin's 2 mΩ at 19 V: 0.38 W."""
        sysfs = plant(tmp_path, "agx-orin-r39")
        at = "/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
        sysfs.write(f"{at}/shunt2_resistor", "2000")
        assert meter_of(sysfs).steps_w == pytest.approx({"VDD_CPU_CV": 0.38})
        tree = Tree()
        ina3221x(tree, "6-0040", (("POM_5V_IN", 4900, 400), ("POM_5V_GPU", 4900, 8)))
        steps = meter_of(tree.plant(tmp_path / "nano")).steps_w
        assert steps == pytest.approx({"POM_5V_IN": 0.039}, rel=0.05)


class TestLabels:
    MODULE_X = (("POM_5V_IN", 4900, 640), ("POM_5V_GPU", 4900, 1780), ("POM_5V_CPU", 4900, 300))
    """The ai-blox carrier under stress: the GPU reads 8.7 W where the input reads 3.1 W."""

    def test_parts_that_are_more_than_their_whole_raise_a_doubt(self, tmp_path):
        tree = Tree()
        ina3221x(tree, "6-0040", self.MODULE_X)
        meter = meter_of(tree.plant(tmp_path))
        meter.read(0)
        assert meter.doubts == ()  # once may be a change of load between two reads
        meter.read(1)
        meter.read(2)
        (doubt,) = meter.doubts
        assert "POM_5V_GPU + POM_5V_CPU" in doubt and "meters.labels" in doubt

    def test_a_doubt_is_gone_when_the_names_were_put_right(self, tmp_path):
        tree = Tree()
        ina3221x(tree, "6-0040", self.MODULE_X)
        right = {"6-0040/0": "POM_5V_GPU", "6-0040/1": "POM_5V_IN"}
        meter = meter_of(tree.plant(tmp_path), MeterSettings(labels=right))
        for now_us in range(5):
            meter.read(now_us)
        assert meter.doubts == ()
        assert watts(meter)["POM_5V_IN"] == pytest.approx(8.722)

    def test_a_healthy_board_raises_none(self, tmp_path):
        meter = meter_of(plant(tmp_path, "jetson-nano-r32"))
        for now_us in range(5):
            meter.read(now_us)
        assert meter.doubts == ()

    def test_a_part_is_one_only_where_its_whole_is(self):
        assert rail("VDD_SOC", {"VDD_SOC", "VDD_IN"}).part_of == "VDD_IN"
        assert rail("VDD_SOC", {"VDD_SOC"}).part_of is None
