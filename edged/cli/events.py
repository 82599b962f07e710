"""`edged events`: what has happened to a running daemon."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import click

from edged.cli._api import as_json, follow_live, on_api
from edged.rest import Client, all_of


@click.command(name="events")
@click.option("--follow", "-f", is_flag=True, help="Go on with events as they come.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(0, 1000),
              help="So many of the past.")  # fmt: skip
@on_api
@as_json
def command(client: Client, follow: bool, last: int, as_json: bool) -> None:
    """Show the last events, oldest first; with --follow the new ones, too.

    As JSON each is a line of its own.  When daemon or API go away --follow waits for them.
    """
    newest = "0"
    past = list(all_of(client.events, limit=1000))
    for event in past[-last:] if last else []:
        _say(event, as_json)
    if past:
        newest = str(past[-1]["id"])
    if not follow:
        return
    for message in follow_live(client, newest):
        if isinstance(message, str):
            click.echo(f"edged: {message}; waiting for it", err=True)
        elif message.kind == "event":
            _say(message.data, as_json)
        elif message.kind == "missed":
            click.echo(f"edged: {message.data['count']} events were forgotten", err=True)
        elif message.kind == "daemon" and not message.data["up"]:
            click.echo("edged: the daemon does not answer; waiting for it", err=True)


def _say(event: Any, as_json: bool) -> None:
    click.echo(json.dumps(event) if as_json else line(event))
    sys.stdout.flush()  # it may be a pipe that somebody watches


def line(event: Any) -> str:
    """An event for people: time, level where it is not info, kind, job and text."""
    at = datetime.datetime.fromtimestamp(event["at_us"] / 1e6).strftime("%Y-%m-%d %H:%M:%S")
    level = "" if event["level"] == "info" else f"{event['level'].upper()} "
    return f"{at}  {level}{event['kind']}  {text_of(event)}"


def text_of(event: Any) -> str:
    """What it says, with its job's name where the text does not begin with it."""
    job, text = event.get("job"), str(event["text"])
    return text if not job or text.startswith(f"job {job}") else f"{job}: {text}"
