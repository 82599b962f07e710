"""docs/policies.png: what each policy makes of one job on the simulated Orin Nano.

    python -m edged.bench.policies --plot docs/policies.png --json F

It is `edged simulate --sweep rate=...` once a policy, drawn together: power above idle and median
latency over the rate, of a join of two streams over a second to each side with a tolerance of a
second.  Every figure is simulated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import governors.profile
from edged.job.plan import load_job, parse_job
from edged.simulate.report import Question, sweep
from edged.simulate.work import Load

RATES = tuple(1_000.0 * 10 ** (i / 4) for i in range(13))
"""Tuples/s of each stream."""
SECONDS = 120.0
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("hands_off", {}),
    ("race_to_idle", {}),
    ("fixed", {"cpu_mhz": 1344.0}),
    ("power_cap", {"watts": 3.6}),
    ("energy_budget", {"joules_per_day": 310_000.0}),
)
_COLOURS = ("#6b7280", "#0b6e99", "#d1495b", "#2a9d5c", "#8a5cb8")


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
    """All answers, by policy."""
    plan = parse_job(JOB) if job is None else load_job(str(job))
    profile = governors.profile.load(board)
    found = {}
    for name, settings in POLICIES:
        asked = Question(plan, profile, Load(RATES[0]), name, settings, seconds=SECONDS)
        label = " ".join([name, *(f"{k}={v:g}" for k, v in settings.items())])
        found[label] = sweep(asked, "rate", RATES, lambda _: None)
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A line a policy and rate."""
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
    """Power on the left, latency on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for colour, (label, results) in zip(_COLOURS, found.items(), strict=False):
        rates = [r["rate_per_stream"] for r in results]
        left.plot(rates, [r["watts"]["above_idle"] for r in results], "o-", color=colour,
                  label=label, markersize=3)  # fmt: skip
        right.plot(rates, [r["latency_ms"]["p50"] for r in results], "o-", color=colour,
                   label=label, markersize=3)  # fmt: skip
    idle = results[0]["watts"]["input"] - results[0]["watts"]["above_idle"]
    left.set(title=f"W above idle ({idle:.2f} W, ± {results[0]['watts']['error']:.2f}), simulated",
             xscale="log", yscale="log")  # fmt: skip
    right.set(title="Median latency, ms, simulated", xscale="log", yscale="log")
    for axes in (left, right):
        axes.set(xlabel="tuples/s of each stream")
    left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m edged.bench.policies")
    parser.add_argument("--job", type=Path, help="Default: a join.")
    parser.add_argument("--board", default="orin-nano")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = run(options.job, options.board)
    print("\n".join(table(found)))  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.plot is not None:
        draw(found, options.plot)


if __name__ == "__main__":
    main()
