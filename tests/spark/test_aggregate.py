"""Aggregation in a real Spark: tables against DuckDB over the original rows."""

import itertools
import math
import threading

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.central.aggregate import AggregateOptions, Aggregation, TableQuery, _watch, locked
from edged.central.merge import merged
from edged.central.spec import Merge, TableSpec, parse_spec
from edged.central.tables import TableDirectory, read
from edged.errors import CentralError, JobError
from tests.spark.landings import readings, readings_table
from tests.whole import examples

SQL = """SELECT key, count(*) AS n, sum(power) AS power, min(power) AS lo, max(power) AS hi,
count(power) AS m_n, avg(power) AS m_mean, var_pop(power) * count(power) AS m_m2,
max(time) AS time, max(struct(time, power)).power AS latest FROM curve GROUP BY key"""
BY_KEY = {
    "from": "curve",
    "sql": SQL,
    "keys": ["key"],
    "merge": {
        "n": "count",
        "power": "sum",
        "lo": "min",
        "hi": "max",
        "m": {"moments": ["m_n", "m_mean", "m_m2"]},
        "time": "max",
        "latest": {"last_by": "time"},
    },
    "view": "SELECT key, n, power, lo, hi, m_mean, sqrt(m_m2 / (m_n - 1)) AS stddev FROM this",
}
TRUTH = """SELECT key, count(*) AS n, sum(power) AS power, min(power) AS lo, max(power) AS hi,
avg(power) AS m_mean, stddev_samp(power) AS stddev FROM rows GROUP BY key ORDER BY key"""


def spec(**tables):
    return parse_spec({"streams": {"curve": "curve@1"}, "tables": tables or {"by_key": BY_KEY}})


def options(landing, tmp_path, **more):
    places = {n: str(tmp_path / n) for n in ("output", "checkpoint")}
    return AggregateOptions(landing=str(landing.path), **places, **more)


def run(spark, document, opts):
    """Run the aggregation over everything landed; returns its events."""
    events = []
    aggregation = Aggregation(spark, document, opts)
    try:
        _watch(aggregation, events.append, threading.Event())
    finally:
        aggregation.stop()
    return events


def assert_equals_duckdb(path, rows):
    """Counts, minima, maxima and sums of eighths are exact; means and deviations to 1e-9."""
    with duckdb.connect() as duck:
        duck.register("rows", rows)
        truth = duck.sql(TRUTH).to_arrow_table().to_pylist()
    table = sorted(read(path).to_pylist(), key=lambda r: r["key"])
    exact = ("key", "n", "power", "lo", "hi")
    assert [[r[c] for c in exact] for r in table] == [[r[c] for c in exact] for r in truth]
    for have, want in zip(table, truth, strict=True):
        assert have["m_mean"] == pytest.approx(want["m_mean"], rel=1e-9)
        assert have["stddev"] == pytest.approx(want["stddev"], rel=1e-9)


def test_a_merged_table_equals_duckdb_over_many_small_batches(spark, landing, tmp_path):
    landing.land([readings(s) for s in range(1, 6)])
    landing.land([readings(s, partition=1) for s in range(6, 9)], "seg-b-00000001")
    events = run(spark, spec(), options(landing, tmp_path, source={"pages_per_trigger": "3"}))
    assert [(e["batch"], e["rows"]) for e in events] == [(0, 3000), (1, 3000), (2, 2000)]
    assert events[-1]["table_rows"] == 10
    rows = readings_table(range(1, 9))
    assert_equals_duckdb(tmp_path / "output" / "by_key", rows)
    state = {r["key"]: r for r in read(tmp_path / "output" / "by_key", "state").to_pylist()}
    for key, row in state.items():
        mine = [r for r in rows.to_pylist() if r["key"] == key]
        newest = max(r["time"] for r in mine)
        assert row["time"] == newest
        at_newest = [r["power"] for r in mine if r["time"] == newest]
        assert row["latest"] == max((p for p in at_newest if p is not None), default=None)


