"""`python -m tests.fuzz [DOOR...]`: fuzzes doors and writes build/fuzz.json; ends with 1 for a
find."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.fuzz import sockets
from tests.fuzz.campaign import Outcome, run_in_child
from tests.fuzz.doors import DOORS

OUT = Path("build/fuzz.json")


def main() -> int:
    """Run the doors one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "doors", nargs="*", metavar="DOOR", help=", ".join([*DOORS, *sockets.DOORS])
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="inputs a door")
    parser.add_argument("--sockets", type=int, default=2_000, help="inputs over a real socket")
    parser.add_argument("--cpu", type=float, default=float("inf"), help="CPU seconds a door")
    parser.add_argument("--seed", type=int, default=1, help="of the first 1000 inputs")
    given = parser.parse_args()
    doors = given.doors or [*DOORS, *sockets.DOORS]
    found = 0
    for door in doors:
        if door in DOORS:
            outcome = run_in_child(door, given.count, given.seed, given.cpu)
        else:
            outcome = sockets.run(door, given.sockets, given.seed, given.cpu)
        _report(outcome)
        found += len(outcome.finds)
    return 1 if found else 0


def _report(outcome: Outcome) -> None:
    _say(
        f"{outcome.door:16} {outcome.inputs:>8} inputs  {outcome.cpu_s:6.1f} CPU-s  longest pause "
        f"{outcome.pause_ms_max:7.1f} ms  memory +{outcome.growth_bytes >> 20} MiB  "
        f"{len(outcome.finds)} finds"
    )
    for find in outcome.finds:
        _say(f"  seed {find['seed']}: {find['what']}")
    known = json.loads(OUT.read_text()) if OUT.exists() else {}
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(known | {outcome.door: asdict(outcome)}, indent=1))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
