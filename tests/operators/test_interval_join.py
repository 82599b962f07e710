"""The interval join against nested loops, DuckDB and itself: batches, workers, restarts."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators import interval_join
from edged.operators.interval_join import IntervalJoin, IntervalJoinPlan
from tests.naive import chain as naive
from tests.naive.hash import hash_combine, hash_value
from tests.whole import examples

ALONE = Workers(1)
KEYS = {
    "int32": st.sampled_from([0, 1, 2, 2**31 - 1, -(2**31)]),
    "int64": st.sampled_from([0, 1, 2**63 - 1, -(2**63), 2**32, 2**32 + 1]),
    "uint8": st.integers(0, 3),
    "bool": st.booleans(),
    "timestamp": st.sampled_from([0, 1, 10**15]),
    "string": st.sampled_from(["", "a", "b", "ab", "R80711", "ü" * 9, "R80711" * 4]),
    "binary": st.sampled_from([b"", b"\0", b"\0\0", b"x" * 17]),
    "float32": st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf]),
    "float64": st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, -math.inf]),
}
SHAPES = [(name,) for name in KEYS] + [("string", "int32"), ("int32", "float64", "bool")]


def schema_of(kinds, nullable, payload):
    keys = [Field(f"k{i}", TYPES[kind], nullable) for i, kind in enumerate(kinds)]
    return Schema.of([*keys, Field("time", TYPES["timestamp"]), Field(payload, TYPES["int64"])])


def batch_of(schema, rows, first=0):
    """Rows (time, key) as a batch whose payload numbers them from `first`."""
    width = len(schema) - 2
    columns = [[key[i] for _, key in rows] for i in range(width)]
    columns += [[t for t, _ in rows], list(range(first, first + len(rows)))]
    arrays = [
        pa.array(values, pa.int64() if f.dtype.name == "timestamp" else f.dtype.arrow).cast(
            f.dtype.arrow
        )
        for values, f in zip(columns, schema.fields, strict=True)
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, list(schema.names)), schema)


def plan_of(kinds, nullable, before, after):
    links = [Link(schema_of(kinds, nullable, p), "time") for p in ("r", "s")]
    on = [f"k{i}" for i in range(len(kinds))]
    return IntervalJoinPlan.parse("j", "j", {"on": on, "before": before, "after": after}, links)


class Case:
    """Two streams cut into beats; `lateness` is what the watermark allows for."""

    def __init__(self, kinds, nullable, before, after, left, right, cuts, lateness):
        self.kinds, self.before, self.after = kinds, before, after
        self.plan = plan_of(kinds, nullable, before, after)
        self.left, self.right = left, right
        n = len(cuts) + 1
        self.beats = []
        marks = [WATERMARK_MIN_US, WATERMARK_MIN_US]
        edges = [
            [0, *sorted(min(c[side], len(rows)) for c in cuts), len(rows)]
            for side, rows in enumerate((left, right))
        ]
        for b in range(n):
            parts = []
            for side, rows in enumerate((left, right)):
                first, last = edges[side][b], edges[side][b + 1]
                part = rows[first:last]
                times = [t for t, _ in part]
                marks[side] = max(
                    [marks[side], *(max(WATERMARK_MIN_US, t - lateness) for t in times)]
                )
                if last == len(rows):
                    marks[side] = WATERMARK_MAX_US
                parts.append((part, first, marks[side]))
            self.beats.append(tuple(parts))

    def flows(self, beat):
        for (part, first, mark), link in zip(beat, self.plan.inputs, strict=True):
            yield Flow(batch_of(link.schema, part, first), mark)

    def run(self, join=None, workers=ALONE, restart_after=None):
        """The output of every beat."""
        join = join or IntervalJoin(self.plan)
        outputs = []
        for number, beat in enumerate(self.beats):
            flow = join.run(BeatContext(number, 0, workers), list(self.flows(beat)))
            outputs.append((image(flow.batch), flow.watermark_us))
            if restart_after == number:
                saved = join.save(Scratch())
                state = {name: array.copy() for name, array in saved.items()}
                join = IntervalJoin(self.plan)
                join.load(state)
        return outputs

    def expected(self):
        """Pairs of row numbers of every beat by the naive reference."""
        return naive.join(
            [
                (self.records(left), self.records(right), left[2], right[2])
                for left, right in self.beats
            ],
            self.before,
            self.after,
        )

    def records(self, part):
        rows, first, _ = part
        return [(t, k, self.partition(k), first + i) for i, (t, k) in enumerate(rows)]

    def partition(self, key):
        if None in key:
            return None
        h = None
        for kind, value in zip(self.kinds, key, strict=True):
            word = hash_value(kind, TYPES[kind].width, value)
            h = word if h is None else hash_combine([h], [word])[0]
        return h >> 58


def image(batch):
    """All content of a batch that a page can show."""
    arrays = []
    for c in batch.columns:
        arrays += [None if a is None else a.tobytes() for a in (c.values, c.valid, c.offsets)]
    return batch.rows, arrays, pairs_of(batch)


def pairs_of(batch):
    return list(zip(batch["r"].values.tolist(), batch["s"].values.tolist(), strict=True))


def found(outputs):
    return [output[0][2] for output in outputs]


@st.composite
def cases(draw, kinds=None, max_rows=24, late=False):
    kinds = kinds or draw(st.sampled_from(SHAPES))
    nullable = draw(st.booleans())
    before, after = draw(st.sampled_from([(0, 0), (3, 0), (0, 4), (2, 7), (100, 100)]))
    lateness = draw(st.sampled_from([0, 2, 5]))
    origin = draw(st.sampled_from([0, 10**15, -(10**6)]))

    def stream():
        key = st.tuples(*(KEYS[k] | st.none() if nullable else KEYS[k] for k in kinds))
        few = draw(st.booleans())
        one = draw(key)
        steps = draw(
            st.lists(
                st.tuples(st.integers(0, 3), st.integers(0, lateness + 20 * late), key),
                max_size=max_rows,
            )
        )
        time, rows = origin, []
        for step, back, k in steps:
            time += step
            rows.append((time - back, one if few else k))
        return rows

    left, right = stream(), stream()
    cut = st.tuples(st.integers(0, max_rows), st.integers(0, max_rows))
    cuts = draw(st.lists(cut, max_size=5))
    return Case(kinds, nullable, before, after, left, right, cuts, lateness)


@settings(max_examples=examples(250), deadline=None)
@given(cases())
def test_every_beat_gives_the_pairs_of_the_nested_loops_in_their_order(case):
    assert found(case.run()) == case.expected()


@settings(max_examples=examples(150), deadline=None)
@given(cases())
def test_all_pairs_within_lateness_come_out_once_whatever_the_beats(case):
    pairs = [pair for beat in found(case.run()) for pair in beat]
    assert sorted(pairs) == naive.pairs(case.left, case.right, case.before, case.after)


@settings(max_examples=examples(150), deadline=None)
@given(cases(late=True))
def test_late_rows_that_are_let_through_meet_the_partners_still_held(case):
    assert found(case.run()) == case.expected()


@settings(max_examples=examples(80), deadline=None)
@given(cases(late=True), st.integers(0, 3))
def test_a_join_saved_and_loaded_between_beats_goes_on_byte_for_byte(case, after):
    assert case.run(restart_after=after) == case.run()


@settings(max_examples=examples(60), deadline=None)
@given(cases(late=True), st.integers(0, 40))
def test_positions_and_row_numbers_wrap_around_unnoticed(case, short_of_limit):
    near = IntervalJoin(case.plan, start=2**32 - 1 - short_of_limit)
    assert case.run(near) == case.run()


@settings(max_examples=examples(25), deadline=None)
@given(cases(late=True))
def test_two_and_four_workers_give_the_bytes_of_one(case):
    alone = case.run()
    threshold = interval_join.JOIN_PARALLEL_ROWS
    interval_join.JOIN_PARALLEL_ROWS = 0
    try:
        for count in (2, 4):
            workers = Workers(count)
            assert case.run(workers=workers) == alone
            workers.close()
    finally:
        interval_join.JOIN_PARALLEL_ROWS = threshold


EXTREMES = st.sampled_from(
    [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1, 2**62, -(2**62)]
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(EXTREMES, max_size=12),
    st.lists(EXTREMES, max_size=12),
    st.sampled_from([0, 1, 10**15, 36_525 * 86_400_000_000]),
    st.integers(0, 12),
)
@example([-(2**63)], [2**63 - 1], 0, 1)
def test_times_at_the_ends_of_int64_neither_overflow_nor_match_wrongly(left, right, bound, cut):
    """Any order: the watermark stays unknown until the end, so that no row is late."""
    rows = [(t, (7,)) for t in left], [(t, (7,)) for t in right]
    case = Case(("int32",), False, bound, bound // 2, *rows, [(cut, cut)], 2**64)
    pairs = [pair for beat in found(case.run()) for pair in beat]
    assert sorted(pairs) == naive.pairs(*rows, bound, bound // 2)


PAYLOAD = Schema.of(
    [
        Field("k", TYPES["string"], True),
        Field("time", TYPES["timestamp"]),
        Field("x", TYPES["float64"], True),
        Field("note", TYPES["binary"], True),
    ]
)


def random_rows(seed, n, keys, step, skew):
    """n rows in rough time order; a share `skew` of them has one key."""
    rng = np.random.default_rng(seed)
    key = rng.integers(0, keys, n)
    key[rng.random(n) < skew] = 0
    times = rng.integers(0, step + 1, n).cumsum() - rng.integers(0, 50, n)
    null = rng.random((3, n)) < 0.1
    return pa.record_batch(
        {
            "k": pa.array([None if z else f"key {k}" for k, z in zip(key, null[0], strict=True)]),
            "time": pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            "x": pa.array(rng.random(n), mask=null[1]),
            "note": pa.array(
                [None if z else bytes([i % 256]) * (i % 37) for i, z in enumerate(null[2])],
                pa.binary(),
            ),
        }
    )


def stream(plan, left, right, batch_rows, workers=ALONE):
    """Both inputs beat by beat; the join and all of its output."""
    join, outputs, marks = plan.build(workers), [], [WATERMARK_MIN_US] * 2
    n = max(-(-b.num_rows // r) for b, r in zip((left, right), batch_rows, strict=True))
    for beat in range(n):
        flows = []
        for side, (rows, size) in enumerate(zip((left, right), batch_rows, strict=True)):
            part = Batch.from_arrow(rows.slice(min(beat * size, rows.num_rows), size), PAYLOAD)
            if part.rows:
                marks[side] = max(marks[side], int(part["time"].values.max()) - 50)
            else:
                marks[side] = WATERMARK_MAX_US
            flows.append(Flow(part, marks[side]))
        outputs.append(join.run(BeatContext(beat, 0, workers), flows).batch.to_arrow())
    return join, pa.Table.from_batches(outputs)


@pytest.mark.parametrize(
    ("keys", "skew", "batch_rows"),
    [
        (200, 0.0, (700, 2300)),
        (20_000, 0.0, (5000, 5000)),
        (50, 0.3, (64, 999)),
        (1, 1.0, (99, 88)),
    ],
)
def test_every_column_of_every_pair_is_what_duckdb_joins(keys, skew, batch_rows):
    n = 1500 if keys == 1 else 6000
    left, right = random_rows(1, n, keys, 3, skew), random_rows(2, n + 777, keys, 3, skew)
    links = [Link(PAYLOAD, "time", 50)] * 2
    document = {"on": ["k"], "before": 200, "after": 45}
    plan = IntervalJoinPlan.parse("j", "j", document, links)
    join, output = stream(plan, left, right, batch_rows)
    query = """
        SELECT l.k, l.time, l.x, l.note, r.time AS time_right, r.x AS x_right, r.note AS note_right
        FROM l JOIN r ON l.k = r.k
        WHERE epoch_us(r.time) - epoch_us(l.time) BETWEEN -200 AND 45
    """
    l, r = pa.Table.from_batches([left]), pa.Table.from_batches([right])  # noqa: E741
    expected = duckdb.connect().register("l", l).register("r", r).sql(query)
    order = [(name, "ascending") for name in plan.output.schema.names]
    expected = expected.to_arrow_table().cast(plan.output.schema.to_arrow())
    assert output.num_rows > 40
    assert output.sort_by(order).equals(expected.sort_by(order))
    assert join.counters()["matches"] == output.num_rows


def test_what_is_held_is_bounded_by_the_window_not_by_the_input():
    left, right = random_rows(3, 40_000, 500, 3, 0.0), random_rows(3, 40_000, 500, 3, 0.0)
    plan = IntervalJoinPlan.parse(
        "j", "j", {"on": ["k"], "before": 300, "after": 300}, [Link(PAYLOAD, "time", 50)] * 2
    )
    join, _ = stream(plan, left, right, (400, 400))
    counters = join.counters()
    assert counters["left_rows"] == 40_000
    assert 0 < counters["left_live"] < 1000
    assert join.state_bytes() < 2_500_000


def test_once_a_side_has_ended_the_other_is_probed_with_but_not_held():
    case = Case(("int32",), False, 100, 100, [(5, (1,))], [(6, (1,))], [], 0)
    join = IntervalJoin(case.plan)
    flows = list(case.flows(case.beats[0]))
    assert pairs_of(join.run(BeatContext(0, 0, ALONE), flows).batch) == [(0, 0)]
    assert (join.counters()["left_live"], join.counters()["right_live"]) == (0, 0)


def run_empty(plan, left_us, right_us):
    flows = [
        Flow(empty_batch(link.schema), mark)
        for link, mark in zip(plan.inputs, (left_us, right_us), strict=True)
    ]
    return IntervalJoin(plan).run(BeatContext(0, 0, ALONE), flows).watermark_us


def test_the_output_watermark_is_what_left_times_of_later_pairs_can_be():
    plan = plan_of(("int32",), False, 7, 30)
    assert run_empty(plan, 100, 120) == 90
    assert run_empty(plan, 80, 120) == 80
    assert run_empty(plan, WATERMARK_MAX_US, 120) == 90
    assert run_empty(plan, 100, WATERMARK_MAX_US) == 100
    assert run_empty(plan, WATERMARK_MAX_US, WATERMARK_MAX_US) == WATERMARK_MAX_US
    assert run_empty(plan, 100, WATERMARK_MIN_US) == WATERMARK_MIN_US
    assert run_empty(plan, WATERMARK_MIN_US, 0) == WATERMARK_MIN_US


def parse(document, left=None, right=None):
    side = Schema.of(
        [
            Field("id", TYPES["int32"]),
            Field("time", TYPES["timestamp"]),
            Field("x", TYPES["float32"], True),
        ]
    )
    links = [Link(left or side, "time", 4), Link(right or side, "time", 5)]
    return IntervalJoinPlan.parse("operators.j", "j", document, links)


def test_without_columns_keys_stand_once_and_clashes_get_a_suffix():
    plan = parse({"on": ["id"], "before": "1ms", "after": 2})
    assert plan.output.schema.names == ("id", "time", "x", "time_right", "x_right")
    assert plan.output.schema.field("x_right").nullable
    assert plan.output.time == "time"
    assert plan.output.disorder_us == 4 + 5 + 1000 + 2
    assert plan.kept(1).names == ("time", "x")


def test_columns_choose_and_rename_from_both_sides():
    columns = {"at": "left.time", "a": "left.x", "b": "right.x", "again": "right.x"}
    plan = parse({"on": ["id = id"], "columns": columns})
    assert plan.output.schema.names == ("at", "a", "b", "again")
    assert plan.output.time == "at"
    case = [Flow(empty_batch(link.schema), 0) for link in plan.inputs]
    batch = plan.build(ALONE).run(BeatContext(0, 0, ALONE), case).batch
    assert batch.schema == plan.output.schema
    assert plan.signature() != parse({"on": ["id"], "before": 1}).signature()
    assert plan.describe()


TWO = Schema.of(
    [
        Field("id", TYPES["int64"]),
        Field("time", TYPES["timestamp"]),
        Field("time_right", TYPES["bool"]),
    ]
)


@pytest.mark.parametrize(
    ("document", "schemas", "where", "what"),
    [
        ({}, {}, "on", "is missing"),
        ({"on": []}, {}, "on", "is empty"),
        ({"on": ["idd"]}, {}, "on[0]", "left has no column idd"),
        ({"on": ["id = no"]}, {}, "on[0]", "right has no column no"),
        ({"on": ["id"]}, {"right": TWO}, "on[0]", "left.id is int32, right.id is int64"),
        ({"on": ["time"], "before": "-1s"}, {}, "before", "too short"),
        ({"on": ["id"], "columns": {"x": "left.x"}}, {}, "columns", "time column is missing"),
        ({"on": ["id"], "columns": {"x": "x"}}, {}, "columns.x", "is not a column"),
        ({"on": ["id"], "columns": {"x": "right.y"}}, {}, "columns.x", "right has no column y"),
        ({"on": ["id"]}, {"left": TWO, "right": TWO}, "columns", "the output has both"),
    ],
)
def test_a_wrong_document_is_refused_at_its_fault(document, schemas, where, what):
    with pytest.raises(JobError, match=r"operators\.j") as refusal:
        parse(document, **schemas)
    assert refusal.value.path == f"operators.j.{where}"
    assert what in str(refusal.value)
