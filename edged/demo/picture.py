"""The demo's figure: the power curve of four real turbines, and their energy by month."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from edged.console.figures import BLUE, COLOURS, GREY, RED, new_figure, save

RATED_KW = 2050
"""Rated power of a Senvion MM82, from the farm's asset list."""
BIN_M_S = 0.5
"""Width of a wind bin of the table `power_curve`."""
READINGS_MIN = 5
"""Bins with fewer readings are not drawn: their standard deviation has no meaning."""


def draw(curve: pa.Table, months: list[tuple[str, float, float]], path: Path) -> None:
    """Write the figure as PNG.

    `curve` is the finished table `power_curve`. `months` holds (month as `YYYY-MM`, energy of the
    turbines in kWh, energy by the plant's meter in kWh).
    """
    figure, (left, right) = new_figure(1, 2, 4.4, width_ratios=(3, 2))
    _draw_curves(left, curve)
    _draw_months(right, months)
    figure.supxlabel("Data: ENGIE, La Haute Borne, Open License 2.0 (Etalab)", fontsize=9,
                     color=GREY, x=0.995, ha="right")  # fmt: skip
    save(figure, path)


def _draw_curves(axes: Any, curve: pa.Table) -> None:
    """Mean power over wind speed, one line for each turbine, with a band of ± one deviation."""
    rows = [
        r for r in curve.to_pylist() if r["bin_m_s"] is not None and r["n"] >= READINGS_MIN
    ]  # fmt: skip
    for colour, turbine in zip(COLOURS, sorted({r["turbine"] for r in rows}), strict=False):
        own = sorted((r for r in rows if r["turbine"] == turbine), key=lambda r: r["bin_m_s"])
        wind = [r["bin_m_s"] + BIN_M_S / 2 for r in own]
        mean = [r["mean_kw"] for r in own]
        spread = [r["stddev_kw"] or 0.0 for r in own]
        low = [max(0.0, m - s) for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.plot(wind, mean, color=colour, linewidth=1.6, label=turbine)
        axes.fill_between(wind, low, high, color=colour, alpha=0.10, linewidth=0)
    axes.axhline(RATED_KW, color=GREY, linewidth=0.8, linestyle=":")
    axes.annotate("rated 2 050 kW", (1, RATED_KW), xytext=(0, 4), textcoords="offset points",
                  color=GREY, fontsize=10)  # fmt: skip
    axes.set(xlabel="wind speed (m/s)", ylabel="power (kW)", xlim=(0, 20), ylim=(-50, None),
             title="Power curve of four turbines, mean ± one standard deviation")  # fmt: skip
    axes.legend(loc="lower right")


def _draw_months(axes: Any, months: list[tuple[str, float, float]]) -> None:
    """Energy by month: bars of the turbines' own power, points of the plant's meter."""
    at = range(len(months))
    axes.bar(at, [kwh / 1000 for _, kwh, _ in months], color=BLUE, label="turbines' power")
    axes.plot(at, [kwh / 1000 for _, _, kwh in months], color=RED, marker="o", markersize=3.5,
              linewidth=1.2, label="plant's meter")  # fmt: skip
    ticks = [i for i, (name, _, _) in enumerate(months) if name[5:] in ("01", "07")]
    axes.set_xticks(ticks, [_month(months[i][0]) for i in ticks])
    top = max((max(kwh) for _, *kwh in months), default=1.0) / 1000
    axes.set(ylabel="energy (MWh per month)", ylim=(0, 1.25 * top),
             title="Energy, turbines and plant's meter")  # fmt: skip
    axes.legend(loc="upper left", ncols=2)


def _month(name: str) -> str:
    """`2014-01` as `Jan 2014`."""
    year, month = name.split("-")
    names = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return f"{names[int(month) - 1]} {year}"
