"""Partial results of windows on devices, merged in a real Spark: equal to a recompute."""

from __future__ import annotations

import numpy as np
import pytest

from edged.central.merge import left, merged, published
from edged.central.spec import parse_spec
from edged.central.tables import read
from edged.data import sketches
from tests.naive import sketches as naive
from tests.operators.test_window_functions import emitted, fleet, plan
from tests.spark.landings import slotted_page
from tests.spark.test_aggregate import options, run

PAIR = ["t_count", "t_mean_x", "t_mean_y", "t_m2_x", "t_m2_y", "t_m2_xy"]
CALLS = {
    "one": "first(x)", "newest": "last(i)", "sd": "stddev(x)", "t": "regr_slope(y, x)",
    "q": "quantile(x, 0.9)", "d": "approx_distinct(i)",
}  # fmt: skip
BY_KEY = {
    "from": "w",
    "sql": "SELECT k, one, one_time, newest, newest_time, sd_count, sd_mean, sd_m2, q_sketch, "
    f"d_sketch, {', '.join(PAIR)} FROM w",
    "keys": ["k"],
    "merge": {
        "one_time": "min", "one": {"first_by": "one_time"},
        "newest_time": "max", "newest": {"last_by": "newest_time"},
        "sd": {"moments": ["sd_count", "sd_mean", "sd_m2"]}, "t": {"comoments": PAIR},
        "q_sketch": "quantiles", "d_sketch": "distinct",
    },
    "view": "SELECT *, edged_quantile(q_sketch, 0.9) AS q, edged_distinct(d_sketch) AS d, "
    "hll_sketch_estimate(d_sketch) AS spark_d, t_m2_xy / nullif(t_m2_x, 0) AS t FROM this",
}  # fmt: skip


def spec(**more):
    return parse_spec({"streams": {"w": "w@1"}, "tables": {"by_key": {**BY_KEY, **more}}})


def pages_of(found, schema):
    """Pages of an operator's output, eleven rows each."""
    rows = [list(row.values()) for row in found.to_pylist()]
    for row in rows:
        for i, f in enumerate(schema):
            if f.dtype.name == "timestamp" and row[i] is not None:
                row[i] = round(row[i].timestamp() * 1e6)
    cuts = range(0, len(rows), 11)
    return [
        slotted_page(schema, rows[at : at + 11], stream="w", seq=seq)
        for seq, at in enumerate(cuts, 1)
    ]


def test_partials_of_devices_merge_to_what_one_window_gives(spark, landing, tmp_path):
    batch = fleet(6000, 11)
    p = plan(CALLS, keys=["k"], size="6h")
    landing.register("w", p.output.schema)
    landing.land(pages_of(emitted(p, [batch]), p.output.schema))
    run(spark, spec(), options(landing, tmp_path, source={"pages_per_trigger": "4"}))
    found = {r["k"]: r for r in read(tmp_path / "output" / "by_key").to_pylist()}
    whole = emitted(plan(CALLS, keys=["k"], size="5d"), [batch]).to_pylist()
    assert len(found) == len(whole) > 5
    exact = ["one", "one_time", "newest", "newest_time", "sd_count", "q", "q_sketch", "d",
             "d_sketch", "t_count"]  # fmt: skip
    for row in whole:
        have = found[row["k"]]
        assert [have[c] for c in exact] == [row[c] for c in exact]
        for c in (*PAIR, "sd_mean", "sd_m2", "t"):
            assert have[c] == pytest.approx(row[c], rel=1e-9, abs=1e-9), c
        assert have["spark_d"] == pytest.approx(row["d"], rel=0.03, abs=1)


def test_a_sketch_of_the_device_is_one_of_sparks(spark):
    rows = spark.range(3000).selectExpr("id % 1700 AS i")
    theirs = rows.selectExpr("hll_sketch_agg(i, 12) AS s").head()["s"]
    ours = sketches.distinct_sketches(registers_of(range(1700)))[0].tobytes()
    both = spark.createDataFrame([(bytearray(theirs),), (bytearray(ours),)], "s binary")
    alone = both.limit(1).selectExpr("hll_sketch_estimate(s) AS n").head()["n"]
    joined = both.selectExpr("hll_sketch_estimate(hll_union_agg(s)) AS n").head()["n"]
    assert joined == pytest.approx(1700, rel=0.05)
    assert joined == pytest.approx(alone, rel=0.01)


def registers_of(values):
    return np.frombuffer(naive.registers(values, 12), np.uint8)[None, :]


def test_weighted_moments_of_pairs_merge_and_take_rows_back(spark):
    table = spec(
        sql="SELECT k, n, t_count, t_mean_x FROM w",
        merge={"n": "sum", "t": {"comoments": PAIR}}, weight="n", view="",
    ).tables["by_key"]  # fmt: skip
    points = [(1.0, 2.0), (3.0, 5.0), (4.0, -1.0), (10.0, 2.5)]
    parts = [part(points, 1), part(points[1:3], -1), zero(points[:1], [(7.0, 7.0)]),
             zero([(7.0, 7.0)], points[:1])]  # fmt: skip
    columns = "k string, n bigint, t_count bigint, " + ", ".join(f"{c} double" for c in PAIR[1:])
    rows = [("a", p[0], *p) for p in parts]
    rows += [("b", p[0], *p) for p in (part(points, 1), part(points[:2], -1), part(points[2:], -1))]
    made = left(merged(spark.createDataFrame(rows, columns), table), table)
    (row,) = published(made, table).collect()
    assert row["k"] == "a"
    wanted = part([points[0], points[3]], 1)
    assert [row[c] for c in PAIR] == pytest.approx(list(wanted), rel=1e-12)


def sums(points):
    return [sum(f(x, y) for x, y in points) for f in (
        lambda x, y: x, lambda x, y: y, lambda x, y: x * x, lambda x, y: y * y, lambda x, y: x * y,
    )]  # fmt: skip


def part(points, weight):
    """The moments of points of one weight."""
    n = weight * len(points)
    x, y, xx, yy, xy = (weight * s for s in sums(points))
    return n, x / n, y / n, xx - x * x / n, yy - y * y / n, xy - x * y / n


def zero(points, taken):
    """Points and as many that are taken back: a part whose count is 0."""
    return 0, *(a - b for a, b in zip(sums(points), sums(taken), strict=True))
