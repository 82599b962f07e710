"""The demo as a user runs it, at four times its speed."""

import contextlib
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from rich.console import Console

from edged.demo.story import SPARK_STARTS_MAX, Story
from edged.platform.processes import ChildProcess, ChildProcessFailed

TUPLES = 840_960
"""Two streams of four turbines, 105 120 ten-minute readings each."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The printed summary of the demo, and its build directory."""
    build = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "edged", "demo", "--seconds", "8", "--kills", "1", "--json",
         "--build", str(build), "--board", "simulated:orin-nano"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout), build


def test_its_tables_are_identical_to_duckdbs_though_the_daemon_was_killed(demo):
    summary, _ = demo
    assert summary["identical"] is True and summary["differences"] == []
    assert summary["kills"] == 1
    assert summary["tuples_in"] == TUPLES
    assert summary["matches"] > TUPLES // 2 and summary["rows_out"] > 4 * 700
    assert summary["worst_relative_difference"] <= 1e-9
    assert summary["late"] == 0
    energy = summary["energy_mwh"]
    assert abs(energy["turbines"] / energy["meter"] - 1) < 0.05, "as physics has it"


def test_it_tells_what_a_board_that_is_not_there_would_have_taken(demo):
    figures = demo[0]["energy"]
    assert figures["board"] == {**figures["board"], "name": "orin-nano", "simulated": True}
    assert figures["policy"] == "race_to_idle" and figures["problem"] == ""
    assert figures["input"]["provenance"] == "simulated"
    read_us = (
        figures["input"]["until_us"] - figures["input"]["since_us"] - figures["input"]["gap_us"]
    )
    pair = figures["joules_per_mtuple"]
    # None where all is a gap, or where the daemon had all by the kill and has only replayed since:
    # both happen on a busy machine
    if pair is not None:
        assert 3.2 < 1e6 * figures["input"]["joules"] / read_us < 10, (
            "W: above an idle board's 3.37"
        )
        assert 0 < pair["above_idle"] < pair["input"] and pair["provenance"] == "simulated"
        assert sum(figures["race_clock_s"].values()) > 0
        assert figures["sleep_s"]["wakeups"] > 0
    assert figures["sleep_s"]["states"]["c7"] > 0
    assert set(figures["clock_s"]) == {"cpu.policy0", "cpu.policy4", "gpu"}


def test_its_summary_is_written_as_well(demo):
    summary, build = demo
    assert json.loads((build / "summary.json").read_text()) == summary


def test_its_picture_is_a_whole_png_with_something_on_it(demo):
    _, build = demo
    data = (build / "power_curve.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + size]
        (crc,) = struct.unpack_from(">I", data, at + 8 + size)
        assert crc == zlib.crc32(kind + body)
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + size
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    assert width > 1000 and height > 400
    assert len(set(zlib.decompress(chunks[b"IDAT"]))) > 50


def test_nothing_of_it_is_left_running(demo):
    _, build = demo
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(build).encode() not in command.read_bytes()


def test_an_aggregation_that_gives_up_is_started_again_but_not_for_ever(tmp_path, monkeypatch):
    """On a loaded machine Spark's workers may start too late; it then exits with 75."""
    (tmp_path / "gives_up.py").write_text("print('{\"ready\": true}'); raise SystemExit(75)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    story = Story(tmp_path, Console(), 1.0, 0, "none")
    story.spark = ChildProcess("spark", ["gives_up"], tmp_path)
    story._parts = [story.spark]
    for _ in range(SPARK_STARTS_MAX - 1):
        story.spark.process.wait(120)
        story._update()
    story.spark.process.wait(120)
    with pytest.raises(ChildProcessFailed, match="ended with 75"):
        story._update()
