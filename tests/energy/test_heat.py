"""The limit of the temperature in a running daemon's energy side, on a simulated board."""

from __future__ import annotations

import pytest

from edged.config import load
from edged.daemon import configuration
from edged.energy import status
from edged.energy.observation import HEAT_US, ZoneReader
from edged.energy.render import lines
from edged.energy.runtime import EnergyGovernor
from edged.energy.tariffs import board_tariff
from governors.policies.cool import BELOW_TRIP_C, USUAL_C
from tests.beat.support import SECOND
from tests.energy.test_runtime import Bench
from tests.governors.trees import plant


class Warm(Bench):
    """A bench with a limit in air of a chosen temperature."""

    def __init__(self, path, policy="hands_off", limit=60.0, ambient=25.0):
        super().__init__(path, policy, begin=False)
        asked = self.side.settings.__class__("simulated:orin-nano", policy, max_celsius=limit)
        self.side.close()
        self.events = []
        self.side = EnergyGovernor(
            asked, self.site, board_tariff(self.site), self.clock, 2,
            publish=lambda kind, _, text, facts: self.events.append((kind, text, facts)),
        )  # fmt: skip
        self.warm(ambient)
        self.side.start()

    def warm(self, ambient):
        heat = self.board.heat
        heat.network.ambient_celsius = ambient
        heat.network.celsius = heat.network.settled(3.4)

    def heat(self):
        return status.status(self.side, self.clock.now)["heat"]


@pytest.mark.parametrize("policy", ["hands_off", "race_to_idle"])
def test_thermal_limit_holds_races_of_any_policy_and_says_so(tmp_path, policy):
    with Warm(tmp_path, policy, limit=60.0, ambient=60.0) as b:
        for _ in range(25):  # the heart calls no other hook where nothing may be taken
            b.clock.now += SECOND // 5
            steer = b.side.race(b.forecast())
            assert steer.units_max == 0 and steer.not_before_us > b.clock.now
        told = b.heat()
        assert told["max_celsius"] == 60.0 and told["holds"] and told["held_s"] > 0
        assert told["headroom_celsius"] < 0
        ((kind, text, facts),) = b.events
        assert kind == "heat.holds" and "results are late" in text
        assert facts["max_celsius"] == 60.0 and facts["celsius"] > 60.0
        b.warm(10.0)
        b.clock.now += 3 * HEAT_US
        for _ in range(160):
            b.beat(cpu_s=0.0)
        assert [kind for kind, *_ in b.events] == ["heat.holds", "heat.eased"]
        assert not b.heat()["holds"]


def test_thermal_limit_changes_while_the_daemon_runs(tmp_path):
    with Warm(tmp_path, limit=None, ambient=60.0) as b:
        b.beat(cpu_s=0.0)
        assert b.heat()["max_celsius"] is None and not b.heat()["holds"]
        b.side.limit_heat(60.0)
        for _ in range(25):
            b.clock.now += SECOND // 5
            steer = b.side.race(b.forecast())
        assert steer.units_max == 0 and b.heat()["holds"]
        assert b.heat()["max_celsius"] == 60.0
        b.side.limit_heat(None)
        assert b.side.race(b.forecast()).units_max is None
        assert not b.heat()["holds"] and b.heat()["max_celsius"] is None
        assert [kind for kind, *_ in b.events] == ["heat.holds", "heat.eased"]


def test_thermal_headroom_is_that_to_the_trip_point_where_there_is_no_limit(tmp_path):
    with Bench(tmp_path) as b:
        b.beat(cpu_s=0.0)
        told = status.status(b.side, b.clock.now)
        hottest = max(z["celsius"] for z in told["temperatures"] if z["celsius"] is not None)
        assert told["heat"]["max_celsius"] is None
        assert told["heat"]["headroom_celsius"] == pytest.approx(99.0 - hottest)
        assert any(line.startswith("heat: ") for line in lines(told))


@pytest.mark.parametrize(
    ("tree", "hottest", "trip", "limit"),
    [("orin-nano-r36", 48.0, None, USUAL_C), ("raspberry-pi-5", 51.0, None, USUAL_C)],
)
def test_thermal_zones_of_real_trees_are_read(tmp_path, tree, hottest, trip, limit):
    sysfs = plant(tmp_path, tree)
    assert ZoneReader(sysfs).hottest(0) == (hottest, trip)
    zone = "/sys/class/thermal/thermal_zone0"
    for name, value in {
        "trip_point_0_type": "active", "trip_point_0_temp": 50_000,
        "trip_point_1_type": "passive", "trip_point_1_temp": 85_000,
    }.items():  # fmt: skip
        (tmp_path / zone.lstrip("/") / name).write_text(f"{value}\n")
    assert ZoneReader(sysfs).hottest(0) == (hottest, 85.0)
    assert limit < 85.0 - BELOW_TRIP_C


def test_thermal_limit_comes_from_the_configuration(tmp_path):
    file = tmp_path / "edged.toml"
    file.write_text('[energy]\nboard = "simulated:orin-nano"\nmax_celsius = 85\n')
    assert configuration.settings(load(file)).energy.max_celsius == 85.0
    file.write_text('[energy]\nboard = "simulated:orin-nano"\n')
    assert configuration.settings(load(file)).energy.max_celsius is None
