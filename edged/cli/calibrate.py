"""`edged calibrate`: measure the kernels of joins here, beside each other and over the clocks."""

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

if TYPE_CHECKING:
    from rich.console import Console

    from edged.calibration.operating_points import Bounds
    from edged.calibration.site import Asked
    from edged.joins.base import WindowJoin
    from edged.placement.placement import KernelProfile
    from edged.placement.profile import EnergyCalibration

NONE = "none"


@click.command(name="calibrate")
@click.option(
    "--store",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The daemon's store, which gets placement.json and energy.json.",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Kernel threads; default: the cores.")
@click.option("--kernel", "names", multiple=True, help="Only these; default: all there are.")
@click.option("--cpu-watts", type=checks.ABOVE_ZERO, help="Of one busy core.")
@click.option("--gpu-watts", type=checks.ABOVE_ZERO, help="Of the busy GPU.")
@click.option(
    "--board",
    metavar="DIR|simulated:NAME|none",
    help="Whose clocks to go through: a board's tree (/ is this machine's), a simulated board's."
    "  [default: this machine's where they may be set, else none]",
)
@click.option("--minutes", default=5.0, show_default=True, help="That the clocks may take.",
              type=checks.ABOVE_ZERO)  # fmt: skip
@click.option("--celsius-max", default=85.0, show_default=True, type=checks.Number(0, 150),
              help="Wait to cool down at this temperature.")  # fmt: skip
@click.option("--meters", "meters_file", type=click.Path(exists=True, dir_okay=False,
              path_type=Path), help="TOML with a table [meters], as of `edged run`.")  # fmt: skip
@click.option("--helper", default="/run/edged/governor.sock", show_default=True,
              type=click.Path(path_type=Path), help="The root helper's socket.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path),
              help="Draw the curve over the clocks here (PNG).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the profile, no progress.")
def command(
    directory: Path, workers: int | None, names: tuple[str, ...], cpu_watts: float | None,
    gpu_watts: float | None, board: str | None, minutes: float, celsius_max: float,
    meters_file: Path | None, helper: Path, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure what each kernel of a join costs here and keep it for placement (half a minute);
    where clocks may be set, its time and power at each clock of the CPU, or of the GPU that it runs
    on (--minutes for all kernels together), for the governor.

    Clocks are as before afterwards, whatever happens.  Power is the meters', where there is one
    for the whole input, else modelled, and the answer says which.  Without watts kernels are
    compared by CPU time, and a GPU is used only where a tolerance needs it.  On a simulated board
    beats take and draw what they are modelled to.  A running daemon heeds all of it from its next
    start on.
    """
    from rich.console import Console

    from edged.calibration.join_kernels import offered, runnable, with_calibration
    from edged.calibration.operating_points import Bounds
    from edged.daemon.compilation import compile_kernels

    members = offered(names)
    here, left_out = runnable(members)
    console = Console(stderr=True, highlight=False, quiet=as_json)
    chosen = _chosen(board, helper, console)
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
        bounds = Bounds(60 * minutes, celsius_max)
        asked = _asked(chosen, directory, helper, members, threads, bounds, meters_file)
        energy = _over_clocks(asked, console)
    told = {"cpu": cpu_watts, "cuda": gpu_watts}
    profile = _beside(here, threads, {d: w for d, w in told.items() if w is not None}, console)
    profile = _of_board(profile, [m.name for m in members], chosen)
    if energy is not None:
        profile = with_calibration(profile, energy)
    _keep(profile, energy, directory, plot, as_json)


def _asked(
    board: str, directory: Path, helper: Path, members: Sequence[type[WindowJoin]], threads: int,
    bounds: Bounds, meters_file: Path | None,
) -> Asked:  # fmt: skip
    """With the journal of a daemon of this store: one owner a board."""
    from edged.calibration.site import Asked
    from edged.energy.settings import EnergySettings, read_meters
    from governors.meters.settings import MeterSettings

    journal = EnergySettings(board).journal(directory)
    meters = MeterSettings() if meters_file is None else read_meters(meters_file)
    return Asked(board, journal, helper, members, threads, bounds, meters)


def _keep(
    profile: KernelProfile, energy: EnergyCalibration | None, directory: Path, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Write, draw and print it all."""
    from edged.placement.placement import outline
    from edged.placement.profile import save_energy, save_profile

    kept = [save_profile(profile, directory)]
    if energy is not None:
        kept.append(save_energy(energy, directory))
        if plot is not None:
            _draw(energy, plot)
    if as_json:
        document = json.loads(profile.encode())
        document["energy"] = None if energy is None else json.loads(energy.encode())
        click.echo(json.dumps(document))
        return
    for line in [*_curve_lines(energy), *outline(profile, 1_000_000)]:
        click.echo(line)
    click.echo(f"kept in {' and '.join(map(str, kept))}")


def _chosen(board: str | None, helper: Path, console: Console) -> str:
    """A board's tree, simulated:NAME, or none."""
    from edged.calibration.site import why_fixed
    from edged.energy.settings import HANDS_OFF, asked

    if board is not None:
        return asked(board, HANDS_OFF, (), None, helper).board
    why = why_fixed("/", helper)
    if why:
        console.print(
            f"no clock can be set, so none is gone through: {why}", soft_wrap=True, markup=False
        )
        console.print("`edged board` says what would allow it; --board / takes the one clock")
    return NONE if why else "/"


def _over_clocks(asked: Asked, console: Console) -> EnergyCalibration:
    """All clocks, with progress.  Raises ConfigError."""
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
            raise ConfigError(f"{problem}; clocks are as they were before") from problem


def _beside(members: Any, threads: int, watts: dict[str, float], console: Console) -> KernelProfile:
    from edged.calibration.join_kernels import calibrate

    with console.status("measuring") as status:
        return calibrate(
            members, threads, watts, say=lambda text: status.update(f"measuring {text}")
        )


def _of_board(profile: KernelProfile, names: Sequence[str], board: str) -> KernelProfile:
    """Whose times these are.  Those of a simulated board are this machine's, scaled to its cores,
    and of its GPU what its figures come to."""
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
    """SIGTERM and SIGHUP end this process by an exception, which restores the clocks."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
