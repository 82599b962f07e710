"""Windows: equal to a plain Python reference and to DuckDB, for any batches and workers."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link
from edged.data.schema import BINARY, TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators._window_functions import Measure
from edged.operators._window_groups import GroupLane, shape_of
from edged.operators.base import OPERATORS
from edged.operators.window import WindowPlan, _settings
from kernels.cpu import window as kernels
from tests.naive import window as naive
from tests.pages import shapes
from tests.whole import examples

ONE = Workers(1)
NUMBERS = tuple(n for n, t in TYPES.items() if not t.variable and n != "timestamp")


def plan(schema, **document):
    document = {"size": "10us", "aggregates": {"n": "count(*)"}, **document}
    return WindowPlan.parse("operators.w", "w", document, [Link(schema, "time")])


def out(flow):
    """A flow's rows as lists of plain values."""
    return shapes.arrow_rows(flow.batch.to_arrow(), flow.batch.schema)


def feed(operator, batch, watermark, workers=ONE, number=1):
    return operator.run(BeatContext(number, 0, workers), [Flow(batch, watermark)])


def run(p, batches, watermarks, workers=ONE):
    """The rows of every beat, and a last one at end of stream."""
    operator = p.build(workers)
    beats = [*zip(batches, watermarks, strict=True)]
    found = [out(feed(operator, b, w, workers)) for b, w in beats]
    nothing = shapes.batch_of(p.input.schema, [])
    return [*found, out(feed(operator, nothing, WATERMARK_MAX_US, workers))]


def expected(p, batches, watermarks):
    """The same from the reference."""
    schema, groups, number, found = p.input.schema, {}, 0, []
    keys = [schema.index(k) for k in p.by]
    time = schema.index("time")
    for rows, watermark in [*zip(batches, watermarks, strict=True), ([], WATERMARK_MAX_US)]:
        naive.absorb(groups, rows, time, keys, p.size_us, p.every_us, number)
        number += len(rows)
        found.append([])
        for start, key, members in naive.window_expire(groups, watermark, p.size_us):
            row = [*key, start, start + p.size_us]
            for m in p.measures:
                column = schema.index(m.column) if m.column else time
                integers = not schema.fields[column].dtype.floating
                row += naive.aggregate(m.function, [r[column] for r in members], integers)
            found[-1].append(row)
    return found


def near(a, b):
    """Equal, floats to rounding: the reference adds integers exactly before it divides."""
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or a == b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300)
    return type(a) is type(b) and a == b


def same(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert len(a) == len(b), (a, b)
        assert all(near(x, y) for x, y in zip(a, b, strict=True)), (a, b)


@st.composite
def cases(draw):
    """A schema, its keys and measures, and beats of rows with watermarks."""
    keys = draw(st.lists(st.sampled_from([*NUMBERS, "string", "binary"]), max_size=3))
    values = draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3))
    fields = [Field(f"k{i}", TYPES[k], draw(st.booleans())) for i, k in enumerate(keys)]
    fields += [Field(f"v{i}", TYPES[v], draw(st.booleans())) for i, v in enumerate(values)]
    schema = Schema.of([*fields, shapes.TIME])
    functions = draw(st.lists(st.sampled_from(sorted(naive_functions)), min_size=1, max_size=6))
    aggregates = {
        f"a{i}": f"{f}({draw(st.sampled_from(['v0', f'v{len(values) - 1}']))})"
        for i, f in enumerate(functions)
    }
    size = draw(st.integers(1, 12))
    every = draw(st.integers(1, size))
    p = plan(
        schema, size=size, every=every, aggregates={"n": "COUNT( * )", **aggregates},
        **({"keys": [f"k{i}" for i in range(len(keys))]} if keys else {}),
    )  # fmt: skip
    cells = []
    for f in schema:
        pool = draw(st.lists(sane(f.dtype.name), min_size=1, max_size=3 if f.name[0] == "k" else 9))
        cells.append(st.sampled_from([*pool, None] if f.nullable else pool))
    cells[-1] = st.integers(-30, 30)
    beats = draw(st.lists(st.lists(st.tuples(*cells).map(list), max_size=12), max_size=5))
    marks = sorted(draw(st.lists(st.integers(-40, 40), min_size=len(beats), max_size=len(beats))))
    return p, beats, marks


naive_functions = {"count", "sum", "min", "max", "mean", "variance"}


def sane(kind):
    """Values; floats without those whose squares leave the range."""
    if kind.startswith("float"):
        width = int(kind[5:])
        plain = (
            st.floats(-1e6, 1e6, width=width) if width == 64 else st.integers(-999, 999).map(float)
        )
        return plain | st.sampled_from([math.nan, -0.0, 0.0])
    return shapes.values(kind)


