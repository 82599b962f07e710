"""`edged page` prints pages as text and JSON, and names damaged ones."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edged.cli.page import command
from edged.data.schema import BINARY, FLOAT64, STRING, Field, Schema
from tests.pages import shapes

SCHEMA = Schema.of(
    [Field("turbine", STRING), shapes.TIME, Field("kw", FLOAT64, True), Field("raw", BINARY)]
)
ROWS = [["R[bold]1", 1_356_998_400_000_000, 2.5, b"\x01"], ["R2", -1, None, b""]]
PLENTY = [["R3", 2**63 - 1, float("nan"), b"\xff"]] * 30


@pytest.fixture
def landing(tmp_path):
    """A landing with a schema and a segment of three pages."""
    stream = shapes.stream_of(SCHEMA, capacity=4096)
    writer = shapes.PageWriter(stream)
    data = b""
    for rows in (ROWS, PLENTY, ROWS):
        writer.write(shapes.beat(), shapes.batch_of(SCHEMA, rows))
        data += b"".join(p.data for p in writer.seal(shapes.beat(), True))
    (tmp_path / "schemas").mkdir()
    (tmp_path / "segments").mkdir()
    (tmp_path / "schemas" / "power@3.json").write_text(SCHEMA.to_json())
    segment = tmp_path / "segments" / "seg-a-00000001.pages"
    segment.write_bytes(data)
    return segment


def run(*arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_a_person_sees_header_schema_and_first_rows(landing):
    result = run(landing, "--rows", 2)
    assert result.exit_code == 0, result.output
    for text in (
        "power@3 partition 0 seq 1", "gateway-1", "slotted, 2 rows", "R[bold]1", "null",
        "2013-01-01T00:00:00Z", "float64?", "3 pages, 34 rows; 0 damaged",
    ):  # fmt: skip
        assert text in result.output
    assert result.output.count("R3") == 2


def test_json_holds_the_same(landing):
    document = json.loads(run(landing, "--json", "--rows", 1).output)
    assert [p["seq"] for p in document["pages"]] == [1, 2, 3]
    assert document["pages"][0]["rows"] == [
        {"turbine": "R[bold]1", "time": "2013-01-01T00:00:00Z", "kw": 2.5, "raw": "01"}
    ]
    assert document["pages"][1]["rows"][0]["kw"] == "nan"
    assert document["damaged"] == []


def test_a_damaged_page_is_named_and_the_others_are_shown(landing):
    data = bytearray(landing.read_bytes())
    first = json.loads(run(landing, "--json").output)["pages"][1]["offset"]
    data[first + 300] ^= 4
    landing.write_bytes(data + b"half")
    result = run(landing, "--json")
    document = json.loads(result.output)
    assert result.exit_code == 65
    assert [p["seq"] for p in document["pages"]] == [1, 3]
    assert [d["offset"] for d in document["damaged"]] == [first, len(data)]
    assert "power@3 partition 0 seq 2" in document["damaged"][0]["problem"]
    shown = run(landing)
    assert shown.exit_code == 65
    assert "2 pages, 4 rows; 2 damaged" in shown.output


def test_without_a_schema_headers_are_shown(landing, tmp_path):
    alone = tmp_path / "alone.page"
    alone.write_bytes(landing.read_bytes())
    result = run(alone)
    assert result.exit_code == 0
    assert "no schema of power@3 is known here" in result.output
    given = run(alone, "--schema", tmp_path / "schemas" / "power@3.json")
    assert "R2" in given.output


def test_a_wrong_schema_is_a_named_fault(landing, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text(Schema.of([shapes.TIME]).to_json())
    result = run(landing, "--schema", wrong)
    assert result.exit_code == 65
    assert "does not fit its schema" in " ".join(result.output.split())
    wrong.write_text("{")
    assert "is not a schema" in str(run(landing, "--schema", wrong).exception)
