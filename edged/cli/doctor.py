"""`edged doctor`: what can be run, measured and set on this machine, and what mends the rest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edged.console import options as checks

if TYPE_CHECKING:
    from edged.cli._doctor.base import Check, Finding, Machine

MARKS = {"ok": ("✓", "green"), "optional": ("·", "dim"), "warning": ("!", "yellow"),
         "failure": ("✗", "red")}  # fmt: skip


@click.command(name="doctor")
@click.option("--config", "config_file", help="Configuration.  [default: /etc/edged/edged.toml]",
              type=click.Path(exists=True, dir_okay=False, path_type=Path))  # fmt: skip
@click.option("--store", type=click.Path(file_okay=False, path_type=Path),
              help="Directory of the store.  [default: the configuration's]")  # fmt: skip
@checks.board_option("[default: the configuration's]")
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write what the kernel shows, for an issue, to FILE.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The findings, or the report, as JSON.")
def command(
    config_file: Path | None, store: Path | None, board: str | None, strict: bool,
    report: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Examine this machine: what edged can run, measure and set here, what not and why, and the
    command that mends it.

    Changes nothing and needs no root.  Exits with 0 where edged works, 1 where something fails.

    --report FILE writes one JSON file: the board's model and chip, versions of kernel,
    distribution, Python and edged, clocks with their tables, GPU, idle states, channels of power
    sensors, thermal zones with trip points, cooling devices, suspend states, what of the profile
    matches, and the name and state of each check here.  It holds no host or user names, no serial
    numbers, no network addresses, no paths, no configuration and no tokens; read it before you
    publish it.  docs/boards.md lists its fields.
    """
    from rich.console import Console

    from edged.cli._doctor.base import Verdict, load

    machine = _machine(config_file, store, board)
    found = [(area, finding) for area, check in load() for finding in _findings(check, machine)]
    bad = {Verdict.FAILURE, Verdict.WARNING} if strict else {Verdict.FAILURE}
    works = not any(finding.state in bad for _, finding in found)
    if report is not None:
        _write_report(machine, found, report, as_json)
    elif as_json:
        rows = [{"area": area, **asdict(finding)} for area, finding in found]
        click.echo(json.dumps({"ok": works, "findings": rows}, indent=1))
    else:
        _print(found, Console(highlight=False))
    return 0 if works else 1


def _write_report(
    machine: Machine, found: list[tuple[str, Finding]], path: Path, as_json: bool
) -> None:
    """Write the board's report, and say what of the profile matches."""
    from edged import __version__
    from edged.cli.board import opened
    from edged.energy.settings import SIMULATED
    from governors.board_facts import examine

    checks.output("--report", path)
    states = sorted({(area, finding.name, finding.state.value) for area, finding in found})
    with opened(machine.board) as sysfs:
        simulated = machine.board.startswith(SIMULATED)
        report = examine(sysfs, __version__, simulated, states, _own_names())
    path.write_bytes(report.encode())
    if as_json:
        click.echo(report.encode(), nl=False)
        return
    click.echo(f"{path}: {report.board.model or 'a machine without a model name'}")
    for match in report.matches:
        click.echo(f"  {match.part}: {' '.join((match.state, match.detail)).rstrip()}")
    if not report.matches:
        click.echo(f"  no profile describes it: edged board --template {path} makes a skeleton")


def _own_names() -> list[str]:
    """Names of this process's user and machine, beside those that the board's tree has."""
    import os
    import socket

    names = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "HOSTNAME")]
    return [*names, socket.gethostname(), socket.gethostname().partition(".")[0]]


def _machine(config_file: Path | None, store: Path | None, board: str | None) -> Machine:
    from edged.cli._doctor.base import Machine
    from edged.config import CONFIG, read
    from edged.energy.settings import NO_BOARD

    usual = Path(CONFIG)
    path = config_file or (usual if usual.is_file() else None)
    config, faults = read(path)
    chosen = board or config.energy.board
    where = store or Path(config.store.directory)
    return Machine("/" if chosen in ("", NO_BOARD) else chosen, where, config, tuple(faults), path)


def _findings(check: Check, machine: Machine) -> Iterator[Finding]:
    """A check's findings; one that breaks is a finding itself."""
    from edged.cli._doctor.base import warning
    from edged.errors import EdgedError
    from governors.errors import GovernorError

    try:
        yield from check(machine)
    except (OSError, EdgedError, GovernorError) as problem:
        yield warning(check.__name__.replace("_", " "), f"could not be examined: {problem}")


def _print(found: list[tuple[str, Finding]], console: object) -> None:
    from rich.console import Console
    from rich.text import Text

    from edged.cli._doctor.base import AREAS

    assert isinstance(console, Console)
    for area, title in AREAS.items():
        rows = [finding for where, finding in found if where == area]
        if rows:
            console.print(f"\n{title}", style="bold")
        for finding in rows:
            mark, style = MARKS[finding.state.value]
            line = Text(f"  {mark} ", style) + Text(f"{finding.name}: {finding.text}")
            console.print(line, soft_wrap=True)
            if finding.remedy:
                console.print(Text(f"      → {finding.remedy}", "cyan"), soft_wrap=True)
    counts = {state: sum(f.state.value == state for _, f in found) for state in MARKS}
    console.print(
        f"\n{counts['failure']} failures, {counts['warning']} warnings,"
        f" {counts['optional']} not there and not needed"
    )