@settings(max_examples=examples(250), deadline=None)
@given(cases())
def test_windows_are_those_of_the_twin_beat_by_beat(case):
    p, beats, marks = case
    found = run(p, [shapes.batch_of(p.input.schema, rows) for rows in beats], marks)
    for a, b in zip(found, expected(p, beats, marks), strict=True):
        same(a, b)


@settings(max_examples=examples(60), deadline=None)
@given(cases(), st.data())
def test_the_cut_into_batches_changes_nothing(case, data):
    p, beats, _ = case
    rows = [row for beat in beats for row in beat]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    whole = shapes.batch_of(p.input.schema, rows)
    pieces = [whole.slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    none = [WATERMARK_MIN_US] * len(pieces)
    assert repr(run(p, pieces, none)[-1]) == repr(run(p, [whole], none[:1])[-1])


@settings(max_examples=examples(40), deadline=None)
@given(cases(), st.integers(0, 5), st.integers(1, 3), st.integers(1, 3))
def test_a_restored_operator_goes_on_where_it_was_for_any_number_of_workers(case, cut, one, two):
    p, beats, marks = case
    batches = [shapes.batch_of(p.input.schema, rows) for rows in beats]
    whole = run(p, batches, marks)
    first, second = WORKERS[one], WORKERS[two]
    before, after = p.build(first), p.build(second)
    found = [out(feed(before, b, w, first)) for b, w in zip(batches[:cut], marks, strict=False)]
    state = before.save(Scratch())
    feed(before, shapes.batch_of(p.input.schema, []), WATERMARK_MAX_US, first)
    after.load(state)
    later = zip(batches[cut:], marks[cut:], strict=True)
    found += [out(feed(after, b, w, second)) for b, w in later]
    nothing = shapes.batch_of(p.input.schema, [])
    found.append(out(feed(after, nothing, WATERMARK_MAX_US, second)))
    assert repr(found) == repr(whole)


WORKERS = {n: Workers(n) for n in (1, 2, 3)}
FLEET = Schema.of(
    [
        Field("turbine", TYPES["string"], True), Field("sensor", TYPES["int16"]), shapes.TIME,
        Field("kw", TYPES["float64"], True), Field("ticks", TYPES["int64"]),
        Field("big", TYPES["uint64"]),
    ]
)  # fmt: skip
AGGREGATES = {
    "n": "count(*)", "m": "count(kw)", "total": "sum(kw)", "low": "min(kw)", "high": "max(kw)",
    "avg": "mean(kw)", "spread": "variance(kw)", "t": "sum(ticks)", "tmin": "min(ticks)",
    "tmax": "max(ticks)", "tavg": "mean(ticks)", "b": "max(big)", "bl": "min(big)",
    "first": "min(time)",
}  # fmt: skip


def fleet(count, seed, turbines=40):
    """Rows out of order, with nulls, skewed keys and repeated times."""
    random = np.random.default_rng(seed)
    turbine = random.zipf(1.5, count) % turbines
    valid = (turbine != 3).astype(np.uint8)
    names = [f"R{t:05d}" for t in turbine]
    offsets = np.cumsum([0, *map(len, names)])
    joined = np.frombuffer(bytearray("".join(names).encode()), np.uint8)
    columns = (
        shapes.Column(joined, valid, offsets),
        shapes.Column(random.integers(-3, 3, count).astype(np.int16)),
        shapes.Column(
            np.sort(random.integers(-(10**9), 10**9, count)) + random.integers(0, 9, count)
        ),
        shapes.Column(
            random.normal(500, 300, count), (random.random(count) < 0.9).astype(np.uint8)
        ),
        shapes.Column(random.integers(-(10**12), 10**12, count)),
        shapes.Column(random.integers(0, 2**64 - 1, count, np.uint64)),
    )
    return shapes.Batch(FLEET, count, columns)


def test_byte_equal_for_any_number_of_workers():
    p = plan(FLEET, keys=["turbine", "sensor"], size="100s", every="30s", aggregates=AGGREGATES)
    batches = [fleet(40_000, seed) for seed in range(2)]
    marks = [0, 500_000_000]
    found = [repr(run(p, batches, marks, w)) for w in WORKERS.values()]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 100_000


@pytest.mark.parametrize(("size", "every"), [(60, 60), (60, 20), (50, 30), (7, 1)])
def test_windows_are_those_of_duckdb(size, every):
    batch = fleet(3000, 7)
    p = plan(
        FLEET, keys=["turbine", "sensor"], size=f"{size}s", every=f"{every}s", aggregates=AGGREGATES
    )
    found = run(p, [batch], [WATERMARK_MIN_US])[-1]
    rows = batch.to_arrow().set_column(
        2, "time", pa.array(batch["time"].values)
    )  # microseconds, so that DuckDB's arithmetic is on integers
    size_us, every_us = size * 10**6, every * 10**6
    with duckdb.connect() as connection:
        connection.register("rows", pa.Table.from_batches([rows]))
        wanted = connection.execute(f"""
            with placed as (
              select *, unnest(range(
                cast(floor((time - {size_us}) / {every_us}.0) + 1 as bigint) * {every_us},
                time + 1, {every_us})) as start from rows)
            select turbine, sensor, start, start + {size_us}, count(*), count(kw), sum(kw), min(kw),
              max(kw), count(kw), coalesce(sum(kw), 0), count(kw), coalesce(avg(kw), 0),
              coalesce(var_pop(kw) * count(kw), 0), cast(sum(ticks) as bigint), min(ticks),
              max(ticks), count(ticks), cast(sum(ticks) as double), max(big), min(big), min(time)
            from placed group by all
        """).fetchall()
    found.sort(key=lambda r: (r[0] or "", r[1], r[2]))
    wanted.sort(key=lambda r: (r[0] or "", r[1], r[2]))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        for x, y in zip(a, b, strict=True):
            if isinstance(y, float):
                assert math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-6), (a, b)
            else:
                assert x == y, (a, b)


