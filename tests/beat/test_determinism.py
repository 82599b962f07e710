"""The same input gives the same results: however it is cut, interleaved or dealt to workers."""

from __future__ import annotations

import random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.beat.support import T0, Live, stream
from tests.whole import examples

GRAPH = {
    "name": "graph",
    "streams": {
        name: stream({"key": "int64", "time": "timestamp", "value": "int64?"}, lateness=60)
        for name in "rs"
    },
    "operators": {
        "joined": {
            "type": "interval_join", "left": "r", "right": "s", "on": ["key"],
            "before": 30, "after": 70,
        },
        "chosen": {"type": "filter", "input": "joined", "where": "value > value_right"},
        "scaled": {
            "type": "map", "input": "r",
            "columns": {"key": "key", "time": "time", "value": "value * 2 - value"},
        },
        "all": {"type": "union", "inputs": ["scaled", "s"]},
        "sums": {
            "type": "window", "input": "all", "keys": ["key"], "size": 100,
            "aggregates": {"n": "count(*)", "total": "sum(value)", "least": "min(value)"},
        },
    },
    "sinks": {
        "pairs": {
            "type": "pages", "input": "chosen", "page": "4KiB",
            "partitions": 3, "partition_by": ["key"],
        },
        "windows": {"type": "pages", "input": "sums", "page": "4KiB"},
    },
}  # fmt: skip


def by_duckdb(left, right):
    """The two result tables as sorted tuples of integers."""
    names = ["key", "time", "value"]
    con = duckdb.connect()
    for name, rows in (("r", left), ("s", right)):
        columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(3)]
        con.register(name, pa.table(columns, names=names))
    pairs = con.sql(
        "SELECT r.key, r.time, r.value, s.time, s.value FROM r JOIN s ON r.key = s.key"
        " AND s.time - r.time BETWEEN -30 AND 70 WHERE r.value > s.value"
    ).fetchall()
    windows = con.sql(
        "SELECT key, time // 100 * 100 AS start, time // 100 * 100 + 100, count(*),"
        " sum(value)::BIGINT, min(value)"
        " FROM (FROM r UNION ALL FROM s) GROUP BY key, start"
    ).fetchall()
    con.close()
    return in_order(pairs), in_order(windows)


def in_order(rows):
    return sorted(rows, key=repr)


def messages_of(rows, rng, lateness):
    """Rows (producer, row) as messages: each producer's disorder stays within the lateness."""
    queues = {}
    arrivals = sorted(rows, key=lambda pr: pr[1][1] + rng.randint(0, lateness))
    for producer, row in arrivals:
        queue = queues.setdefault(producer, [[]])
        if queue[-1] and rng.random() < 0.4:
            queue.append([])
        queue[-1].append(row)
    return queues


rows_strategy = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.tuples(st.integers(0, 3), st.integers(T0, T0 + 600), st.none() | st.integers(-4, 4)),
    ),
    max_size=40,
)


@settings(max_examples=examples(80), deadline=None)
@given(left=rows_strategy, right=rows_strategy, rng=st.randoms(use_true_random=False))
def test_results_do_not_depend_on_batch_sizes_or_interleaving_within_the_lateness(left, right, rng):
    queues = {
        (name, producer): queue
        for name, rows in (("r", left), ("s", right))
        for producer, queue in messages_of(rows, rng, 60).items()
    }
    with Live(GRAPH) as live:
        for name in "rs":
            for producer in "ab":
                live.connect(name, producer)
        while queues:
            name, producer = rng.choice(sorted(queues))
            queue = queues[name, producer]
            live.send(name, queue.pop(0), producer)
            if not queue:
                del queues[name, producer]
            if rng.random() < 0.5:
                race, flush = rng.random() < 0.8, rng.random() < 0.2
                live.beat(race, flush, rows_max=rng.choice([1, 5, 1 << 20]))
        live.drain()
        assert live.late("r") == live.late("s") == 0
        pairs, windows = by_duckdb([row for _, row in left], [row for _, row in right])
        assert in_order(live.rows("pairs")) == pairs
        assert in_order(live.rows("windows")) == windows


def mixed_job():
    columns = {"name": "string", "time": "timestamp", "value": "float64?", "note": "string?"}
    return {
        "name": "mixed",
        "streams": {"r": stream(columns), "s": stream(columns)},
        "operators": {
            "joined": {
                "type": "interval_join", "left": "r", "right": "s", "on": ["name"],
                "before": 40, "after": 40,
            },
            "chosen": {"type": "filter", "input": "joined", "where": "value > 0.2 OR note IS NULL"},
            "sums": {
                "type": "window", "input": "r", "keys": ["name"], "size": 1000, "every": 500,
                "aggregates": {"n": "count(*)", "v": "variance(value)", "m": "mean(value)"},
            },
        },
        "sinks": {
            "pairs": {
                "type": "pages", "input": "chosen", "page": "64KiB",
                "partitions": 5, "partition_by": ["name"],
            },
            "windows": {"type": "pages", "input": "sums", "page": "16KiB"},
        },
    }  # fmt: skip


def mixed_rows(seed, first, count):
    rng = random.Random(seed)
    rows = []
    for i in range(first, first + count):
        note = rng.choice([None, "", "längere Notiz", "n" * rng.randint(0, 40)])
        value = None if rng.random() < 0.1 else rng.random()
        rows.append((f"turbine {rng.randint(0, 3000)}", T0 + i // 4, value, note))
    return rows


@pytest.fixture(scope="module")
def beats():
    """Rows of a few beats: large ones that are worth several workers, and small ones."""
    sizes = [30_000, 17, 20_000, 0, 5_000]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        (mixed_rows(2 * i, a, n), mixed_rows(2 * i + 1, a, n))
        for i, (a, n) in enumerate(zip(starts, sizes, strict=True))
    ]


def run_mixed(beats, workers):
    with Live(mixed_job(), workers=workers) as live:
        states = []
        for i, (left, right) in enumerate(beats):
            if left:
                live.send("r", left)
                live.send("s", right)
            live.beat(flush=i % 2 == 1)
            states.append({k: v.tobytes() for k, v in live.save()[1].items()})
        live.drain()
        pages = [(page.key, bytes(page.data)) for page in live.all_pages()]
        return pages, states, len(live.rows("pairs")), len(live.rows("windows"))


def test_pages_and_state_are_equal_byte_by_byte_under_1_2_and_4_workers(beats):
    one = run_mixed(beats, 1)
    assert one[2] > 1000
    assert one[3] > 1000
    for workers in (2, 4):
        other = run_mixed(beats, workers)
        assert [key for key, _ in other[0]] == [key for key, _ in one[0]]
        assert other[0] == one[0]
        for beat, (a, b) in enumerate(zip(one[1], other[1], strict=True)):
            assert {k for k in a if a[k] != b.get(k)} == set(), f"state after beat {beat + 1}"
