"""A process that owns a board's limits, as the daemon does:

    python -m tests.governors.owner ROOT JOURNAL [--helper SOCKET] [--nobody] [--raise] [--fork]

It owns every knob that is not optional, pins each to its lowest allowed clock and prints one line
of JSON. Then each line of its input is a beat, `HZ` or `HZ AT_US BUSY_CORES`: it checks for changes
by other processes, pins every knob to that clock, reads its meters if the line has a time, and
prints the result. At the end of its input it releases the knobs.

File modes apply to it even as root; with --nobody root becomes another user permanently. With
--helper it writes through the helper, with --raise it ends by an exception, with --fork it has a
child that outlives it.
"""

import argparse
import codecs
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
from governors.meters.base import OPENERS, survey
from governors.meters.sampler import Sampler
from governors.sysfs import Sysfs
from tests.governors.faults import NOBODY


def say(**what):
    """Print one line for the parent process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def heed_modes():
    """Drop all capabilities (capset(2)). Root then still owns its files, but their modes apply."""
    if os.geteuid() == 0:
        header = struct.pack("Ii", 0x2008_0522, 0)
        if ctypes.CDLL(None, use_errno=True).capset(header, bytes(24)):
            raise OSError(ctypes.get_errno(), "capset")


def become_nobody():
    """Change from root to another user permanently."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def outlived():
    """Have a child that ends with our input; returns when it runs."""
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, b"x")
        sys.stdin.readline()
        os._exit(0)
    os.read(reader, 1)


def rails(sampler):
    """By meter and rail: joules, µs of gap, what is wrong."""
    problems = sampler.problems()
    return {
        f"{meter}/{rail}": [told.joules, told.gap_us, problems.get((meter, rail), "")]
        for (meter, rail), told in sampler.totals.items()
    }


def beat(ours, knobs, sampler, hz, *time_and_busy):
    """Look, pin, read, tell."""
    changes = [(change.name, change.what) for change in ours.watch()]
    pinned, problems = {}, {}
    for knob in knobs:
        try:
            pinned[knob.name] = ours.pin(knob, hz)
        except GovernorError as problem:
            problems[knob.name] = type(problem).__name__
    if time_and_busy:
        at_us, busy_cores = time_and_busy
        sampler.sample(at_us, None if busy_cores < 0 else busy_cores)
    say(changes=changes, pinned=pinned, problems=problems, rails=rails(sampler))


def main():
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--helper", type=Path)
    parser.add_argument("--nobody", action="store_true")
    parser.add_argument("--raise", dest="fails", action="store_true")
    parser.add_argument("--fork", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sysfs = Sysfs(options.root)
    board = detect(sysfs)
    if options.nobody:
        OPENERS.load()
        discover(sysfs, board)  # the other user may not be able to import these modules
        codecs.lookup("ascii")
        become_nobody()
    else:
        heed_modes()
    knobs = [knob for knob in discover(sysfs, board) if not knob.optional]
    sampler = Sampler(survey(sysfs, board).meters, cpu_us=lambda: 0.0)
    try:
        writer = HelperWriter(options.helper, knobs) if options.helper else Direct(sysfs)
        with Ownership(sysfs, writer, options.journal, knobs) as ours:
            pinned = {knob.name: ours.pin(knob, 0) for knob in knobs}
            if options.fork:
                outlived()
            say(pinned=pinned, restored=ours.restored)
            for line in sys.stdin:
                beat(ours, knobs, sampler, *map(int, line.split()))
            if options.fails:
                raise RuntimeError("asked for")
    except GovernorError as problem:
        say(problem=str(problem), kind=type(problem).__name__)


if __name__ == "__main__":
    main()
