"""The equipment job: short runs on a real daemon, and what its check finds."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa

from edged.bench import equipment
from edged.bench.equipment_chain import STAGES, staged
from edged.bench.equipment_check import differing, expected
from edged.bench.equipment_data import FIELDS, SENSORS, faulty_equipment_records
from edged.bench.equipment_jobs import equipment_job
from edged.config.code_directories import DIRECTORY_VARIABLE
from edged.job.plan import parse_job
from tests import whole

ROW = {"written", "jobs", "daemons", "tuples_per_s", "cpu_s_per_mtuple", "rss_mb", "equal"}


def test_both_forms_of_the_job_equal_duckdb():
    scope = equipment.SCOPES["quick"]
    scope = dataclasses.replace(scope, written=whole.count(("kernel",), scope.written))
    result = equipment.run(scope, lambda _: None)
    assert [r["written"] for r in result["rows"]] == list(scope.written)
    for row in result["rows"]:
        assert set(row) >= ROW and row["equal"], row
        assert row["tuples_per_s"] > 0 and row["cpu_s_per_mtuple"] > 0
    assert all(result["sinks"].values())
    assert set(result["p_values"]) == {"cpu", "memory"}


def test_stages_on_four_daemons_are_the_same_job(monkeypatch):
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(equipment.EXAMPLES))
    records, _ = faulty_equipment_records(10)
    ports = itertools.count(9000)
    for written in equipment.WRITTEN:
        job = equipment_job(written, "m", "127.0.0.1:8000", "out", records.schema, {})
        found = staged(job, lambda: f"127.0.0.1:{next(ports)}")
        assert list(found) == list(STAGES)
        for stage, document in found.items():
            plan = parse_job(document)
            assert ("on" in plan.sinks) == (stage != STAGES[-1])
        for part in ("operators", "sinks"):
            own = [id for document in found.values() for id in document[part] if id != "on"]
            assert sorted(own) == sorted(job[part])


def test_faults_of_valves_are_in_the_records_and_in_the_truth():
    records, truth = faulty_equipment_records(60_000, seed=2)
    assert records.num_columns == FIELDS + 1
    want = expected(pa.Table.from_batches([records]))
    faults = truth.to_pylist()
    missed = {(f["pair"], f["ts"]) for f in faults if f["fault"] == "missed"}
    assert {f["fault"] for f in faults} == {"none", "late", "missed", "double"}
    starts = {(pair, us * 1000 - delay) for pair, _, us, delay in want["delays"]}
    assert not missed & starts
    delays = np.array([row[3] for row in want["delays"]])
    assert np.median(delays) == 20_000_000 and delays.max() >= 50_000_000
    assert len(want["delays"]) < len(faults) == sum(not row[1] for row in want["edges"])
    assert {row[0] for row in want["edges"]} == set(range(len(SENSORS)))


def test_a_wrong_count_and_a_wrong_slope_are_found():
    records, _ = faulty_equipment_records(30_000)
    want = expected(pa.Table.from_batches([records]))
    assert differing(want, want) == []
    slope = [(*row[:3], row[3] * (1 + 1e-6)) for row in want["trends"]]
    assert differing({**want, "edges": want["edges"][1:], "trends": slope}, want) == [
        "edges",
        "trends",
    ]
