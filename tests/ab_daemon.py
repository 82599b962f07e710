"""`edged run` on a simulated board that keeps the true account: `python -m tests.ab_daemon ARGS`.

The daemon is the real one: job, policies, limits, sensors, meters, all in real time.  Two things
are the test's.  What the board has to do, of which no two runs of a shared machine have as much:
BUSY_CORES cores work all the time at the clocks that the limits leave them, and a race takes
RACE_US on one.  And what the board's model charged to its input is counted, by the limits that
stood for the first CPU clock, with no sensor between and without knowledge of blocks or arms;
STORE/../truth.json has it when the daemon has ended:

    {"729600-729600": [us, joules], ...}
"""

from __future__ import annotations

import atexit
import json
import sys
from collections import defaultdict
from pathlib import Path

from edged.cli import main
from edged.energy.board import SimulatedWork
from governors.simulated.board import Background, SimulatedBoard

BUSY_CORES, RACE_US = 3.0, 100.0


def keep(truth: Path) -> None:
    """Count in every board of this process; written when it ends."""
    account: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    spend = SimulatedBoard._spend

    def spend_and_count(board, us, load, allowed):
        before_j = board.input_joules
        spend(board, us, load, allowed)
        stood = account["{}-{}".format(*(hz // 1000 for hz in allowed.limits[0]))]
        stood[0] += us
        stood[1] += board.input_joules - before_j

    SimulatedBoard._spend = spend_and_count
    atexit.register(lambda: truth.write_text(json.dumps(account)))


def know() -> None:
    """Give every board of this process the same work."""
    begin, race, pass_time = (
        SimulatedWork.__init__, SimulatedWork.race, SimulatedWork.pass_time,
    )  # fmt: skip

    def busy(work, board, now_us):
        begin(work, board, now_us)
        board.background = Background(cores=BUSY_CORES)

    SimulatedWork.__init__ = busy
    SimulatedWork.race = lambda work, now_us, *_: race(work, now_us, RACE_US, 1.0, 0.0)
    SimulatedWork.pass_time = lambda work, now_us, _us, wakes: pass_time(work, now_us, 0.0, wakes)


if __name__ == "__main__":
    keep(Path(sys.argv[sys.argv.index("--store") + 1]).parent / "truth.json")
    know()
    main()