TIMES = Schema.of([shapes.TIME, Field("v", TYPES["int64"])])


def test_sums_are_exact_and_what_does_not_fit_is_null_and_counted():
    p = plan(TIMES, aggregates={"s": "sum(v)", "a": "mean(v)"})
    top = 2**63 - 1
    rows = [[0, top], [1, top], [2, -top], [10, top], [11, 1], [20, -top], [21, -2]]
    operator = p.build(ONE)
    found = out(feed(operator, shapes.batch_of(TIMES, rows), WATERMARK_MAX_US))
    assert [r[2] for r in found] == [top, None, None]
    assert [r[4] for r in found] == [float(top), float(top), -float(top)]
    assert operator.counters()["sums_overflowed"] == 2


def test_sums_of_unsigned_values_above_the_signed_range_are_not_taken_for_negative():
    schema = Schema.of([shapes.TIME, Field("v", TYPES["uint64"])])
    p = plan(schema, aggregates={"s": "sum(v)", "a": "mean(v)"})
    rows = [[0, 2**63], [1, 1], [11, 2**64 - 1], [12, 2**64 - 1], [20, 2**63 - 1]]
    found = run(p, [shapes.batch_of(schema, rows)], [WATERMARK_MIN_US])[-1]
    assert [r[2] for r in found] == [None, None, 2**63 - 1]
    assert [r[4] for r in found] == [2.0**63, 2.0**65, 2.0**63]


def test_keys_whose_hashes_are_equal_stay_apart():
    schema = Schema.of(
        [Field("k", TYPES["int32"], True), Field("s", TYPES["string"], True), shapes.TIME]
    )
    keys = [(1, "a"), (2, "a"), (1, "b"), (1, "ab"), (None, "a"), (1, None), (0, "a"), (1, "")]
    rows = [[*key, 5] for key in keys * 3]
    shape = shape_of(schema, ["k", "s"], [Measure("n", "count", "")])
    lane, p = GroupLane(shape), plan(schema, keys=["k", "s"])
    columns = shapes.batch_of(schema, rows)
    table = _settings(p, shape)
    table[kernels.SETTINGS.lanes] = 1
    lane.absorb(columns.addresses(), table, np.zeros(len(rows), np.uint64), len(rows))
    groups = lane.copy().rows
    assert groups[:, kernels.GROUP.first].tolist() == list(range(len(keys)))
    assert groups[:, -1].tolist() == [3] * len(keys)


def test_times_at_the_edge_of_64_bits_are_counted_as_errors():
    rows = [[-(2**63), 1], [2**63 - 1, 1], [5, 1]]
    operator = plan(TIMES).build(ONE)
    assert len(out(feed(operator, shapes.batch_of(TIMES, rows), WATERMARK_MAX_US))) == 1
    assert operator.counters()["rows_in_error"] == 2


