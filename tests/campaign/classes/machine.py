"""A machine that steps its clock, stops its processes, runs out of memory, or was cloned."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import time
from pathlib import Path

import psutil

from edged.control.door import ask
from edged.errors import ConfigError
from edged.platform.processes import free_port
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import DEVICE, Rig, document

HOUR_US = 3_600_000_000
STEPS_US = (HOUR_US, -HOUR_US, 24 * HOUR_US, -24 * HOUR_US, 10 * 365 * 24 * HOUR_US,
            -50 * 365 * 24 * HOUR_US, 1_500_000, -1_500_000)  # fmt: skip
WATCHDOG_S = 2.0


@fault_class("clock", runs=12)
def clock(run: Run) -> None:
    """The wall clock jumps by seconds, hours, days and decades, and comes back."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        step_clock(rig, 0)
        rig.start(module="tests.campaign.stepped")
        for number in range(run.runs):
            step_clock(rig, STEPS_US[number % len(STEPS_US)])
            rig.progress(8, 20)
            time.sleep(run.dice.uniform(0.1, 0.8))
            if number % 4 == 3:
                rig.services["daemon"].kill()
            run.counted()
        step_clock(rig, 0)
        rig.settle()


def step_clock(rig: Rig, step_us: int) -> None:
    """Set the daemon's wall clock to the machine's and `step_us`."""
    fresh = rig.store.with_name("step.new")
    fresh.write_text(str(step_us))
    fresh.replace(rig.store.with_name("step"))


@fault_class("freeze", runs=9)
def freeze(run: Run) -> None:
    """SIGSTOP: past the watchdog, which restarts the daemon, and for shorter times."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.died_by_design = {"daemon": {-signal.SIGABRT}}
        rig.start(watchdog_s=WATCHDOG_S)
        daemon, collector = rig.services["daemon"], rig.services["collector"]
        for number in range(run.runs):
            rig.progress(6)
            if number % 3 == 0:
                before = daemon.aborted
                daemon.process.send_signal(signal.SIGSTOP)
                if rig.until(lambda before=before: daemon.aborted > before, 30) >= 30:
                    run.outcome.problems.append("the watchdog did not end a frozen daemon")
            else:
                victims = collector.tree() if number % 3 == 1 else daemon.tree()[1:]
                for each in victims:
                    each.suspend()
                time.sleep(run.dice.uniform(0.5, 3.0))
                for each in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.resume()
            run.counted()
        rig.settle()


@fault_class("memory", runs=9)
def memory(run: Run) -> None:
    """The daemon, its uplink or the collector gets no more memory for a while."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        ends = {1, 70, 75, -signal.SIGABRT}
        rig.died_by_design = {"daemon": ends, "collector": ends}
        rig.start()
        for number in range(run.runs):
            rig.progress(6)
            name = ("daemon", "daemon", "collector")[number % 3]
            victims = rig.services[name].tree()
            _limit(victims, run.dice.choice((0, 1 << 16, 1 << 20, 4 << 20)))
            time.sleep(run.dice.uniform(0.3, 1.5))
            _limit(victims, None)
            run.counted()
        rig.settle()


def _limit(processes: list[psutil.Process], more_bytes: int | None) -> None:
    """Bound the address space to what it is now and `more_bytes`; None: no bound."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            most = resource.RLIM_INFINITY
            if more_bytes is not None:
                most = each.memory_info().vms + more_bytes
            resource.prlimit(each.pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


@fault_class("copied_store", runs=3)
def copied_store(run: Run) -> None:
    """A second daemon runs on a copy of the store: it is fenced, and the first goes on."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        rig.start()
        for number in range(run.runs):
            rig.progress()
            rig.services["daemon"].hold()
            copy = rig.directory / f"copy-{number}"
            shutil.copytree(rig.store, copy, ignore=shutil.ignore_patterns("door", "ingest"))
            rig.services["daemon"].release()
            rig.until(lambda: rig.status().get("uplink", {}).get("acked_pages", 0) > 0, 60)
            _run_clone(rig, copy)
            run.counted()
        rig.settle()


def _run_clone(rig: Rig, store: Path) -> None:
    """Start a daemon on a copy; it must be fenced."""
    job, door = store.with_suffix(".json"), store.with_suffix(".door")
    job.write_text(json.dumps(document(f"127.0.0.1:{free_port()}")))
    clone = rig.service(
        store.name, "edged", "run", str(job), "--store", str(store), "--json", "--device",
        DEVICE, "--uplink", f"http://{rig.uplink_address}", "--door", str(door), "--workers", "1",
    )  # fmt: skip

    def state() -> str | None:
        with contextlib.suppress(ConfigError, OSError):
            return ask(door, "status", timeout_s=3)["uplink"]["state"]
        return None

    if rig.until(lambda: state() == "fenced", 60) >= 60:
        rig.outcome.problems.append(f"a clone of the store is not fenced: {state()}")
    clone.stop()
