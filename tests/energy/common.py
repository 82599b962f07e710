"""A daemon on a board, and reads of the board's tree from outside the daemon."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from edged.cli import main
from edged.control.door import ask
from edged.platform.clock import SystemClock
from governors.simulated.kernel import open_root
from tests.beat.loop import batch
from tests.beat.support import SECOND, Daemon, changed, copy_job

POLICY0 = "/sys/devices/system/cpu/cpufreq/policy0"
JOB = changed(copy_job(), promises={"latency": "60ms"})
BOARD = ("--board", "simulated:orin-nano")


class StepClock(SystemClock):
    """Stands still until the test moves it."""

    now = 10 * SECOND

    def monotonic_us(self):
        return self.now


def edged(*words):
    """The command line, in this process: a start of Python takes half a second each time."""
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["edged", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        return SimpleNamespace(returncode=end.code, stdout=out.getvalue(), stderr=err.getvalue())
    finally:
        sys.argv = argv


def limits(store):
    """(minimum, maximum) of the first CPU clock in the tree, kHz; None for a file that the daemon
    just writes to, which is empty for a moment."""
    sysfs = open_root(store / "board")
    texts = [sysfs.read(f"{POLICY0}/scaling_{end}_freq") for end in ("min", "max")]
    return tuple(int(text) if text else None for text in texts)


def energy(daemon):
    return daemon.status()["energy"]


def feed(daemon, until, seconds=120.0, rows=500):
    """Send rows until `until()` holds."""
    with daemon.producer() as producer:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, daemon.status()["energy"]
            producer.send(batch(list(range(rows))))
            producer.flush()


def switch(daemon, policy, **settings):
    return ask(daemon.door, "governor", policy=policy, settings=settings)


@contextmanager
def running(path, *arguments, document=JOB):
    """`edged run` on a simulated Orin Nano."""
    words = arguments if "--board" in arguments else (*BOARD, *arguments)
    with Daemon(path, document, *words) as daemon:
        yield daemon


def approx(value, within):
    return pytest.approx(value, rel=within)
