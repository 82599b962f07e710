"""What is mistyped on the command line gets the closest word; what policies take is printed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edged.cli import cli
from edged.cli.governor import policies
from edged.energy.sleeps import parse_allowed
from edged.errors import ConfigError
from governors.errors import MeterError
from governors.meters.settings import parse
from governors.policies.base import load_all


def ask(*words):
    return CliRunner().invoke(cli, list(words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["statu"], "Did you mean 'status'?"),
        (["bench", "joi"], "Did you mean 'join'?"),
        (["governor", "polices"], "Did you mean"),
        (["xyzzy"], "No such command 'xyzzy'."),
        (["run", "--sotre"], "--store"),
    ],
)
def test_a_mistyped_command_or_option_gets_the_closest_one(words, says):
    done = ask(*words)
    assert done.exit_code == 2 and says in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["governor", "policies", "power_cup"], "did you mean power_cap?"),
        (["calibrate", "--store", "s", "--kernel", "chian"], "did you mean chain?"),
        (["calibrate", "--store", "s", "--cpu-watts", "5J"], "--cpu-watts: '5J' is not a power"),
    ],
)
def test_a_mistyped_value_gets_the_closest_one(words, says):
    problem = ask(*words).exception
    assert isinstance(problem, ConfigError) and says in str(problem)


def test_the_settings_of_policies_are_printed_from_what_parses_them():
    found = json.loads(CliRunner().invoke(policies, ["--json"]).output)
    assert {p["policy"]: [s["key"] for s in p["settings"]] for p in found} == {
        name: list(kind.declared) for name, kind in load_all().items()
    }
    text = CliRunner().invoke(policies, ["power_cap"]).output
    assert "required" in text and "800mW" in text and "race_to_idle" not in text


RADIO = {"interface": "wwan0", "tail_joules": "1.5J", "tail_s": "4s", "watts_up": "400mW"}


def test_meters_and_savings_take_units_too():
    external = {"name": "shunt", "file": "/f", "stale_s": "2min"}
    found = parse({"radio": RADIO, "external": [external]})
    assert found.radio is not None
    assert (found.radio.tail_joules, found.radio.tail_s, found.radio.watts_up) == (1.5, 4.0, 0.4)
    assert found.externals[0].stale_s == 120.0
    assert parse_allowed(["offline:50mW", "emc"]) == {"offline": 0.05, "emc": 0.0}


@pytest.mark.parametrize(
    ("radio", "says"),
    [
        ({"watts_up": "400mJ"}, "meters.radio.watts_up: '400mJ' is not a power"),
        ({"watts_upp": 1}, "did you mean watts_up?"),
    ],
)
def test_a_meters_wrong_unit_or_key_says_what_to_write(radio, says):
    with pytest.raises(MeterError) as problem:
        parse({"radio": {"interface": "wwan0", **radio}})
    assert says in str(problem.value)
