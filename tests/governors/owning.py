"""A board whose limits a test owns, in this process or in another."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from governors.actuators.base import discover
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct
from governors.detect import detect
from tests.governors.trees import Kernel, plant

MHZ = 1_000_000


ROOM = Path(__file__).parents[2]


def knobs_of(sysfs):
    return [knob for knob in discover(sysfs, detect(sysfs)) if not knob.optional]


def limits(sysfs):
    """Every limit of the board, as text."""
    return {
        path: sysfs.read(path)
        for knob in knobs_of(sysfs)
        for path in knob.files().values()
        if sysfs.exists(path)
    }


class Bench:
    """A board with the kernel's rules, its first knob, and an owner."""

    def __init__(self, directory, board="orin-nano-r36", sysfs=Kernel, **more):
        plant(directory / "board", board)
        self.root, self.journal = directory / "board", directory / "state/limits.journal"
        self.sysfs = sysfs(self.root, **more)
        self.knobs = knobs_of(self.sysfs)
        self.knob = self.knobs[0]
        self.before = limits(self.sysfs)

    def owner(self, settings=None, journal=None):
        writer = Direct(self.sysfs)
        return Ownership(self.sysfs, writer, journal or self.journal, settings or self.knobs)

    def place(self, path):
        return self.root / path.lstrip("/")

    def put(self, knob, low_hz, high_hz):
        """Another process sets limits."""
        self.place(knob.min_path).write_text(f"{low_hz // knob.unit_hz}\n")
        self.place(knob.max_path).write_text(f"{high_hz // knob.unit_hz}\n")


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def start(bench, *more, module="tests.governors.owner"):
    """A real process that owns the board; its first line."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, bench.root, bench.journal, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOM,
    )
    return process, json.loads(process.stdout.readline())


def end(process):
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    process.wait(120)
