"""`edged bench cost`: CPU time of the daemon by beat, row and message.

The job of `edged bench e2e` runs at seven loads, from 1 000 to 3 million rows/s, 1 to 19 beats/s
and messages of 25 to 30 000 rows. Least squares of the relative error over beats, rows and messages
give the price of each, for the thread of the beats and for all threads. The difference is commit,
acks and other work beside the beats. `edged.simulate.work` has these prices in cycles. The stages'
wall times are fitted in the same way (`edged.simulate.stages`). The daemon writes no trace.

Small windows keep the join's part small and in the cache; its price is measured by itself
(`edged.simulate.work`).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from edged.bench.load import Load
from edged.bench.rig import Rig, join_job, machine, rig
from edged.errors import EdgedError

BOUND_US = 2_000
"""The join's bound: few rows of the rates below lie in a window."""


@dataclass(frozen=True)
class CostLoad:
    """One load: rows/s of each of two streams, rows of a message, latency promise."""

    rate: int
    batch: int
    latency: str

    @property
    def messages_per_s(self) -> float:
        """Messages per second of both streams."""
        return 2 * self.rate / self.batch


LOADS = (
    CostLoad(500, 25, "1s"),
    CostLoad(500, 25, "50ms"),
    CostLoad(15_000, 150, "1s"),
    CostLoad(150_000, 7_500, "1s"),
    CostLoad(150_000, 300, "250ms"),
    CostLoad(1_500_000, 30_000, "250ms"),
    CostLoad(1_500_000, 30_000, "1s"),
)
WARM_S = 3.0
FIRST_ROWS_S = 30.0
BEATS_MIN = 2
PARTS = ("us_per_beat", "ns_per_row", "us_per_message")
_UNIT = (1e6, 1e9, 1e6)


def measure(load: CostLoad, seconds: float) -> dict[str, Any]:
    """CPU seconds of the daemon's threads at one load, with its beats, rows and messages."""
    with rig() as bench:
        bench.start(join_job(bench.address, BOUND_US, load.latency), trace=False)
        bench.load(
            Load(bench.address, 1, load.batch, 10**6, mode="rate",
                 seconds=seconds + WARM_S + 2 * FIRST_ROWS_S,
                 rate=load.rate, tick_s=max(0.01, load.batch / load.rate))
        )  # fmt: skip
        pid = bench.parts["daemon"].process.pid
        _until_rows(bench)
        time.sleep(WARM_S)
        first, before = bench.sample(), _threads(pid)
        time.sleep(seconds)
        last, after = bench.sample(), _threads(pid)
        while last.status["beat"] - first.status["beat"] < BEATS_MIN:  # a core was not to be had
            if last.at_s - first.at_s > FIRST_ROWS_S:
                raise EdgedError("the daemon processes nothing")
            time.sleep(seconds)
            last, after = bench.sample(), _threads(pid)
    cpu = {name: after[name] - before.get(name, 0.0) for name in after}
    rows, span = last.rows - first.rows, last.at_s - first.at_s
    stages = {
        name: round((us - first.status["stage_us"].get(name, 0)) / 1e6, 4)
        for name, us in last.status["stage_us"].items()
    }
    return {
        "rows_per_s": round(rows / span), "messages_per_s": round(load.messages_per_s, 1),
        "latency": load.latency, "seconds": round(span, 2), "rows": rows,
        "beats": last.status["beat"] - first.status["beat"],
        "messages": round(rows / load.batch),
        "cpu_s_beat_thread": round(cpu[str(pid)], 5), "cpu_s": round(sum(cpu.values()), 5),
        "stages_s": stages,
    }  # fmt: skip


def _until_rows(bench: Rig) -> None:
    """Wait for the first rows: a generator on a busy machine takes seconds to send them."""
    end = time.monotonic() + FIRST_ROWS_S
    while not bench.sample().rows:
        if time.monotonic() > end:
            raise EdgedError(f"the load sent no row within {FIRST_ROWS_S:.0f} s")
        time.sleep(0.1)


