"""A policy whose needs the board does not meet: a command for it is refused; as a configured policy
it waits until the needs are met."""

from __future__ import annotations

import pytest

from edged.energy import status
from edged.errors import ConfigError
from tests.beat.support import SECOND
from tests.energy.test_runtime import Bench, a_job

UNTIL = {"until": "06:00"}
BATTERY = {"type": "Battery", "status": "Discharging", "energy_now": 50_000_000,
           "energy_full": 60_000_000, "voltage_now": 12_000_000}  # fmt: skip


def give(bench, **files):
    """A battery comes."""
    place = bench.site.sysfs.root / "sys/class/power_supply/BAT0"
    place.mkdir(parents=True, exist_ok=True)
    for name, value in {**BATTERY, **files}.items():
        (place / name).write_text(f"{value}\n")


@pytest.mark.parametrize(
    "settings, says",
    [
        (UNTIL, "a battery with a known charge"),
        ({"joules_per_day": 1e6, "stop_volts": 10.8}, "a battery with a known voltage"),
    ],
)
def test_a_budget_that_only_a_battery_can_tell_is_refused_where_there_is_none(
    tmp_path, settings, says
):
    with Bench(tmp_path, "fixed", cpu_mhz=960) as b:
        with pytest.raises(ConfigError, match=says):
            b.side.switch("energy_budget", settings)
        with pytest.raises(ConfigError, match=says):
            b.side.check("energy_budget", settings)
        assert b.side.policy()["policy"] == "fixed", "which goes on"
        job = a_job()
        job.meta.governor = {"policy": "energy_budget", "settings": settings}
        b.side.attach([job])
        assert says in b.side.policy()["jobs"]["j"]["problem"]
        b.side.switch("energy_budget", {"joules_per_day": 1e6})
        give(b)
        b.side.switch("energy_budget", settings)
        assert b.side.policy()["policy"] == "energy_budget"


def test_one_that_was_configured_begins_when_the_battery_is_there(tmp_path):
    with Bench(tmp_path, "energy_budget", **UNTIL) as b:
        told = status.status(b.side, b.clock.now)["policy"]
        assert (told["policy"], told["awaited"]) == ("hands_off", "energy_budget")
        assert "joules_per_day needs none" in told["problem"]
        assert b.beat().units_max is None, "and what arrives is taken in"
        give(b)
        b.clock.now += 3 * SECOND
        b.beat()
        told = status.status(b.side, b.clock.now)["policy"]
        assert (told["policy"], told["problem"]) == ("energy_budget", "")
