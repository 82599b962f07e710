"""Spark killed while pages land: the driver with its JVM, and the executors' Python workers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import time

import numpy as np
import psutil

from edged.central.tables import read
from edged.platform.processes import ChildProcess
from tests.campaign import oracle
from tests.campaign.registry import Run, fault_class
from tests.campaign.rig import Rig
from tests.spark import jvm
from tests.spark.conftest import QUICK_SPARK

SPEC = {
    "streams": {"rows": "rows@1"},
    "tables": {"ids": {"from": "rows", "mode": "append", "sql": "SELECT id, `check` FROM rows"}},
}
BATCH_S = 240.0
"""Longest wait for a batch, the start of Spark included."""


@fault_class("kill_spark", runs=6)
def kill_spark(run: Run) -> None:
    """Driver and executors in turn; the table must hold every acknowledged id once."""
    with Rig(run.directory, outcome=run.outcome) as rig:
        spec = rig.directory / "spec.json"
        spec.write_text(json.dumps(SPEC))
        os.environ["JDK_JAVA_OPTIONS"] = jvm.options(rig.logs)
        rig.start()
        spark = ChildProcess("spark", command(rig, spec, "--trigger", "300ms"), rig.logs)
        try:
            for number in range(run.runs):
                await_batch(spark)
                time.sleep(run.dice.uniform(0, 1.5))
                victims = group(spark) if number % 3 == 0 else workers(spark)
                for each in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
                run.counted()
        finally:
            end(spark)
        rig.settle()
        rig.feed.pause()  # nothing lands beside the last aggregation
        rig.until(rig.feed.complete)
        rig.until(lambda: rig.status().get("store", {}).get("backlog_pages") == 0)
        last = ChildProcess("spark-last", command(rig, spec), rig.logs)
        if last.process.wait(BATCH_S):
            run.outcome.problems.append(f"the last aggregation failed: {last.log.read_text()}")
        judge_table(rig)


def command(rig: Rig, spec, *options: str) -> tuple[str, ...]:
    """The aggregation's arguments; a task is tried four times."""
    conf = [part for k, v in QUICK_SPARK.items() for part in ("--conf", f"{k}={v}")]
    output, checkpoint = str(rig.directory / "tables"), str(rig.directory / "checkpoint")
    return ("edged", "central", "aggregate", str(spec), "--landing", str(rig.landing),
            "--output", output, "--checkpoint", checkpoint, "--master", "local[2,4]", "--json",
            *options, *conf)  # fmt: skip


def await_batch(spark: ChildProcess) -> None:
    """Wait until a new batch is committed; an aggregation that has ended is started again."""
    with contextlib.suppress(queue.Empty):
        while True:
            spark.events.get_nowait()
    deadline = time.monotonic() + BATCH_S
    while time.monotonic() < deadline:
        if not spark.running():
            end(spark)
            spark.restart()
        with contextlib.suppress(queue.Empty):
            if "batch" in spark.events.get(timeout=0.2):
                return
    raise TimeoutError(f"no batch within {BATCH_S:.0f} s; see {spark.log}")


def group(spark: ChildProcess) -> list[psutil.Process]:
    """Driver, JVM and workers."""
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(spark.process.pid)
        return [driver, *driver.children(recursive=True)]
    return []


def workers(spark: ChildProcess) -> list[psutil.Process]:
    """The executors' Python processes."""
    return [p for p in group(spark)[1:] if "java" not in p.name()]


def end(spark: ChildProcess) -> None:
    """Kill what is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(spark.process.pid, signal.SIGKILL)
    spark.kill()


def judge_table(rig: Rig) -> None:
    """The table holds the landed rows: count what is missing, twice or changed."""
    landed = np.unique(oracle.read(rig.landing, "rows").ids)
    table = read(rig.directory / "tables" / "ids")
    found = table.column("id").to_numpy()
    verdict, unique = rig.outcome.verdict, np.unique(found)
    verdict.missing += len(np.setdiff1d(landed, unique))
    verdict.duplicates += len(found) - len(unique)
    verdict.corrupted += len(np.setdiff1d(unique, oracle.read(rig.landing, "rows").ids))
    verdict.corrupted += int((table.column("check").to_numpy() != oracle.check_of(found)).sum())
