"""`edged reload`: have a running daemon read its configuration anew."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edged.cli._door import at_door

TIMEOUT_S = 300.0
"""Expressions that are new are compiled first."""


@click.command(name="reload")
@at_door
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def command(door: Path, as_json: bool) -> None:
    """Have the daemon read its configuration and its job files anew, and apply them.

    If anything is wrong nothing changes, and this exits with 78.
    """
    from edged.control.door import ask

    answer = ask(door, "reload", TIMEOUT_S)
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo("applied: " + (", ".join(answer["applied"]) or "nothing, all is as it was"))
    if answer["later"]:
        click.echo(f"at the next start: {', '.join(answer['later'])}")
