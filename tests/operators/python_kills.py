"""`python -m tests.operators.python_kills [KILLS] [SEED]`: children of a `python` operator are
killed at random moments, and its store is replayed now and then.

No row may be lost, twice or out of order: what reaches the sink is what plain Python makes of all
rows but those that were set aside, which a child had in work when it was killed twice.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from edged.beat.recover import recover
from edged.store import Store
from tests.beat.support import HandClock
from tests.operators.python_jobs import TOTALS, LivePython, expected, rows, totals_job

SLOW = TOTALS.replace(
    "        out = []\n", "        import time; time.sleep(0.002)\n        out = []\n"
)
ROWS, REPLAY_EVERY = 40, 10


def kill_soon(child, after_s):
    """Kill a child in a while, if it still runs."""

    def kill():
        time.sleep(after_s)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def campaign(path, kills, seed):
    """Run it; returns the number of rows and of those set aside."""
    chance, sent, aside = random.Random(seed), [], set()
    with LivePython(totals_job(processes=3), path / "store") as live:
        for number in range(kills):
            live.ready()
            child = chance.choice(live.operator.children())
            thread = kill_soon(child, chance.uniform(0, 0.03))
            given = rows(len(sent), ROWS)
            sent += given
            live.take(given)
            thread.join()
            for refused in live.operator.set_aside:
                aside |= set(refused.batch["time"].values.tolist())
            if number % REPLAY_EVERY == REPLAY_EVERY - 1:
                replay(live, path / "store")
        live.settle()
        kept = [row for row in sent if row[1] not in aside]
        assert live.sums() == expected(kept)
    return len(sent), len(aside)


def replay(live, path):
    """Go on with what a replay of the store gives; recovery compares the pages."""
    live.beat(flush=True)
    live.job.schedules.close()
    live.store.close()
    live.store = Store.open(path)
    found = recover(live.store, [live.plan], live.context, HandClock())
    live.job = found.jobs[0]


def main(kills=60, seed=1):
    """Run the campaign and say what came of it."""
    with tempfile.TemporaryDirectory() as directory:
        code = Path(directory) / "operators"
        code.mkdir(mode=0o755)
        (code / "totals.py").write_text(SLOW)
        os.environ["EDGED_OPERATORS"] = str(code)
        sent, aside = campaign(Path(directory), kills, seed)
    print(f"{kills} kills of seed {seed}: {sent} rows exact, {aside} set aside")  # noqa: T201


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
