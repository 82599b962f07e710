"""Full disks: another program fills the store's file system, or the centre is away too long."""

from __future__ import annotations

import contextlib
from pathlib import Path

from edged.job import plan
from tests.campaign.image import sudo
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

DISK_BYTES = 320 << 20
STORE_BYTES = 200 << 20
"""Three times the memory of the job, and little more: it is full after some log segments."""
POLICIES = getattr(plan, "WHEN_FULL", ("block",))
"""What a job does while its store is full."""


@fault_class("full_disk", runs=4)
def full_disk(run: Run) -> None:
    """Each policy in turn: the disk fills up, and has room again."""
    for policy in POLICIES:
        place = run.directory / policy
        (place / "store").mkdir(parents=True)
        sudo("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "edged-faults", place / "store")
        try:
            with Rig(place, outcome=run.outcome) as rig:
                if policy != "block":
                    rig.promises = {"when_full": policy}
                before = run.outcome.verdict
                run.outcome.verdict = type(before)()
                rig.start("--store-max", str(STORE_BYTES))
                for _ in range(max(1, run.runs // len(POLICIES))):
                    _fill(rig, policy)
                    run.counted()
                rig.settle()
                run.outcome.verdict.add(before)
        finally:
            sudo("umount", "--lazy", place / "store")


def _fill(rig: Rig, policy: str) -> None:
    """The centre is away and another program takes all room; then both are over."""
    collector, ballast = rig.services["collector"], rig.store / "ballast"
    collector.hold()
    take_all(ballast)
    rig.until(lambda: rig.status().get("store", {}).get("full"), 10)
    rig.progress(8, 3.0 if policy == "block" else 6.0)
    rig.services["daemon"].kill()
    rig.until(lambda: not rig.status(), 5)
    ballast.unlink()
    collector.release()
    rig.progress()


def take_all(file: Path) -> None:
    """Take all that is free."""
    with file.open("ab", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(1 << 16))
