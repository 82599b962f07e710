"""SIGKILL at random moments, starts included."""

from __future__ import annotations

import contextlib
import time

import psutil

from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

REACH_S = 2.0
"""A life lasts up to this long after the last kill, about twice a start of the daemon."""


def kill_some(run: Run, rig: Rig, kill, reach_s=REACH_S) -> None:
    """Call `kill` `run.runs` times; before every third something is acknowledged."""
    for number in range(run.runs):
        if number % 3 == 0:
            rig.progress()
        time.sleep(run.dice.uniform(0.05, reach_s))
        kill()
        run.counted()


@fault_class("kill_daemon", runs=20)
def kill_daemon(run: Run) -> None:
    """The daemon alone is killed; its uplink must notice by itself."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        kill_some(run, rig, rig.services["daemon"].kill)
        rig.settle()


@fault_class("kill_collector", runs=16)
def kill_collector(run: Run) -> None:
    """The collector is killed."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        kill_some(run, rig, rig.services["collector"].kill, 1.0)
        rig.settle()


@fault_class("kill_uplink", runs=12)
def kill_uplink(run: Run) -> None:
    """The daemon's uplink processes are killed."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()

        kill_some(run, rig, lambda: kill_children(rig), 0.6)
        rig.settle()


def kill_children(rig: Rig) -> None:
    """Kill the daemon's uplink, once it has started."""
    rig.until(lambda: len(rig.services["daemon"].tree()) > 1, 10)
    for child in rig.services["daemon"].tree()[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


@fault_class("kill_api", runs=10)
def kill_api(run: Run) -> None:
    """The API is killed while a client posts rows under idempotency keys."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        api = rig.serve()
        kill_some(run, rig, api.kill, 1.5)
        before = rig.poster.total()
        rig.until(lambda: rig.poster.total() > before + 1, 30)
        rig.settle()


def kill_all(run: Run) -> None:
    """Daemon, collector, uplink and API of one system are killed, each in turn and in any order:
    the campaign's part of `make test`."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        rig.serve()
        kinds = [*(rig.services[n].kill for n in ("daemon", "collector", "api"))]
        kinds.append(lambda: kill_children(rig))
        turn = []

        def kill() -> None:
            if not turn:
                turn.extend(run.dice.sample(kinds, len(kinds)))
            turn.pop()()

        kill_some(run, rig, kill, 1.0)
        before = rig.poster.total()
        rig.until(lambda: rig.poster.total() > before + 1, 30)
        rig.settle()
