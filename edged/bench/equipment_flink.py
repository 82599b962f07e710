"""Flink as a peer of the equipment job: SQL in one local cluster.

A job is a graph of its own with a slot of its own and parallelism 1; the cluster has all cores.
One job is planned, and copied with paths of its own; all are submitted at once.  A job's records
come from a CSV file with all fields: Flink's jars have no source for binary records over a socket.
MATCH_RECOGNIZE finds the delays.  Objects are used again, buffers are sent when full or after
100 ms, and no checkpoints are taken, so nothing is durable.

Samples are taken from the submission to the end of all jobs.  The records read so far follow from
the bytes that the JVM has yet to read: once it has started it reads nothing but records.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv

from edged.bench import equipment_check as check
from edged.bench.equipment_data import POWER, SENSORS
from edged.bench.equipment_jobs import GROWTH, SINKS, SPAN_S, SWITCHES
from edged.bench.equipment_slices import RunSample
from edged.bench.flink_peer import FlinkSession
from edged.bench.relay_chain import bench_directory

FLINK = "flink"
HEAP = "1536m"
"""The sum of Flink's defaults for a job manager and a task manager."""
_SETTINGS = {
    "parallelism.default": "1", "table.local-time-zone": "UTC", "pipeline.object-reuse": "true",
    "taskmanager.memory.network.min": "256mb", "taskmanager.memory.network.max": "256mb",
    "taskmanager.memory.managed.size": "512mb", "heartbeat.timeout": "10 min",
    "source.file.stream.io-fetch-size": "128 kb",
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
    FROM changes MATCH_RECOGNIZE (
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
    INSERT INTO trends
    SELECT pair, t / {us} * {us}, n, (n * sxy - sx * sy) / (n * sxx - sx * sx) FROM (
        SELECT pair, window_start, MIN(t) AS t, COUNT(*) AS n, SUM(x) AS sx, SUM(y) AS sy,
            SUM(x * x) AS sxx, SUM(x * y) AS sxy
        FROM TABLE(TUMBLE(DATA => TABLE points, TIMECOL => DESCRIPTOR(rt),
            SIZE => INTERVAL '{span}' SECONDS))
        GROUP BY pair, window_start, window_end
    ) WHERE n > 1
"""


def measure_flink(
    python: Path, jobs: int, records: pa.Table, want: check.Rows
) -> tuple[list[RunSample], list[str]]:
    """A run of so many jobs, and the sinks that differ.  Raises EdgedError where Flink fails."""
    with bench_directory(in_memory=True) as directory:
        outputs = [str(directory / f"out{job:03}") for job in range(jobs)]
        tables, inserts = _statements(directory, outputs[0], records.schema)
        given = {"settings": _SETTINGS, "tables": tables, "inserts": inserts, "outputs": outputs}
        (directory / "flink.json").write_text(json.dumps(given))
        file = directory / "records.csv"
        pa.csv.write_csv(records.drop_columns(["time"]), file,
                         pa.csv.WriteOptions(include_header=False))  # fmt: skip
        session = FlinkSession(python, directory, f"-Xmx{HEAP}")
        try:
            samples = session.run()
        finally:
            session.stop()
        differ = [check.differing(_found(Path(own), want), want) for own in outputs]
        size = file.stat().st_size
    last, rows, some = samples[-1].rows, records.num_rows * jobs, records.num_rows / size
    read = [max(0.0, rows - (last - sample.rows) * some) for sample in samples]
    counted = [dataclasses.replace(s, rows=n) for s, n in zip(samples, read, strict=True)]
    return counted, sorted({sink for own in differ for sink in own})


def _statements(directory: Path, output: str, schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Tables and views of a job, and what is inserted."""
    fields = [f"`{f.name}` {_TYPES[str(f.type)]}" for f in schema if f.name != "time"]
    extra = ["rt AS TO_TIMESTAMP_LTZ(ts / 1000000, 3)", "WATERMARK FOR rt AS rt"]
    tables = [_table("records", [*fields, *extra], directory / "records.csv")]
    for sink, columns in _COLUMNS.items():
        own = [f"`{name}` {kind}" for name, kind in columns.items()]
        tables.append(_table(f"{sink}", own, f"{output}/{sink}"))
    lags = ", ".join(f"{s}, LAG({s}) OVER (ORDER BY rt) AS {s}_was" for s in SWITCHES)
    changed = " OR ".join(f"{s} <> {s}_was" for s in SWITCHES)
    tables.append(f"CREATE TEMPORARY VIEW changes AS SELECT * FROM (SELECT rt, ts, {lags} "
                  f"FROM records) WHERE {changed}")  # fmt: skip
    matches = [
        _MATCH.format(pair=pair, up=str(up).upper(), sensor=sensor, valve=valve,
                      now="" if up else "NOT ", was="NOT " if up else "")
        for pair, (sensor, valve) in enumerate(SENSORS.items())
        for up in (True, False)
    ]  # fmt: skip
    tables.append("CREATE TEMPORARY VIEW found AS " + " UNION ALL ".join(matches))
    us = SPAN_S * 10**6
    tables.append(
        f"CREATE TEMPORARY VIEW points AS SELECT pair, t, rt, "
        f"CAST(MOD(t, {us}) AS DOUBLE) / 1e6 AS x, CAST(delay_ns AS DOUBLE) / 1e9 AS y "
        f"FROM found"
    )
    return tables, _inserts(us)


def _inserts(us: int) -> list[str]:
    edges = [
        f"SELECT CAST({i % len(SENSORS)} AS INT), {str(i >= len(SENSORS)).upper()}, {s}, ts "
        f"FROM changes WHERE {s} <> {s}_was"
        for i, s in enumerate(SWITCHES)
    ]
    means = ", ".join(
        f"AVG(CAST({p} AS DOUBLE)), CAST(MAX({p}) - MIN({p}) AS DOUBLE) / AVG(CAST({p} AS DOUBLE))"
        for p in POWER
    )
    return [
        "INSERT INTO edges " + " UNION ALL ".join(edges),
        "INSERT INTO delays SELECT pair, up, t, delay_ns FROM found",
        f"INSERT INTO alarms SELECT pair, t, delay_ns, first_ns FROM (SELECT *, "
        "FIRST_VALUE(delay_ns) OVER (PARTITION BY pair ORDER BY rt) AS first_ns "
        f"FROM found) WHERE delay_ns > first_ns * CAST({GROWTH} AS DOUBLE)",
        _TREND.format(us=us, span=SPAN_S),
        f"INSERT INTO seconds SELECT MIN(ts) / 1000000000 * 1000000, {means} "
        f"FROM TABLE(TUMBLE(DATA => TABLE records, TIMECOL => DESCRIPTOR(rt), "
        "SIZE => INTERVAL '1' SECONDS)) GROUP BY window_start, window_end",
    ]


def _table(name: str, columns: list[str], path: object) -> str:
    return (f"CREATE TABLE {name} ({', '.join(columns)}) WITH ('connector' = 'filesystem', "
            f"'path' = 'file://{path}', 'format' = 'csv')")  # fmt: skip


def _found(directory: Path, want: check.Rows) -> check.Rows:
    """The rows that a job has written, as `equipment_check.found` has them."""
    db = duckdb.connect()
    rows: check.Rows = {}
    for sink in SINKS:
        files = [str(p) for p in (directory / sink).glob("part-*")]
        full = [f for f in files if Path(f).stat().st_size]
        rows[sink] = []
        if full:
            source = f"read_csv({full}, header = false, columns = {_COLUMNS[sink]})"
            rows[sink] = sorted(db.execute(f"SELECT * FROM {source}").fetchall())
    return check.up_to(rows, want)
