"""kill -9 of a compactor, again and again, while pages land and readers count every row.

    python -m tests.central.compaction_kills --kills 40 --seed 7

A child compacts and retires in a loop, in small groups, and is killed at random moments.  Meanwhile
segments land and are sealed, and each read of the landing must give every row that landed before
it exactly once.  At the end nothing is left over: no file without a name, no segment that is still
to be compacted.  The figures are one JSON object.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import edged
from edged.central import compacted, seals, segments
from edged.central.compactor import compact
from edged.central.expire import retire_compacted
from tests.spark.landings import READINGS, Landing, dense_page

CHILD = """
import sys, time
from edged.central.compactor import compact
from edged.central.expire import retire_compacted
print("ready", flush=True)
while True:
    compact(sys.argv[1], group_bytes=int(sys.argv[2]))
    print("done", flush=True)
    if int(sys.argv[3]):
        retire_compacted(sys.argv[1], time.time_ns() // 1000 - 5_000_000, ["curve"])
"""
ROWS = 200


class Feed:
    """Lands numbered rows in segments that are sealed at once."""

    def __init__(self, path, seed):
        self.landing, self.rows = Landing(path), 0
        self.landing.register("curve", READINGS)
        self._dice, self._segment = random.Random(seed), 0

    def land(self, many):
        """Land `many` segments of one to five pages."""
        for _ in range(many):
            self._segment += 1
            name = f"seg-a-{self._segment:08d}"
            for _ in range(self._dice.randrange(1, 6)):
                device = f"mill-{self._dice.randrange(3)}"
                time_us = np.arange(self.rows, self.rows + ROWS, dtype=np.int64)
                columns = (time_us.astype(np.int32), time_us, np.ma.array(time_us / 8))
                page = dense_page(READINGS, columns, stream="curve", seq=self.rows + 1,
                                  device=device)  # fmt: skip
                self.landing.land([page], name)
                self.rows += ROWS
            self.landing.close()
            self.landing._writers.clear()
            rows = segments.read_rows(self.landing.path, name)
            seals.write(self.landing.path, name, seals.greatest(rows))


def each_once(path, least):
    """Read all rows; at least the first `least` must be there, and each once."""
    times = edged.read_landing(path, "curve").read_all()["time"].cast("int64").to_numpy()
    times = np.sort(times)
    assert len(times) >= least, f"{least - len(times)} rows are missing"
    assert np.array_equal(times, np.arange(len(times))), "a row is missing or visible twice"


def run(place, kills, seed):
    """The campaign; its figures."""
    dice, feed = random.Random(seed), Feed(Path(place, "landing"), seed)
    path = feed.landing.path
    figures = {"kills": 0, "reads": 0, "rows": 0, "killed_in_a_group": 0, "groups": 0}
    for kill in range(kills):
        feed.land(dice.randrange(2, 8))
        arguments = [str(path), str(dice.choice([1, 20_000])), str(kill % 2)]
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"ready\n"
        ends = time.monotonic() + dice.uniform(0, dice.choice([0.1, 0.6]))
        while time.monotonic() < ends:
            each_once(path, feed.rows)
            figures["reads"] += 1
            if dice.random() < 0.2:
                feed.land(1)
        child.send_signal(signal.SIGKILL)
        assert child.wait(120) == -signal.SIGKILL, "the child ended by itself"
        child.stdout.close()
        figures["kills"] += 1
        strays = list(compacted.unnamed_files(path, compacted.read(path)))
        figures["killed_in_a_group"] += bool(strays)
        each_once(path, feed.rows)
    figures["groups"] = len(compacted.read(path).groups)
    compact(path)
    each_once(path, feed.rows)
    retire_compacted(path, 1 << 61, ["curve"])
    each_once(path, feed.rows)
    assert segments.list_segments(path) == []
    assert not list(compacted.unnamed_files(path, compacted.read(path)))
    figures["rows"] = feed.rows
    return figures


def main():
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = {"seed": asked.seed, **run(place, asked.kills, asked.seed)}
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
