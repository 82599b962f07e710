"""The figure of the end-to-end benchmark: CPU time by process, and latency over load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edged.console.figures import BLUE, COLOURS, RED, new_figure, save


def draw_e2e(result: dict[str, Any], path: Path) -> None:
    """Write the figure of a result of `edged bench e2e` as PNG."""
    figure, (left, right) = new_figure(1, 2, 3.8)
    _draw_cost(left, result)
    _draw_latency(right, result)
    machine = result.get("machine")
    if machine:
        figure.suptitle(f"measured on {machine['cores']} cores of {machine['cpu']}", fontsize=10)
    save(figure, path)


def _draw_cost(axes: Any, result: dict[str, Any]) -> None:
    """CPU time per million tuples, by process, for each kind of connection."""
    runs = {"few\nconnections": result, "1 000\nconnections": result.get("thousand_connections")}
    colours: dict[str, str] = {}
    for label, run in runs.items():
        if not run:
            continue
        start = 0.0
        for name, cost in sorted(run["cpu_s_per_mtuple_by_process"].items()):
            first = name not in colours
            colours.setdefault(name, COLOURS[len(colours) % len(COLOURS)])
            axes.barh(label, 1000 * cost, left=start, color=colours[name],
                      label=name if first else None)  # fmt: skip
            start += 1000 * cost
        axes.text(start, label, f"  {run['tuples_per_s'] / 1e6:.1f} M tuples/s", va="center")
    axes.margins(x=0.4)
    axes.invert_yaxis()
    axes.set(xlabel="CPU time (ms per million tuples)", title="Cost, by process")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=4, columnspacing=1.2)


def _draw_latency(axes: Any, result: dict[str, Any]) -> None:
    """Median and 99th percentile of latency at fixed parts of the highest rate."""
    rates = [r["tuples_per_s"] / 1e6 for r in result["latency"]]
    for key, colour, name in (("p50", BLUE, "median"), ("p99", RED, "99th percentile")):
        values = [r[f"latency_ms_{key}"] for r in result["latency"]]
        axes.plot(rates, values, marker="o", color=colour, label=name)
    axes.set(xlabel="offered load (M tuples/s)", ylabel="latency (ms)", ylim=(0, None),
             xlim=(0, None), title="Latency, due time to durable page")  # fmt: skip
    axes.margins(y=0.15)
    axes.legend(loc="best")
