"""`edged bench kernels`: operators that users write against built-in ones, on one core.

A million rows in memory, one operator at a time, by turns; each figure is the median of CPU times.
Both sides compute the same; what their outputs hold is compared.  `checks` compares a kernel with
its trusted form, whose indices and loops are not checked.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from edged.bench.rig import machine
from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MAX_US, BeatContext, Flow, Link
from edged.data.schema import FLOAT64, INT32, TIMESTAMP, Field, Schema
from edged.data.workers import Workers
from edged.operators.base import Operator
from edged.operators.filter import FilterPlan
from edged.operators.kernel import KernelPlan
from edged.operators.map import MapPlan
from edged.operators.user.code import UserCode
from edged.operators.window import WindowPlan

ROWS = 1_000_000
AIM = 0.7
SCHEMA = Schema.of(
    [Field("t", TIMESTAMP), Field("k", INT32), Field("x", FLOAT64), Field("y", FLOAT64)]
)
_GOOD = (
    "class Outputs:\n    class good:\n        t: timestamp\n        k: int32\n        z: float64\n"
)
FILTER_MAP = (
    _GOOD
    + """
class Parameters:
    least: float64

def on_row(row, state, out, parameters):
    if row.x > parameters.least:
        out.good(t=row.t, k=row.k, z=row.x * 2 + row.y)
"""
)
FILTER_MAP_COLUMNS = (
    _GOOD
    + """
class Parameters:
    least: float64

def on_batch(columns, state, out, parameters):
    keep = columns.x > parameters.least
    out.good(t=columns.t[keep], k=columns.k[keep], z=columns.x[keep] * 2 + columns.y[keep])
"""
)
KEYED_SUM = """
class State:
    total: float64
    rows: int64

class Outputs:
    class sums:
        t: timestamp
        total: float64

def on_row(row, state, out):
    state.total += row.x
    state.rows += 1
    if row.t < 0:
        out.sums(t=row.t, total=state.total)
"""
LOOPS = """
class State:
    recent: float64[16]
    n: int64

class Outputs:
    class means:
        t: timestamp
        mean: float64

def on_row(row, state, out):
    state.recent[state.n % 16] = row.x
    state.n += 1
    total = 0.0
    for k in range(16):
        total += state.recent[k]
    out.means(t=row.t, mean=total / 16)
