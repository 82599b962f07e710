"""A slice of the campaign of kills and power cuts (`python -m tests.tables.kills`)."""

import pytest

from edged.bench.tables_data import members
from tests import whole
from tests.tables import kills


@pytest.mark.parametrize("member", members())
def test_after_a_kill_the_last_snapshot_has_exactly_its_rows(member):
    kills.kills(member, whole.count(1, 60), seed=1)


def test_after_a_power_cut_the_last_snapshot_has_exactly_its_rows():
    kills.power_cuts(whole.count(20, 300), seed=2)
