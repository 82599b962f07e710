"""`edged log`: the log level of a running daemon."""

from __future__ import annotations

import json
from typing import Literal, get_args

import click

from edged.cli._api import as_json, on_api
from edged.rest import Client

Level = Literal["debug", "info", "warning", "error"]


@click.command(name="log")
@click.argument("level", required=False, type=click.Choice(get_args(Level)))
@on_api
@as_json
def command(client: Client, level: Level | None, as_json: bool) -> None:
    """Show the log level of a running daemon; with LEVEL set it until the next start. `log.level`
    of the configuration is permanent."""
    state = client.log() if level is None else client.set_log(level)
    if as_json:
        click.echo(json.dumps(state))
    elif level is None:
        click.echo(state["level"])
    else:
        click.echo(f"{state['level']}, before {state['was']}")
