"""Window aggregates beyond sums: as in plain Python and DuckDB, mergeable, weighted."""

from __future__ import annotations

import math
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data import sketches
from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators._window_functions import BUCKETS
from edged.operators.window import WindowPlan
from kernels.cpu import quantile_sketch
from tests.naive import sketches as naive
from tests.pages import shapes
from tests.whole import examples

WORKERS = {n: Workers(n) for n in (1, 2, 12)}
SCHEMA = Schema.of(
    [
        Field("k", TYPES["string"], True), Field("x", TYPES["float64"], True),
        Field("y", TYPES["float32"], True), Field("i", TYPES["int64"], True),
        Field("u", TYPES["uint64"]), Field("b", TYPES["int8"]), Field("w", TYPES["int32"]),
        Field("time", TYPES["timestamp"]),
    ]
)  # fmt: skip
TIMED = {
    f"{f}{c}": f"{f}({c})" for f in ("first", "last") for c in ("x", "y", "i", "u", "b", "time")
}
SPREADS = {
    "sd": "stddev(x)", "sdp": "stddev_pop(x)", "vs": "var_samp(x)", "vp": "var_pop(i)",
    "v": "variance(x)",
}  # fmt: skip
PAIRS = {
    "slope": "regr_slope(y, x)", "icept": "regr_intercept(y, x)", "cp": "covar_pop(y, x)",
    "cs": "covar_samp(y, x)", "r": "corr(y, x)", "trend": "regr_slope(i, time)",
}  # fmt: skip
SKETCHES = {
    "p50": "quantile(x, 0.5)", "p99": "quantile(x, 0.99)", "p0": "quantile(i, 0)",
    "dx": "approx_distinct(x, 0.2)", "dk": "approx_distinct(k, 0.1)", "di": "approx_distinct(i)",
}  # fmt: skip
ALL = {**TIMED, **SPREADS, **PAIRS, **SKETCHES}


def plan(aggregates, weight="", **document):
    document = {"size": 10, "aggregates": aggregates, **document}
    return WindowPlan.parse("operators.w", "w", document, [Link(SCHEMA, "time", 0, weight)])


def emitted(p, batches, workers=WORKERS[1], restart=False):
    """The rows at the end of the stream, as an Arrow batch."""
    operator = p.build(workers)
    for n, batch in enumerate(batches):
        operator.run(BeatContext(n, 0, workers), [Flow(batch, WATERMARK_MIN_US)])
        if restart:
            state = {k: a.copy() for k, a in operator.save(Scratch()).items()}
            operator = p.build(workers)
            operator.load(state)
    nothing = Flow(shapes.batch_of(p.input.schema, []), WATERMARK_MAX_US)
    return operator.run(BeatContext(99, 0, workers), [nothing]).batch.to_arrow()


EDGES = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308, -1e-300, 1.0])
ANY_ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.none() | EDGES | st.floats(-1e6, 1e6),
        st.none() | st.integers(-999, 999).map(float), st.none() | st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**64 - 1), st.integers(-128, 127), st.just(1), st.integers(-15, 25),
    ).map(list),
    max_size=30,
)  # fmt: skip