"""


def rows(keys: int) -> Batch:
    """The rows: times in order, keys and values at random."""
    rng = np.random.default_rng(7)
    values = (
        np.arange(ROWS, dtype=np.int64), rng.integers(0, keys, ROWS).astype(np.int32),
        rng.normal(size=ROWS), rng.normal(size=ROWS),
    )  # fmt: skip
    return Batch(SCHEMA, ROWS, tuple(Column(v) for v in values))


def kernel(text: str, workers: Workers, **document: Any) -> Operator:
    """A kernel operator of a text."""
    code = UserCode("file", "bench.py", text, hashlib.sha256(text.encode()).hexdigest(), "bench")
    return KernelPlan.of_code("operators.k", "k", document, Link(SCHEMA, "t"), code).build(workers)


def chained(workers: Workers, least: float) -> list[Operator]:
    """The built-in filter and map."""
    link = Link(SCHEMA, "t")
    kept = FilterPlan.parse("operators.f", "f", {"where": f"x > {least}"}, [link])
    columns = {"t": "t", "k": "k", "z": "x * 2 + y"}
    made = MapPlan.parse("operators.m", "m", {"columns": columns}, [kept.output])
    return [kept.build(workers), made.build(workers)]


def window(workers: Workers) -> Operator:
    """The built-in window with the sums of KEYED_SUM."""
    document = {
        "keys": ["k"], "size": "1000d", "aggregates": {"total": "sum(x)", "rows": "count(*)"},
    }  # fmt: skip
    return WindowPlan.parse("operators.w", "w", document, [Link(SCHEMA, "t")]).build(workers)


def run(operators: Sequence[Operator], batch: Batch, workers: Workers, watermark_us: int) -> Batch:
    """The batch through operators that follow each other."""
    beat, flow = BeatContext(1, 0, workers), Flow(batch, watermark_us)
    for operator in operators:
        flow = operator.run(beat, [flow])
    return flow.batch


def compare(
    arms: Mapping[str, Sequence[Operator]], batch: Batch, rounds: int, workers: Workers
) -> dict[str, float]:
    """Million rows/s of each arm, by turns."""
    spent: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, operators in arms.items():
            before = time.process_time()
            run(operators, batch, workers, 0)
            spent[name].append(time.process_time() - before)
    return {name: ROWS / median(times) / 1e6 for name, times in spent.items()}


def equal_sums(workers: Workers, batch: Batch) -> bool:
    """Whether the kernel's records are the window's groups."""
    one = kernel(KEYED_SUM, workers, keys=["k"])
    run([one], batch, workers, 0)
    _, records = one.records()  # type: ignore[attr-defined]
    found = run([window(workers)], batch, workers, WATERMARK_MAX_US)
    groups = zip(found["k"].values, found["total"].values, found["rows"].values, strict=True)
    return sorted(map(tuple, records)) == sorted((int(k), float(s), int(n)) for k, s, n in groups)


def measure(rounds: int) -> dict[str, Any]:
    """All figures."""
    workers, found = Workers(1), list[dict[str, Any]]()
    batch = rows(1000)
    for share, least in (("90 %", -1.28), ("50 %", 0.0), ("10 %", 1.28)):
        arms = {
            "builtin": chained(workers, least),
            "kernel": [kernel(FILTER_MAP, workers, parameters={"least": least})],
            "columns": [kernel(FILTER_MAP_COLUMNS, workers, parameters={"least": least})],
        }
        texts = [run(a, batch, workers, 0).to_arrow() for a in arms.values()]
        speeds = compare(arms, batch, rounds, workers)
        same = all(texts[0].equals(t) for t in texts)
        found.append({"work": f"filter and map, {share} kept", **speeds, "equal": same})
    for keys in (1000, 100_000):
        batch = rows(keys)
        arms = {"builtin": [window(workers)], "kernel": [kernel(KEYED_SUM, workers, keys=["k"])]}
        speeds = compare(arms, batch, rounds, workers)
        same = equal_sums(workers, batch)
        found.append({"work": f"sum by key, {keys} keys", **speeds, "equal": same})
    for row in found:
        row["ratio"] = row["kernel"] / row["builtin"]
    checks = list[dict[str, Any]]()
    for name, text in (("sum by key", KEYED_SUM), ("mean of an array of 16", LOOPS)):
        batch = rows(1000)
        arms = {
            "checked": [kernel(text, workers, keys=["k"])],
            "trusted": [kernel(text, workers, keys=["k"], trusted=True)],
        }
        checks.append({"work": name, **compare(arms, batch, rounds, workers)})
    workers.close()
    return {"rows": found, "checks": checks, "aim": AIM, "machine": machine()}


@click.command(name="kernels")
@click.option("--rounds", default=11, show_default=True, type=click.IntRange(1, 99))
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path),
              help="Write the figures there.")  # fmt: skip
def command(rounds: int, path: Path | None) -> None:
    """Operators that users write against built-in ones that do the same, on one core."""
    figures = measure(rounds)
    for row in figures["rows"]:
        columns = f", by column {row['columns']:.0f}" if "columns" in row else ""
        click.echo(
            f"{row['work']}: built in {row['builtin']:.0f} M rows/s, kernel {row['kernel']:.0f}"
            f" ({row['ratio']:.2f}){columns}{'' if row['equal'] else '  NOT EQUAL'}"
        )
    for row in figures["checks"]:
        click.echo(f"{row['work']}: {row['checked']:.1f} M rows/s, trusted {row['trusted']:.1f}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")