@pytest.mark.parametrize(("size", "every"), [(10, 10), (10, 4), (10, 3), (1, 1)])
def test_no_window_still_to_come_starts_before_the_output_watermark(size, every):
    operator = plan(TIMES, size=size, every=every).build(ONE)
    flow = feed(operator, shapes.batch_of(TIMES, []), WATERMARK_MIN_US)
    assert flow.watermark_us == WATERMARK_MIN_US
    for watermark in range(-25, 25):
        rows = shapes.batch_of(TIMES, [[watermark, 0], [watermark + 7, 0]])
        flow = feed(operator, rows, watermark)
        earliest = min(s for s in range(-99, 99) if s % every == 0 and s + size > watermark)
        assert flow.watermark_us == earliest
        assert all(s + size <= watermark for s, *_ in out(flow))
    assert feed(operator, rows, WATERMARK_MAX_US).watermark_us == WATERMARK_MAX_US


def test_a_late_row_that_is_processed_makes_another_partial_of_its_window():
    operator = plan(TIMES, aggregates={"s": "sum(v)"}).build(ONE)
    assert out(feed(operator, shapes.batch_of(TIMES, [[1, 5]]), 10)) == [[0, 10, 5]]
    assert out(feed(operator, shapes.batch_of(TIMES, [[2, 7], [12, 1]]), 11)) == [[0, 10, 7]]
    assert out(feed(operator, shapes.batch_of(TIMES, []), 20)) == [[10, 20, 1]]


def test_days_begin_at_midnight_utc_also_before_1970():
    schema = Schema.of([shapes.TIME])
    day = 86_400_000_000
    rows = [[-1], [0], [day - 1], [1_356_998_400_000_000]]
    p = plan(schema, size="1d")
    found = run(p, [shapes.batch_of(schema, rows)], [0])
    assert found[0] == [[-day, 0, 1]]
    assert found[1] == [[0, day, 2], [1_356_998_400_000_000, 1_356_998_400_000_000 + day, 1]]
    assert datetime.fromtimestamp(found[1][1][0] / 1e6, timezone.utc).hour == 0


def test_memory_comes_back_when_windows_end():
    schema = Schema.of([Field("k", BINARY), shapes.TIME])
    operator = plan(schema, keys=["k"], size=100).build(ONE)
    size = 0
    for i in range(50):
        rows = [[b"%d" % k * 40, i * 100 + k % 100] for k in range(300)]
        feed(operator, shapes.batch_of(schema, rows), i * 100)
        size = size or operator.state_bytes()
    assert operator.state_bytes() <= 2 * size
    assert operator.counters()["groups"] == 300
    assert operator.counters()["groups_emitted"] == 49 * 300


def test_it_registers_and_describes_itself():
    p = plan(FLEET, keys=["turbine"], size="1d", aggregates={"p": "sum(kw)"})
    assert OPERATORS["window"] is WindowPlan
    assert p.describe()[0] == "windows of 1d, tumbling by turbine: sum(kw)"
    assert p.output.time == "window_start"
    assert p.output.disorder_us == 0
    assert [(f.name, f.dtype.name, f.nullable) for f in p.output.schema] == [
        ("turbine", "string", True), ("window_start", "timestamp", False),
        ("window_end", "timestamp", False), ("p", "float64", True),
    ]  # fmt: skip
    others = [
        plan(FLEET, keys=["turbine"], size="2d", aggregates={"p": "sum(kw)"}),
        plan(FLEET, keys=["turbine"], size="1d", every="1h", aggregates={"p": "sum(kw)"}),
        plan(FLEET, keys=["sensor"], size="1d", aggregates={"p": "sum(kw)"}),
        plan(FLEET, keys=["turbine"], size="1d", aggregates={"p": "max(kw)"}),
    ]
    assert len({x.signature() for x in [p, *others]}) == 5


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"keys": ["turbin"]}, "operators.w.keys[0]"),
        ({"size": "0s"}, "operators.w.size"),
        ({"size": "1s", "every": "2s"}, "operators.w.every"),
        ({"size": "1d", "every": "1s"}, "operators.w.every"),
        ({"aggregates": {}}, "operators.w.aggregates"),
        ({"aggregates": {"a": "median(kw)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": "sum"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": 5}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": "sum(*)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": "sum(watts)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": "max(turbine)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"a": "sum(time)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"window_end": "count(*)"}}, "operators.w.aggregates.window_end"),
        ({"keys": ["kw"], "aggregates": {"kw": "count(*)"}}, "operators.w.aggregates.kw"),
        ({"aggregates": {"a_sum": "count(*)", "a": "mean(kw)"}}, "operators.w.aggregates.a"),
        ({"aggregates": {"no name": "count(*)"}}, "operators.w.aggregates.no name"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_the_document_is_named(document, path):
    with pytest.raises(JobError) as caught:
        plan(FLEET, **document)
    assert caught.value.path == path