def same(a, b):
    """Equal, floats to rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return type(a) is type(b) and a == b


def timed(function, rows, column):
    """The value and time of the first or last row that is not null."""
    found = [(r[7], r[column] != r[column], r[column]) for r in rows if r[column] is not None]
    if not found:
        return [None, None]
    best = min(found) if function == "first" else max(found)
    return [best[2], best[0]]


def expected(call, rows):
    """The columns of an aggregate over rows, without moments and sketches of several values."""
    function, _, rest = call[:-1].partition("(")
    names = [a.strip() for a in rest.split(",")]
    column = SCHEMA.names.index(names[0])
    values = [r[column] for r in rows if r[column] is not None]
    if function in ("first", "last"):
        return timed(function, rows, column)
    if function == "quantile":
        return [naive.quantile(values, names[1], BUCKETS) if values else None]
    log = {"0.2": 5, "0.1": 7}.get(names[-1], 12)
    registers = np.frombuffer(naive.registers(values, log), np.uint8)
    return [int(sketches.estimates(registers[None, :])[0])]


@settings(max_examples=examples(150), deadline=None)
@given(ANY_ROWS, st.integers(1, 3), st.booleans())
def test_values_and_sketches_are_those_of_plain_python(rows, cuts, restart):
    calls = {**TIMED, **SKETCHES}
    batches = [
        shapes.batch_of(SCHEMA, rows[len(rows) * i // cuts : len(rows) * (i + 1) // cuts])
        for i in range(cuts)
    ]
    found = emitted(plan(calls), batches, restart=restart)
    table = found.to_pylist()
    micros = np.asarray(found["window_start"].cast(pa.int64()))
    assert micros.tolist() == sorted({r[7] // 10 * 10 for r in rows})
    for start, row in zip(micros, table, strict=True):
        members = [r for r in rows if r[7] // 10 * 10 == start]
        for name, call in calls.items():
            wanted = expected(call, members)
            have = [plainly(row[name]), *([plainly(row[f"{name}_time"])] if name in TIMED else [])]
            assert all(same(a, b) for a, b in zip(have, wanted, strict=True)), (name, have, wanted)
        xs = [r[1] for r in members if r[1] is not None]
        assert row["p50_sketch"] == naive.packed(xs, BUCKETS)
        assert "p99_sketch" not in row
        check_distinct(row["dk_sketch"], [r[0] for r in members if r[0] is not None], 7)


def check_distinct(sketch, values, log):
    if not values:
        assert sketch is None
        return
    assert sketch[40:] == naive.registers(values, log)


def plainly(value):
    """Times as microseconds."""
    if hasattr(value, "timestamp"):
        return round((value - EPOCH).total_seconds() * 1e6)
    return value


EPOCH = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()


def exact_pairs(pairs):
    """n, means, m2 and m2_xy of weighted pairs (x, y, weight), as fractions."""
    n = sum(w for *_, w in pairs)
    x, y = (sum(Fraction(p[k]) * p[2] for p in pairs) / n for k in (0, 1))
    m2 = [
        sum((Fraction(p[a]) - (x, y)[a]) * (Fraction(p[b]) - (x, y)[b]) * p[2] for p in pairs)
        for a, b in ((0, 0), (1, 1), (0, 1))
    ]
    return n, x, y, *m2


FAR = st.sampled_from([0, 10**9, -(10**15), 1_764_000_000_000_000])


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-(10**4), 10**4), st.integers(-99, 99)), max_size=25),
    FAR, st.booleans(), st.sampled_from([1, 2]),
)  # fmt: skip
def test_moments_of_pairs_are_accurate_far_from_zero(pairs, far, weighted, lanes):
    far = far % 10**10 if weighted else far  # sums have twice the digits of a float64
    rows = [["a", float(x + far), float(y), x, 0, 0, 1, 1] for x, y in pairs]
    if weighted:
        rows += [[*r[:6], -1, 1] for r in rows[::3]]
        rows += [["a", 7.0, 8.0, 1, 0, 0, w, 1] for w in (3, -3)]
    p = plan({**PAIRS, **SPREADS}, "w" if weighted else "", keys=["k"])
    found = emitted(p, [shapes.batch_of(SCHEMA, rows)], WORKERS[lanes]).to_pylist()
    left = [(r[1], r[2], r[6]) for r in rows]
    count = sum(w for *_, w in left)
    assert len(found) == (1 if count else 0)
    if count:
        row, moments = found[0], exact_pairs(left)
        assert row["slope_count"] == row["v_count"] == count
        check_moments(row, *moments, spreads=not far or weighted)


def check_moments(row, n, x, y, xx, yy, xy, spreads):
    """Compare with fractions; an error of y's mean moves an intercept by as much."""
    both = math.sqrt(float(xx) * float(yy)) / n
    near(row["slope_mean_x"], x, 1)
    near(row["slope_m2_x"], xx, n)
    near(row["slope_m2_y"], yy, n)
    near(row["cp"], xy / n, both)
    near(row["cs"], xy / (n - 1) if n > 1 else None, both)
    near(row["slope"], xy / xx if xx else None, math.sqrt(float(yy / xx)) if xx else 0)
    near(row["icept"], y - xy / xx * x if xx else None, abs(float(x)) + 1)
    near(row["r"], float(xy) / math.sqrt(xx) / math.sqrt(yy) if xx and yy else None, 1)
    if spreads:
        near(row["sd"], math.sqrt(xx / (n - 1)) if n > 1 else None, 1)


