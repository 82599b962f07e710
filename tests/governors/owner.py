"""A process that owns a board's limits, as the daemon does:

    python -m tests.governors.owner ROOT JOURNAL [--helper SOCKET] [--raise] [--fork]

It takes every knob that is not optional, pins each to its lowest allowed clock, prints one line of
JSON and waits for a line or a signal.  With --helper it writes through it; with --fork it has a child that outlives it until its input ends.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from governors.actuators._helper_client import HelperWriter
from governors.actuators.base import discover
from governors.actuators.ownership import Ownership
from governors.actuators.writers import Direct
from governors.detect import detect
from governors.errors import GovernorError
from governors.sysfs import Sysfs


def say(**what):
    """One line for who started us."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main():
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--helper", type=Path)
    parser.add_argument("--raise", dest="fails", action="store_true")
    parser.add_argument("--fork", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sysfs = Sysfs(options.root)
    knobs = [knob for knob in discover(sysfs, detect(sysfs)) if not knob.optional]
    try:
        writer = HelperWriter(options.helper, knobs) if options.helper else Direct(sysfs)
        with Ownership(sysfs, writer, options.journal, knobs) as ours:
            pinned = {knob.name: ours.pin(knob, 0) for knob in knobs}
            if options.fork and not os.fork():
                sys.stdin.readline()
                os._exit(0)
            say(pinned=pinned, restored=ours.restored)
            sys.stdin.readline()
            if options.fails:
                raise RuntimeError("asked for")
            for knob in knobs:
                ours.pin(knob, ours.allowed(knob).max_hz)
    except GovernorError as problem:
        say(problem=str(problem), kind=type(problem).__name__)


if __name__ == "__main__":
    main()
