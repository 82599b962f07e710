"""`edged calibrate`: measure the join kernels on this machine, at each clock."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.console import options as checks
from edged.errors import ConfigError
from governors.quantities import POWER

if TYPE_CHECKING:
    from rich.console import Console

    from edged.calibration.operating_points import CalibrationLimits
    from edged.calibration.site import Asked
    from edged.joins.base import WindowJoin
    from edged.placement.placement import KernelProfile
    from edged.placement.profile import EnergyCalibration
    from edged.tables.costs import MergePricing
    from governors.meters.settings import MeterSettings

NONE = "none"


@click.command(name="calibrate")
@click.option(
    "--store",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The daemon's store, which gets placement.json, energy.json and tables.json.",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Kernel threads; default: the cores.")
@click.option("--kernel", "names", multiple=True, help="Only these kernels; default: all.")
@click.option("--cpu-watts", type=checks.WithUnit(POWER), help="Power of one busy core, in W.")
@click.option("--gpu-watts", type=checks.WithUnit(POWER), help="Power of the busy GPU, in W.")
@checks.board_option("Its clocks are measured.  [default: / where they may be set, else none]")
@click.option("--minutes", default=5.0, show_default=True, help="Time for all clocks together.",
              type=checks.ABOVE_ZERO)  # fmt: skip
@click.option("--celsius-max", default=85.0, show_default=True, type=checks.Number(0, 150),
              help="Wait to cool down at this temperature.")  # fmt: skip
@click.option("--meters", "meters_file", type=click.Path(exists=True, dir_okay=False,
              path_type=Path), help="TOML with a table [meters], as of `edged run`.")  # fmt: skip
@click.option("--power-model", metavar="NAME", default="",
              help="Board profile whose figures stand in where this machine has none.")  # fmt: skip
@click.option("--helper", default="/run/edged/governor.sock", show_default=True,
              type=click.Path(path_type=Path), help="The root helper's socket.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path),
              help="Draw the curve over the clocks here (PNG).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the profile, no progress.")
def command(
    directory: Path, workers: int | None, names: tuple[str, ...], cpu_watts: float | None,
    gpu_watts: float | None, board: str | None, minutes: float, celsius_max: float,
    meters_file: Path | None, power_model: str, helper: Path, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure what each kernel of a join costs here and store it for placement (half a minute);
    where clocks may be set, also its time and power at each clock of the CPU, or of the GPU that it
    runs on (--minutes for all kernels together), for the governor.

    Tables that change get the two constants by which their files are merged.

    Clocks are restored afterwards, also after a failure.  Power comes from a meter of the whole
    input, else from the model; the output says which.  Without watts, kernels are compared by CPU
    time, and a GPU is used only where a latency promise needs it.  On a simulated board, times and
    power are modelled.  A running daemon uses the result from its next start.
    """
    from rich.console import Console

    from edged.calibration import table_costs
    from edged.calibration.join_kernels import offered, runnable, with_calibration
    from edged.calibration.operating_points import CalibrationLimits
    from edged.daemon.compilation import compile_kernels

    members = offered(names)
    here, left_out = runnable(members)
    console = Console(stderr=True, highlight=False, quiet=as_json)
    chosen = _chosen(board, helper, _meters(meters_file), power_model, console)
    for line in left_out if not chosen.startswith("simulated:") else ():
        console.print(line, soft_wrap=True, markup=False)
    if plot is not None and chosen == NONE:
        raise ConfigError("--plot: there is no curve with --board none; name a board")
    checks.directory("--store", directory)
    checks.output("--plot", plot)
    compile_kernels(quiet=as_json)
    threads = workers or len(os.sched_getaffinity(0))
    energy = None
    if chosen != NONE:
        bounds = CalibrationLimits(60 * minutes, celsius_max)
        asked = _request(chosen, directory, helper, members, threads, bounds, meters_file,
                         power_model)  # fmt: skip
        energy = _measure_clocks(asked, console)
    watts = {"cpu": cpu_watts, "cuda": gpu_watts}
    profile = _measure_kernels(
        here, threads, {d: w for d, w in watts.items() if w is not None}, console
    )
    profile = _with_board(profile, [m.name for m in members], chosen)
    if energy is not None:
        profile = with_calibration(profile, energy)
    with console.status("measuring tables"):
        costs = table_costs.measure()
    _write_results(profile, energy, costs, directory, plot, as_json)


