"""Calibration of join kernels: the times of each kernel on this machine, a profile for placement.

The driver of `edged bench join` (`join_measure`) runs every kernel that the daemon may use, at
several sizes of window and beat. Keys are uniform, one tuple in a hundred has a match, windows are
full. `restore` fills the windows, as a switch of kernels does, so its time per tuple is the cost of
carrying a window over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edged.calibration.join_data import MATCH_RATE, BeatFeed, draw
from edged.calibration.join_measure import MemberDriver, section
from edged.errors import ConfigError
from edged.joins.base import WindowJoin, find_join, load_joins
from edged.operators.interval_join import JOIN_PARALLEL_ROWS
from edged.placement.placement import Curve, KernelProfile
from edged.placement.profile import EnergyCalibration, KernelCurve
from edged.simulate.rows import ROWS, WINDOWS
from governors.actuators.base import discover
from governors.detect import detect
from governors.energy import Provenance
from governors.suggestions import did_you_mean
from governors.sysfs import Sysfs
from kernels.cuda import gpu

POINT_S = 0.1
"""Measured time of one point."""

Say = Callable[[str], None]


def offered(names: Sequence[str]) -> list[type[WindowJoin]]:
    """The kernels with these names, or all, that the daemon may run.

    Raises ConfigError for any other name.
    """
    if not names:
        return [m for m in load_joins().values() if m.ordered]
    found = []
    for name in names:
        member = find_join(name)
        if member is None or not member.ordered:
            advice = did_you_mean(name, [m.name for m in load_joins().values() if m.ordered])
            raise ConfigError(f"{name!r} is not a kernel that the daemon runs; {advice}")
        found.append(member)
    return found


def runnable(members: Sequence[type[WindowJoin]]) -> tuple[list[type[WindowJoin]], list[str]]:
    """The kernels that can run on this machine, and a note for each of the others."""
    found, notes = [], []
    for member in members:
        try:
            if member.device != "cpu":
                member(1, 1).close()
            found.append(member)
        except Exception as problem:  # libraries of devices raise errors of any type
            notes.append(f"{member.name} is left out: {problem}")
    return found, notes


def calibrate(
    members: Sequence[type[WindowJoin]],
    threads: int,
    watts: dict[str, float],
    windows: Sequence[int] = WINDOWS,
    rows: Sequence[int] = ROWS,
    say: Say = lambda _: None,
) -> KernelProfile:
    """Measure all kernels at all sizes of window and beat. Each must be `runnable`."""
    kernels = {m.name: _curve(m, threads, windows, rows, say) for m in members}
    return KernelProfile(threads, kernels, watts)


def _curve(
    member: type[WindowJoin],
    threads: int,
    windows: Sequence[int],
    rows: Sequence[int],
    say: Say,
) -> Curve:
    points, carry_us = [], 0.0
    for window in windows:
        say(f"{member.name}: {window} tuples a side")
        measured = [_point(member, window, n, threads) for n in rows]
        points.append(measured)
        carry_us = min(carry for *_, carry in measured)
    us, cpu_us = (tuple(tuple(p[i] for p in row) for row in points) for i in (0, 1))
    simulated = member.device != "cpu" and gpu.SIMULATED
    source = (Provenance.SIMULATED if simulated else Provenance.MEASURED).value
    return Curve(member.device, tuple(windows), tuple(rows), us, cpu_us, carry_us, source)


def _point(
    member: type[WindowJoin], window: int, rows: int, threads: int
) -> tuple[float, float, float]:
    """Wall time and CPU time of a beat of `rows` tuples (both sides), and the time per tuple of
    filling the window, all in µs."""
    feed = BeatFeed(draw(window, MATCH_RATE, "uniform", (rows // 2,)), rows // 2)
    driver = MemberDriver(member, feed, threads if rows >= JOIN_PARALLEL_ROWS else 1)
    try:
        section(driver, 0.0, window, POINT_S)
        run = section(driver, POINT_S, 0, POINT_S)
    finally:
        driver.close()
    beats = run.tuples / rows
    carry_us = 1e6 * driver.fill_s / (2 * window)
    cpu_s = max(run.cpu_s, run.wall_s if member.device == "cpu" else 1e-6 * run.wall_s)
    return 1e6 * run.wall_s / beats, 1e6 * cpu_s / beats, carry_us


def of_board(profile: KernelProfile, sysfs: Sysfs) -> KernelProfile:
    """Measured here: with the board's name and the clocks that kernels met, which are the highest
    that it allows."""
    board = detect(sysfs)
    clocks: dict[str, int] = {}
    for knob in discover(sysfs, board):
        device = {"cpu": "cpu", "gpu": "cuda"}.get(knob.kind)
        if device is None or knob.optional or not knob.max_path.startswith("/"):
            continue
        top_khz = sysfs.get_int(knob.max_path)
        if top_khz:
            clocks[device] = max(clocks.get(device, 0), top_khz * knob.unit_hz)
    return replace(profile, board=board.name, clocks=clocks)


def with_calibration(profile: KernelProfile, energy: EnergyCalibration) -> KernelProfile:
    """The profile with the results of the calibration over clocks.

    Adds the power of a busy core and of a busy GPU, each at its cheapest clock; configured watts
    stay. Adds the share of each GPU kernel's time that does not depend on the GPU's clock.
    """
    kernels = dict(profile.kernels)
    for name, curve in kernels.items():
        calibrated = energy.kernels.get(name)
        if curve.device != "cpu" and calibrated is not None and len(calibrated.curve.points) > 1:
            kernels[name] = replace(curve, stalled=calibrated.curve.memory_bound())
    watts, sources = dict(profile.watts), dict(profile.watts_from)
    for device in ("cpu", "cuda"):
        kernel = energy.of_device(device)
        above = None if kernel is None else _busy_watts(energy, kernel, watts.get("cpu", 0.0))
        if kernel is not None and above and device not in watts:
            watts[device], sources[device] = above, kernel.curve.watts_from.value
    return replace(profile, kernels=kernels, watts=watts, watts_from=sources)


def _busy_watts(energy: EnergyCalibration, kernel: KernelCurve, core_watts: float) -> float:
    """Power above idle at the cheapest clock: one core's, or a GPU's without its waiting cores."""
    name = next(name for name, k in energy.kernels.items() if k is kernel)
    above = max(0.0, energy.optimum(name).best.watts - kernel.curve.idle_watts)
    if kernel.device == "cpu":
        return above / kernel.cores
    return max(0.0, above - kernel.cores * core_watts)
