"""`edged calibrate`: measure the kernels of joins on this machine, for placement."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click


@click.command(name="calibrate")
@click.option(
    "--store",
    "directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The daemon's store, which gets the profile.",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Kernel threads; default: the cores.")
@click.option("--kernel", "names", multiple=True, help="Only these; default: all there are.")
@click.option("--cpu-watts", type=click.FloatRange(0, min_open=True), help="Of one busy core.")
@click.option("--gpu-watts", type=click.FloatRange(0, min_open=True), help="Of the busy GPU.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile, no progress.")
def command(
    directory: Path,
    workers: int | None,
    names: tuple[str, ...],
    cpu_watts: float | None,
    gpu_watts: float | None,
    as_json: bool,
) -> None:
    """Measure what each kernel of a join costs here (half a minute) and keep it for placement.

    A running daemon heeds the profile from its next start on.  Watts are not guessed: without them
    kernels are compared by CPU time, and a GPU is used only where a tolerance needs it.
    """
    from rich.console import Console

    from edged.bench.join_calibrate import calibrate, offered
    from edged.calibration import save_profile
    from edged.cli._compile import compile_kernels
    from edged.placement import outline

    members = offered(names)
    compile_kernels(quiet=as_json)
    console = Console(stderr=True, highlight=False)
    watts = {"cpu": cpu_watts, "cuda": gpu_watts}
    directory.mkdir(parents=True, exist_ok=True)
    with console.status("measuring") as status:
        profile = calibrate(
            members,
            workers or len(os.sched_getaffinity(0)),
            {device: w for device, w in watts.items() if w is not None},
            say=lambda text: None if as_json else status.update(f"measuring {text}"),
        )
    path = save_profile(profile, directory)
    if as_json:
        click.echo(json.dumps(json.loads(profile.encode())))
        return
    for line in outline(profile, 1_000_000):
        click.echo(line)
    click.echo(f"kept in {path}")
