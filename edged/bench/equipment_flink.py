"""Flink as a peer of the equipment job: SQL in one local cluster, in an environment of its own.

The environment holds PyPI's package at PACKAGE and is made at the first use; it needs Java.  A
job's records come from a CSV file with all fields: Flink's jars have no source for binary records
over a socket.  MATCH_RECOGNIZE finds the delays.  No checkpoints are taken, so nothing is durable.
Time and CPU seconds are counted from the submission on, without start and planning.  Each job has
parallelism 1; the cluster has all cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.csv

from edged.bench import equipment_check as check
from edged.bench.equipment_data import POWER, SENSORS
from edged.bench.equipment_jobs import GROWTH, SINKS, SPAN_S, SWITCHES
from edged.bench.relay_chain import bench_directory
from edged.bench.rig import cpu_s
from edged.errors import EdgedError

PACKAGE = "apache-flink==2.3.0"
LIMIT_S = 200
"""For a run, planning included."""
_RUN = """
import json, sys
from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

given = json.load(open(sys.argv[1]))
settings = Configuration()
for key, value in given["settings"].items():
    settings.set_string(key, value)
made = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings).build()
env = TableEnvironment.create(made)
for statement in given["tables"]:
    env.execute_sql(statement)
together = env.create_statement_set()
for statement in given["inserts"]:
    together.add_insert_sql(statement)
running = together.execute()
print("begun", flush=True)
running.wait()
print("ended", flush=True)
sys.stdin.read()
"""
_SETTINGS = {
    "parallelism.default": "1", "table.local-time-zone": "UTC",
    "taskmanager.memory.network.min": "512mb", "taskmanager.memory.network.max": "512mb",
}  # fmt: skip
_TYPES = {"int32": "INT", "int64": "BIGINT", "bool": "BOOLEAN"}
_COLUMNS = {
    "edges": {"pair": "INT", "valve": "BOOLEAN", "up": "BOOLEAN", "ts": "BIGINT"},
    "delays": {"pair": "INT", "up": "BOOLEAN", "t": "BIGINT", "delay_ns": "BIGINT"},
    "alarms": {"pair": "INT", "t": "BIGINT", "delay_ns": "BIGINT", "first_ns": "BIGINT"},
    "trends": {"pair": "INT", "t": "BIGINT", "n": "BIGINT", "slope": "DOUBLE"},
    "seconds": {"t": "BIGINT"}
    | {f"{kind}{k}": "DOUBLE" for k in (1, 2, 3) for kind in ("mean", "variation")},
}
_MATCH = """
    SELECT CAST({pair} AS INT) AS pair, {up} AS up, at_ns / 1000 AS t, at_ns - since AS delay_ns, rt
    FROM changes{job} MATCH_RECOGNIZE (
        ORDER BY rt
        MEASURES S.ts AS since, V.ts AS at_ns, MATCH_ROWTIME() AS rt
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
        PATTERN (S X* V)
        DEFINE S AS {now}{sensor} AND {was}{sensor}_was,
            X AS {sensor} = {sensor}_was AND NOT ({now}{valve} AND {was}{valve}_was),
            V AS {now}{valve} AND {was}{valve}_was
    )
"""
_TREND = """
    INSERT INTO trends{job}
    SELECT pair, t / {us} * {us}, n, (n * sxy - sx * sy) / (n * sxx - sx * sx) FROM (
        SELECT pair, window_start, MIN(t) AS t, COUNT(*) AS n, SUM(x) AS sx, SUM(y) AS sy,
            SUM(x * x) AS sxx, SUM(x * y) AS sxy
        FROM TABLE(TUMBLE(DATA => TABLE points{job}, TIMECOL => DESCRIPTOR(rt),
            SIZE => INTERVAL '{span}' SECONDS))
        GROUP BY pair, window_start, window_end
    ) WHERE n > 1
"""


def flink_python(say: Any) -> Path:
    """The environment's Python.  Raises EdgedError where the package cannot be installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "edged" / "flink"
    python = cache / "bin" / "python"
    if not (cache / "ready").exists():
        say(f"installing {PACKAGE} into {cache}")
        for words in ([sys.executable, "-m", "venv", str(cache)],
                      [str(python), "-m", "pip", "install", "-q", PACKAGE]):  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                raise EdgedError(f"flink: {(done.stderr or done.stdout).strip()[-200:]}")
        (cache / "ready").touch()
    return python


def measure_flink(python: Path, jobs: int, records: pa.Table, want: check.Rows) -> dict[str, Any]:
    """A run of so many jobs, checked."""
    with bench_directory() as directory:
        pa.csv.write_csv(records.drop_columns(["time"]), directory / "records.csv",
                         pa.csv.WriteOptions(include_header=False))  # fmt: skip
        given: dict[str, Any] = {"settings": _SETTINGS, "tables": [], "inserts": []}
        for job in range(jobs):
            tables, inserts = _statements(job, directory, records.schema)
            given["tables"] += tables
            given["inserts"] += inserts
        (directory / "flink.json").write_text(json.dumps(given))
        got = run_flink(python, directory)
        differ = [check.differing(_found(directory, job, want), want) for job in range(jobs)]
    rows = records.num_rows * jobs
    return {
        "tuples_per_s": rows / got["took_s"], "cpu_s_per_mtuple": got["cpu_s"] / rows * 1e6,
        "rss_mb": got["rss"] / 1e6, "load_cpu_s_per_mtuple": 0.0,
        "differ": sorted({sink for own in differ for sink in own}),
    }  # fmt: skip


