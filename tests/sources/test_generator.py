"""The `generator` source: deterministic by row number, whatever the pace, room and restarts."""

from __future__ import annotations

import select

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.data.schema import TYPES, Field, Schema
from edged.data.staging import Staging
from edged.errors import JobError
from edged.job.plan import StreamPlan
from edged.platform.clock import boot_us
from edged.sources.generator import BLOCK_ROWS, GeneratorPlan, RowFactory, Zipf
from tests.whole import examples

SCHEMA = Schema.of(
    [
        *(Field(f"c_{name}", dtype, i % 2 == 1) for i, (name, dtype) in enumerate(TYPES.items())),
        Field("key", TYPES["int32"]),
        Field("time", TYPES["timestamp"]),
    ]
)
WALL_US = 1_800_000_000_000_000
SECOND = 1_000_000


def plan(schema=SCHEMA, name="a", **document):
    stream = StreamPlan(name, schema, "time", 0, SECOND, 3600 * SECOND, "drop", None)
    return GeneratorPlan.parse("streams.a.source", {"key": "key", **document}, stream)


def staging(bytes_max=64 << 20, schema=SCHEMA):
    return Staging("a", schema, "time", bytes_max, 3600 * SECOND)


def started(p, into):
    source = p.build({"a": into}, {"a": p})
    source.start()
    return source


def beat(into):
    rows = into.pending().to_arrow()
    into.consume(len(into.chunks()), into.rows)
    into.mark_logged()
    return rows


def drain(p, into):
    source, parts = started(p, into), []
    while not source.finished():
        source.ingest(1, WALL_US)
        parts.append(beat(into))
    source.close()
    return pa.Table.from_batches(parts)


def test_rows_do_not_depend_on_how_much_room_there_is():
    p = plan(rate="full", rows=40_000, nulls=0.25)
    wide = drain(p, staging())
    narrow = drain(p, staging(1 << 16))
    assert wide.num_rows == 40_000
    assert wide.equals(narrow)


def test_a_restart_goes_on_with_the_row_after_the_last_committed_one():
    p = plan(rate=1000, rows=30_000, step="3ms")
    whole = drain(plan(rate="full", rows=30_000, step="3ms"), staging())
    into = staging()
    source, parts = started(p, into), []
    for second in (0, 3, 17):
        source.ingest(second * SECOND, WALL_US)
        parts.append(beat(into))
    source.close()
    saved = into.save()
    again = staging()
    again.load(saved)
    source = started(p, again)
    for second in (1000, 1010, 1020):
        source.ingest(second * SECOND, WALL_US + 77 * SECOND)
        parts.append(beat(again))
    assert source.finished()
    source.close()
    assert pa.Table.from_batches(parts).equals(whole)


def test_rows_come_at_their_rate():
    into = staging()
    source = started(plan(rate=1000, start="2024-01-01T00:00:00Z"), into)
    seen = []
    for us in (5_000_000, 5_000_999, 5_001_000, 6_000_000, 15_000_000):
        source.ingest(us, WALL_US)
        seen.append(into.rows)
    assert seen == [1, 1, 2, 1001, 10_001]
    times = into.pending()["time"].values
    assert times[0] == 1_704_067_200_000_000
    assert set(np.diff(times)) == {1000}
    source.close()


def test_the_descriptor_is_readable_when_a_row_is_due_and_silent_at_the_end():
    into = staging()
    source = started(plan(rate=20, rows=2), into)
    began_us = boot_us()
    for rows in (1, 2):
        assert select.select([source.fileno()], [], [], 30.0)[0]
        now_us = boot_us()
        assert now_us >= began_us + 50_000 * (rows - 1)
        source.ingest(now_us, WALL_US)
        assert into.rows == rows
    assert not select.select([source.fileno()], [], [], 0.0)[0]
    assert source.finished()
    assert into.producers.ended[into.producers.number("generator:a")] == 1
    source.close()


def test_the_descriptor_is_silent_until_the_next_row_is_due():
    into = staging()
    source = started(plan(rate=0.01, rows=2), into)
    assert select.select([source.fileno()], [], [], 30.0)[0]
    source.ingest(boot_us(), WALL_US)
    assert into.rows == 1
    assert not select.select([source.fileno()], [], [], 0.0)[0]
    source.close()


