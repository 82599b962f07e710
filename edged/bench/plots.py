"""Pictures of the end-to-end benchmark: where the CPU time goes, and latency over load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_COLOURS = ("#0b6e99", "#d1495b", "#2a9d5c", "#8a5cb8", "#e0a030", "#6b7280")


def draw_e2e(result: dict[str, Any], path: Path) -> None:
    """Left: CPU seconds per million tuples by process.  Right: latency at parts of the capacity."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.1), layout="constrained")
    runs = {"few connections": result, "1 000 connections": result.get("thousand_connections")}
    for label, run in runs.items():
        if not run:
            continue
        start = 0.0
        for colour, (name, cost) in zip(
            _COLOURS, sorted(run["cpu_s_per_mtuple_by_process"].items()), strict=False
        ):
            bar = left.barh(label, 1000 * cost, left=start, color=colour)
            if label == "few connections":
                bar.set_label(name)
            start += 1000 * cost
        rate = f"  {run['tuples_per_s'] / 1e6:.1f} M tuples/s"
        left.text(start, label, rate, va="center", fontsize=9)
    left.margins(x=0.3)
    left.invert_yaxis()
    left.set(xlabel="CPU-ms per million tuples", title="Cost of the whole way, by process")
    figure.legend(frameon=False, loc="outside lower left", ncols=4, fontsize=8)
    loads = [r["tuples_per_s"] / 1e6 for r in result["latency"]]
    for key, colour, name in (("p50", _COLOURS[0], "median"), ("p99", _COLOURS[1], "99 %")):
        values = [r[f"latency_ms_{key}"] for r in result["latency"]]
        right.plot(loads, values, marker="o", color=colour, label=name)
    right.set(xlabel="M tuples/s, open loop", ylabel="ms", ylim=(0, None), xlim=(0, None),
              title="Latency, from due time to durable page")  # fmt: skip
    right.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
