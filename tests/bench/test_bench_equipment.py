"""The equipment job: short runs on a real daemon, and what its check finds."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from edged.bench import equipment, flink_session
from edged.bench.equipment_chain import STAGES, staged
from edged.bench.equipment_check import differing, expected
from edged.bench.equipment_data import FIELDS, SENSORS, faulty_equipment_records
from edged.bench.equipment_jobs import equipment_job
from edged.bench.equipment_slices import RunSample, as_whole, in_slices
from edged.config.code_directories import DIRECTORY_VARIABLE
from edged.job.plan import parse_job
from tests import whole

ROW = {"written", "jobs", "daemons", "tuples_per_s", "cpu_s_per_mtuple", "rss_mb", "equal"}


def test_both_forms_of_the_job_equal_duckdb(tmp_path):
    scope = equipment.SCOPES["quick"]
    scope = dataclasses.replace(scope, written=whole.count(("kernel",), scope.written))
    result = equipment.run(scope, lambda _: None)
    assert [r["written"] for r in result["rows"]] == list(scope.written)
    for row in result["rows"]:
        assert set(row) >= ROW and row["equal"], row
        assert row["tuples_per_s"] > 0 and row["cpu_s_per_mtuple"] > 0
    assert all(result["sinks"].values())
    assert set(result["p_values"]) == {"cpu", "memory"}
    flink = {**result["rows"][0], "written": "flink", "jobs": 32}
    equipment.draw({"rows": [*result["rows"], flink]}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_slice_begins_where_the_one_before_ends_and_the_first_is_left_out():
    at = [(0.0, 0, 1.0, 5), (2.0, 100, 3.0, 6), (3.0, 200, 3.5, 9), (5.0, 400, 4.5, 8)]
    samples = [RunSample(*one) for one in [*at, (6.0, 400, 5.5, 7)]]
    assert in_slices(samples, 3) == [
        {"tuples_per_s": 100.0, "cpu_s_per_mtuple": 5_000.0, "rss_mb": 9e-6},
        {"tuples_per_s": 100.0, "cpu_s_per_mtuple": 5_000.0, "rss_mb": 9e-6},
        {"tuples_per_s": 50.0, "cpu_s_per_mtuple": 15_000.0, "rss_mb": 8e-6},
    ]
    whole = {"tuples_per_s": 400 / 6, "cpu_s_per_mtuple": 11_250.0, "rss_mb": 9e-6}
    assert as_whole(samples) == whole


def test_builtin_has_ten_runs_where_flink_runs():
    scope = equipment.SCOPES["default"]
    most = equipment._arms(scope, 32)
    assert most["builtin", 1] == scope.slices == 10 and most["flink", 1] == 1
    assert {arm for arm in most if arm[1] == 4} == {(form, 4) for form in equipment.WRITTEN}
    assert equipment._arms(scope, 8) == {(form, 1): 1 for form in equipment.WRITTEN}


def test_copies_of_a_graph_write_to_paths_of_their_own():
    tool = SimpleNamespace(serializeObject=bytes, deserializeObject=lambda data, _: data)
    jvm = SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(flink=SimpleNamespace(
            util=SimpleNamespace(InstantiationUtil=tool)))),
        java=SimpleNamespace(lang=SimpleNamespace(ClassLoader=SimpleNamespace(
            getSystemClassLoader=lambda: None))),
    )  # fmt: skip
    graph = b"..from/records.csv..to/out000/edges..to/out000/delays"
    found = flink_session._copies(jvm, graph, ["to/out000", "to/out001"])
    assert found == [graph, b"..from/records.csv..to/out001/edges..to/out001/delays"]
    with pytest.raises(ValueError, match="does not name"):
        flink_session._copies(jvm, graph, ["to/out007"])


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
