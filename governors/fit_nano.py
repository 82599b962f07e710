"""Fits the Jetson Nano's power model to a published sweep and reports the fit's quality.

    python -m governors.fit_nano [--data DIR] [--json FILE]

`cpuAll_freq_iter.csv` (TU Berlin, the ecoJoin authors) holds the power of a whole Jetson Nano,
measured with an external probe on the 5 V input, by CPU clock and number of cores kept busy by
stress-ng.  Ordinary least squares over its 56 points:

    P = base + step [f >= 403.2 MHz] + dynamic n f V^2 + busy n        W, GHz, V

The step is an effect of the board (memory or core rail), not of the cores: it does not grow with n.
The Nano's voltage table is not published.  V is tried from each table in Linux'
drivers/clk/tegra/clk-tegra124-dfll-fcpu.c (with the floor of 840 mV), and the table with the least
error at held-out clocks is chosen.  Errors are standard errors of the fit; residuals are reported
per clock, from the fit without that clock.

`base` is drawn while a core is busy.  The part of it that disappears when all cores sleep follows
from the published idle power of 1.03 W (ecoJoin paper): awake = base - idle.

`gpu_freq_iter.csv` is the same board's power over the GPU clock under an undocumented load.  It is
flat, so nothing is fitted to it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from governors.errors import ProfileError

DATA = Path(__file__).parent / "data" / "nano_power"
STEP_KHZ = 403_200
IDLE_W = 1.03
IDLE_ERROR_W = 0.05
"""The value is read off a published plot."""
FLOOR_V = 0.840
SPEEDO = 2000
"""Process corner of the chip in the CVB formula: a middling value, not fitted."""
_CVB = {
    204: (1007452, -23865), 306: (1052709, -24875), 408: (1099069, -25895), 510: (1146534, -26905),
    612: (1195102, -27915), 714: (1244773, -28925), 816: (1295549, -29935), 918: (1347428, -30955),
    1020: (1400411, -31965), 1122: (1454497, -32975), 1224: (1509687, -33985),
    1326: (1565981, -35005), 1428: (1623379, -36015), 1530: (1681880, -37025),
}  # fmt: skip
"""MHz: c0, c1; c2 is 370 in every row.  uV = (c2 s + c1) s + c0 with s = speedo / 100."""
TABLES: dict[str, dict[int, float]] = {
    "EUCM2": {
        204: 0.742283, 306: 0.776249, 408: 0.810215, 510: 0.844181, 612: 0.878147, 714: 0.912113,
        816: 0.946079, 918: 0.980045, 1020: 1.014011, 1122: 1.047977, 1224: 1.081943, 1326: 1.09,
        1479: 1.09,
    },
    "EUCM1": {204 + 102 * i: 0.734429 + 0.033762 * i for i in range(12)}
    | {1428: 1.13, 1555: 1.13},
    "CVB": {
        mhz: ((370 * SPEEDO / 100 + c1) * SPEEDO / 100 + c0) / 1e6
        for mhz, (c0, c1) in _CVB.items()
    },
}  # fmt: skip
"""Volts by MHz."""
NAMES = ("base", "step", "core_dynamic", "core_busy")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Measured points as columns."""

    khz: Floats
    busy: Floats
    watts: Floats


@dataclass(frozen=True)
class NanoFit:
    """Coefficients, their standard errors, and residuals, W."""

    table: str
    """Voltage table of the fit."""
    values: dict[str, float]
    errors: dict[str, float]
    mean_absolute: float
    worst: float
    held_out: dict[int, float]
    """By clock (kHz): root mean square error there of the fit without that clock."""
    held_out_rms: float


def volts(khz: Floats, table: str) -> Floats:
    """Core voltage, interpolated between a table's points and clamped to the floor."""
    points = TABLES[table]
    between = np.interp(khz / 1000, list(points), list(points.values()))
    return np.maximum(between, FLOOR_V)


def read(path: Path) -> Sweep:
    """The CPU sweep.  Raises ProfileError."""
    table = _table(path, 5)
    busy = np.tile(np.arange(1.0, 5.0), len(table))
    return Sweep(np.repeat(table[:, 0], 4), busy, table[:, 1:].ravel())


def gpu_spread(path: Path) -> tuple[float, float]:
    """The GPU sweep's standard deviation and its range, W.  Raises ProfileError."""
    watts = _table(path, 2)[:, 1]
    return float(watts.std(ddof=1)), float(np.ptp(watts))


def best(sweep: Sweep) -> list[NanoFit]:
    """A fit per voltage table, ordered by the error at held-out clocks."""
    return sorted((fit(sweep, table) for table in TABLES), key=lambda f: f.held_out_rms)


