"""`edged uplink`: state of a running daemon's connection to the centre; retry it now."""

from __future__ import annotations

import datetime
import json

import click

from edged.cli._api import as_json, on_api
from edged.cli.status import uplink as lines
from edged.rest import Client


@click.command(name="uplink")
@click.argument("action", required=False, metavar="[retry]", type=click.Choice(["retry"]))
@on_api
@as_json
def command(client: Client, action: str | None, as_json: bool) -> None:
    """Show the state of the uplink and its backlog; with `retry` try the centre now, regardless of
    the back-off."""
    state = client.uplink() if action is None else client.retry_uplink()
    store = client.store()
    if as_json:
        click.echo(json.dumps({**state, "oldest_page_us": store["oldest_page_us"]}))
        return
    for line in lines(dict(state) if state["configured"] else None):
        click.echo(line)
    waits = f"{store['backlog_pages']:,} pages ({store['backlog_bytes']:,} bytes) wait"
    click.echo(
        waits + (f", the oldest since {_moment(at)}" if (at := store["oldest_page_us"]) else "")
    )
    if state["next_try_us"]:
        click.echo(f"next try at {_moment(state['next_try_us'])}")


def _moment(wall_us: int) -> str:
    return datetime.datetime.fromtimestamp(wall_us / 1e6).strftime("%Y-%m-%d %H:%M:%S")
