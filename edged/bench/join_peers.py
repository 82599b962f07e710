"""DuckDB and Polars on the same join, as batch queries over all data.

A table of the engine holds the first `rows` tuples of each stream as (key, number). The timed query
is an equi-join with the bound as an extra condition. It counts the pairs and sums the products of
their numbers; it materialises no pair. The results are compared with the reference computation.
Polars fixes its thread count at import, so it runs in a separate process.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from edged.calibration.join_data import PairDigest, Pool, Products, draw, expected

PEERS = ("duckdb", "polars")
ROWS_MIN = 100_000
ROWS_PER_WINDOW = 4
ROWS_MAX = 20_000_000

Answer = tuple[float, float, int, int]
"""Wall seconds, CPU seconds, pairs, and sum of products mod 2^64 of one query."""


def missing(peer: str) -> str | None:
    """The reason why a peer cannot run, with the remedy; None if it can."""
    if find_spec(peer) is not None:
        return None
    return f"{peer} is not installed: pip install {peer}"


def rows_of(window: int) -> int:
    """Tuples of each side in the query."""
    return min(ROWS_MAX, max(ROWS_MIN, ROWS_PER_WINDOW * window))


def measure_peer(
    peer: str, window: int, match_rate: float, keys: str, threads: int, repeats: int
) -> dict[str, Any]:
    """The figures of one row, in the form of `join_measure.measure`."""
    question: dict[str, Any] = {
        "window": window,
        "match_rate": match_rate,
        "keys": keys,
        "threads": threads,
        "repeats": repeats,
    }
    answers = _polars_in_a_process(question) if peer == "polars" else _duckdb(**question)
    pool, rows = draw(window, match_rate, keys, (1,)), rows_of(window)
    wanted = expected(pool, 0, rows, Products())
    return {
        "batch": rows,
        "tuples_per_s": round(2 * rows / statistics.median(a[0] for a in answers)),
        "cpu_s_per_mtuple": statistics.median(a[1] for a in answers) / (2 * rows) * 1e6,
        "matches_per_tuple": wanted.pairs / (2 * rows),
        "repeats_tuples_per_s": [round(2 * rows / a[0]) for a in answers],
        "exact": all(Products(*a[2:]) == wanted for a in answers),
    }


def _columns(pool: Pool, rows: int) -> list[dict[str, Any]]:
    """Keys and numbers of the first `rows` tuples of each side."""
    numbers = np.arange(rows)
    return [{"key": keys[numbers % pool.period], "number": numbers} for keys in pool.keys]


def _timed(query: Callable[[], tuple[int, int]], repeats: int) -> list[Answer]:
    """The answers of `repeats` runs of a query, after one warm-up run."""
    query()
    answers = []
    for _ in range(repeats):
        cpu_s, started = time.process_time(), time.perf_counter()
        pairs, products = query()
        wall_s = time.perf_counter() - started
        digest = PairDigest(pairs, products % 2**64)
        answers.append((wall_s, time.process_time() - cpu_s, digest.pairs, digest.hash))
    return answers


def _duckdb(window: int, match_rate: float, keys: str, threads: int, repeats: int) -> list[Answer]:
    import duckdb
    import pyarrow as pa

    pool, rows = draw(window, match_rate, keys, (1,)), rows_of(window)
    db = duckdb.connect()
    db.execute(f"SET threads = {threads}")
    for name, columns in zip("rs", _columns(pool, rows), strict=True):
        db.register("given", pa.table(columns))
        db.execute(f"CREATE TABLE {name} AS SELECT * FROM given")

    def query() -> tuple[int, int]:
        found = db.execute(
            "SELECT count(*), coalesce(sum(r.number * s.number), 0) FROM r JOIN s"
            " ON r.key = s.key AND s.number BETWEEN r.number - $1 AND r.number + $1",
            [window],
        ).fetchone()
        return int(found[0]), int(found[1])

    return _timed(query, repeats)


def _polars_in_a_process(question: dict[str, Any]) -> list[Answer]:
    environment = {**os.environ, "POLARS_MAX_THREADS": str(question["threads"])}
    command = [sys.executable, "-m", __name__, json.dumps(question)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [(a[0], a[1], a[2], a[3]) for a in json.loads(done.stdout)]


def _polars(window: int, match_rate: float, keys: str, threads: int, repeats: int) -> list[Answer]:
    import importlib

    pl = importlib.import_module("polars")
    pool, rows = draw(window, match_rate, keys, (1,)), rows_of(window)
    left, right = (pl.DataFrame(columns).lazy() for columns in _columns(pool, rows))
    number, other = pl.col("number"), pl.col("number_right")
    plan = (
        left.join(right, on="key")
        .filter((other - number).abs() <= window)
        .select(pl.len().alias("pairs"), (number * other).sum().alias("products"))
    )

    def query() -> tuple[int, int]:
        found = plan.collect().row(0)
        return int(found[0]), int(found[1])

    return _timed(query, repeats)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_polars(**json.loads(sys.argv[1]))))
