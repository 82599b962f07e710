"""The example's operators on generated records of the equipment job, against DuckDB and Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from edged.bench.equipment_data import POWER, SENSORS, equipment_records
from edged.config.code_directories import DIRECTORY_VARIABLE
from edged.data.columns import Batch
from edged.data.flow import Flow, Link
from edged.documents.reader import load_document
from edged.operators.user.trial import schema_of, without_nulls
from tests.beat.support import Live
from tests.operators.user_kernels import WORKERS, context, listed, plan

EXAMPLES = Path(__file__).parents[2] / "examples"
EDGES = """
    SELECT ts, {k} AS pair, {valve} AS valve, {name} AS up, i FROM (
        SELECT ts, index AS i, {name}, lag({name}) OVER (ORDER BY index) AS old FROM records
    ) WHERE {name} <> old
"""


AROUND_PEAKS = """
    WITH seconds AS (SELECT *, ts // 1000 AS t, ts // 1000000000 * 1000000 AS s FROM records),
    peaks AS (
        SELECT s FROM seconds WHERE s < (SELECT max(s) FROM seconds) GROUP BY s
        HAVING greatest((max(mf01) - min(mf01)) / avg(mf01), (max(mf02) - min(mf02)) / avg(mf02),
                        (max(mf03) - min(mf03)) / avg(mf03)) > 0.3
    )
    SELECT DISTINCT t, mf01, mf02, mf03 FROM seconds
    JOIN peaks ON t BETWEEN peaks.s - 20000000 AND peaks.s + 70000000 ORDER BY t
"""
PEAKS = (500, 9_000, 9_350, 12_000, 29_950)
"""Records whose power is twice that of their neighbours: one soon after the begin, two whose spans
overlap, one in a span that begins before the end of another, one in the last second."""


@pytest.fixture
def records():
    return equipment_records(30_000, seed=4)


def edges_of(records):
    """All edges in order of records, valves before sensors."""
    parts = []
    for k, (sensor, valve) in enumerate(SENSORS.items()):
        parts.append(EDGES.format(k=k, valve="false", name=sensor))
        parts.append(EDGES.format(k=k, valve="true", name=valve))
    query = " UNION ALL ".join(parts)
    return duckdb.sql(f"SELECT * FROM ({query}) ORDER BY i, valve DESC, pair").fetchall()


def pairs_of(edges):
    """Delays, and how many edges are unmatched."""
    delays, unmatched, waiting = [], 0, {}
    for ts, pair, valve, up, _ in edges:
        if not valve:
            unmatched += pair in waiting
            waiting[pair] = (ts, up)
        elif pair in waiting and waiting[pair][1] == up:
            delays.append((pair, up, ts - waiting.pop(pair)[0]))
        else:
            unmatched += 1
    return delays, unmatched


def test_delays_are_those_of_duckdb_and_python(records, tmp_path, monkeypatch):
    directory = tmp_path / "operators"
    directory.mkdir()
    for file in (EXAMPLES / "operators").glob("*.py"):
        shutil.copyfile(file, directory / file.name)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(directory))
    with Live(load_document(EXAMPLES / "equipment.toml")) as live:
        stream = live.job.streams["records"]
        live.connect("records", "p")
        for at in range(0, records.num_rows, 7_000):
            part = Batch.from_arrow(records.slice(at, 7_000), stream.plan.schema)
            stream.staging.append(part, 1, live.clock.wall)
            live.beat()
        live.drain()
        got = [row[1:] for row in live.rows("delays")]
        unmatched, alarms = live.rows("unmatched"), live.rows("alarms")
    delays, count = pairs_of(edges_of(records))
    assert got == delays != []
    assert len(unmatched) == count
    firsts = {}
    for pair, _, delay in delays:
        firsts.setdefault(pair, delay)
    grown = [(p, d, firsts[p]) for p, _, d in delays if d > firsts[p] * 1.01]
    assert [row[1:] for row in alarms] == grown
    assert np.median([d for _, _, d in delays]) in (10_000_000, 20_000_000)


def test_records_around_peaks_are_those_of_duckdb(records):
    power = records["mf02"].to_numpy().copy()
    power[list(PEAKS)] *= 2
    at = records.schema.get_field_index("mf02")
    found = records.set_column(at, "mf02", pa.array(power)).select(["time", "ts", *POWER])
    text = (EXAMPLES / "operators" / "peaks.py").read_text()
    schema = schema_of(without_nulls([found]))
    operator = plan(text, schema, Link(schema, "time"), behind="21s").build(WORKERS)
    got = []
    for start in range(0, found.num_rows, 7_000):
        part = Batch.from_arrow(found.slice(start, 7_000), schema)
        operator.run(context(), [Flow(part, 0)])
        got += [tuple(row.values()) for row in listed(operator.outputs["raw"].batch)]
    with duckdb.connect() as db:
        db.register("records", pa.table(found))
        assert got == db.execute(AROUND_PEAKS).fetchall() != []
    assert operator.counters()["rows_in_error"] == 0