def run_flink(python: Path, directory: Path) -> dict[str, float]:
    """Run the settings, tables and inserts of `flink.json`, from submission to end: `took_s`,
    `cpu_s`, and `rss` in bytes.  Raises EdgedError where it fails or takes too long."""
    with (directory / "flink.log").open("w") as log:
        process = subprocess.Popen(
            [str(python), "-c", _RUN, str(directory / "flink.json")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        limit = threading.Timer(LIMIT_S, _end, [process])
        limit.start()
        marks, rss = [], 0
        for line in process.stdout:
            if line.strip() in ("begun", "ended"):
                own = psutil.Process(process.pid)
                family = [own, *own.children(recursive=True)]
                marks.append((time.monotonic(), sum(map(cpu_s, family))))
                rss = sum(map(_peak, family))
                if len(marks) == 2:
                    break
        limit.cancel()
        process.communicate()
    if len(marks) < 2:
        tail = (directory / "flink.log").read_text().strip().splitlines()
        reason = " ".join(tail[-3:])[-500:] or f"not at its end within {LIMIT_S} s"
        raise EdgedError(f"flink: {reason}")
    (begun, used), (ended, last) = marks
    return {"took_s": ended - begun, "cpu_s": last - used, "rss": rss}


def _end(process: subprocess.Popen[str]) -> None:
    own = psutil.Process(process.pid)
    for one in [*own.children(recursive=True), own]:
        one.kill()


def _peak(process: psutil.Process) -> int:
    """The most memory that a process has had, in bytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(text.partition("VmHWM:")[2].split()[0])


def _statements(job: int, directory: Path, schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Tables and views of a job, and what is inserted."""
    fields = [f"`{f.name}` {_TYPES[str(f.type)]}" for f in schema if f.name != "time"]
    extra = ["rt AS TO_TIMESTAMP_LTZ(ts / 1000000, 3)", "WATERMARK FOR rt AS rt"]
    tables = [_table(f"records{job}", [*fields, *extra], directory / "records.csv")]
    for sink, columns in _COLUMNS.items():
        own = [f"`{name}` {kind}" for name, kind in columns.items()]
        tables.append(_table(f"{sink}{job}", own, directory / f"out{job}" / sink))
    lags = ", ".join(f"{s}, LAG({s}) OVER (ORDER BY rt) AS {s}_was" for s in SWITCHES)
    changed = " OR ".join(f"{s} <> {s}_was" for s in SWITCHES)
    tables.append(f"CREATE TEMPORARY VIEW changes{job} AS SELECT * FROM (SELECT rt, ts, {lags} "
                  f"FROM records{job}) WHERE {changed}")  # fmt: skip
    matches = [
        _MATCH.format(pair=pair, up=str(up).upper(), job=job, sensor=sensor, valve=valve,
                      now="" if up else "NOT ", was="NOT " if up else "")
        for pair, (sensor, valve) in enumerate(SENSORS.items())
        for up in (True, False)
    ]  # fmt: skip
    tables.append(f"CREATE TEMPORARY VIEW found{job} AS " + " UNION ALL ".join(matches))
    us = SPAN_S * 10**6
    tables.append(
        f"CREATE TEMPORARY VIEW points{job} AS SELECT pair, t, rt, "
        f"CAST(MOD(t, {us}) AS DOUBLE) / 1e6 AS x, CAST(delay_ns AS DOUBLE) / 1e9 AS y "
        f"FROM found{job}"
    )
    return tables, _inserts(job, us)


def _inserts(job: int, us: int) -> list[str]:
    edges = [
        f"SELECT CAST({i % len(SENSORS)} AS INT), {str(i >= len(SENSORS)).upper()}, {s}, ts "
        f"FROM changes{job} WHERE {s} <> {s}_was"
        for i, s in enumerate(SWITCHES)
    ]
    means = ", ".join(
        f"AVG(CAST({p} AS DOUBLE)), CAST(MAX({p}) - MIN({p}) AS DOUBLE) / AVG(CAST({p} AS DOUBLE))"
        for p in POWER
    )
    return [
        f"INSERT INTO edges{job} " + " UNION ALL ".join(edges),
        f"INSERT INTO delays{job} SELECT pair, up, t, delay_ns FROM found{job}",
        f"INSERT INTO alarms{job} SELECT pair, t, delay_ns, first_ns FROM (SELECT *, "
        "FIRST_VALUE(delay_ns) OVER (PARTITION BY pair ORDER BY rt) AS first_ns "
        f"FROM found{job}) WHERE delay_ns > first_ns * CAST({GROWTH} AS DOUBLE)",
        _TREND.format(job=job, us=us, span=SPAN_S),
        f"INSERT INTO seconds{job} SELECT MIN(ts) / 1000000000 * 1000000, {means} "
        f"FROM TABLE(TUMBLE(DATA => TABLE records{job}, TIMECOL => DESCRIPTOR(rt), "
        "SIZE => INTERVAL '1' SECONDS)) GROUP BY window_start, window_end",
    ]


def _table(name: str, columns: list[str], path: Path) -> str:
    return (f"CREATE TABLE {name} ({', '.join(columns)}) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{path}', 'format' = 'csv')")  # fmt: skip


def _found(directory: Path, job: int, want: check.Rows) -> check.Rows:
    """The rows that a job has written, as `equipment_check.found` has them."""
    db = duckdb.connect()
    rows: check.Rows = {}
    for sink in SINKS:
        files = [str(p) for p in (directory / f"out{job}" / sink).glob("part-*")]
        full = [f for f in files if Path(f).stat().st_size]
        rows[sink] = []
        if full:
            source = f"read_csv({full}, header = false, columns = {_COLUMNS[sink]})"
            rows[sink] = sorted(db.execute(f"SELECT * FROM {source}").fetchall())
    return check.up_to(rows, want)
