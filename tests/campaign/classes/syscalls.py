"""EIO and ENOSPC from the system calls of real processes, injected by strace."""

from __future__ import annotations

import time

from tests.campaign.injection import READS, SPACE, SYNCS, WRITES, Injection
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig

FAILED = 75
"""Exit status of a daemon or collector whose disk failed: its service manager starts it again."""


def inject_some(run: Run, kinds: list[tuple[str, str]]) -> None:
    """Inject `run.runs` times into daemon or collector: (calls, how)."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.died_by_design = {"daemon": {FAILED}, "collector": {FAILED}}
        rig.start()
        for number in range(run.runs):
            name = ("daemon", "daemon", "collector")[number % 3]
            calls, how = kinds[number % len(kinds)]
            rig.progress(4)
            pids = [p.pid for p in rig.services[name].tree()]
            with Injection(pids, calls, how.format(n=run.dice.randint(1, 6))):
                time.sleep(run.dice.uniform(0.3, 1.2))
            run.counted()
        rig.settle()


@fault_class("eio", runs=15)
def eio(run: Run) -> None:
    """Reads, writes and syncs fail, once or for a while."""
    once, on = "error=EIO:when={n}", "error=EIO:when={n}+"
    inject_some(run, [(SYNCS, once), (WRITES, once), (WRITES, on), (READS, once), (SYNCS, on),
                      (f"{SYNCS},{WRITES},{READS},{SPACE},rename,unlink", once),
                      ("write,writev", "error=EIO:when={n}00")])  # fmt: skip


@fault_class("enospc", runs=12)
def enospc(run: Run) -> None:
    """Writes and preallocations find no room for a while, then they do."""
    on = "error=ENOSPC:when={n}+"
    inject_some(run, [(f"{WRITES},{SPACE}", on), (SPACE, on), (SYNCS, "error=ENOSPC:when={n}"),
                      (f"{WRITES},{SPACE},rename,openat", "error=ENOSPC:when={n}")])  # fmt: skip
