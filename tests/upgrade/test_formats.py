"""docs/formats.md names every format with the number that the code has."""

import re
from pathlib import Path

import pytest

from edged.central import highwater
from edged.pages import format as pages
from edged.placement import placement, profile
from edged.store import identity, log, migration, records, snapshots, spool
from edged.uplink import telemetry
from tests.upgrade.releases import RELEASED

DOCS = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
NUMBERS = {
    "store, as a whole": identity.FORMAT,
    "log segment": log._VERSION,
    "log record": records.VERSION,
    "snapshot, shelf file": snapshots._VERSION,
    "spool": spool._VERSION,
    "page": pages.FORMAT,
    "landing's records of devices": highwater.FORMAT,
    "telemetry": telemetry.VERSION,
    "calibration, energy profile": placement.FORMAT,
}


@pytest.mark.parametrize("what", NUMBERS)
def test_a_format_has_the_number_that_the_table_says(what):
    (row,) = [line for line in DOCS.splitlines() if line.startswith(f"| {what} |")]
    assert row.split("|")[3].strip() == str(NUMBERS[what])


def test_each_format_of_the_store_has_its_step_its_row_and_its_golden_store():
    assert profile.ENERGY_FORMAT == placement.FORMAT
    formats = range(identity.FORMAT_MIN, identity.FORMAT + 1)
    assert set(migration.STEPS) == set(formats[1:])
    table = DOCS.partition("| store's format |")[2]
    assert [int(n) for n in re.findall(r"^\| (\d+) \|", table, re.M)] == list(formats)
    assert set(RELEASED) == set(formats[:-1]), "formats before this one are released"
    for released in RELEASED:
        assert (Path(__file__).parents[1] / f"data/golden-{released}.tar.xz").exists()
