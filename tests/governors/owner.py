"""A process that owns a board's limits, as the daemon does:

    python -m tests.governors.owner ROOT JOURNAL [--helper SOCKET] [--raise] [--fork]

It takes every knob that is not optional, pins each to its lowest allowed clock and prints one line
of JSON.  Then each line of its input is a beat: it looks what others changed, pins every knob to
that many Hz, and prints what happened.  At the end of its input it lets go.

It is nobody who may write what its mode forbids, even as root.  With --helper it writes through
the helper, with --raise it ends by an exception, with --fork it has a child that outlives it.
"""

import argparse
import ctypes
import json
import os
import signal
import struct
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


def heed_modes():
    """Lay down all capabilities (capset(2)): what remains of root is a user whose files these are,
    and for whom their modes count."""
    if os.geteuid() == 0:
        header = struct.pack("Ii", 0x2008_0522, 0)
        if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
            raise OSError(ctypes.get_errno(), "capset")


def outlived():
    """Have a child that ends with our input; returns when it runs."""
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, b"x")
        sys.stdin.readline()
        os._exit(0)
    os.read(reader, 1)


def beat(ours, knobs, hz):
    """Look, pin, tell."""
    changes = [(change.name, change.what) for change in ours.watch()]
    pinned, problems = {}, {}
    for knob in knobs:
        try:
            pinned[knob.name] = ours.pin(knob, hz)
        except GovernorError as problem:
            problems[knob.name] = type(problem).__name__
    say(changes=changes, pinned=pinned, problems=problems)


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
    heed_modes()
    sysfs = Sysfs(options.root)
    knobs = [knob for knob in discover(sysfs, detect(sysfs)) if not knob.optional]
    try:
        writer = HelperWriter(options.helper, knobs) if options.helper else Direct(sysfs)
        with Ownership(sysfs, writer, options.journal, knobs) as ours:
            pinned = {knob.name: ours.pin(knob, 0) for knob in knobs}
            if options.fork:
                outlived()
            say(pinned=pinned, restored=ours.restored)
            for line in sys.stdin:
                beat(ours, knobs, int(line))
            if options.fails:
                raise RuntimeError("asked for")
    except GovernorError as problem:
        say(problem=str(problem), kind=type(problem).__name__)


if __name__ == "__main__":
    main()
