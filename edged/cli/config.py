"""`edged config`: the settings of a running daemon and their origins."""

from __future__ import annotations

import json

import click

from edged.cli._api import as_json, on_api
from edged.errors import ConfigError
from edged.rest import Client


@click.command(name="config")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@on_api
@as_json
def command(client: Client, keys: tuple[str, ...], as_json: bool) -> None:
    """Show every setting of a running daemon with its origin, secrets masked; with KEYs (`store`,
    `run.door`) those only.

    `edged validate --values FILE` shows those of a file that no daemon has read; `edged reload`
    makes the daemon read its files again.
    """
    rows = client.config()["values"]
    found = [row for row in rows if not keys or any(_within(row["key"], key) for key in keys)]
    for key in keys:
        if not any(_within(row["key"], key) for row in rows):
            known = sorted({row["key"].partition(".")[0] for row in rows})
            raise ConfigError(f"there is no setting {key}; sections are {', '.join(known)}")
    if as_json:
        click.echo(json.dumps(found))
        return
    for row in found:
        click.echo(f"{row['key']} = {json.dumps(row['value'])}  [{row['origin']}]")


def _within(name: str, key: str) -> bool:
    """Whether a setting is this key, or within this section."""
    return name == key or name.startswith(f"{key}.")
