"""`edged top`: a running daemon, live in the terminal."""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from edged.cli import _top
from edged.cli._api import as_json, follow_live, on_api, snapshot
from edged.rest import ApiError, Client, LiveMessage

KEYS_MAX = 1024


@click.command(name="top")
@click.option("--once", is_flag=True, help="Print rates over one second, then end.")
@on_api
@as_json
def command(client: Client, once: bool, as_json: bool) -> None:
    """Rates, latency, watts, backlog, jobs and events of a running daemon, once a second.

    Ends with q or Ctrl-C.  As JSON a line a second with the figures that are shown.
    """
    snapshot(client)  # exits with 69 where the API is unreachable
    if once or as_json:
        _lines(client, _top.LiveView(), once, as_json)
    else:
        _watch(client, _top.LiveView())


def _lines(client: Client, view: _top.LiveView, once: bool, as_json: bool) -> None:
    """Without a terminal: a picture, or a line of JSON, for each snapshot from the second on."""
    from rich.console import Console

    console = Console()
    for message in client.live("0"):
        view.on_message(message)
        if message.kind == "snapshot" and view.has_rates():
            if as_json:
                click.echo(json.dumps(view.figures()))
                sys.stdout.flush()
            else:
                console.print(view.render(console.width))
            if once:
                return


def _watch(client: Client, view: _top.LiveView) -> None:
    from rich.console import Console
    from rich.live import Live as Screen

    messages: queue.SimpleQueue[LiveMessage | str] = queue.SimpleQueue()
    reading, writing = os.pipe()
    threading.Thread(target=_receive, args=(client, messages, writing), daemon=True).start()
    console = Console()
    with (
        suppress(KeyboardInterrupt),
        _keys() as keys,
        Screen(console=console, screen=True, auto_refresh=False) as screen,
    ):
        while True:
            ready, _, _ = select.select([reading, *keys], [], [], 1.0)
            if any(_ends(os.read(key, KEYS_MAX)) for key in keys if key in ready):
                return
            if reading in ready:
                os.read(reading, 65536)
                while not messages.empty():
                    view.on_message(messages.get())
            screen.update(view.render(console.width, console.height), refresh=True)


def _receive(client: Client, messages: queue.SimpleQueue[LiveMessage | str], bell: int) -> None:
    """Put live messages into the queue, and continue after an outage of the API."""
    try:
        for message in follow_live(client, "0"):
            messages.put(message)
            os.write(bell, b".")
    except ApiError as problem:  # the API refuses this client now
        messages.put(str(problem))
        os.write(bell, b".")


def _ends(pressed: bytes) -> bool:
    """Whether one of these keys ends the command, or standard input is closed.  An arrow key
    arrives as several bytes at once, none of them a q."""
    return not pressed or b"q" in pressed.lower()


@contextmanager
def _keys() -> Iterator[list[int]]:
    """The descriptor of standard input in single-key mode; empty where it is no terminal."""
    if not sys.stdin.isatty():
        yield []
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield [sys.stdin.fileno()]
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
