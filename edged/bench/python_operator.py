"""`python -m edged.bench.python_operator`: what a `python` operator costs, beside a built-in `map`.

Batches of one to 100 000 rows of three columns (time, int64, float64) pass a function that gives
back what it is given, in a child process; a `map` adds one to a column.  The least of some rounds
counts, in microseconds a batch: wall time of the beat's thread, and CPU time of both processes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np
import psutil

from edged.data.columns import Batch, Column
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import FLOAT64, INT64, TIMESTAMP, Field, Schema
from edged.data.workers import Workers
from edged.operators._python_operator import PythonOperator
from edged.operators.base import OPERATORS, Operator

SIZES = (1, 100, 1_000, 10_000, 100_000)
ROUNDS = 60
SCHEMA = Schema.of([Field("time", TIMESTAMP), Field("key", INT64), Field("value", FLOAT64)])
CODE = "def on_batch(batch, context):\n    return batch\n"


def main() -> None:
    """Measure and print one JSON line a row."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        (Path(directory) / "passes.py").write_text(CODE)
        os.environ["EDGED_OPERATORS"] = directory
        for keys in ((), ("key",)):
            for rows in SIZES:
                click.echo(json.dumps(_row(rows, keys)))


def _row(rows: int, keys: tuple[str, ...]) -> dict[str, float | int | str]:
    columns = {f.name: f.dtype.name for f in SCHEMA}
    table: dict[str, object] = {"file": "passes.py", "columns": columns, "timeout": "60s"}
    table |= {"keys": list(keys)} if keys else {}
    maps = {"columns": {"time": "time", "key": "key", "value": "value + 1"}}
    apart, beside = _built("python", table), _built("map", maps)
    assert isinstance(apart, PythonOperator)
    while not apart.ready():
        time.sleep(0.01)
    inputs = [Flow(_batch(rows), 0)]
    beat = BeatContext(1, 0, Workers(1))
    try:
        pids = [os.getpid(), *(child.pid for child in apart.children())]
        wall, cpu = _least(lambda: apart.run(beat, inputs), pids)
        map_wall, _ = _least(lambda: beside.run(beat, inputs), pids[:1])
    finally:
        apart.close()
    return {
        "rows": rows, "partitions": 64 if keys else 1, "python_us": wall, "python_cpu_us": cpu,
        "map_us": map_wall,
    }  # fmt: skip


def _built(kind: str, table: Mapping[str, object]) -> Operator:
    OPERATORS.load()
    plan = OPERATORS[kind].parse("operators.x", "x", table, [Link(SCHEMA, "time")])
    return plan.build(Workers(1))


def _batch(rows: int) -> Batch:
    numbers = np.arange(rows, dtype=np.int64)
    columns = (Column(numbers), Column(numbers % 1000), Column(numbers.astype(np.float64)))
    return Batch(SCHEMA, rows, columns)


def _least(call: Callable[[], object], pids: list[int]) -> tuple[float, float]:
    """Least wall time, and mean CPU time of the processes, in µs."""
    processes = [psutil.Process(pid) for pid in pids]
    walls = []
    for _ in range(5):
        call()
    before = sum(sum(p.cpu_times()[:2]) for p in processes)
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        call()
        walls.append((time.perf_counter_ns() - started) / 1000)
    cpu = sum(sum(p.cpu_times()[:2]) for p in processes) - before
    return round(min(walls), 1), round(1e6 * cpu / ROUNDS, 1)


if __name__ == "__main__":
    main()
