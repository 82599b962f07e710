"""What the equipment job must find, by DuckDB, and whether a job's files have it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from edged.bench.equipment_data import POWER, SENSORS
from edged.bench.equipment_jobs import AROUND_S, GROWTH, PEAK_VARIATION, RAW, SPAN_S, SWITCHES

SLOPE_TOLERANCE = 1e-9
Rows = dict[str, list[tuple[Any, ...]]]
_OPEN = {"seconds": 0, "trends": 1}
"""Sinks of windows, and where their rows have the time."""

_EDGES = """
    SELECT {pair} AS pair, {is_valve} AS valve, {name} AS up, ts, i
    FROM (SELECT ts, index AS i, {name}, lag({name}) OVER (ORDER BY index) AS was FROM records)
    WHERE {name} <> was
"""
_DELAYS = """
    CREATE TABLE delays AS
    WITH sensors AS (
        SELECT pair, up, ts, i, lead(i) OVER (PARTITION BY pair ORDER BY i) AS following
        FROM edges WHERE NOT valve
    ), valves AS (SELECT pair, up, ts, i FROM edges WHERE valve)
    SELECT s.pair, s.up, min(v.ts) AS ts, min(v.ts) - s.ts AS delay_ns
    FROM sensors s JOIN valves v
    ON s.pair = v.pair AND s.up = v.up AND v.i > s.i AND v.i <= coalesce(s.following, v.i)
    GROUP BY s.pair, s.up, s.ts
"""
_ALARMS = """
    SELECT pair, ts // 1000, delay_ns, first_ns FROM (
        SELECT *, first_value(delay_ns) OVER (PARTITION BY pair ORDER BY ts) AS first_ns FROM delays
    ) WHERE delay_ns > first_ns * {growth}
"""
_TRENDS = """
    SELECT pair, span * {span_us}, count(*), regr_slope(delay_ns / 1e9, s) FROM (
        SELECT pair, ts // {span_us}000 AS span, delay_ns, (ts % {span_us}000) / 1e9 AS s
        FROM delays
    ) GROUP BY ALL HAVING count(*) > 1
"""
_SECONDS = "SELECT ts // 1000000000 * 1000000 AS t, {figures} FROM records GROUP BY t"
_RAW = """
    WITH known AS (SELECT *, ts // 1000 AS t, ts // 1000000000 * 1000000 AS s FROM records),
    peaks AS (
        SELECT s FROM known WHERE s < (SELECT max(s) FROM known) GROUP BY s
        HAVING greatest({variations}) > {limit}
    )
    SELECT DISTINCT t, {power} FROM known
    JOIN peaks ON t BETWEEN peaks.s - {before} AND peaks.s + {after}
"""


def expected(records: pa.Table) -> Rows:
    """The rows of each sink, sorted, without the last second and the last span, which a kernel
    cannot close."""
    db = duckdb.connect()
    db.register("records", records)
    parts = []
    for pair, names in enumerate(SENSORS.items()):
        for name, is_valve in zip(names, ("false", "true"), strict=True):
            parts.append(_EDGES.format(pair=pair, name=name, is_valve=is_valve))
    db.execute("CREATE TABLE edges AS " + " UNION ALL ".join(parts))
    db.execute(_DELAYS)
    variations = [f"(max({p}) - min({p})) / avg({p})" for p in POWER]
    figures = ", ".join(f"avg({p}), {v}" for p, v in zip(POWER, variations, strict=True))
    before, after = (s * 10**6 for s in AROUND_S)
    queries = {
        "edges": "SELECT pair, valve, up, ts FROM edges",
        "delays": "SELECT pair, up, ts // 1000, delay_ns FROM delays",
        "alarms": _ALARMS.format(growth=GROWTH),
        "trends": _TRENDS.format(span_us=SPAN_S * 10**6),
        "seconds": _SECONDS.format(figures=figures),
        RAW: _RAW.format(
            variations=", ".join(variations),
            limit=PEAK_VARIATION,
            power=", ".join(POWER),
            before=before,
            after=after,
        ),
    }
    rows = {sink: sorted(db.execute(q).fetchall()) for sink, q in queries.items()}
    for sink, at in _OPEN.items():
        last = max((row[at] for row in rows[sink]), default=0)
        rows[sink] = [row for row in rows[sink] if row[at] < last]
    return rows


def found(directory: Path, want: Rows) -> Rows:
    """The rows of the wanted sinks that a job has written, sorted, up to the last second and span
    that are wanted."""
    db = duckdb.connect()
    return up_to({sink: sorted(_read(db, sink, directory / sink)) for sink in want}, want)


def up_to(rows: Rows, want: Rows) -> Rows:
    """Rows up to the last second and the last span that are wanted."""
    rows = dict(rows)
    for sink, at in _OPEN.items():
        last = max((row[at] for row in want[sink]), default=0)
        rows[sink] = [row for row in rows[sink] if row[at] <= last]
    return rows


def _read(db: duckdb.DuckDBPyConnection, sink: str, directory: Path) -> list[tuple[Any, ...]]:
    if not any(directory.glob("*.parquet")):
        return []
    source = f"read_parquet('{directory}/*.parquet')"
    names = {c[0] for c in db.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()}
    if sink == "edges":
        return _edges(db, source, names)
    time = "window_start" if "window_start" in names else "time"
    picks = {
        "delays": "pair, up, t, delay_ns",
        "alarms": "pair, t, delay_ns, first_ns",
        "trends": "pair, t, rows, slope",
        "seconds": "t, mean1, variation1, mean2, variation2, mean3, variation3",
        RAW: f"t, {', '.join(POWER)}",
    }
    some = "WHERE rows > 1" if sink == "trends" else ""  # the slope of one delay is null
    columns = picks[sink].replace("t,", f"epoch_us({time}),", 1)
    return list(db.execute(f"SELECT {columns} FROM {source} {some}").fetchall())


def _edges(db: duckdb.DuckDBPyConnection, source: str, names: set[str]) -> list[tuple[Any, ...]]:
    """Rows of a kernel as they are; rows of `lag` have an edge for each switch that differs."""
    if "valve" in names:
        return list(db.execute(f"SELECT pair, valve, up, ts FROM {source}").fetchall())
    parts = [
        f"SELECT {i % len(SENSORS)}, {i >= len(SENSORS)}, {name}, ts FROM {source} "
        f"WHERE {name} <> {name}_was"
        for i, name in enumerate(SWITCHES)
    ]
    return list(db.execute(" UNION ALL ".join(parts)).fetchall())


def differing(got: Rows, want: Rows) -> list[str]:
    """The wanted sinks that differ: times and counts exactly, floats within SLOPE_TOLERANCE."""
    return [sink for sink in want if not _same(got[sink], want[sink])]


def _same(got: list[tuple[Any, ...]], want: list[tuple[Any, ...]]) -> bool:
    return len(got) == len(want) and all(
        all(map(_close, a, b)) for a, b in zip(got, want, strict=True)
    )


def _close(a: Any, b: Any) -> bool:
    if isinstance(b, float):
        return math.isclose(a, b, rel_tol=SLOPE_TOLERANCE, abs_tol=SLOPE_TOLERANCE * 1e-3)
    return bool(a == b)
