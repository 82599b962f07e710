"""The figure of docs/boards.md: `python -m edged.bench.boards --plot F`. All watts are modelled.

Left: the power of each board by its profile, idle and with all cores busy at the highest clocks. A
third bar is the share of idle power on the rails of CPU and GPU, where clocks and sleep states act.
Right: the published sweep of a Jetson Nano and the model that `governors.fit_nano` fits to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from edged.console.figures import GREEN, GREY, ORANGE, PURPLE, RED, new_figure, save
from governors import fit_nano
from governors.power import PowerModel
from governors.profile_reader import load, names

BUSY = "#a8cbd9"
CORES = (PURPLE, GREEN, ORANGE, RED)
"""Colour by number of busy cores, from one core upwards."""


def draw(path: Path) -> None:
    """Write the figure as PNG."""
    figure, (left, right) = new_figure(1, 2, 4.2)
    _draw_boards(left)
    _draw_sweep(right)
    save(figure, path)


def _draw_boards(axes: Any) -> None:
    """Bars of each board. The error bar is one standard deviation of the busy power."""
    shown = sorted(names(), key=lambda n: PowerModel(load(n)).idle_watts(), reverse=True)
    for y, name in enumerate(shown):
        model = PowerModel(load(name))
        ends = model.influence()
        error = model.error_watts(model.full_load(highest=True))
        bars = (
            ("all cores busy, ± one deviation", BUSY, ends.full_max, error),
            ("idle, all rails", GREY, ends.idle_min, None),
            ("idle, rails of CPU and GPU", RED, ends.idle_processors, None),
        )
        for label, colour, watts, deviation in bars:
            axes.barh(y, watts, color=colour, xerr=deviation, label=label if y == 0 else None)
    axes.set(yticks=range(len(shown)), yticklabels=shown, xlabel="power (W, modelled)",
             ylim=(-0.6, len(shown) + 1.1), title="Power of each board")  # fmt: skip
    axes.legend(loc="upper right")


def _draw_sweep(axes: Any) -> None:
    """Power over the clock, a colour for each number of busy cores."""
    sweep = fit_nano.read(fit_nano.DATA / "cpuAll_freq_iter.csv")
    fit = fit_nano.best(sweep)[0]
    khz = np.unique(sweep.khz)
    v = fit_nano.volts(khz, fit.table)
    step = np.where(khz >= fit_nano.STEP_KHZ, fit.values["step"], 0.0)
    for busy, colour in enumerate(CORES, start=1):
        each = fit.values["core_dynamic"] * khz / 1e6 * v**2 + fit.values["core_busy"]
        axes.plot(khz / 1e3, fit.values["base"] + step + busy * each, color=colour,
                  label=f"{busy} busy core{'s' * (busy > 1)}")  # fmt: skip
        axes.plot(khz / 1e3, sweep.watts[sweep.busy == busy], "x", color=colour)
    axes.axhline(fit_nano.IDLE_W, linestyle=":", color=GREY)
    axes.annotate(f"idle {fit_nano.IDLE_W:.2f} W", (khz[-1] / 1e3, fit_nano.IDLE_W), ha="right",
                  xytext=(0, -14), textcoords="offset points", color=GREY, fontsize=10)  # fmt: skip
    axes.set(xlabel="CPU clock (MHz)", ylabel="power of the module (W)", ylim=(0, None),
             title="Jetson Nano: published (×), modelled (lines)")  # fmt: skip
    axes.legend(loc="upper left")


@click.command()
@click.option("--plot", type=click.Path(path_type=Path), required=True)
def main(plot: Path) -> None:
    """Draw the boards and the fit of the Jetson Nano."""
    draw(plot)


if __name__ == "__main__":
    main()