def test_a_device_that_was_away_for_a_day_loses_nothing(spark, landing, tmp_path):
    day_us = 86_400_000_000
    landing.land([readings(s, first_time_us=3 * day_us) for s in (1, 2)])
    opts = options(landing, tmp_path)
    run(spark, spec(), opts)
    landing.land([readings(s, first_time_us=day_us, device="late") for s in (3, 4)],
                 "seg-b-00000001")  # fmt: skip
    run(spark, spec(), opts)
    assert_equals_duckdb(tmp_path / "output" / "by_key", readings_table([1, 2, 3, 4]))


POINTS = [
    ("before", "merge_batch"),  # its offsets are logged, nothing is done
    ("after", "write_state"),
    ("after", "write_view"),  # complete, not published
    ("after", "publish"),
    ("after", "merge_batch"),  # published, and Spark has not committed it
]


def test_a_run_that_fails_at_every_step_neither_loses_nor_repeats_a_row(
    spark, landing, tmp_path, monkeypatch
):
    opts = options(landing, tmp_path, source={"pages_per_trigger": "2"})
    seqs = itertools.count(1)
    used = []
    for when, point in POINTS:
        fresh = [next(seqs) for _ in range(3)]
        used += fresh
        landing.land([readings(s, n=200) for s in fresh])
        owner = TableQuery if hasattr(TableQuery, point) else TableDirectory
        with monkeypatch.context() as patched:
            patched.setattr(owner, point, failing(getattr(owner, point), when))
            with pytest.raises(CentralError, match=f"injected {when} {point}"):
                run(spark, spec(), opts)
        later = next(seqs)  # pages landed meanwhile belong to a later batch
        used.append(later)
        landing.land([readings(later, n=200)])
    run(spark, spec(), opts)
    assert_equals_duckdb(tmp_path / "output" / "by_key", readings_table(used, n=200))


def failing(step, when):
    def fail(*arguments):
        if when == "after":
            step(*arguments)
        raise RuntimeError(f"injected {when} {step.__name__}")

    return fail


def test_several_tables_of_one_stream_each_have_a_query_of_their_own(spark, landing, tmp_path):
    landing.land([readings(s) for s in (1, 2)])
    total = {
        "from": "curve",
        "sql": "SELECT 'all' AS what, count(*) AS n FROM curve",
        "keys": ["what"],
        "merge": {"n": "sum"},
    }
    run(spark, spec(by_key=BY_KEY, total=total), options(landing, tmp_path))
    assert read(tmp_path / "output" / "total").to_pylist() == [{"what": "all", "n": 2000}]
    assert_equals_duckdb(tmp_path / "output" / "by_key", readings_table([1, 2]))


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_append_mode_writes_each_row_once(spark, landing, tmp_path, kind):
    raw = {"from": "curve", "mode": "append", "format": kind,
           "sql": "SELECT key, power FROM curve WHERE power > 400"}  # fmt: skip
    opts = options(landing, tmp_path, source={"pages_per_trigger": "1"})
    landing.land([readings(s) for s in (1, 2)])
    run(spark, spec(raw=raw), opts)
    landing.land([readings(3)])
    run(spark, spec(raw=raw), opts)
    wanted = [r for r in readings_table([1, 2, 3]).to_pylist() if (r["power"] or 0) > 400]
    have = read(tmp_path / "output" / "raw").to_pylist()
    assert sorted((r["key"], r["power"]) for r in have) == sorted(
        (r["key"], r["power"]) for r in wanted
    )


