"""The law under kills: what was acknowledged is neither lost nor repeated.

EDGED_SEED repeats a run's random choices, EDGED_KILLS multiplies the kills, `--whole` does 50.
"""

import contextlib
import os
import random
import threading
import time

import psutil

from tests.system.support import Killer, System, assert_exactly_once, law_job, say, seed
from tests.whole import count

MORE = max(1, int(os.environ.get("EDGED_KILLS") or 1))
DAEMONS, COLLECTORS, PRODUCERS = (n * MORE for n in count((8, 5, 1), (29, 20, 3)))
"""How often each is killed while all of them work."""
PRODUCTIVE_MIN = count(2, 8)
"""Lives of the daemon in which something was acknowledged: every third waits for that."""


def test_killed_daemons_and_collectors_lose_and_repeat_nothing_that_was_acked(tmp_path):
    dice = seed()
    with System(tmp_path) as system:
        collector = system.collect("--segment-bytes", str(256 << 10))
        daemon = system.run(law_job(system.address), "--snapshot-bytes", str(1 << 20))
        producers = system.produce()
        daemon.kill()
        before = time.monotonic()
        daemon.restart()
        daemon.ready()
        reach_s = min(4.5, max(3.0, 2.5 * (time.monotonic() - before) + 1.5))
        victims = [
            Killer(daemon, DAEMONS, dice, reach_s, lambda: sum(system.acked().values())),
            Killer(collector, COLLECTORS, dice + 1, 1.45 * reach_s),
            Killer(producers, PRODUCERS, dice + 2, 8 * reach_s),
        ]
        over = threading.Event()
        uplinks = threading.Thread(target=kill_uplinks, args=(daemon, dice + 3, over))
        uplinks.start()
        for victim in victims:
            victim.start()
        progress = set()
        while any(v.is_alive() for v in victims):
            progress.add((daemon.process.pid, sum(system.acked().values())))
            time.sleep(0.1)
        over.set()
        uplinks.join()
        assert [v.found_dead for v in victims] == [[], [], []], "died without being killed"
        kills = 1 + sum(v.done for v in victims[:2])
        assert kills == 1 + DAEMONS + COLLECTORS
        productive = {
            pid for pid, acked in progress if acked > min(a for p, a in progress if p == pid)
        }
        assert len(productive) >= PRODUCTIVE_MIN
        acked = system.acked()
        batches = system.end_streams()
        assert all(acked[p] <= batches[p] for p in acked)
        status = system.drain()
        daemon.stop()
        collector.stop()
        assert status["set_aside_rows"] == 0
        assert all(s["late"] == 0 for s in status["jobs"]["law"]["streams"].values())
        rows = assert_exactly_once(system.landing, system.config, batches)
        say(f"{kills} kills, {sum(batches.values())} batches, {rows}")


def kill_uplinks(daemon, seed, over):
    """Kill the daemon's uplink process every few seconds; the daemon must restart it."""
    dice = random.Random(seed)
    while not over.wait(dice.uniform(5, 10)):
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(daemon.process.pid).children():
                child.kill()
