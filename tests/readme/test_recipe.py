"""The README's commands run as printed, and end in the tables that DuckDB computes."""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edged.central.tables import read
from edged.demo.truth import Truth
from tests.readme.sample import READINGS, readings, scada
from tests.readme.terminal import TAKES_ROWS, WAIT_S, Terminal

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCRIPT = ROOT / "examples" / "first_five_minutes.sh"


def commands(text):
    """The commands of a shell script, without comments, each on one line."""
    text = re.sub(r"(^|\s+)#.*", "", text.replace("\\\n", " "), flags=re.M)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """The ended terminal of the script in a directory of its own, and that directory.

    `make` is a stub that only compiles the kernels: the environment is that of the tests.
    """
    place = tmp_path_factory.mktemp("five")
    for name in ("examples", "deploy"):
        shutil.copytree(ROOT / name, place / name)
    (place / ".venv").symlink_to(sys.prefix)
    stubs = place / "stubs"
    stubs.mkdir()
    (stubs / "make").write_text(f'#!/bin/sh\necho "make $*"\n{sys.executable} -m edged compile\n')
    (stubs / "make").chmod(0o755)
    environment = {**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}", "TERM": "xterm"}
    terminal = Terminal(["bash", str(place / "examples" / SCRIPT.name)], env=environment)
    try:
        terminal.read_until(lambda: TAKES_ROWS.search(terminal.text))
        terminal.press(b"q")
        terminal.read_until(lambda: False)
        terminal.process.wait(WAIT_S)
    finally:
        terminal.close()
    return terminal, place


def test_the_script_runs_the_commands_of_the_readme():
    printed = commands(re.search(r"```sh\n(make setup\n.*?)```", README, re.DOTALL)[1])
    assert len(printed) > 10
    left = iter(commands(SCRIPT.read_text()))
    for command in printed:
        assert command in left, f"{command} is not in {SCRIPT.name}, or not in that place"


def test_it_shows_a_live_top_and_ends_in_a_table(recipe):
    terminal, _ = recipe
    assert terminal.process.returncode == 0, terminal.text[-4000:]
    top, table = (terminal.text.index(text) for text in ("(simulated)", "power_curve: 96 rows"))
    assert terminal.text.index("make setup") < top < table
    assert "│ R80711" in terminal.text[table:]


def test_its_tables_are_those_of_duckdb(recipe, tmp_path):
    _, place = recipe
    pq.write_table(scada(), tmp_path / "scada.parquet")
    truth = Truth(tmp_path / "scada.parquet", ROOT / "tests" / "data" / "plant_meter.parquet")
    for name in ("power_curve", "energy"):
        verdict = truth.compare(name, read(place / "build/up/tables" / name))
        assert verdict.identical and verdict.rows > 50, verdict.differences


def test_it_leaves_no_process_behind(recipe):
    _, place = recipe
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            assert str(place).encode() not in command.read_bytes()


def test_the_sample_is_two_weeks_of_the_test_data():
    assert pq.read_table(READINGS).equals(readings())
    assert READINGS.stat().st_size < 200_000