def fit(sweep: Sweep, table: str) -> NanoFit:
    """Least squares over all points, and again without each clock."""
    design = _design(sweep, table)
    found, *_ = np.linalg.lstsq(design, sweep.watts, rcond=None)
    left = sweep.watts - design @ found
    variance = left @ left / (len(left) - len(found))
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    held_out, squares = {}, []
    for khz in np.unique(sweep.khz):
        out = sweep.khz == khz
        without, *_ = np.linalg.lstsq(design[~out], sweep.watts[~out], rcond=None)
        off = (sweep.watts[out] - design[out] @ without) ** 2
        held_out[int(khz)] = float(np.sqrt(off.mean()))
        squares.extend(off)
    return NanoFit(
        table,
        dict(zip(NAMES, map(float, found), strict=True)),
        dict(zip(NAMES, map(float, errors), strict=True)),
        float(np.abs(left).mean()),
        float(np.abs(left).max()),
        held_out,
        float(np.sqrt(np.mean(squares))),
    )


def profile_figures(result: NanoFit) -> dict[str, tuple[float, float]]:
    """Value and error of each term as `profiles/jetson-nano.toml` has them: three decimals."""
    v, e = result.values, result.errors
    figures = {
        "awake": (v["base"] - IDLE_W, float(np.hypot(e["base"], IDLE_ERROR_W))),
        "step": (v["step"], e["step"]),
        "core_dynamic": (v["core_dynamic"], e["core_dynamic"]),
        "core_busy": (v["core_busy"], e["core_busy"]),
        "residual": (0.0, result.held_out_rms),
    }
    return {name: (round(a, 3), round(b, 3)) for name, (a, b) in figures.items()}


def report(fits: list[NanoFit], spread: tuple[float, float]) -> str:
    """The fits as text; the first in full."""
    result = fits[0]
    lines = ["Jetson Nano, P = base + step [f >= 403.2 MHz] + dynamic n f V^2 + busy n", ""]
    lines += ["error at clocks that the fit did not see, by voltage table:"]
    lines += [f"  {other.table:13} {other.held_out_rms:.3f} W" for other in fits]
    lines += ["", f"with {result.table}:"]
    for name in NAMES:
        lines.append(f"  {name:13} {result.values[name]:7.3f} +- {result.errors[name]:.3f}")
    lines += [
        "",
        f"residuals: mean {result.mean_absolute:.3f} W, worst {result.worst:.3f} W (one core at",
        "307.2 MHz, a point that lies 0.5 W above its neighbours)",
        f"each clock by the fit without it: {result.held_out_rms:.3f} W root mean square",
    ]
    lines += [f"  {khz / 1000:7.1f} MHz {off:.3f} W" for khz, off in result.held_out.items()]
    lines += ["", "for profiles/jetson-nano.toml (value, error):"]
    for name, (value, error) in profile_figures(result).items():
        lines.append(f"  {name:13} {value:.3f} {error:.3f}")
    deviation, whole = spread
    lines += [
        "",
        f"GPU sweep: {deviation:.3f} W standard deviation, {whole:.3f} W from least to most over a",
        "twelvefold clock, its load undocumented.  It calibrates nothing: nothing is fitted to it.",
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="governors.fit_nano", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, default=DATA, help="where the two CSV files lie")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    options = parser.parse_args(arguments)
    fits = best(read(options.data / "cpuAll_freq_iter.csv"))
    spread = gpu_spread(options.data / "gpu_freq_iter.csv")
    sys.stdout.write(report(fits, spread) + "\n")
    if options.json:
        document = {"fits": [asdict(f) for f in fits], "profile": profile_figures(fits[0])}
        options.json.write_text(json.dumps(document, indent=1))
    return 0


def _table(path: Path, columns: int) -> Floats:
    try:
        rows = [line.split(",") for line in path.read_text().splitlines()[1:] if line.strip()]
        table: Floats = np.array(rows, dtype=np.float64).reshape(len(rows), columns)
    except (OSError, ValueError) as problem:
        raise ProfileError(f"{path} cannot be read as a sweep: {problem}") from problem
    if not np.isfinite(table).all() or len(table) < len(NAMES):
        raise ProfileError(f"{path} is no sweep: it has too few rows, or values that are none")
    return table


def _design(sweep: Sweep, table: str) -> Floats:
    step = (sweep.khz >= STEP_KHZ).astype(np.float64)
    dynamic = sweep.busy * sweep.khz / 1e6 * volts(sweep.khz, table) ** 2
    return np.column_stack([np.ones_like(sweep.khz), step, dynamic, sweep.busy])


if __name__ == "__main__":
    sys.exit(main())