def _request(
    board: str, directory: Path, helper: Path, members: Sequence[type[WindowJoin]], threads: int,
    bounds: CalibrationLimits, meters_file: Path | None, power_model: str,
) -> Asked:  # fmt: skip
    """The request, with the journal of this store's daemon: a board has one owner."""
    from edged.calibration.site import Asked
    from edged.energy.settings import EnergySettings

    journal = EnergySettings(board).journal(directory)
    meters = _meters(meters_file)
    return Asked(board, journal, helper, members, threads, bounds, meters, power_model)


def _meters(path: Path | None) -> MeterSettings:
    from edged.energy.settings import read_meters
    from governors.meters.settings import MeterSettings

    return MeterSettings() if path is None else read_meters(path)


def _write_results(
    profile: KernelProfile, energy: EnergyCalibration | None, costs: MergePricing,
    directory: Path, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Write, draw and print the result."""
    from edged.placement.placement import outline
    from edged.placement.profile import save_energy, save_profile
    from edged.tables import costs as tables

    kept = [save_profile(profile, directory), tables.save_costs(costs, directory)]
    if energy is not None:
        kept.append(save_energy(energy, directory))
        if plot is not None:
            _draw(energy, plot)
    if as_json:
        document = json.loads(profile.encode())
        document["energy"] = None if energy is None else json.loads(energy.encode())
        document["tables"] = {"probe_ns": costs.probe_ns, "merge_ns": costs.merge_ns}
        click.echo(json.dumps(document))
        return
    lines = [*_curve_lines(energy), *outline(profile, 1_000_000), tables.outline(costs)]
    for line in lines:
        click.echo(line)
    click.echo(f"kept in {' and '.join(map(str, kept))}")


def _chosen(
    board: str | None, helper: Path, meters: MeterSettings, power_model: str, console: Console
) -> str:
    """A board's tree, simulated:NAME, or none.  Raises ConfigError."""
    from edged.calibration.site import why_fixed, why_unpriced
    from edged.energy.settings import from_flags
    from governors.base import HANDS_OFF
    from governors.errors import GovernorError

    if board is not None:
        return from_flags(board, HANDS_OFF, (), None, helper).board
    why = why_fixed("/", helper)
    if why:
        console.print(f"no clock can be set: {why}", soft_wrap=True, markup=False)
        console.print("`edged board` names what would permit it; --board / measures one clock")
        return NONE
    try:
        why = why_unpriced("/", meters, power_model)
    except GovernorError as problem:
        raise ConfigError(f"--power-model: {problem}") from problem
    if why:
        console.print(f"clocks are not compared: {why}", soft_wrap=True, markup=False)
        console.print("name a meter with --meters, or a stand-in with --power-model generic-x86")
    return NONE if why else "/"


def _measure_clocks(asked: Asked, console: Console) -> EnergyCalibration:
    """Measure all clocks, with progress.  Raises ConfigError."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from edged.calibration.site import calibrate_board
    from governors.errors import GovernorError

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with ending_in_order(), Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("clocks", total=1.0)
        try:
            return calibrate_board(
                asked, lambda text, part: bar.update(task, description=text, completed=part)
            )
        except GovernorError as problem:
            raise ConfigError(f"{problem}; clocks are restored") from problem


def _measure_kernels(
    members: Any, threads: int, watts: dict[str, float], console: Console
) -> KernelProfile:
    from edged.calibration.join_kernels import calibrate

    with console.status("measuring") as status:
        return calibrate(
            members, threads, watts, say=lambda text: status.update(f"measuring {text}")
        )


def _with_board(profile: KernelProfile, names: Sequence[str], board: str) -> KernelProfile:
    """The profile with the board's name.  The times of a simulated board are this machine's, scaled
    to its cores; its GPU's are modelled."""
    from edged.calibration.join_kernels import of_board
    from edged.simulate.rows import simulated_rows
    from governors.profile_reader import load
    from governors.simulated.board import PREFIX
    from governors.simulated.kernel import open_root

    if board.startswith(PREFIX):
        return simulated_rows(profile, load(board.removeprefix(PREFIX)), names)
    return of_board(profile, open_root("/" if board == NONE else board))


def _draw(energy: EnergyCalibration, path: Path) -> None:
    from edged.calibration.plot import draw

    draw(energy, path)


def _curve_lines(energy: EnergyCalibration | None) -> list[str]:
    from edged.calibration.plot import outline

    return [] if energy is None else outline(energy)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, so that the clocks are restored."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