def test_append_mode_with_a_watermark_emits_windows_that_are_over(spark, landing, tmp_path):
    minutes = {
        "from": "curve",
        "mode": "append",
        "watermark": {"column": "time", "delay": "0s"},
        "sql": "SELECT window(time, '1 minute').start AS minute, count(*) AS n FROM curve "
        "GROUP BY window(time, '1 minute')",
    }
    opts = options(landing, tmp_path)
    for seq, minute in ((1, 0), (2, 1), (3, 2)):
        landing.land([readings(seq, first_time_us=minute * 60_000_000)])
        run(spark, spec(minutes=minutes), opts)
    rows = sorted(read(tmp_path / "output" / "minutes").to_pylist(), key=lambda r: r["minute"])
    assert [r["n"] for r in rows] == [1000, 1000]


def test_output_and_checkpoint_that_do_not_belong_together_are_refused(spark, landing, tmp_path):
    landing.land([readings(1)])
    opts = options(landing, tmp_path)
    run(spark, spec(), opts)
    landing.land([readings(2)])
    fresh_output = AggregateOptions(opts.landing, str(tmp_path / "other"), opts.checkpoint)
    fresh_checkpoint = AggregateOptions(opts.landing, opts.output, str(tmp_path / "other"))
    for wrong in (fresh_output, fresh_checkpoint):
        with pytest.raises(CentralError, match="do not belong together"):
            run(spark, spec(), wrong)
    run(spark, spec(), opts)
    assert_equals_duckdb(tmp_path / "output" / "by_key", readings_table([1, 2]))


def test_a_spec_that_no_longer_fits_the_table_is_refused_before_anything_runs(
    spark, landing, tmp_path
):
    landing.land([readings(1)])
    opts = options(landing, tmp_path)
    run(spark, spec(), opts)
    changed = {**BY_KEY, "merge": {**BY_KEY["merge"], "hi": "sum"}}
    with pytest.raises(CentralError, match="its rows cannot be carried over"):
        run(spark, spec(by_key=changed), opts)


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"sql": "SELECT key, count(*) AS n FROM curve GROUP BY key"}, "sql", "no column 'power'"),
        ({"sql": SQL.replace("AS n,", "AS n, 1 AS one,")}, "merge", "no entry for column 'one'"),
        ({"sql": "SELECT speed FROM curve"}, "sql", "speed"),
        ({"sql": "SELECT key FROM curve GROUP BY"}, "sql", "(?i)syntax error"),
        ({"view": "SELECT speed FROM this"}, "view", "speed"),
    ],
)
def test_sql_that_does_not_fit_is_refused_with_its_path(
    spark, landing, tmp_path, change, path, message
):
    with pytest.raises(JobError, match=message) as refusal:
        run(spark, spec(by_key={**BY_KEY, **change}), options(landing, tmp_path))
    assert refusal.value.path == f"tables.by_key.{path}"


def test_a_second_aggregation_on_the_same_output_is_refused(tmp_path):
    with (
        locked(str(tmp_path)),
        pytest.raises(CentralError, match="another aggregation"),
        locked(str(tmp_path)),
    ):
        pass


@settings(max_examples=examples(12), deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=1, max_size=6),
    st.sampled_from([0.0, 1e9]),
)
def test_merged_moments_equal_those_of_all_values_even_far_from_zero(spark, groups, far):
    groups = [[far + v for v in g] for g in groups]
    rows = [
        (1, len(g), float(np.mean(g)), float(np.var(g) * len(g))) if g else (1, 0, None, None)
        for g in groups
    ]
    table = TableSpec("t", "s", "merge", "", ("k",), (Merge("moments", ("n", "mean", "m2")),))
    frame = spark.createDataFrame(rows, "k int, n bigint, mean double, m2 double")
    (row,) = merged(frame, table).collect()
    everything = [v for g in groups for v in g]
    assert row["n"] == len(everything)
    if not everything:
        assert row["mean"] is None and row["m2"] is None
        return
    assert row["mean"] == pytest.approx(math.fsum(everything) / len(everything), rel=1e-9, abs=1e-9)
    exact = float(np.var(np.array(everything, np.longdouble)) * len(everything))
    assert row["m2"] == pytest.approx(exact, rel=1e-6, abs=1e-2 if far else 1e-6)
