"""Settings of policies from untrusted clients: they give a policy or a refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from governors.board_tariffs import Unpriced
from governors.cost import CostModel
from governors.errors import GovernorError
from governors.policies.base import load_all
from governors.policies.running import Running

LARGE = st.sampled_from([1e13, 1e308, 10**400, float("inf"), float("nan")])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | LARGE
KINDS = sorted(load_all().items())


@given(st.data())
def test_any_settings_are_taken_or_refused(data):
    name, kind = data.draw(st.sampled_from(KINDS))
    keys = st.sampled_from(sorted(kind.declared) or ["none"])
    settings = data.draw(st.dictionaries(keys, VALUES, max_size=3))
    try:
        assert Running(name, settings, CostModel(Unpriced())).policy.name == name
    except GovernorError as problem:
        assert name in str(problem)


@pytest.mark.parametrize("value", [1e13, 1e308, 10**400, float("inf"), float("nan"), 0, -1, True])
@pytest.mark.parametrize(("name", "key"), [("fixed", "cpu_mhz"), ("power_cap", "watts")])
def test_numbers_have_bounds(name, key, value):
    with pytest.raises(GovernorError, match="is not a number above 0"):
        Running(name, {key: value}, CostModel(Unpriced()))
