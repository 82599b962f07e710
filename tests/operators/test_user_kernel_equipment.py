"""The example's operators on generated records of the equipment job, against DuckDB and Python."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import numpy as np
import pytest

from edged.bench.equipment_data import SENSORS, equipment_records
from edged.config.code_directories import DIRECTORY_VARIABLE
from edged.data.columns import Batch
from edged.documents.reader import load_document
from tests.beat.support import Live

EXAMPLES = Path(__file__).parents[2] / "examples"
EDGES = """
    SELECT ts, {k} AS pair, {valve} AS valve, {name} AS up, i FROM (
        SELECT ts, index AS i, {name}, lag({name}) OVER (ORDER BY index) AS old FROM records
    ) WHERE {name} <> old
"""


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