def near(value, wanted, scale):
    if wanted is None:
        assert value is None
    else:
        assert value == pytest.approx(float(wanted), rel=1e-9, abs=1e-9 * scale)


def fleet(count, seed, first=1_764_000_000_000_000, days=1):
    """Rows in order of time with nulls and skewed keys, times of ten days."""
    random = np.random.default_rng(seed)
    keys = [f"T{t:03d}" for t in random.zipf(1.5, count) % 30]
    time = first + np.sort(random.integers(0, days * 86_400_000_000, count))
    x = random.lognormal(3, 2, count)
    columns = (
        Column(
            np.frombuffer(bytearray("".join(keys).encode()), np.uint8), np.ones(count, np.uint8),
            np.arange(0, 4 * count + 1, 4),
        ),
        Column(x, (random.random(count) < 0.9).astype(np.uint8)),
        Column((x * 0.3 + random.normal(0, 5, count)).astype(np.float32), np.ones(count, np.uint8)),
        Column(random.integers(0, 5000, count), (random.random(count) < 0.9).astype(np.uint8)),
        Column(random.integers(0, 2**64 - 1, count, np.uint64)),
        Column(random.integers(-128, 127, count).astype(np.int8)),
        Column(np.ones(count, np.int32)), Column(time),
    )  # fmt: skip
    return Batch(SCHEMA, count, columns)


TRUTH = """
    select k, arg_min(x, struct_pack(time, x)) filter (x is not null),
      arg_max(i, struct_pack(time, i)) filter (i is not null), stddev(x), stddev_pop(x),
      var_samp(x), regr_slope(y, x), regr_intercept(y, x), covar_pop(y, x), covar_samp(y, x),
      corr(y, x), regr_slope(i, epoch_us(time) / 1e6), quantile_disc(x, 0.5),
      quantile_disc(x, 0.99), quantile_disc(x, 0.001), count(distinct i), count(distinct u)
    from rows group by k order by k
"""


def test_aggregates_are_those_of_duckdb():
    batch = fleet(60_000, 3)
    calls = {**ALL, "low": "quantile(x, 0.001)", "du": "approx_distinct(u)"}
    found = emitted(plan(calls, keys=["k"], size="5d"), [batch]).to_pylist()
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_batches([batch.to_arrow()]))
        truth = connection.execute(TRUTH).fetchall()
    names = ["sd", "sdp", "vs", "slope", "icept", "cp", "cs", "r", "trend"]
    found.sort(key=lambda r: r["k"])
    assert [r["k"] for r in found] == [t[0] for t in truth]
    for row, wanted in zip(found, truth, strict=True):
        assert (row["firstx"], row["lasti"]) == wanted[1:3]
        for name, value in zip(names, wanted[3:12], strict=True):
            near(row[name], value, 0)
        error = sketches.relative_error(row["p50_sketch"])
        assert error <= 0.022
        for name, value in zip(("p50", "p99", "low"), wanted[12:15], strict=True):
            assert row[name] == pytest.approx(value, rel=error * (1 + 1e-9))
        for name, count in zip(("di", "du"), wanted[15:17], strict=True):
            assert row[name] == pytest.approx(count, rel=5 * 1.04 / 64, abs=1)


def test_bytes_are_equal_for_any_workers_batches_and_restarts():
    batch = fleet(20_000, 5)
    p = plan(ALL, keys=["k"], size="6h", every="3h")
    whole = emitted(p, [batch])
    pieces = [batch.slice(a, a + 5000) for a in range(0, 20_000, 5000)]
    assert whole.num_rows > 100
    assert emitted(p, pieces, WORKERS[2], restart=True).equals(whole)
    assert emitted(p, pieces, WORKERS[12]).equals(whole)


MIXED = st.lists(EDGES | st.floats() | st.floats(1, 2), max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(MIXED, min_size=1, max_size=4), st.fractions(0, 1))
def test_merged_sketches_are_those_of_all_values(parts, share):
    values = [v for part in parts for v in part]
    made = [naive.packed(part, 8) for part in parts]
    whole = sketches.merged_quantiles(made)
    assert whole == naive.packed(values, 8)
    share = float(share)
    found = sketches.quantile(whole, share)
    if not values:
        assert found is None
        return
    assert same(found, naive.quantile(values, repr(share), 8))
    exact, error = naive.ranked(values, repr(share)), sketches.relative_error(whole)
    if math.isfinite(exact) and abs(exact) >= 2.0**-1022:
        assert abs(found - exact) <= abs(exact) * error * (1 + 1e-9)


