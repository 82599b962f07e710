"""`edged log`: how much a running daemon logs."""

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
    """Show the least level that a running daemon logs; with LEVEL log from that one on, until the
    next start.  `log.level` of the configuration holds for longer."""
    told = client.log() if level is None else client.set_log(level)
    if as_json:
        click.echo(json.dumps(told))
    elif level is None:
        click.echo(told["level"])
    else:
        click.echo(f"{told['level']}, before {told['was']}")
