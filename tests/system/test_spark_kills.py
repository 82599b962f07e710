"""Spark is killed, Python and JVM together, while pages land: the tables stay DuckDB's.

Set EDGED_SEED to repeat a run's dice, EDGED_KILLS to multiply the kills; `--whole` does 10.
"""

import json
import os
import random
import signal
import time

import duckdb

from edged.central.tables import read
from tests.spark.conftest import QUICK_SPARK
from tests.system import producers
from tests.system.support import (
    COUNTS,
    PAIRS,
    System,
    assert_same,
    await_event,
    law_job,
    say,
    seed,
    until,
)
from tests.whole import count

KILLS = count(2, 10) * max(1, int(os.environ.get("EDGED_KILLS") or 1))
IN_WORK = (1, 3)
"""Of five kills, these come in the middle of its work; the others at any moment of its start."""
BY_KEY = """SELECT key % 500 AS key, count(*) AS n, count(note) AS notes, sum(a_id) AS a_ids,
min(b_id) AS b_first, max(b_id) AS b_last FROM pairs GROUP BY key % 500"""
BY_WINDOW = """SELECT window_start, sum(n) AS n, sum(notes) AS notes, sum(ids) AS ids FROM counts
GROUP BY window_start"""
SPEC = {
    "streams": {"pairs": "pairs@1", "counts": "counts@1"},
    "tables": {
        "by_key": {
            "from": "pairs",
            "keys": ["key"],
            "sql": BY_KEY,
            "merge": {
                "n": "count",
                "notes": "count",
                "a_ids": "sum",
                "b_first": "min",
                "b_last": "max",
            },
        },
        "by_window": {
            "from": "counts",
            "keys": ["window_start"],
            "sql": BY_WINDOW,
            "merge": {"n": "sum", "notes": "sum", "ids": "sum"},
        },
    },
}


def test_a_killed_spark_loses_and_repeats_nothing_that_landed(tmp_path):
    dice = random.Random(seed())
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    with System(tmp_path) as system:
        system.collect()
        system.run(law_job(system.address))
        system.produce(batch=100)
        command = aggregate_command(system, spec)
        spark = system.part("spark", *command, "--trigger", "300ms")
        for kill in range(KILLS):
            if kill % 5 in IN_WORK:
                await_event("batch", 240, spark)
                time.sleep(dice.uniform(0, 2))
            else:
                time.sleep(dice.uniform(1, 7))
            spark.check()
            os.killpg(spark.process.pid, signal.SIGKILL)
            spark.kill()
            while not spark.events.empty():
                spark.events.get()
            if kill + 1 < KILLS:
                spark.restart()
        batches = system.end_streams()
        system.drain()
        last = system.part("spark-last", *command)
        until(lambda: not last.running(), 120, "Spark took the rest", last)
        assert last.process.returncode == 0
        rows = assert_tables(system, batches)
        say(f"{KILLS} kills of Spark, {rows} rows in the tables")


def aggregate_command(system, spec):
    conf = [part for k, v in QUICK_SPARK.items() for part in ("--conf", f"{k}={v}")]
    output, checkpoint = system.directory / "tables", system.directory / "checkpoint"
    return ("edged", "central", "aggregate", str(spec), "--landing", str(system.landing),
            "--output", str(output), "--checkpoint", str(checkpoint),
            "--master", "local[2]", "--json", *conf)  # fmt: skip


def assert_tables(system, batches):
    """The tables equal DuckDB's over all rows that were sent; returns their rows."""
    count = 0
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET threads = 2")
        for stream in "ab":
            db.register(stream, producers.all_rows(stream, system.config, batches))
        db.execute(f"CREATE TEMP TABLE pairs AS {PAIRS}")
        db.execute(f"CREATE TEMP TABLE counts AS {COUNTS}")
        for name, truth in (("by_key", BY_KEY), ("by_window", BY_WINDOW)):
            db.register("have", read(system.directory / "tables" / name))
            count += assert_same(db, name, truth, "have")
    return count
