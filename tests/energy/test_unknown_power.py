"""A machine whose power nothing measures and nothing models: gaps everywhere, never a figure."""

from contextlib import contextmanager

import pytest

import api.metrics
from edged.config import read
from edged.daemon.configuration import energy_faults
from edged.energy import render, status
from edged.energy.board import open_site
from edged.energy.runtime import EnergyGovernor
from edged.energy.settings import EnergySettings
from edged.energy.tariffs import board_tariff
from edged.errors import ConfigError
from edged.metrics import Exposition
from edged.metrics.device import DEVICE
from governors.base import Done, Forecast
from tests.energy.common import StepClock
from tests.governors import trees


@contextmanager
def daemon(tmp_path, tree, power_model="", policy="hands_off"):
    trees.plant(tmp_path / "tree", tree)
    asked = EnergySettings(str(tmp_path / "tree"), policy, power_model=power_model)
    clock = StepClock()
    site = open_site(asked, tmp_path, clock.monotonic_us)
    side = EnergyGovernor(asked, site, board_tariff(site), clock, 2)
    try:
        side.start()
        for _ in range(20):
            clock.now += 500_000
            side.race(Forecast(clock.now, 0, 10**15, 10**5, 0))
            clock.now += 1_000
            side.ingested()
            clock.now += 3_000
            side.idle(Done(1000, 1000))
        yield side, status.status(side, clock.now)
    finally:
        side.close()


def scraped(told):
    out = Exposition(DEVICE)
    api.metrics._energy(out, told)
    api.metrics._clocks(out, told)
    api.metrics._health(out, told)
    return out.encode()[0].decode()


def test_no_watts_no_joules_and_no_clock_are_shown_where_none_is_known(tmp_path):
    with daemon(tmp_path, "no-control") as (_, told):
        text, metrics = "\n".join(render.lines(told)), scraped(told)
    assert (told["input"], told["watts"], told["joules_per_mtuple"]) == (None, None, None)
    assert (told["rails"], told["ledger"], told["race_clock_s"]) == ([], None, {})
    assert (told["board"]["profile"], told["board"]["power_model"]) == (None, None)
    assert "power not known" in text and "joules not known" in text and " W" not in text
    absent = ("edged_energy_input", "edged_power_input", "edged_energy_account", "edged_race_clock")
    assert not [line for line in metrics.splitlines() if line.startswith(absent)]
    assert "NaN" not in metrics


def test_a_stand_ins_joules_come_on_request_and_say_whose_they_are(tmp_path):
    with daemon(tmp_path, "no-control", "generic-x86") as (_, told):
        text = "\n".join(render.lines(told))
    assert told["input"]["joules"] > 0 and told["input"]["provenance"] == "modelled"
    assert told["input"]["covers"].startswith("stand-in generic-x86, another machine's figures")
    assert (told["board"]["profile"], told["board"]["power_model"]) == (None, "generic-x86")
    assert "modelled" in text


def test_what_a_meter_measures_needs_no_model(tmp_path):
    with daemon(tmp_path, "x86-intel-pstate") as (side, before):
        assert side.tariff is None and before["input"] is None, "no reading yet"
        for _ in range(3):
            side.read()
            for counter in (tmp_path / "tree").rglob("energy_uj"):
                counter.write_text(str(int(counter.read_text()) + 5_000_000))
            side._clock.now += 1_000_000
        told = status.status(side, side._clock.now)
    assert told["input"]["provenance"] == "measured"
    assert (told["input"]["rail"], told["input"]["joules"]) == ("psys", pytest.approx(10.0))
    assert told["input"]["covers"].startswith("everything on the platform's sensor")
    assert told["ledger"] is None, "shares of operators are modelled"


def test_heat_is_shown_where_there_is_a_sensor_and_only_what_can_be_read(tmp_path):
    with daemon(tmp_path, "orin-nano-r36") as (side, _):
        (tmp_path / "tree/sys/class/thermal/thermal_zone2/temp").write_text("!")
        side._clock.now += 10_000_000
        told = status.status(side, side._clock.now)
    text, metrics = "\n".join(render.lines(told)), scraped(told)
    assert "heat: 48 °C (cpu-thermal)" in text
    zone = 'edged_temperature_celsius{simulated="false",zone="'
    assert f'{zone}cpu-thermal"}} 48.0' in metrics
    assert f"{zone}cv0-thermal" not in metrics and "edged_throttle_events" not in metrics


@pytest.mark.parametrize("policy", ["power_cap", "race_to_idle", "energy_budget"])
def test_a_policy_that_needs_watts_is_refused_with_what_to_do(tmp_path, policy):
    given = {"power_cap": {"watts": 5.0}, "energy_budget": {"joules_per_day": 1e5}}
    with daemon(tmp_path, "no-control") as (side, _):
        with pytest.raises(ConfigError, match=r"needs a power model.*--power-model generic-x86"):
            side.switch(policy, given.get(policy, {}))
        assert side.policy()["policy"] == "hands_off"
    with daemon(tmp_path / "asked", "no-control", "generic-x86") as (side, _):
        side.check(policy, given.get(policy, {}))


def test_a_stand_in_that_does_not_exist_or_is_not_needed_is_refused(tmp_path):
    file = tmp_path / "edged.toml"
    for section, what in (
        ('power_model = "generic-x87"', "did you mean generic-x86"),
        ('power_model = "generic-x86"\nboard = "simulated:orin-nano"', "has its own power model"),
    ):
        file.write_text(f"[energy]\n{section}\n")
        (fault,) = energy_faults(read(file)[0])
        assert "energy.power_model" in str(fault) and what in str(fault)