STAGES = {
    "ingest": "receive and decode",
    "race": "operators",
    "seal": "pages",
    "log": "log",
    "fsync": "fsync",
    "ack": "acks",
    "hand_over": "pages to the uplink",
}
"""Stages of a beat, by the name in the status; `log` is the commit without the disk's sync."""


def stage_prices(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Wall time of each stage by beat and row, fitted as `prices`."""
    found = {}
    for stage, name in STAGES.items():
        spent = []
        for r in rows:
            took = dict(r["stages_s"])
            took["log"] = took["commit"] - took["fsync"]
            spent.append({**r, "spent_s": max(1e-9, took[stage]), "messages": 0})
        found[name] = prices(spent, "spent_s")
    return found


def _threads(pid: int) -> dict[str, float]:
    """CPU seconds of each thread of a process; the main thread has the process's number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def prices(rows: list[dict[str, Any]], of: str) -> dict[str, float]:
    """CPU time of a beat, a row and a message that fits `of` best, and the largest relative error.

    None of them is below zero: a price that would be is left out of the fit.
    """
    amounts = np.array([[r["beats"], r["rows"], r["messages"]] for r in rows], np.float64)
    spent = np.array([r[of] for r in rows])
    design, kept = amounts / spent[:, None], list(range(len(PARTS)))
    found = np.zeros(len(PARTS))
    while kept:
        fitted = np.linalg.lstsq(design[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (fitted >= 0).all():
            found[kept] = fitted
            break
        kept.pop(int(np.argmin(fitted)))
    error = float(np.abs(design @ found - 1).max())
    units = zip(PARTS, found, _UNIT, strict=True)
    return {name: round(float(s) * unit, 3) for name, s, unit in units} | {
        "error_max": round(error, 3)
    }


@click.command(name="cost")
@click.option("--seconds", default=8.0, show_default=True, help="Measured seconds of each load.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the figures here.")
def command(seconds: float, path: Path | None) -> None:
    """CPU time of the daemon by beat, row and message.

    Takes a minute and a half.
    """
    from edged.console.consoles import figures_console
    from edged.daemon.compilation import compile_kernels

    console = figures_console()
    compile_kernels(quiet=False)
    rows = []
    with console.status("starting") as line:
        for load in LOADS:
            line.update(f"{2 * load.rate:,} rows/s, {load.messages_per_s:.0f} messages/s")
            rows.append(measure(load, seconds))
    result = {
        "machine": machine(),
        "rows": rows,
        "prices": {of: prices(rows, of) for of in ("cpu_s_beat_thread", "cpu_s")},
        "stages": stage_prices(rows),
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    _show(console, result)


def _show(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(title="CPU time of the daemon")
    for name in ("rows/s", "messages/s", "beats/s", "% of a core", "beats' thread"):
        table.add_column(name, justify="right")
    for r in result["rows"]:
        table.add_row(
            f"{r['rows_per_s']:,}", f"{r['messages_per_s']:,.0f}",
            f"{r['beats'] / r['seconds']:.1f}", f"{100 * r['cpu_s'] / r['seconds']:.2f}",
            f"{r['cpu_s_beat_thread'] / r['cpu_s']:.0%}",
        )  # fmt: skip
    console.print(table)
    for of, title in (("cpu_s_beat_thread", "the beats' thread"), ("cpu_s", "all threads")):
        p = result["prices"][of]
        console.print(
            f"{title}: {p['us_per_beat']:,.0f} µs a beat, {p['ns_per_row']:.1f} ns a row, "
            f"{p['us_per_message']:.2f} µs a message; off by {p['error_max']:.0%} at most"
        )
    for name, p in result["stages"].items():
        console.print(
            f"{name}: {p['us_per_beat']:,.0f} µs a beat, {p['ns_per_row']:.1f} ns a row (wall);"
            f" off by {p['error_max']:.0%} at most"
        )