def test_staging_that_is_full_stops_the_generator_and_is_told_by_more():
    into = staging(1 << 16)
    source = started(plan(rate="full"), into)
    source.ingest(1, WALL_US)
    assert source.more()
    rows = into.rows
    source.ingest(2, WALL_US)
    assert into.rows == rows
    beat(into)
    source.ingest(3, WALL_US)
    assert into.rows > 0
    source.close()


def test_another_seed_or_another_stream_gives_other_rows():
    block = [
        RowFactory(p).block(0, 0)["key"].values
        for p in (plan(rate=1), plan(rate=1), plan(rate=1, seed=1), plan(rate=1, name="b"))
    ]
    assert np.array_equal(block[0], block[1])
    assert not np.array_equal(block[0], block[2])
    assert not np.array_equal(block[0], block[3])


def test_keys_follow_their_distribution():
    uniform = drain(plan(rate="full", rows=100_000, key_max=10), staging())
    grouped = duckdb.from_arrow(uniform).aggregate("key, count(*)").order("key")
    counts = grouped.fetchall()
    assert [k for k, _ in counts] == list(range(10))
    assert all(abs(n - 10_000) < 500 for _, n in counts)
    sequential = drain(plan(rate="full", rows=1000, keys="sequential", key_max=7), staging())
    assert sequential.column("key").to_pylist() == [i % 7 for i in range(1000)]


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("size", [5, 1000, 200_000])
def test_zipf_draws_ranks_in_proportion_to_their_power(size, skew):
    draws = Zipf(size, skew).draw(np.random.default_rng(1), 400_000)
    assert draws.min() >= 0
    assert draws.max() < size
    weights = np.arange(1, size + 1, dtype=np.float64) ** -skew
    weights /= weights.sum()
    edges = np.unique(np.geomspace(1, size + 1, 12).astype(np.int64)) - 1
    expected = np.add.reduceat(weights, edges[:-1]) * draws.size
    counts = np.histogram(draws, edges)[0]
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 5)


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 2**40), st.floats(0, 4))
def test_zipf_stays_within_its_keys_for_any_size_and_exponent(size, skew):
    draws = Zipf(size, skew).draw(np.random.default_rng(2), 1000)
    assert draws.min() >= 0
    assert draws.max() < size


def test_text_keys_are_the_letter_k_and_the_number():
    schema = Schema.of([Field("key", TYPES["string"]), Field("time", TYPES["timestamp"])])
    p = plan(schema, rate="full", rows=12, keys="sequential", key_max=11)
    got = drain(p, staging(schema=schema)).column("key").to_pylist()
    assert got == [f"k{i % 11}" for i in range(12)]


def test_nulls_stand_in_nullable_columns_in_their_share():
    rows = drain(plan(rate="full", rows=2 * BLOCK_ROWS, nulls=0.25), staging())
    for f in SCHEMA:
        share = rows.column(f.name).null_count / rows.num_rows
        assert abs(share - 0.25) < 0.02 if f.nullable else share == 0


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({}, "rate: is missing"),
        ({"rate": 0}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"rate": 1, "key": "kee"}, "key: no column.*did you mean key"),
        ({"rate": 1, "key": "c_bool"}, "key: c_bool is bool"),
        ({"rate": 1, "key": "c_int8", "key_max": 129}, "key_max: 129 keys do not fit into int8"),
        ({"rate": 1, "keys": "zipfian"}, "keys.*did you mean zipf"),
        ({"rate": 1, "start": "soon"}, "start"),
        ({"rate": 1, "nulls": 2}, "nulls"),
        ({"rate": 1, "rows": -1}, "rows"),
        ({"rate": 1, "seed": -1}, "seed"),
        ({"rate": 1, "step": "1 s 1 s"}, "step"),
    ],
)
def test_a_faulty_source_table_is_refused_at_its_path(document, where):
    with pytest.raises(JobError, match=f"streams.a.source.{where}"):
        plan(**document)
