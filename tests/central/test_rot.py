"""Flipped bits in a landing: no position is believed without a checksum or its page."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from contextlib import closing

import pytest

from edged.central import landing_format, schema_files, seals, segments
from edged.central.read_request import registered_schema
from edged.central.rot import check
from edged.console.damage_report import LOST, MENDABLE
from edged.errors import CentralError
from tests.central.support import SCHEMA, by_partition, landed_pages, make_page
from tests.central.test_landing import open_landing, send

PAGES = 6


@pytest.fixture
def landing(tmp_path):
    path = tmp_path / "landing"
    with closing(open_landing(path)) as place:
        for seq in range(1, PAGES + 1):
            assert not send(place, make_page(seq), make_page(seq, partition=1)).problem
    return path


def flip(file, bit):
    data = bytearray(file.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    file.write_bytes(data)


def flips(file, count, seed):
    size = 8 * file.stat().st_size
    return random.Random(seed).sample(range(size), min(count, size))


def lands_all_that_follows(path):
    """A collector starts, drops the pages that are there, and lands those that follow."""
    with closing(open_landing(path)) as place:
        for partition in (0, 1):
            again = send(place, *(make_page(s, partition=partition) for s in range(1, PAGES + 3)))
            assert again.problem is None and again.duplicates == PAGES, again
    found = by_partition(path)
    for partition in (0, 1):
        pages = found["turbine-7", "power", partition]
        assert pages == {s: make_page(s, partition=partition) for s in range(1, PAGES + 3)}


@pytest.mark.parametrize("suffix", ["idx", "crc"])
def test_a_flipped_bit_in_an_unsealed_index_loses_and_repeats_no_page(landing, tmp_path, suffix):
    (file,) = (landing / "segments").glob(f"*.{suffix}")
    rows = segments.read_rows(landing, file.stem)
    for bit in flips(file, 40, seed=7):
        twin = tmp_path / "twin"
        shutil.copytree(landing, twin)
        flip(twin / "segments" / file.name, bit)
        read = segments.read_rows(twin, file.stem)
        for name in rows.dtype.names:
            if name != "landed_at_us":
                assert (read[name] == rows[name]).all(), (bit, name)
        assert abs(read["landed_at_us"] - rows["landed_at_us"]).max() < 60_000_000
        lands_all_that_follows(twin)
        shutil.rmtree(twin)


def test_an_index_of_the_version_before_has_no_checksums_and_its_pages_speak_for_it(landing):
    (idx,) = (landing / "segments").glob("*.idx")
    idx.with_suffix(".crc").unlink()
    flip(idx, 8 * (64 + 24 + 5))  # the seq of the second row, beyond all others
    lands_all_that_follows(landing)


def test_a_row_that_is_damaged_with_its_page_is_counted_by_no_high_water(landing):
    (idx,) = (landing / "segments").glob("*.idx")
    offset = int(segments.read_rows(landing, idx.stem)["offset"][2])
    flip(idx, 8 * (2 * 64 + 24 + 6))
    flip(idx.with_suffix(".pages"), 8 * (offset + 230))
    with closing(open_landing(landing)) as place:
        again = send(place, make_page(PAGES + 1))
        assert again.problem is None and len(again.landed) == 1
    report = check(landing)
    assert [f.state for f in report.findings] == [LOST]
    assert segments.read_rows(landing, idx.stem)["length"].tolist().count(0) == 1


def test_a_flipped_bit_in_a_sealed_index_or_its_summary_changes_nothing(tmp_path):
    whole = tmp_path / "landing"
    with closing(open_landing(whole, segment_bytes=1)) as place:
        for seq in range(1, PAGES + 1):
            send(place, make_page(seq), make_page(seq, partition=1))
    for suffix in ("idx", "sum"):
        for bit in flips(whole / "segments" / f"seg-c0-00000002.{suffix}", 10, seed=3):
            twin = tmp_path / "twin"
            shutil.copytree(whole, twin)
            flip(twin / "segments" / f"seg-c0-00000002.{suffix}", bit)
            check(twin, repair=True)
            lands_all_that_follows(twin)
            assert seals.read(twin, "seg-c0-00000002") is not None
            shutil.rmtree(twin)


def test_a_flipped_bit_in_any_file_of_a_schema_is_mended_from_the_other(landing, tmp_path):
    for name in ("power@1.json", "power@1.sum"):
        for bit in flips(landing / "schemas" / name, 40, seed=5):
            twin = tmp_path / "twin"
            shutil.copytree(landing, twin)
            flip(twin / "schemas" / name, bit)
            assert registered_schema(twin, "power", 1).to_json() == SCHEMA
            assert [f.state for f in check(twin).findings] == [MENDABLE]
            with closing(open_landing(twin)) as place:
                assert place.schema("power", 1) == SCHEMA
            assert check(twin).findings == []
            shutil.rmtree(twin)


def test_a_schema_that_is_lost_is_not_served_and_comes_back_with_its_device(landing):
    for name in ("power@1.json", "power@1.sum"):
        flip(landing / "schemas" / name, 99)
    with pytest.raises(CentralError, match="damaged"):
        registered_schema(landing, "power", 1)
    with closing(open_landing(landing)) as place:  # which registers it
        assert place.schema("power", 1) == SCHEMA
    assert schema_files.read(landing / "schemas", "power@1").problem == ""


def central(*words, json=True):
    return subprocess.run(
        [sys.executable, "-m", "edged", "central", *map(str, words), *["--json"] * json],
        capture_output=True, text=True,
    )  # fmt: skip


def test_check_and_repair_say_what_is_damaged_and_what_is_lost(landing):
    assert check(landing).findings == []
    (idx,) = (landing / "segments").glob("*.idx")
    flip(idx, 8 * (64 + 24))
    flip(landing / "schemas" / "power@1.json", 12)
    before = {f: f.read_bytes() for f in landing.rglob("*") if f.is_file()}
    found = check(landing)
    assert {f.state for f in found.findings} == {MENDABLE} and len(found.findings) == 2
    assert before == {f: f.read_bytes() for f in landing.rglob("*") if f.is_file()}
    done = central("repair", landing)
    assert done.returncode == 0 and json.loads(done.stdout)["left"] == 0
    assert check(landing).findings == [] and len(landed_pages(landing)) == 2 * PAGES

    rows = segments.read_rows(landing, idx.stem)
    flip(idx.with_suffix(".pages"), 8 * int(rows["offset"][3] + 226))
    done = central("check", landing)
    told = json.loads(done.stdout)
    assert done.returncode == 65 and (told["kind"], told["format"]) == ("landing", 1)
    (found,) = told["findings"]
    assert (found["state"], found["kind"]) == (LOST, "page") and told["lost"] == 1
    assert found["offset"] == int(rows["offset"][3])
    assert found["lost"] == [
        {
            "what": "pages", "stream": "power@1", "device": "turbine-7",
            "epoch": int(rows["epoch"][3]), "partition": 1, "first": 2, "last": 2, "rows": 3,
            "landed_at_us": int(rows["landed_at_us"][3]), "first_us": 1000, "last_us": 2000,
        }
    ]  # fmt: skip
    done = central("repair", landing, json=False)
    assert done.returncode == 65
    assert "power@1" in done.stdout and "1970-01-01 00:00:00" in done.stdout


def test_any_flipped_bit_of_the_landings_format_is_mended(landing):
    file = landing / landing_format.NAME
    whole = file.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        flip(file, bit)
        assert landing_format.require(landing) == landing_format.FORMAT
        assert landing_format.problem(landing)
        landing_format.mend(landing)
        assert file.read_bytes() == whole
    flip(file, 9)
    assert [f.kind for f in check(landing).findings] == ["format"]
    open_landing(landing).close()
    assert check(landing).findings == []
