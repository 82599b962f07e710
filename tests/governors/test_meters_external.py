"""External meters: figures that other programs write down; only what is new is believed."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.detect import detect
from governors.errors import MeterError
from governors.meters.base import survey
from governors.meters.external import number
from governors.meters.sampler import Sampler
from governors.meters.settings import External, MeterSettings, RadioSettings, parse
from governors.sysfs import Sysfs

SECOND = 1_000_000
SMARTSHUNT = "PID\t0xA389\r\nV\t26410\r\nI\t-3120\r\nP\t-82\r\nCE\t-1200\r\nSOC\t913\r\n"


class File:
    """A file that a program rewrites, at times that the test says."""

    def __init__(self, root, name="meter"):
        self.path, self.mtime = root / name, 1_000_000_000

    def write(self, text):
        self.path.write_text(text)
        self.mtime += 1
        os.utime(self.path, (self.mtime, self.mtime))


def meter_of(tmp_path, **external):
    sysfs = Sysfs(tmp_path)
    settings = MeterSettings(externals=(External(name="plug", file="/meter", **external),))
    (meter,) = survey(sysfs, detect(sysfs), settings).meters
    return meter


def value_of(meter, now_us):
    (reading,) = meter.read(now_us)
    return reading.joules if reading.watts is None else reading.watts


class TestForms:
    @pytest.mark.parametrize(
        ("text", "key", "expected"),
        [
            ("12.5\n", "", 12.5),
            ("  -0.4 ", "", -0.4),
            ("1e3", "", 1000.0),
            ('{"watts": 7}', "watts", 7.0),
            ('{"a": {"b": [1, {"c": "2.5"}]}}', "a.b.1.c", 2.5),
            ("[3, 4]", "1", 4.0),
            (SMARTSHUNT, "P", -82.0),
            (SMARTSHUNT, "V", 26410.0),
            ("power = 3.25 W\nvoltage = 5", "power", 3.25),
            ("power: 3.25", "power", 3.25),
            ("watts 9", "watts", 9.0),
        ],
    )
    def test_the_number_is_found(self, text, key, expected):
        assert number(text, key) == expected

    @pytest.mark.parametrize(
        ("text", "key"),
        [
            ("", ""),
            ("watts", "watts"),
            ("nan", ""),
            ("inf", ""),
            ('{"watts": NaN}', "watts"),
            ('{"watts": 1e999}', "watts"),
            ('{"watts": true}', "watts"),
            ('{"watts": null}', "watts"),
            ('{"watts": {}}', "watts"),
            ('{"other": 1}', "watts"),
            ("[1]", "2"),
            ("[1]", "x"),
            ("12,5", ""),
            (SMARTSHUNT, "PPV"),
            ("9" * 400, ""),
            ("[" * 20_000, ""),
        ],
    )
    def test_what_is_no_number_is_none(self, text, key):
        assert number(text, key) is None

    @given(st.text(), st.text(max_size=5))
    def test_no_text_makes_an_error(self, text, key):
        found = number(text, key)
        assert found is None or abs(found) < float("inf")

    @given(st.floats(allow_nan=False, allow_infinity=False), st.text(min_size=1, max_size=8))
    def test_what_json_writes_is_read_back(self, value, key):
        if "." not in key and key != "other":
            assert number(json.dumps({key: value, "other": 3}), key) == value


class TestFreshness:
    def test_what_a_file_held_before_we_looked_is_not_believed(self, tmp_path):
        File(tmp_path).write("99")
        meter = meter_of(tmp_path)
        for second in range(5):
            (reading,) = meter.read(second * SECOND)
            assert reading.watts is None
            assert "not been rewritten since" in reading.problem

    def test_what_was_written_since_is_believed_until_it_is_stale(self, tmp_path):
        file = File(tmp_path)
        file.write("99")
        meter = meter_of(tmp_path, stale_s=10.0)
        meter.read(0)
        file.write("12.5")
        assert value_of(meter, SECOND) == 12.5
        assert value_of(meter, 11 * SECOND) == 12.5
        (reading,) = meter.read(12 * SECOND)
        assert reading.watts is None
        assert "no new figure for 11 s" in reading.problem
        file.write("12.5")  # the same figure, written again, is new
        assert value_of(meter, 13 * SECOND) == 12.5

    def test_a_writer_that_died_leaves_a_gap_and_not_its_last_word_for_ever(self, tmp_path):
        file = File(tmp_path)
        file.write("0")
        sampler = Sampler([meter_of(tmp_path, stale_s=3.0)], cpu_us=lambda: 0.0)
        for step in range(40):
            if step <= 10:
                file.write("5.0")
            sampler.sample(2 * step * SECOND)
        total = sampler.totals["external:plug", "plug"]
        assert total.joules == pytest.approx(5.0 * 2 * (11 - 1))
        assert total.gap_us == 2 * (39 - 11 + 1) * SECOND

    def test_files_of_the_kernel_are_always_new(self, tmp_path):
        place = tmp_path / "sys/class/hwmon/hwmon2"
        place.mkdir(parents=True)
        (place / "power1_input").write_text("4200000\n")
        settings = MeterSettings(
            externals=(External("plug", file="/sys/class/hwmon/hwmon2/power1_input", scale=1e-6),)
        )
        sysfs = Sysfs(tmp_path)
        (meter,) = survey(sysfs, detect(sysfs), settings).meters
        assert value_of(meter, 0) == pytest.approx(4.2)
        assert value_of(meter, 3600 * SECOND) == pytest.approx(4.2)

    def test_a_file_that_is_not_there_is_a_gap(self, tmp_path):
        file = File(tmp_path)
        meter = meter_of(tmp_path)
        (reading,) = meter.read(0)
        assert "No such file" in reading.problem
        file.write("1")
        meter.read(SECOND)
        file.write("2")
        assert value_of(meter, 2 * SECOND) == 2.0


class TestQuantities:
    def test_kilowatt_hours_are_joules_by_their_scale(self, tmp_path):
        file = File(tmp_path)
        file.write("100.000")
        meter = meter_of(tmp_path, quantity="joules", scale=3.6e6)
        meter.read(0)
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        for step, kwh in enumerate((100.001, 100.002, 100.003)):
            file.write(str(kwh))
            sampler.sample((1 + 10 * step) * SECOND)
        total = sampler.totals["external:plug", "plug"]
        assert total.joules == pytest.approx(7200.0, rel=1e-4)

    def test_a_counter_that_began_anew_is_a_gap(self, tmp_path):
        file = File(tmp_path)
        file.write("0")
        meter = meter_of(tmp_path, quantity="joules")
        sampler = Sampler([meter], cpu_us=lambda: 0.0)
        for step, joules in enumerate((500, 510, 520, 0, 10)):
            file.write(str(joules))
            sampler.sample(2 * step * SECOND)
        total = sampler.totals["external:plug", "plug"]
        # the first look believes nothing, and what came before the second is not known
        assert (total.joules, total.gap_us) == (20.0, 4 * SECOND)

    def test_it_feeds_what_the_person_says(self, tmp_path):
        meter = meter_of(tmp_path, feeds=("radio",))
        assert meter.rails[0].feeds == ("radio",)


class TestSettings:
    def test_a_table_is_read(self):
        settings = parse(
            {
                "labels": {"6-0040/1": "POM_5V_CPU"},
                "external": [
                    {"name": "plug", "file": "/run/plug", "key": "P", "scale": 0.001},
                    {"name": "bat", "topic": "N/1/P", "broker": "10.0.0.2", "feeds": ["input"]},
                ],
                "radio": {"interface": "wwan0", "watts_up": 0.4, "tail_joules": 6, "tail_s": 4},
            }
        )
        assert settings.labels == {"6-0040/1": "POM_5V_CPU"}
        assert settings.externals == (
            External("plug", file="/run/plug", key="P", scale=0.001),
            External("bat", topic="N/1/P", broker="10.0.0.2"),
        )
        assert settings.radio == RadioSettings("wwan0", 0.4, 0.0, 6.0, 4.0)
        assert parse({}) == MeterSettings()

    @pytest.mark.parametrize(
        ("document", "where"),
        [
            ({"label": {}}, "meters.label: no such setting"),
            ({"labels": {"a": 1}}, "meters.labels"),
            ({"external": {}}, "meters.external: expected list"),
            ({"external": [3]}, r"meters.external\[0\]: expected table"),
            ({"external": [{"file": "/a"}]}, r"external\[0\].name"),
            ({"external": [{"name": "a"}]}, "either file or topic"),
            ({"external": [{"name": "a", "file": "/a", "topic": "t"}]}, "either file or topic"),
            ({"external": [{"name": "a", "file": "run/a"}]}, "absolute"),
            ({"external": [{"name": "a", "file": "/a", "quantity": "volts"}]}, "quantity"),
            ({"external": [{"name": "a", "file": "/a", "feeds": ["all"]}]}, "feeds"),
            ({"external": [{"name": "a", "file": "/a", "scale": "1"}]}, "scale"),
            ({"external": [{"name": "a", "file": "/a", "stale_s": 0}]}, "stale_s"),
            ({"external": [{"name": "a", "file": "/a", "interval_s": float("nan")}]}, "interval_s"),
            ({"external": [{"name": "a", "topic": "t", "port": 70_000}]}, "port"),
            ({"external": [{"name": "a", "topic": "t", "port": True}]}, "port: expected integer"),
            (
                {"external": [{"name": "a", "topic": "t", "pord": 1}]},
                r"pord: .*did you mean port\?",
            ),
            ({"radio": {"interface": "w", "wats_up": 1}}, r"wats_up: .*did you mean watts_up\?"),
            ({"external": [{"name": "a", "file": "/a"}] * 2}, "the same name"),
            ({"radio": {"interface": "../x"}}, "radio: interface '../x' is not a name"),
            ({"radio": {"interface": "w", "watts_up": -1}}, "radio.watts_up"),
            ({"radio": {"interface": "w", "tail_s": 4}}, "belong together"),
        ],
    )
    def test_what_is_wrong_is_named(self, document, where):
        with pytest.raises(MeterError, match=where):
            parse(document)

    def test_a_password_is_not_shown(self):
        assert "hunter2" not in repr(External("a", topic="t", password="hunter2"))
