"""Kills, a faulty proxy and a slow receiver in a chain of three daemons.

    python -m tests.links.kills [--kills N] [--seed N] [--stop SECONDS]

A producer sends rows with rising numbers to the first daemon.  Its job's link leads through a proxy
to the second, that one's through another to the third, which writes files.  Again and again one of
the three, or the process that sends for it, is killed with SIGKILL; a proxy delays, cuts and hides;
or the third is stopped, so that the others have to wait.  At the end each number must be in the
files once and in order.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import click

from edged.client.producer import Producer
from tests.campaign.links import Link
from tests.links.chain import Hop, Last, hop_job, rows

MODES = ("delay", "reset", "truncate", "half_open", "black_hole")
"""Faults of a proxy that leave the bytes whole: TLS notices the others, these links have none."""
AT_ONCE = 20


@dataclass
class Outcome:
    """What a campaign has counted."""

    kills: int = 0
    faults: int = 0
    rows: int = 0
    lost: int = 0
    twice: int = 0
    reordered: int = 0

    @property
    def clean(self) -> bool:
        """Whether each row arrived once and in order."""
        return not (self.lost or self.twice or self.reordered)


def judged(outcome, found, sent):
    """Count what is wrong with the numbers found, of `sent` from 0 on."""
    outcome.rows = sent
    outcome.lost = sent - len(set(found) & set(range(sent)))
    outcome.twice = len(found) - len(set(found))
    outcome.reordered = sum(a >= b for a, b in pairwise(found))
    return outcome


class Feed(threading.Thread):
    """Sends rows until it is told to end; `sent` counts them."""

    def __init__(self, hop):
        super().__init__(daemon=True)
        self.producer: Producer = hop.producer(timeout_s=600)
        self.sent, self._over = 0, threading.Event()

    def run(self):
        while not self._over.is_set():
            self.producer.send(rows(range(self.sent, self.sent + AT_ONCE)))
            self.sent += AT_ONCE
            time.sleep(0.01)

    def end(self):
        """Wait until the first daemon has committed everything."""
        self._over.set()
        self.join(600)
        self.producer.flush(600)
        self.producer.close()


def await_progress(feed, seconds=120.0):
    """Wait until the first daemon commits more than it had."""
    before, deadline = feed.producer.acked, time.monotonic() + seconds
    while feed.producer.poll() <= before:
        assert time.monotonic() < deadline, "the first daemon commits nothing"
        time.sleep(0.02)


def children(pid):
    """The processes that a daemon has started: its uplink."""
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def harm(dice, daemons, proxies, outcome, stop_s):
    """One fault: a kill more often than not, else a proxy's or a slow receiver."""
    kind = dice.random()
    if kind < 0.1:
        for child in children(dice.choice(daemons[:2]).process.pid):
            os.kill(child, signal.SIGKILL)
        outcome.kills += 1
        return
    if kind < 0.7:
        victim = dice.choice(daemons)
        victim.kill()
        time.sleep(dice.uniform(0, 0.3))
        victim.restart()
        victim.ready(300)
        outcome.kills += 1
        return
    outcome.faults += 1
    if kind < 0.9:
        proxy = dice.choice(proxies)
        proxy.mode = dice.choice(MODES)
        time.sleep(dice.uniform(0.2, 1.0))
        proxy.mode = None
        return
    pid = daemons[-1].process.pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(stop_s)
    os.kill(pid, signal.SIGCONT)


def campaign(path, kills, seed, stop_s=1.0):
    """Run until so many kills; returns the outcome."""
    dice, outcome = random.Random(seed), Outcome()
    with Last(path / "third") as third:
        second_way = Link(third.address, seed)
        second_job = hop_job([second_way.address], buffer="1KiB", high="64KiB", low="16KiB")
        with Hop(path / "second", second_job) as second:
            first_way = Link(second.address, seed + 1)
            first_job = hop_job([first_way.address], buffer="4KiB", linger="5ms")
            with Hop(path / "first", first_job) as first:
                feed = Feed(first)
                feed.start()
                while outcome.kills < kills:
                    await_progress(feed)
                    daemons, proxies = (first, second, third), (first_way, second_way)
                    harm(dice, daemons, proxies, outcome, stop_s)
                feed.end()
                for hop in (first, second):
                    hop.until(lambda s: not s["store"]["backlog_pages"], 600)
                third.until(lambda _: third.drained(feed.sent), 600)
        for way in (first_way, second_way):
            way.close()
    return judged(outcome, third.values(), feed.sent)


@click.command()
@click.option("--kills", default=100, show_default=True)
@click.option("--seed", default=0, help="0: a random one.")
@click.option("--stop", "stop_s", default=5.0, show_default=True, help="Seconds of a stop.")
def main(kills, seed, stop_s):
    """Kill daemons of a chain of three, and count rows lost, twice and out of order."""
    seed = seed or random.randrange(1, 1 << 31)
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as directory:
        began_s = time.monotonic()
        outcome = campaign(Path(directory), kills, seed, stop_s)
    took_s = round(time.monotonic() - began_s, 1)
    click.echo(json.dumps({**asdict(outcome), "seed": seed, "seconds": took_s}))
    sys.exit(0 if outcome.clean else 1)


if __name__ == "__main__":
    main()
