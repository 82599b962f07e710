"""docs/formats.md names every format with the number that the code has."""

import re
from pathlib import Path

import pytest

from edged.central import expire, highwater, landing_format
from edged.central.landing import DirectoryLanding
from edged.central.landing_reader import select
from edged.central.rot import check
from edged.documents import checked_json
from edged.errors import CentralError
from edged.pages import format as pages
from edged.placement import placement, profile
from edged.store import identity, migration, records, segments, snapshots, spool
from edged.uplink import telemetry
from tests.upgrade.releases import RELEASED

DOCS = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
NUMBERS = {
    "store, as a whole": identity.FORMAT,
    "log segment": segments._VERSION,
    "log record": records.VERSION,
    "snapshot, shelf file": snapshots._VERSION,
    "spool": spool._VERSION,
    "page": pages.FORMAT,
    "landing, as a whole": landing_format.FORMAT,
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


def test_a_new_landing_has_its_number_and_one_without_is_of_format_1_and_stays_so(tmp_path):
    DirectoryLanding(tmp_path / "new").close()
    (line, again) = (tmp_path / "new/format").read_bytes().splitlines()
    assert checked_json.unpack(line)["format"] == landing_format.FORMAT and line == again
    (tmp_path / "old/segments").mkdir(parents=True)
    DirectoryLanding(tmp_path / "old").close()
    assert not (tmp_path / "old/format").exists()
    assert landing_format.require(tmp_path / "old") == 1


@pytest.mark.parametrize(
    "use",
    [
        DirectoryLanding,
        check,
        lambda landing: expire.expire(landing, 0),
        lambda landing: select(landing, "power@1"),
    ],
    ids=["collector", "check", "expire", "reader"],
)
def test_a_landing_of_an_unknown_format_is_refused_with_what_to_do_and_not_touched(tmp_path, use):
    DirectoryLanding(tmp_path).close()
    line = checked_json.pack({"edged": "9.9", "format": 9}) + b"\n"
    (tmp_path / "format").write_bytes(line + line)
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    with pytest.raises(CentralError, match=r"format 9, written by edged 9\.9.*install the edged"):
        use(tmp_path)
    assert before == {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
