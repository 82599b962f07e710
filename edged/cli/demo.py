"""`edged demo`: the power-curve job on a wind farm's records, with kill -9 in the middle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from edged.console import options as checks


@click.command(name="demo")
@click.option(
    "--build",
    default="build/demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of all output.",
)
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(1, 120),
    help="Duration of the replay of two years of readings.",
)
@click.option(
    "--kills",
    default=1,
    show_default=True,
    type=click.IntRange(0, 20),
    help="Number of kills with SIGKILL during the replay.",
)
@checks.board_option("[default: / where a meter reads its input, else simulated:orin-nano]")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, nothing else.")
def command(build: Path, seconds: float, kills: int, board: str | None, as_json: bool) -> None:
    """Replay a wind farm into edged, aggregate it in Spark, and compare it with DuckDB.

    Exits with 0 where the tables are identical to DuckDB's, 1 where they are not.
    """
    from rich.console import Console

    from edged.daemon.compilation import compile_kernels
    from edged.demo.story import EXAMPLES, Story
    from edged.job.plan import load_job

    console = Console(stderr=as_json, quiet=as_json)
    compile_kernels(quiet=as_json, plans=[load_job(EXAMPLES / "power_curve.toml")])
    summary = Story(build.absolute(), console, seconds, kills, board or _board()).run()
    if as_json:
        click.echo(json.dumps(summary))
    if summary["identical"]:
        console.print(
            "[bold green]The tables are identical to what DuckDB computes from the raw files.[/]"
        )
    else:
        console.print("[bold red]The tables differ from what DuckDB computes.[/]")
        sys.exit(1)


def _board() -> str:
    """This machine where a meter measures its input, else a simulated board."""
    from governors.detect import detect
    from governors.meters.base import survey
    from governors.meters.rails import wholes
    from governors.sysfs import Sysfs

    sysfs = Sysfs("/")
    board = detect(sysfs)
    metered = wholes(survey(sysfs, board).meters)
    return "/" if metered else "simulated:orin-nano"
