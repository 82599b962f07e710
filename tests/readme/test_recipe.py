"""The README's commands run as printed, and end in the tables that DuckDB computes."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from edged.central.tables import read
from edged.demo.truth import Truth
from tests.readme.sample import READINGS, readings, scada

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SCRIPT = ROOT / "examples" / "first_five_minutes.sh"
WAIT_S = 300
TAKES_ROWS = re.compile(r"stream +wind +[1-9][\d,]* /s")
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def commands(text):
    """The commands of a shell script, without comments, each on one line."""
    text = re.sub(r"(^|\s+)#.*", "", text.replace("\\\n", " "), flags=re.M)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Terminal:
    """A process on a terminal of 120 columns; `text` is what it has printed, without control
    sequences."""

    def __init__(self, words, **options):
        self.text = ""
        self.file, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
        self.process = subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, **options
        )
        os.close(theirs)

    def read_until(self, found):
        """Read until `found()`, or until the terminal is closed; fails after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while not found():
            assert time.monotonic() < end, self.text[-4000:]
            if select.select([self.file], [], [], 1.0)[0]:
                try:
                    data = os.read(self.file, 1 << 16)
                except OSError:  # EIO: its last process has ended
                    return
                self.text += CONTROL.sub("", data.decode(errors="replace"))

    def press(self, key):
        os.write(self.file, key)

    def close(self):
        os.close(self.file)  # SIGHUP for what still runs there
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(WAIT_S)


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
