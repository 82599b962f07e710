"""Calibration: what each kernel of a join costs on this machine, as a profile for placement.

Every kernel that the daemon may run is given beats at a few sizes of window and beat, by the
benchmark's driver of a member (`join_measure`): uniform keys, one match per hundred tuples, windows
full.  The windows are filled through `restore`, which is also what a switch does: its time per
tuple is what carrying a window over costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edged.bench.join_data import Feed, draw
from edged.bench.join_measure import MemberDriver, section
from edged.calibration import EnergyCalibration
from edged.errors import ConfigError
from edged.joins.base import WindowJoin, find_join, load_joins
from edged.operators.interval_join import PARALLEL_ROWS
from edged.placement import DEFAULT, Curve, Profile

WINDOWS = (10_000, 100_000, 1_000_000)
ROWS = (256, 2_048, 16_384, 131_072)
MATCH_RATE = 0.01
POINT_S = 0.1
"""How long one point is measured."""

Say = Callable[[str], None]


def offered(names: Sequence[str]) -> list[type[WindowJoin]]:
    """The members of these names, or all, that the daemon may run.  Raises ConfigError."""
    if not names:
        return [m for m in load_joins().values() if m.ordered]
    found = []
    for name in names:
        member = find_join(name)
        if member is None or not member.ordered:
            choices = ", ".join(m.name for m in load_joins().values() if m.ordered)
            raise ConfigError(f"{name!r} is not a kernel that the daemon runs; there are {choices}")
        found.append(member)
    return found


def calibrate(
    members: Sequence[type[WindowJoin]],
    threads: int,
    watts: dict[str, float],
    windows: Sequence[int] = WINDOWS,
    rows: Sequence[int] = ROWS,
    say: Say = lambda _: None,
) -> Profile:
    """Measure all members at all sizes; those whose device is not there are left out."""
    kernels = {}
    for member in members:
        try:
            kernels[member.name] = _curve(member, threads, windows, rows, say)
        except Exception as problem:  # whatever a device's library may raise
            if member.device == "cpu":
                raise
            say(f"{member.name}: left out, {problem}")
    return Profile(threads, kernels, watts)


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
    return Curve(member.device, tuple(windows), tuple(rows), us, cpu_us, carry_us)


def _point(
    member: type[WindowJoin], window: int, rows: int, threads: int
) -> tuple[float, float, float]:
    """Time and CPU time (µs) of a beat of `rows` tuples, both sides together, and the time per
    tuple of filling the window."""
    feed = Feed(draw(window, MATCH_RATE, "uniform", (rows // 2,)), rows // 2)
    driver = MemberDriver(member, feed, threads if rows >= PARALLEL_ROWS else 1)
    try:
        section(driver, 0.0, window, POINT_S)
        run = section(driver, POINT_S, 0, POINT_S)
    finally:
        driver.close()
    beats = run.tuples / rows
    carry_us = 1e6 * driver.fill_s / (2 * window)
    return 1e6 * run.wall_s / beats, 1e6 * max(run.cpu_s, run.wall_s) / beats, carry_us


def with_watts(profile: Profile, energy: EnergyCalibration) -> Profile:
    """The profile with what a busy core draws at the clock that was found to be cheapest.

    Watts that somebody told stay.
    """
    if "cpu" in profile.watts:
        return profile
    name = DEFAULT if DEFAULT in energy.kernels else next(iter(energy.kernels))
    kernel, best = energy.kernels[name], energy.optimum(name).best
    above = max(0.0, best.watts - kernel.curve.idle_watts) / kernel.cores
    if not above:
        return profile
    source = kernel.curve.watts_from.value
    return replace(
        profile,
        watts={**profile.watts, "cpu": above},
        watts_from={**profile.watts_from, "cpu": source},
    )
