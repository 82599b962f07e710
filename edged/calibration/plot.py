"""A calibration over clocks, as text and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edged.console.figures import COLOURS, GREY, RED, new_figure, save
from edged.placement.profile import EnergyCalibration
from governors.curve import Candidate

_PROCESSORS = {"cpu": "CPU", "cuda": "GPU"}
MILLION = 1_000_000


def outline(energy: EnergyCalibration) -> list[str]:
    """Lines of text: the candidates, the optimum and the fitted laws of each kernel, and notes."""
    kind = "simulated " if energy.simulated else ""
    lines = [f"{kind}{energy.board}, power by {energy.meter}"]
    for name, kernel in energy.kernels.items():
        curve, optimum = kernel.curve, energy.optimum(name)
        lines += [f"{name}: {_line(c, c is optimum.best)}" for c in optimum.candidates]
        lines.append(
            f"{name}: races of 1 M tuples: {optimum.why} (idle {curve.idle_watts:.2f} W,"
            f" {curve.watts_from.value}; times {kernel.times_from.value})"
        )
        if len(curve.points) > 1:
            time, watts = curve.time_law(), curve.watts_law()
            cycles, stall = (x / curve.units for x in time.coefficients)
            a, b, c3 = watts.coefficients
            lines.append(
                f"{name}: fitted: {cycles:.3g} cycles / f + {1e9 * stall:.3g} ns a tuple (off by"
                f" {time.error:.2%}), {a:.2f} + {b:.2f} f + {c3:.3f} f³ W with f in GHz"
                f" (off by {watts.error:.2%})"
            )
            lines.append(f"{name}: {_pays(energy, name)}")
    return [*lines, *(f"note: {note}" for note in energy.notes)]


def _pays(energy: EnergyCalibration, name: str) -> str:
    """The smallest race for which setting the clock pays, and the time of setting it."""
    own_us = energy.kernels[name].write_us
    us = energy.write_us if own_us is None else own_us
    pays = energy.pays_from(name)
    if pays is None:
        return "setting the clock never pays"
    if not us:
        return "the time to set the clock is unknown, so the smallest race for which it pays is too"
    return (
        f"setting the clock pays from {pays} tuples a race on; it takes {us:.0f} µs to set and as"
        " long to release"
    )


def _line(c: Candidate, best: bool) -> str:
    way = "leave it" if c.hz is None else f"{c.hz / 1e6:.0f} MHz"
    mark = "  <- optimum" if best else ""
    return (
        f"{way:>9}  {MILLION / c.us:6.2f} M tuples/s  {c.watts:6.2f} W  {c.joules:.4f} J/M above"
        f" idle{mark}"
    )


def draw(energy: EnergyCalibration, path: Path) -> None:
    """Write the figure as PNG: throughput, power and energy per million tuples over the clock.

    One row for each device. Dots are measured clocks, solid lines the fitted laws, dotted lines the
    clock left to the kernel's governor. Energy includes setting and releasing the clock.
    """
    devices = list(dict.fromkeys(kernel.device for kernel in energy.kernels.values()))
    figure, rows = new_figure(len(devices), 3, 3.9 * len(devices), squeeze=False)
    for panels, device in zip(rows, devices, strict=True):
        names = [name for name, kernel in energy.kernels.items() if kernel.device == device]
        for colour, name in zip(COLOURS, names, strict=False):
            _draw_kernel(energy, name, colour, panels)
        times = {energy.kernels[name].times_from.value for name in names}
        watts = {energy.kernels[name].curve.watts_from.value for name in names}
        panels_text = (
            ("Throughput", "M tuples/s", times),
            ("Power of the whole input", "W", watts),
            ("Energy above idle", "J per M tuples", watts),
        )
        for axes, (quantity, unit, sources) in zip(panels, panels_text, strict=True):
            axes.set_ylim(0, (1.1 + 0.1 * len(names)) * axes.get_ylim()[1])
            axes.set(xlabel=f"clock of the {_PROCESSORS[device]} (MHz)",
                     ylabel=f"{unit}, {', '.join(sorted(sources))}",
                     title=quantity)  # fmt: skip
        panels[0].legend(loc="upper left")
        panels[1].plot([], [], ":", color=GREY, label="clock left to the kernel")
        panels[1].legend(loc="upper left")
        panels[2].legend(loc="upper right")
    figure.suptitle(f"{energy.board}, power by {energy.meter}", fontsize=10)
    save(figure, path)


def _draw_kernel(energy: EnergyCalibration, name: str, colour: str, panels: Sequence[Any]) -> None:
    curve, optimum = energy.kernels[name].curve, energy.optimum(name)
    set_to = [c for c in optimum.candidates if c.hz is not None]
    mhz = [p.hz / 1e6 for p in curve.points]
    grid = np.linspace(mhz[0], mhz[-1], 100)
    fitted = [curve.fitted(int(x * 1e6)) for x in grid]
    rows = (
        ([curve.units / p.us for p in curve.points], [curve.units / p.us for p in fitted]),
        ([p.watts for p in curve.points], [p.watts for p in fitted]),
        ([c.joules for c in set_to], None),
    )
    for axes, (dots, line) in zip(panels, rows, strict=True):
        axes.plot(mhz[: len(dots)], dots, "o" if line else "o-", color=colour, markersize=4,
                  label=name if axes is panels[0] else None)  # fmt: skip
        if line:
            axes.plot(grid, line, "-", color=colour, linewidth=1)
    alone = next((c for c in optimum.candidates if c.hz is None), None)
    if alone is not None:
        for axes, y in zip(panels, (MILLION / alone.us, alone.watts, alone.joules), strict=True):
            axes.axhline(y, color=colour, linestyle=":")
    best = optimum.best
    if best.hz is not None:
        panels[2].plot(best.hz / 1e6, best.joules, "*", color=colour, markersize=14,
                       markeredgecolor=RED, label=f"optimum {best.hz / 1e6:.0f} MHz ({name})",
                       zorder=5)  # fmt: skip
