"""`edged events`: the event log of a running daemon."""

from __future__ import annotations

import datetime
import json
import sys
from typing import Any

import click

from edged.cli._api import as_json, follow_live, on_api
from edged.rest import Client, all_of


@click.command(name="events")
@click.option("--follow", "-f", is_flag=True, help="Continue with new events.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(0, 1000),
              help="Number of past events.")  # fmt: skip
@on_api
@as_json
def command(client: Client, follow: bool, last: int, as_json: bool) -> None:
    """Show the last events, oldest first; with --follow also new ones.

    As JSON each event is a line.  --follow reconnects when the daemon or the API comes back.
    """
    newest = "0"
    past = list(all_of(client.events, limit=1000))
    for event in past[-last:] if last else []:
        _print_message(event, as_json)
    if past:
        newest = str(past[-1]["id"])
    if not follow:
        return
    for message in follow_live(client, newest):
        if isinstance(message, str):
            click.echo(f"edged: {message}; waiting for it", err=True)
        elif message.kind == "event":
            _print_message(message.data, as_json)
        elif message.kind == "missed":
            click.echo(f"edged: {message.data['count']} events are no longer kept", err=True)
        elif message.kind == "daemon" and not message.data["up"]:
            click.echo("edged: the daemon does not answer; waiting for it", err=True)


def _print_message(event: Any, as_json: bool) -> None:
    click.echo(json.dumps(event) if as_json else line(event))
    sys.stdout.flush()  # the reader of a pipe sees each line at once


def line(event: Any) -> str:
    """An event as a line: time, level unless info, kind, job and text."""
    at = datetime.datetime.fromtimestamp(event["at_us"] / 1e6).strftime("%Y-%m-%d %H:%M:%S")
    level = "" if event["level"] == "info" else f"{event['level'].upper()} "
    return f"{at}  {level}{event['kind']}  {text_of(event)}"


def text_of(event: Any) -> str:
    """The text, prefixed with the job's name unless it begins with it."""
    job, text = event.get("job"), str(event["text"])
    return text if not job or text.startswith(f"job {job}") else f"{job}: {text}"
