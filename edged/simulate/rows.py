"""Kernel times on a simulated board, the input of its placer.

In order of preference:

    calibrated   measured by `edged calibrate` on a board of this name; used unchanged
    converted    CPU kernels measured on another machine, scaled by core width and clock (`work`).
                 Times of a GPU cannot be converted to another GPU; these kernels are left out
    modelled     `chain` by the law of `work`, kernels of a GPU by the board's data sheet (`gpu`);
                 on request only

`Curve.times_from` holds the provenance of each kernel's times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import governors.profile
from edged.operators.interval_join import JOIN_PARALLEL_ROWS
from edged.placement.placement import DEFAULT, Curve, KernelProfile
from edged.simulate import gpu
from edged.simulate.work import HOST_HZ, KERNEL_CYCLES, cache_ratio, scale_of, stall_ns
from governors.energy import Provenance
from governors.profile import Mode

WINDOWS = (10_000, 100_000, 1_000_000)
ROWS = (256, 2_048, 16_384, 131_072)


def default_mode(board: governors.profile.BoardProfile) -> Mode | None:
    """The power mode in which a board boots; None if its profile has none."""
    return next((m for m in board.modes if m.id == board.default_mode), None)


def clocks_of(board: governors.profile.BoardProfile, mode: Mode | None) -> dict[str, int]:
    """The highest clock (Hz) of `cpu`, and of `cuda` on a board with a GPU, in a power mode."""
    found = {"cpu": board.clusters[0].opps[-1].hz}
    if mode is not None:
        found["cpu"] = min(found["cpu"], 1000 * mode.cpu_max_khz)
    if board.gpu is not None:
        top_hz = board.gpu_top_hz
        found["cuda"] = top_hz if mode is None else min(top_hz, mode.gpu_max_hz)
    return found


def on_board(
    calibrated: KernelProfile | None,
    board: governors.profile.BoardProfile,
    clocks: dict[str, int],
    cores: int,
    on_gpu: bool = False,
) -> tuple[KernelProfile | None, list[str]]:
    """The kernel times on a board at `clocks`, and notes on their provenance.

    The profile is None without a calibration, unless `on_gpu` requests modelled GPU kernels. Raises
    ProfileError.
    """
    if calibrated is None and not on_gpu:
        return None, []
    kernels: dict[str, Curve] = {}
    notes = []
    if calibrated is not None and calibrated.board == board.name:
        kernels = _at_clock(calibrated, clocks)
        notes.append(f"kernel times from the calibration of {board.name}")
        clocks = {**calibrated.clocks, "cpu": clocks["cpu"]}
    elif calibrated is not None:
        kernels, left_out = _converted(calibrated, board, clocks["cpu"])
        notes += [f"{name} is left out: its times are from another GPU" for name in left_out]
    if on_gpu and not any(c.device != "cpu" for c in kernels.values()):
        kernels |= _modelled(board, clocks, gpu.offered(board), kernels)
        if DEFAULT not in kernels:
            kernels = {DEFAULT: _chain(board, clocks["cpu"], cores), **kernels}
        modelled = any(c.device != "cpu" for c in kernels.values())
        notes.append(
            f"times of GPU kernels are {gpu.PROVENANCE}"
            if modelled
            else f"the GPU of {board.name} has no figures: CPU only"
        )
    threads = cores if calibrated is None else calibrated.threads
    watts = {} if calibrated is None else calibrated.watts
    sources = {} if calibrated is None else calibrated.watts_from
    return KernelProfile(threads, kernels, watts, sources, board.name, clocks), notes


def simulated_rows(
    measured: KernelProfile, board: governors.profile.BoardProfile, names: Collection[str]
) -> KernelProfile:
    """The profile that `edged calibrate` stores for a simulated board in its default power mode.

    CPU times are this machine's, converted; GPU times are modelled. Raises ProfileError.
    """
    clocks = clocks_of(board, default_mode(board))
    kernels, _ = _converted(measured, board, clocks["cpu"])
    wanted = [name for name in gpu.offered(board) if name in names]
    kernels |= _modelled(board, clocks, wanted, kernels)
    kernels = {n: replace(c, times_from=Provenance.SIMULATED.value) for n, c in kernels.items()}
    return replace(measured, kernels=kernels, board=board.name, clocks=clocks)


def _at_clock(calibrated: KernelProfile, clocks: dict[str, int]) -> dict[str, Curve]:
    """The calibrated times at another CPU clock. CPU times scale with it, an upper bound."""
    slower = calibrated.clocks.get("cpu", clocks["cpu"]) / clocks["cpu"]
    return {
        name: c if c.device != "cpu" else _slower(c, slower)
        for name, c in calibrated.kernels.items()
    }


def _converted(
    measured: KernelProfile, board: governors.profile.BoardProfile, cpu_hz: int
) -> tuple[dict[str, Curve], list[str]]:
    """The times of CPU kernels at a clock of the board, and the names of all other kernels.

    The extra time of a larger window is memory stall. It stays the same and starts at windows that
    are smaller in the ratio of the caches (`work`).
    """
    slower = scale_of(board)[0] * HOST_HZ / cpu_hz
    kernels = {}
    for name, c in measured.kernels.items():
        if c.device == "cpu":
            us, cpu_us = (
                tuple(
                    tuple(slower * x + max(0.0, y - x) for x, y in zip(table[0], row, strict=True))
                    for row in table
                )
                for table in (c.us, c.cpu_us)
            )
            kernels[name] = replace(
                c, windows=_scaled_windows(c.windows, cache_ratio(board)), us=us, cpu_us=cpu_us,
                carry_us_per_tuple=slower * c.carry_us_per_tuple,
                times_from=Provenance.MODELLED.value,
            )  # fmt: skip
    return kernels, [name for name in measured.kernels if name not in kernels]


def _scaled_windows(windows: tuple[int, ...], ratio: float) -> tuple[int, ...]:
    """The windows over `ratio`, still ascending."""
    scaled: list[int] = []
    for window in windows:
        scaled.append(max(scaled[-1] + 1 if scaled else 1, round(window / ratio)))
    return tuple(scaled)


def _slower(curve: Curve, factor: float) -> Curve:
    us, cpu_us = (
        tuple(tuple(factor * x for x in row) for row in table) for table in (curve.us, curve.cpu_us)
    )
    return replace(
        curve, us=us, cpu_us=cpu_us, carry_us_per_tuple=factor * curve.carry_us_per_tuple
    )


def _modelled(
    board: governors.profile.BoardProfile, clocks: dict[str, int], names: Collection[str],
    others: Mapping[str, Curve],
) -> dict[str, Curve]:  # fmt: skip
    """Modelled times of GPU kernels, at the windows of the `others`."""
    windows = next((curve.windows for curve in others.values()), WINDOWS)
    return {
        name: gpu.curve(board, name, windows, ROWS, clocks["cpu"], clocks["cuda"]) for name in names
    }


def _chain(board: governors.profile.BoardProfile, cpu_hz: int, cores: int) -> Curve:
    """Modelled times of `chain`. Carrying a tuple over is assumed to cost as much as joining it."""
    cycles_us = 1e6 * scale_of(board)[0] * KERNEL_CYCLES / cpu_hz
    cpu_us = tuple(
        tuple(n * (cycles_us + stall_ns(board, window) / 1e3) for n in ROWS) for window in WINDOWS
    )
    threads = [cores if n >= JOIN_PARALLEL_ROWS else 1 for n in ROWS]
    us = tuple(tuple(x / k for x, k in zip(row, threads, strict=True)) for row in cpu_us)
    source = Provenance.MODELLED.value
    return Curve("cpu", WINDOWS, ROWS, us, cpu_us, cpu_us[0][-1] / ROWS[-1], source)
