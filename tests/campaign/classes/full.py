"""Full disks: another program fills the store's file system, or the centre is away too long."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from edged.job.promises import DROP_OLDEST, WHEN_FULL
from tests.campaign.image import sudo
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

MEMORY = "8MiB"
"""The memory of the job."""
STORE_BYTES = 24 << 20
"""Three times that: the least that the daemon takes.  Seconds of rows are as much."""
DISK_BYTES = 40 << 20
BACKLOG_BYTES = 6 << 20
"""Pages that wait before another program takes the rest of the disk."""
RECORD_BYTES = 256 << 10
"""Room for the record of dropped pages."""
PERIOD_S = 0.01
"""Rows come faster than in other classes."""
FULL_S = 60.0
"""Longest wait until the store is full, or has dropped pages."""


@fault_class("full_disk", runs=6)
def full_disk(run: Run) -> None:
    """Each policy in turn: the disk fills up, and has room again."""
    for policy in WHEN_FULL:
        place = run.directory / policy
        (place / "store").mkdir(parents=True)
        sudo("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "edged-faults", place / "store")
        try:
            with Rig(place, outcome=run.outcome) as rig:
                rig.promises = {"memory": MEMORY, "when_full": policy}
                before = run.outcome.verdict
                run.outcome.verdict = type(before)()
                rig.start("--store-max", str(STORE_BYTES), period_s=PERIOD_S)
                for _ in range(max(1, run.runs // len(WHEN_FULL))):
                    _fill(rig, policy)
                    run.counted()
                rig.settle()
                if policy == DROP_OLDEST and not run.outcome.verdict.gaps:
                    run.outcome.problems.append("no acknowledged row was reported lost")
                run.outcome.verdict.add(before)
        finally:
            sudo("umount", "--lazy", place / "store")


def _fill(rig: Rig, policy: str) -> None:
    """The centre is away and another program takes all room; then both are over.

    Pages that may be dropped are those that no replay needs: first there must be some.  The record
    of a loss needs a little room itself (docs/store.md).
    """
    collector, ballast = rig.services["collector"], rig.store / "ballast"
    collector.hold()
    dropped = _dropped(rig)
    if policy == DROP_OLDEST:
        rig.until(
            lambda: rig.status().get("store", {}).get("backlog_bytes", 0) > BACKLOG_BYTES, FULL_S
        )
    take_all(ballast)
    if policy == DROP_OLDEST:
        os.truncate(ballast, ballast.stat().st_size - RECORD_BYTES)
        took = rig.until(lambda: _dropped(rig) > dropped, FULL_S)
        what = "dropped nothing"
    else:
        took = rig.until(lambda: rig.status().get("store", {}).get("full"), FULL_S)
        what = "is not full"
    if took >= FULL_S:
        store = rig.status().get("store")
        rig.outcome.problems.append(f"{policy}: a store without room {what}: {store}")
    rig.progress(8, 2.0)
    rig.services["daemon"].kill()
    rig.until(lambda: not rig.status(), 5)
    ballast.unlink()
    collector.release()
    rig.progress()


def _dropped(rig: Rig) -> int:
    """Pages that the store has dropped so far."""
    return rig.status().get("store", {}).get("gaps", {}).get("pages", 0)


def take_all(file: Path) -> None:
    """Take all that is free."""
    with file.open("ab", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(1 << 16))
