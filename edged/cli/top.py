"""`edged top`: a running daemon, live in the terminal."""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from edged.cli import _top
from edged.cli._api import as_json, follow_live, on_api, snapshot
from edged.rest import ApiError, Client, LiveMessage

KEYS_MAX = 1024
ONCE_S = 15.0
"""Longest wait for the figures of `--once`, which take 3 s."""


@click.command(name="top")
@click.option("--once", is_flag=True, help="Print figures of three beats, or of 3 s, then end.")
@on_api
@as_json
def command(client: Client, once: bool, as_json: bool) -> None:
    """Rates, latency, watts, backlog, jobs and events of a running daemon, once a second.

    Ends with q or Ctrl-C.  As JSON a line a second with the figures that are shown.
    """
    snapshot(client)  # exits with 69 where the API is unreachable
    if once:
        _once(client, _top.LiveView(), as_json)
    elif as_json:
        _lines(client, _top.LiveView())
    else:
        _watch(client, _top.LiveView())


def _once(client: Client, view: _top.LiveView, as_json: bool) -> None:
    """One picture, or one line of JSON, once a few beats are known.  Raises ApiError where the
    daemon gives no figures within ONCE_S."""
    from rich.console import Console

    messages: queue.SimpleQueue[LiveMessage | str] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(client, messages), daemon=True).start()
    ends_s = time.monotonic() + ONCE_S
    while not view.knows_beats():
        try:
            message = messages.get(timeout=max(0.0, ends_s - time.monotonic()))
        except queue.Empty:
            problem = f"{client.address} gives no figures of its daemon within {ONCE_S:.0f} s"
            raise ApiError({"status": 503, "detail": problem, "do": "try again"}) from None
        view.on_message(message)
    if as_json:
        click.echo(json.dumps(view.figures()))
    else:
        console = Console()
        console.print(view.render(console.width))


def _lines(client: Client, view: _top.LiveView) -> None:
    """A line of JSON for each snapshot from the second on."""
    for message in client.live("0"):
        view.on_message(message)
        if message.kind == "snapshot" and view.has_rates():
            click.echo(json.dumps(view.figures()))
            sys.stdout.flush()


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


def _receive(
    client: Client, messages: queue.SimpleQueue[LiveMessage | str], bell: int | None = None
) -> None:
    """Put live messages into the queue, and continue after an outage of the API.  Each is announced
    at the descriptor `bell`."""

    def put(message: LiveMessage | str) -> None:
        messages.put(message)
        if bell is not None:
            os.write(bell, b".")

    try:
        for message in follow_live(client, "0"):
            put(message)
    except ApiError as problem:  # the API refuses this client now
        put(str(problem))


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
