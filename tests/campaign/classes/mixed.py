"""Faults of several classes at once: processes die while links fail and the clock jumps."""

from __future__ import annotations

import time

from tests.campaign.classes.kills import kill_children
from tests.campaign.classes.machine import STEPS_US, step_clock
from tests.campaign.classes.proxy import PEM
from tests.campaign.links import MODES, Link
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

TURN = ("daemon", "collector", "uplink", "api", "clock")
"""What a run does beside the faults of a link."""


@fault_class("mixed", runs=20)
def mixed(run: Run) -> None:
    """One run: a fault of a link begins, a process dies or the clock jumps, the fault ends."""
    with Rig(run.directory, outcome=run.outcome, tls_cert=str(PEM), tls_key=str(PEM)) as rig:
        links = [Link(rig.address, run.seed), Link(rig.centre, run.seed + 1)]
        rig.feed_address, rig.uplink_address = (link.address for link in links)
        step_clock(rig, 0)
        rig.start(module="tests.campaign.stepped", tls=str(PEM))
        rig.serve()
        turn: list[str] = []
        for number in range(run.runs):
            if number % 3 == 0:
                rig.progress()
            turn = turn or run.dice.sample(TURN, len(TURN))
            link = run.dice.choice(links)
            link.mode = run.dice.choice(MODES)
            time.sleep(run.dice.uniform(0.05, 0.5))
            _break(run, rig, turn.pop())
            time.sleep(run.dice.uniform(0.05, 0.5))
            link.mode = None
            run.counted()
        step_clock(rig, 0)
        before = rig.poster.total()
        rig.until(lambda: rig.poster.total() > before + 1, 30)
        rig.settle()
        for link in links:
            link.close()


def _break(run: Run, rig: Rig, what: str) -> None:
    """Kill a process, or step the clock."""
    if what == "clock":
        step_clock(rig, run.dice.choice(STEPS_US))
    elif what == "uplink":
        kill_children(rig)
    else:
        rig.services[what].kill()
