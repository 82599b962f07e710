"""The energy policies compared on one job and the simulated Orin Nano: docs/policies.png.

    python -m edged.bench.policies --plot docs/policies.png --json F

Runs `edged simulate --sweep rate=...` once for each policy and draws power above idle and median
latency over the rate.  The job joins two streams over one second to each side and promises results
within one second.  Every figure is simulated; a run is deterministic.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import governors.profile_reader
from edged.console.figures import BLUE, GREEN, GREY, PURPLE, RED, new_figure, save
from edged.job.plan import load_job, parse_job
from edged.simulate.report import Question, sweep
from edged.simulate.work import ArrivalLoad

RATES = tuple(1_000.0 * 10 ** (i / 4) for i in range(13))
"""Rates, in tuples/s of each stream."""
SECONDS = 120.0
"""Simulated time of each run."""
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hands_off", {}),
    ("race_to_idle", {}),
    ("fixed", {"cpu_mhz": 1344.0}),
    ("power_cap", {"watts": 3.6}),
    ("energy_budget", {"joules_per_day": 310_000.0}),
)
_LOOKS = (
    (GREY, "-", "o"), (BLUE, "-", "s"), (RED, "--", "x"), (GREEN, "-.", "^"), (PURPLE, "-", "d"),
)  # fmt: skip
"""Colour, line style and marker of each policy. Coinciding lines stay visible."""


_STREAM = {
    "source": {"type": "tcp", "listen": "127.0.0.1:0"},
    "columns": {"key": "int32", "time": "timestamp", "value": "float32"},
    "time": "time",
}
JOB = {
    "name": "join",
    "promises": {"latency": "1s", "memory": "4GiB"},
    "streams": {"left": _STREAM, "right": _STREAM},
    "operators": {
        "pairs": {
            "type": "interval_join", "left": "left", "right": "right", "on": ["key"],
            "before": "1s", "after": "1s",
        }
    },
    "sinks": {"out": {"type": "pages", "input": "pairs"}},
}  # fmt: skip


def run(job: Path | None, board: str = "orin-nano") -> dict[str, list[dict[str, Any]]]:
    """The simulation results over RATES, keyed by policy and settings."""
    plan = parse_job(JOB) if job is None else load_job(str(job))
    profile = governors.profile_reader.load(board)
    found = {}
    for name, settings in POLICIES:
        question = Question(plan, profile, ArrivalLoad(RATES[0]), name, settings, seconds=SECONDS)
        label = " ".join([name, *(f"{k}={v:g}" for k, v in settings.items())])
        found[label] = sweep(question, "rate", RATES, lambda _: None)
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """One line of text for each policy and rate."""
    lines = []
    for label, results in found.items():
        for r in results:
            w, ms = r["watts"], r["latency_ms"]
            lines.append(
                f"{label:38} {r['rate_per_stream']:>10.0f}/s  {w['above_idle']:.4f} W above idle, "
                f"{w['input']:.3f} W, p50 {ms['p50']:.0f} ms, p99 {ms['p99']:.0f} ms, "
                f"{r['wakeups_per_s']:.2f} wakes/s, {r['held_back_beats']} held back"
            )
    return lines


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Write the figure as PNG: power above idle on the left, median latency on the right."""
    figure, (left, right) = new_figure(1, 2, 4.4)
    for (label, results), look in zip(found.items(), _LOOKS, strict=False):
        colour, line, marker = look
        rates = [r["rate_per_stream"] for r in results]
        style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 5,
                 "markerfacecolor": "none", "label": label}  # fmt: skip
        left.plot(rates, [r["watts"]["above_idle"] for r in results], **style)
        right.plot(rates, [r["latency_ms"]["p50"] / 1e3 for r in results], **style)
    watts = results[0]["watts"]
    idle = f"idle {watts['input'] - watts['above_idle']:.2f} ± {watts['error']:.2f} W"
    left.set(title=f"Power above idle ({idle})", ylabel="power above idle (W, simulated)")
    right.set(title="Median latency, arrival to sealed page", ylabel="latency (s, simulated)")
    for axes in (left, right):
        axes.set(xlabel="rate of each stream (tuples/s)", xscale="log", yscale="log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", " "))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5,
                  columnspacing=1.2)  # fmt: skip
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, print its table, and write the requested files."""
    parser = argparse.ArgumentParser(prog="python -m edged.bench.policies")
    parser.add_argument("--job", type=Path, help="Job document.  Default: a join of two streams.")
    parser.add_argument("--board", default="orin-nano", help="Board profile.")
    parser.add_argument("--plot", type=Path, help="PNG to write.")
    parser.add_argument("--json", type=Path, help="Write all results here.")
    options = parser.parse_args(arguments)
    found = run(options.job, options.board)
    print("\n".join(table(found)))  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot is not None:
        draw(found, options.plot)


if __name__ == "__main__":
    main()
