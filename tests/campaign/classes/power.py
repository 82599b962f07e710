"""Power cuts: the file behind a mounted file system is copied while its writers are stopped."""

from __future__ import annotations

import signal
import time

from tests.campaign import oracle
from tests.campaign.image import Image
from tests.campaign.injection import SYNCS, Injection
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Outcome, Rig

LIES_MAX = 3
"""Cuts without fsync until something is lost: one may come before anything new is written."""


def cut(rig: Rig, image: Image, name: str) -> None:
    """Cut the power of the machine on which the service `name` runs, and start it again."""
    service = rig.services[name]
    service.signal(signal.SIGSTOP)
    taken = image.copy()
    service.hold()
    image.restore(taken)
    service.release()


def cut_some(run: Run, name: str) -> None:
    """Cut the power `run.runs` times; then show that the harness can fail."""
    place = {"daemon": "store", "collector": "landing"}[name]
    image = Image(f"{name}-{run.seed}", run.directory / place)
    with image, Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        for number in range(run.runs):
            if number % 3 == 0:
                rig.progress()
            time.sleep(run.dice.uniform(0.1, 1.5))
            cut(rig, image, name)
            run.counted()
        rig.settle()
    shown = Outcome()
    image = Image(f"{name}-lies-{run.seed}", run.directory / "lies" / place)
    with image, Rig(run.directory / "lies", outcome=shown) as rig:
        rig.start()
        for _ in range(LIES_MAX):
            lie(rig, image, name)
            shown.verdict = oracle.judge(rig.landing, rig.acked)
            if shown.failed or rig.feed.problems:
                break
            rig.feed.resume()
    if not shown.failed:
        run.outcome.problems.append("a power cut without any fsync lost nothing: no cut was made")


def lie(rig: Rig, image: Image, name: str) -> None:
    """A power cut after a time in which fsync did nothing."""
    pids = [p.pid for p in rig.services[name].tree()]
    with Injection(pids, SYNCS, "retval=0"):
        rig.progress(40)
        cut(rig, image, name)
    rig.feed.pause()
    rig.until(lambda: rig.feed.complete() or bool(rig.feed.problems), 10)
    rig.until(lambda: rig.status().get("store", {}).get("backlog_pages") == 0, 10)


@fault_class("power_device", runs=16)
def power_device(run: Run) -> None:
    """The device loses its power."""
    cut_some(run, "daemon")


@fault_class("power_centre", runs=16)
def power_centre(run: Run) -> None:
    """The centre loses its power."""
    cut_some(run, "collector")
