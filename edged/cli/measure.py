"""`edged measure`: joules of any command, and what woke the machine meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from edged.console import options as checks

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


@click.command(
    name="measure",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="For example: edged measure -- gzip -k9 data.csv; or a short one a hundred times:"
    " --repeat 100",
)
@click.argument("command_line", metavar="[--] COMMAND...", nargs=-1, required=True)
@click.option("--baseline", default=3.0, show_default=True, type=checks.Number(0),
              help="Seconds of the machine that are measured before the command.")  # fmt: skip
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1),
              help="Run the command so many times in a row.")  # fmt: skip
@checks.board_option("[default: /]")
@click.option("--meters", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="TOML with a table [meters]: labels, external meters.")  # fmt: skip
@click.option("--top", default=8, show_default=True, type=click.IntRange(0),
              help="Show so many processes and interrupts.")  # fmt: skip
@click.option("--json", "path", type=click.Path(path_type=Path, allow_dash=True),
              help="Write the figures here; - prints them.")  # fmt: skip
def command(
    command_line: tuple[str, ...], baseline: float, repeat: int, board: str | None,
    meters: Path | None, top: int, path: Path | None,
) -> int:  # fmt: skip
    """Run COMMAND, and report its joules on standard error.

    The joules come from the board's meters and carry their provenance; a machine without a meter
    reports CPU time and wakeups alone.  Joules of single processes are modelled by CPU time.  The
    exit code is the command's.
    """
    from rich.console import Console

    from edged.energy.board import open_site
    from edged.energy.measurement import measure
    from edged.energy.settings import HELPER, from_flags
    from edged.platform.clock import SystemClock
    from governors.base import HANDS_OFF

    checks.output("--json", path)
    settings = from_flags(board, HANDS_OFF, (), meters, HELPER)
    clock = SystemClock()
    with TemporaryDirectory(prefix="edged-measure-") as directory:
        site = open_site(settings, Path(directory), clock.monotonic_us)
        document = measure(site, clock, command_line, baseline, repeat)
    if path is not None:
        text = json.dumps(document, indent=1) + "\n"
        click.echo(text, nl=False) if path == Path("-") else path.write_text(text)
    show(document, top, Console(stderr=True, markup=False, highlight=False))
    code: int = document["exit_code"]
    return code


def show(document: dict[str, Any], top: int, console: Console) -> None:
    """Print a document of `edged.energy.measurement.measure`."""
    console.print(f"\n{' '.join(document['command'])}", style="bold", soft_wrap=True)
    for line in summary(document):
        console.print(f"  {line}", soft_wrap=True)
    if len(document["rails"]) > 1:
        console.print("\nrails", style="bold")
        rails = _table("", "feeds", "joules", "")
        for r in document["rails"]:
            feeds = ", ".join(r["feeds"]) + (f", part of {r['part_of']}" if r["part_of"] else "")
            rails.add_row(r["rail"], feeds, f"{r['joules']:.2f} J", r["provenance"])
        console.print(rails)
    if top and document["processes"]:
        console.print("\nprocesses, most CPU time first", style="bold")
        console.print(_processes(document, top))
    if top and document["wakeups"]["interrupts_per_s"]:
        console.print("\ninterrupts: each wakes a core that sleeps", style="bold")
        console.print(_interrupts(document, top))


def summary(document: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    seconds, cpu_s, runs = document["seconds"], document["cpu_s"], document["runs"]
    times = f", {runs} runs" if runs > 1 else ""
    code = document["exit_code"]
    lines = [f"{seconds:.2f} s, {cpu_s:.2f} CPU-s{times}" + (f", exit code {code}" if code else "")]
    whole, baseline = document["input"], document["baseline"]
    if whole is None:
        lines.append("joules: not known, since no meter gives the whole input")
        lines += [f"missing: {m}" for m in document["missing"]]
    else:
        each = _each(whole["joules"], runs)
        source = f"{whole['provenance']}: {whole['from']} ({whole['covers']})"
        lines.append(f"{whole['joules']:.2f} J{each}, {source}")
        if whole["gap_s"] > 0.01:
            lines.append(f"{whole['gap_s']:.2f} s without readings are not in it")
    above = document["above_baseline_j"]
    if above is not None:
        before = f"{baseline['watts']:.2f} W before it ({baseline['seconds']:.1f} s)"
        lines.append(f"{above:.2f} J{_each(above, runs)} above the {before}")
    if document["short"]:
        lines.append(
            f"the meter lags by up to {document['lag_s']:.1f} s: --repeat gives a longer run"
        )
    cores = document["wakeups"]["cores_per_s"]
    if cores is not None:
        lines.append(f"{cores:.0f} wakeups/s of all cores")
    return lines


def _each(joules: float, runs: int) -> str:
    return f" ({joules / runs:.3g} J a run)" if runs > 1 else ""


def _processes(document: dict[str, Any], top: int) -> Table:
    table = _table("", "CPU-s", "slept and woken", "J, modelled")
    joules = document["command_modelled_j"]
    table.add_row(document["command"][0], f"{document['cpu_s']:.2f}", "", _modelled(joules))
    for p in document["processes"][:top]:
        row = f"{p['cpu_s']:.2f}", str(p["sleeps"]), _modelled(p["modelled_j"])
        table.add_row(f"{p['name']} ({p['pid']})", *row)
    if document["rest"] is not None:
        rest = document["rest"]
        name = "ended meanwhile, interrupts"
        table.add_row(name, f"{rest['cpu_s']:.2f}", "", _modelled(rest["modelled_j"]))
    return table


def _interrupts(document: dict[str, Any], top: int) -> Table:
    table = _table("", "a second")
    for name, rate in list(document["wakeups"]["interrupts_per_s"].items())[:top]:
        table.add_row(name, f"{rate:.1f}")
    return table


def _modelled(joules: float | None) -> str:
    return "not known" if joules is None else f"{joules:.2f}"


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", justify="right" if number and column else "left")
    return table
