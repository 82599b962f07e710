"""`edged reload`: have a running daemon read its configuration anew."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edged.config import CONFIG

TIMEOUT_S = 300.0
"""Expressions that are new are compiled first."""


@click.command(name="reload")
@click.option("--config", default=CONFIG, type=click.Path(path_type=Path), show_default=True,
              help="The daemon's configuration: tells its door.")  # fmt: skip
@click.option("--door", type=click.Path(path_type=Path), help="The daemon's control socket.")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
def command(config: Path, door: Path | None, as_json: bool) -> None:
    """Have the daemon read its configuration and its job files anew, and apply them.

    If anything is wrong nothing changes, and this exits with 78.
    """
    from edged.config import read
    from edged.door import ask

    # a configuration that is wrong is told by the daemon, with all that is wrong in it
    answer = ask(door or read(config if config.exists() else None)[0].door, "reload", TIMEOUT_S)
    if as_json:
        click.echo(json.dumps(answer))
        return
    click.echo("applied: " + (", ".join(answer["applied"]) or "nothing, all is as it was"))
    if answer["later"]:
        click.echo(f"at the next start: {', '.join(answer['later'])}")