def test_the_bounds_of_buckets_are_those_of_exact_powers():
    assert [sketches._power(i) * 2.0**52 for i in range(129)] == quantile_sketch.BOUNDS.tolist()
    for i in range(1, 128):
        bound = int(quantile_sketch.BOUNDS[i])
        assert bound**128 >= 2 ** (i + 52 * 128) > (bound - 1) ** 128


def test_merged_distinct_sketches_are_those_of_all_values():
    parts = [range(0, 3000), range(2000, 9000), range(5)]
    made = [
        sketches.distinct_sketches(np.frombuffer(naive.registers(p, 10), np.uint8)[None, :])
        for p in parts
    ]
    whole = sketches.merged_distinct([None, *(m[0].tobytes() for m in made)])
    assert whole[40:] == naive.registers(range(9000), 10)
    assert sketches.distinct(whole) == pytest.approx(9000, rel=3 * 1.04 / 32)
    assert sketches.merged_distinct([None]) is None
    assert sketches.distinct(None) == 0


@pytest.mark.parametrize("count", [1, 2, 10, 100, 1000, 30_000])
def test_estimates_keep_their_standard_error(count):
    random = np.random.default_rng(count)
    size, trials = 256, 40
    slots = random.integers(0, size, (trials, count))
    ranks = np.minimum(random.geometric(0.5, (trials, count)), 63).astype(np.uint8)
    registers = np.zeros((trials, size), np.uint8)
    for row, slot, rank in zip(registers, slots, ranks, strict=True):
        np.maximum.at(row, slot, rank)
    error = sketches.estimates(registers) / count - 1
    assert abs(error.mean()) < 4 * 1.04 / math.sqrt(size * trials)
    assert math.sqrt((error**2).mean()) < 1.5 * 1.04 / math.sqrt(size)


@pytest.mark.parametrize(
    "bad", [b"", b"\x80", b"\x02" * 9, b"\x01" * 9, b"\xff" * 12, b"\x01" * 40]
)
def test_bytes_that_are_no_sketch_are_refused(bad):
    with pytest.raises(ValueError, match="sketch"):
        sketches.merged_quantiles([bad])
    with pytest.raises(ValueError, match="sketch"):
        sketches.merged_distinct([bad * 60])


def test_parts_of_one_accumulator_come_once():
    schema = plan({"v": "variance(x)", **ALL}).output.schema
    names = [n for n in schema.names if n.endswith(("_sketch", "_m2", "_m2_xy"))]
    assert names == ["v_m2", "vp_m2", "slope_m2_xy", "trend_m2_xy", "p50_sketch", "p0_sketch",
                     "dx_sketch", "dk_sketch", "di_sketch"]  # fmt: skip
    assert plan(ALL).describe()[0].startswith("windows of 10us, tumbling: first(x), first(y)")


@pytest.mark.parametrize(
    "call",
    [
        "quantile(x)", "quantile(x, 2)", "quantile(x, half)", "quantile(x, 1/0)",
        "quantile(x, 0.1234567)", "quantile(k, 0.5)", "quantile(time, 0.5)", "first(k)",
        "regr_slope(x)", "regr_slope(x, k)", "regr_slope(x, nothing)", "corr(x, y, i)",
        "stddev(time)", "approx_distinct(x, 0.00001)", "approx_distinct(x, 2)",
        "approx_distinct(x, much)", "median(x)", "first(*)",
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_with_its_path(call):
    with pytest.raises(JobError) as caught:
        plan({"a": call})
    assert caught.value.path == "operators.w.aggregates.a"


@pytest.mark.parametrize("call", ["first(x)", "last(x)", "quantile(x, 0.5)", "approx_distinct(x)"])
def test_what_cannot_take_a_row_back_is_refused_on_weighted_input(call):
    with pytest.raises(JobError, match="cannot take a row back") as caught:
        plan({"a": call}, "w")
    assert caught.value.path == "operators.w.aggregates.a"
