"""`python -m edged.bench.boards --plot F`: the picture of docs/boards.md.  Everything is modelled.

Left, what each board draws by its profile: idle, of it the rails of CPU and GPU, on which alone
clocks and sleep act; and every core busy at the highest clocks.  Right, the published sweep of a
Jetson Nano and the model that is fitted to it (`governors.fit_nano`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from governors import fit_nano
from governors.power import PowerModel
from governors.profile import load, names

IDLE, PROCESSORS, BUSY = "#9ca3af", "#d1495b", "#a8cbd9"
CORES = ("#8a5cb8", "#2a9d5c", "#e0a030", "#d1495b")


def draw(path: Path) -> None:
    """Both panels, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    _boards(left)
    _sweep(right)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _boards(axes: Any) -> None:
    shown = sorted(names(), key=lambda n: PowerModel(load(n)).idle_watts(), reverse=True)
    for y, name in enumerate(shown):
        model = PowerModel(load(name))
        ends = model.influence()
        error = model.error_watts(model.full_load(highest=True))
        bars = (
            ("all cores busy ±", BUSY, ends.full_max, error),
            ("idle", IDLE, ends.idle_min, None),
            ("idle, rails of CPU and GPU", PROCESSORS, ends.idle_processors, None),
        )
        for label, colour, watts, off in bars:
            axes.barh(y, watts, color=colour, xerr=off, label=label if y == 0 else None)
    axes.set(yticks=range(len(shown)), yticklabels=shown, xlabel="W, modelled",
             title="What a board draws, and what of it software reaches")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)


def _sweep(axes: Any) -> None:
    sweep = fit_nano.read(fit_nano.DATA / "cpuAll_freq_iter.csv")
    fit = fit_nano.best(sweep)[0]
    khz = np.unique(sweep.khz)
    v = fit_nano.volts(khz, fit.table)
    step = np.where(khz >= fit_nano.STEP_KHZ, fit.values["step"], 0.0)
    for busy, colour in enumerate(CORES, start=1):
        each = fit.values["core_dynamic"] * khz / 1e6 * v**2 + fit.values["core_busy"]
        axes.plot(khz / 1e3, fit.values["base"] + step + busy * each, color=colour,
                  label=f"{busy} busy")  # fmt: skip
        axes.plot(khz / 1e3, sweep.watts[sweep.busy == busy], "x", color=colour)
    axes.axhline(fit_nano.IDLE_W, linestyle=":", color=IDLE)
    axes.set(xlabel="MHz", ylabel="W, whole board", ylim=(0, None),
             title="Jetson Nano: published sweep (crosses), model (lines)")  # fmt: skip
    axes.legend(frameon=False, fontsize=8)


@click.command()
@click.option("--plot", type=click.Path(path_type=Path), required=True)
def main(plot: Path) -> None:
    """Draw it."""
    draw(plot)


if __name__ == "__main__":
    main()
