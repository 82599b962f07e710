"""`edged reload`: make a running daemon read its configuration again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edged.cli._door import at_door

TIMEOUT_S = 300.0
"""Covers the compilation of new expressions."""


@click.command(name="reload")
@at_door
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def command(door: Path, as_json: bool) -> None:
    """Make the daemon read its configuration and its job files again, and apply them.

    On a fault nothing changes, and the command exits with 78.
    """
    from edged.control.door import ask

    answer = ask(door, "reload", TIMEOUT_S)
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo("applied: " + (", ".join(answer["applied"]) or "nothing, all is as it was"))
    if answer["later"]:
        click.echo(f"at the next start: {', '.join(answer['later'])}")
