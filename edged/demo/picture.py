"""The power curve of four real turbines, drawn from the finished table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

RATED_KW = 2050
"""Senvion MM82, from the farm's asset list."""
_COLOURS = ("#0b6e99", "#d1495b", "#2a9d5c", "#8a5cb8")


def draw(curve: pa.Table, months: list[tuple[str, float, float]], path: Path) -> None:
    """Mean power with one standard deviation by wind bin; energy a month beside the meter's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.2), width_ratios=(3, 2), layout="constrained"
    )
    rows = [r for r in curve.to_pylist() if r["bin_m_s"] is not None and r["n"] >= 5]
    for colour, turbine in zip(_COLOURS, sorted({r["turbine"] for r in rows}), strict=False):
        own = sorted((r for r in rows if r["turbine"] == turbine), key=lambda r: r["bin_m_s"])
        wind = [r["bin_m_s"] + 0.25 for r in own]
        mean = [r["mean_kw"] for r in own]
        spread = [r["stddev_kw"] or 0.0 for r in own]
        low = [max(0.0, m - s) for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        left.plot(wind, mean, color=colour, linewidth=1.6, label=turbine)
        left.fill_between(wind, low, high, color=colour, alpha=0.10, linewidth=0)
    left.axhline(RATED_KW, color="#888888", linewidth=0.8, linestyle=":")
    left.annotate("rated 2 050 kW", (1, RATED_KW), xytext=(0, 3), textcoords="offset points",
                  color="#666666", fontsize=8)  # fmt: skip
    left.set(xlabel="wind speed (m/s)", ylabel="power (kW), mean ± one standard deviation",
             title="Power curve of four turbines, joined on the edge", xlim=(0, 22))  # fmt: skip
    left.legend(frameon=False, loc="lower right")
    names = [m for m, _, _ in months]
    right.bar(names, [k / 1000 for _, k, _ in months], color="#0b6e99", label="turbines' power")
    right.plot(names, [k / 1000 for _, _, k in months], color="#d1495b", marker="o", markersize=3,
               linewidth=1.2, label="plant's meter")  # fmt: skip
    right.set(ylabel="energy (MWh a month)", title="Energy beside the plant's own meter")
    right.set_xticks(names[::6], names[::6])
    right.legend(frameon=False)
    figure.text(0.995, 0.005, "Data: ENGIE, La Haute Borne, Open License 2.0 (Etalab)",
                ha="right", color="#888888", fontsize=7)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
