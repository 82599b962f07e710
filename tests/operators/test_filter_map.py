"""filter and map as operators: documents, links, batches, counters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from edged.data.columns import Batch, empty_batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import ExpressionError, JobError
from edged.operators.base import OPERATORS
from edged.operators.filter import FilterPlan
from edged.operators.map import MapPlan

SCHEMA = Schema.of(
    [
        Field("turbine", TYPES["string"]),
        Field("time", TYPES["timestamp"]),
        Field("power_kw", TYPES["float64"], True),
        Field("pitch", TYPES["int16"]),
    ]
)
LINK = Link(SCHEMA, "time", disorder_us=7)
BEAT = BeatContext(1, 0, Workers(1))


def batch(power, pitch=None):
    """Rows with these powers."""
    n = len(power)
    arrays = [
        pa.array([f"R{i % 3}" for i in range(n)], pa.string()),
        pa.array(range(n), pa.int64()).cast(SCHEMA.field("time").dtype.arrow),
        pa.array(power, pa.float64()),
        pa.array([1] * n if pitch is None else pitch, pa.int16()),
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA.to_arrow()), SCHEMA)


def filtered(where, rows):
    operator = FilterPlan.parse("operators.f", "f", {"where": where}, [LINK]).build(BEAT.workers)
    return operator, operator.run(BEAT, [Flow(rows, 99)])


def mapped(columns, rows):
    plan = MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])
    operator = plan.build(BEAT.workers)
    return plan, operator, operator.run(BEAT, [Flow(rows, 99)])


def test_both_are_registered_under_their_names():
    OPERATORS.load()
    assert OPERATORS["filter"] is FilterPlan
    assert OPERATORS["map"] is MapPlan


def test_filter_keeps_rows_where_the_condition_is_true_and_passes_the_watermark():
    _, flow = filtered("power_kw > 0", batch([1.0, None, -1.0, 0.0, float("nan"), 5.0]))
    assert flow.watermark_us == 99
    kept = flow.batch.to_arrow()
    assert kept.column("time").cast(pa.int64()).to_pylist() == [0, 4, 5]
    assert kept.column("turbine").to_pylist() == ["R0", "R1", "R2"]


def test_filter_passes_a_batch_on_uncopied_when_every_row_passes():
    rows = batch([1.0, 2.0])
    _, flow = filtered("power_kw > 0", rows)
    assert flow.batch is rows


def test_filter_and_map_take_a_batch_of_no_rows():
    _, flow = filtered("power_kw > 0", empty_batch(SCHEMA))
    assert flow == Flow(flow.batch, 99)
    assert flow.batch.rows == 0
    _, _, flow = mapped({"time": "time", "mw": "power_kw / 1000"}, empty_batch(SCHEMA))
    assert flow.batch.rows == 0
    assert flow.batch.schema.names == ("time", "mw")


def test_filter_leaves_rows_in_error_out_and_counts_them():
    operator, flow = filtered("10 // pitch > 4", batch([1.0] * 4, [0, 1, 2, 5]))
    assert flow.batch.to_arrow().column("pitch").to_pylist() == [1, 2]
    assert operator.counters() == {
        "rows_in_error": 1,
        "first_error": "division by zero, or overflow of SMALLINT, in 10 // pitch",
        "first_error_time_us": 0,
    }


def test_map_computes_columns_in_the_order_of_the_document():
    columns = {"mw": "power_kw / 1000", "name": "lower(turbine)", "time": "time"}
    plan, _, flow = mapped(columns, batch([500.0, None]))
    assert plan.output.schema == Schema.of(
        [
            Field("mw", TYPES["float64"], True),
            Field("name", TYPES["string"]),
            Field("time", TYPES["timestamp"]),
        ]
    )
    assert (plan.output.time, plan.output.disorder_us) == ("time", 7)
    assert flow.batch.to_arrow().to_pydict()["mw"] == [0.5, None]
    assert flow.batch.to_arrow().to_pydict()["name"] == ["r0", "r1"]
    assert flow.watermark_us == 99


def test_map_passes_bare_columns_on_uncopied():
    rows = batch([1.0, 2.0])
    plan, _, flow = mapped({"who": "turbine", "time": "time", "p": "pitch * 2"}, rows)
    assert flow.batch["who"] is rows["turbine"]
    assert plan.projection.passed() == {"who": "turbine", "time": "time"}


def test_map_that_only_picks_and_renames_columns_computes_nothing():
    """Regression: the generated loop had no body."""
    rows = batch([1.0, None])
    columns = {"time": "time", "kw": "power_kw", "at": "CAST(time AS TIMESTAMP)"}
    _, _, flow = mapped(columns, rows)
    assert flow.batch["kw"] is rows["power_kw"]
    assert flow.batch.to_arrow().column("at").to_pylist() == rows.to_arrow()["time"].to_pylist()


def test_map_leaves_rows_in_error_out_of_all_columns():
    _, operator, flow = mapped(
        {"time": "time", "p": "30000 + pitch"}, batch([1.0] * 3, [1, 9000, 2])
    )
    assert flow.batch.to_arrow().to_pydict()["p"] == [30001, 30002]
    assert operator.counters() == {
        "rows_in_error": 1,
        "first_error": "overflow of SMALLINT in 30000 + pitch",
        "first_error_time_us": 1,
    }


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("kind", ["filter", "map"])
def test_the_first_row_in_error_of_all_is_kept_whatever_follows(kind, workers):
    if kind == "filter":
        plan = FilterPlan.parse("operators.f", "f", {"where": "10 // pitch > 4"}, [LINK])
    else:
        columns = {"at": "time", "p": "10 // pitch", "q": "pitch + 32767"}
        plan = MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])
    beat = BeatContext(1, 0, Workers(workers))
    operator = plan.build(beat.workers)
    n = 40_000
    assert operator.counters() == {"rows_in_error": 0}
    operator.run(beat, [Flow(batch([1.0] * n, [-1] * n), 99)])
    assert operator.counters() == {"rows_in_error": 0}
    pitch = np.full(n, -1)
    pitch[[n // 2 + 3, n - 7]] = 0
    operator.run(beat, [Flow(batch([1.0] * n, pitch), 99)])
    first = operator.counters()
    assert first["rows_in_error"] == 2 and first["first_error_time_us"] == n // 2 + 3
    assert "10 // pitch" in first["first_error"]
    operator.run(beat, [Flow(batch([1.0], [0]), 99)])
    assert operator.counters() == {**first, "rows_in_error": 3}


def test_the_text_of_an_error_is_bounded_however_long_the_expression_is():
    terms = ", ".join(f"pitch + {i}" for i in range(100))
    operator, _ = filtered(f"10 // greatest({terms}) > 4", batch([1.0], [-99]))
    text = operator.counters()["first_error"]
    assert text.startswith("division by zero") and text.endswith("...")
    assert len(text) <= 200


@pytest.mark.parametrize(
    ("columns", "time"),
    [
        ({"time": "time", "at": "time"}, "time"),
        ({"at": "time", "time": "time + INTERVAL '1 day'"}, "at"),
        ({"at": "(time)", "later": "time"}, "at"),
    ],
)
def test_map_finds_the_event_time_among_its_outputs(columns, time):
    plan = MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])
    assert plan.output.time == time


@pytest.mark.parametrize(
    "columns",
    [{"p": "power_kw"}, {"time": "time + INTERVAL '0 s'"}, {"time": "date_trunc('day', time)"}],
)
def test_map_without_the_event_time_as_it_is_is_refused(columns):
    with pytest.raises(JobError, match="event-time column 'time' is not among") as caught:
        MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])
    assert caught.value.path == "operators.m.columns"


@pytest.mark.parametrize("columns", [None, {}, [], "time", {"": "time"}])
def test_map_without_columns_is_refused(columns):
    with pytest.raises(JobError) as caught:
        MapPlan.parse("operators.m", "m", {"columns": columns}, [LINK])
    assert caught.value.path == "operators.m.columns"


def test_faults_are_told_with_their_path():
    with pytest.raises(ExpressionError) as caught:
        FilterPlan.parse("operators.f", "f", {"where": "power > 0"}, [LINK])
    assert caught.value.path == "operators.f.where"
    assert "turbine, time, power_kw, pitch" in caught.value.advice
    with pytest.raises(ExpressionError) as caught:
        FilterPlan.parse("operators.f", "f", {}, [LINK])
    assert caught.value.path == "operators.f.where"
    with pytest.raises(ExpressionError) as caught:
        MapPlan.parse("operators.m", "m", {"columns": {"time": "time", "x": "nope"}}, [LINK])
    assert caught.value.path == "operators.m.columns.x"


def test_plans_describe_themselves_and_carry_no_state():
    plan = FilterPlan.parse("operators.f", "f", {"where": "pitch\n  // 2 > 1"}, [LINK])
    assert plan.describe()[0] == "keeps rows where pitch // 2 > 1"
    other = FilterPlan.parse("operators.f", "f", {"where": "pitch > 5"}, [LINK])
    assert plan.signature() == other.signature()
    assert plan.build(BEAT.workers).save(Scratch()) == {}


def test_a_large_batch_is_split_among_workers_with_the_same_result():
    power = np.arange(100_000.0) % 97 - 40
    rows = batch(power.tolist())
    workers = Workers(3)
    beat = BeatContext(1, 0, workers)
    plan = FilterPlan.parse("operators.f", "f", {"where": "power_kw > 0"}, [LINK])
    kept = plan.build(workers).run(beat, [Flow(rows, 0)]).batch
    workers.close()
    assert kept["time"].values.tolist() == np.flatnonzero(power > 0).tolist()
