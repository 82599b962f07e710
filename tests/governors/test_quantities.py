"""Quantities with units, wherever they are written."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.errors import GovernorError
from governors.policies.base import load_all
from governors.policies.declared import FLAG, TIME_OF_DAY
from governors.policies.running import Running
from governors.quantities import ENERGY, NUMBER, POWER, SECONDS, SHARE, Quantity


@pytest.mark.parametrize(
    ("kind", "value", "is_"),
    [
        (ENERGY, 900, 900.0), (ENERGY, "900J", 900.0), (ENERGY, "180 kJ", 180e3),
        (ENERGY, "50Wh", 180e3), (ENERGY, "1.5kWh", 5.4e6), (ENERGY, "3.7mWh", 13.32),
        (POWER, 5, 5.0), (POWER, "5W", 5.0), (POWER, " 800mW ", 0.8), (SECONDS, "2min", 120.0),
        (SHARE, "5%", 0.05), (replace(SHARE, zero=True), 0, 0.0), (NUMBER, 0, 0.0),
    ],
)  # fmt: skip
def test_a_number_counts_in_the_unit_and_a_text_names_its_own(kind, value, is_):
    assert kind.parse(value) == pytest.approx(is_)


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (ENERGY, "50", "is not an energy; write e.g. 50Wh or 180kJ, or a number of J without"),
        (ENERGY, "50W", "is not an energy: its unit is one of mJ J kJ .*50Wh or 180kJ"),
        (ENERGY, "-50Wh", "is not an energy"), (POWER, "5J", "is not a power: .*5W or 800mW"),
        (POWER, "0W", r"above 0, at most 1e\+12 \(W\); write e.g. 5W"), (POWER, True, "above 0"),
        (POWER, float("nan"), "above 0"), (NUMBER, "2", "is not a number"), (FLAG, 1.0, "true"),
        (TIME_OF_DAY, "6am", "06:00"),
    ],
)  # fmt: skip
def test_another_unit_is_refused_with_what_to_write(kind, value, says):
    with pytest.raises(ValueError) as problem:
        kind.parse(value)
    assert re.search(says, str(problem.value))


@given(st.sampled_from([ENERGY, POWER, SHARE]), st.text(max_size=8) | st.integers() | st.floats())
def test_any_value_is_a_number_or_refused(kind, value):
    try:
        assert 0 < kind.parse(value) <= 1e12
    except ValueError as problem:
        assert str(problem).startswith("is not")


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("power_cap", {"wats": 5}, "unknown setting wats; did you mean watts?"),
        ("power_cap", {"watts": "5J"}, "watts = '5J' is not a power"),
        ("power_cap", {}, "watts is missing (power: W, or e.g. 5W or 800mW)"),
        ("race_to_idle", {"sleep": "yes"}, "sleep = 'yes' is not true or false"),
        ("power_cup", {}, "did you mean power_cap?"),
    ],
)
def test_a_wrong_setting_of_a_policy_says_what_to_write(name, settings, says):
    with pytest.raises(GovernorError) as problem:
        Running(name, settings, CostModel(Unpriced()))
    assert says in str(problem.value)


def test_every_declared_default_is_one_that_its_kind_reads():
    for kind in load_all().values():
        for key, declared in kind.declared.items():
            assert declared.text.endswith("."), key
            assert declared.default is None or declared.kind.parse(declared.default) is not None
            assert isinstance(declared.kind, Quantity) or "," not in declared.default_text
