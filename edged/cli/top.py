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
from edged.rest import ApiError, Client, Live

KEYS_MAX = 1024


@click.command(name="top")
@click.option("--once", is_flag=True, help="Rates over one second, then end.")
@on_api
@as_json
def command(client: Client, once: bool, as_json: bool) -> None:
    """Rates, latency, watts, backlog, jobs and events of a running daemon, once a second.

    Ends with q or Ctrl-C.  As JSON a line a second with the figures that are shown.
    """
    snapshot(client)  # where nobody answers this says so and exits with 69
    if once or as_json:
        _lines(client, _top.Scene(), once, as_json)
    else:
        _watch(client, _top.Scene())


def _lines(client: Client, scene: _top.Scene, once: bool, as_json: bool) -> None:
    """Without a terminal: a picture, or a line of JSON, for each snapshot from the second on."""
    from rich.console import Console

    console = Console()
    for message in client.live("0"):
        scene.hear(message)
        if message.kind == "snapshot" and scene.known():
            if as_json:
                click.echo(json.dumps(scene.figures()))
                sys.stdout.flush()
            else:
                console.print(scene.render(console.width))
            if once:
                return


def _watch(client: Client, scene: _top.Scene) -> None:
    from rich.console import Console
    from rich.live import Live as Screen

    heard: queue.SimpleQueue[Live | str] = queue.SimpleQueue()
    reading, writing = os.pipe()
    threading.Thread(target=_listen, args=(client, heard, writing), daemon=True).start()
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
                while not heard.empty():
                    scene.hear(heard.get())
            screen.update(scene.render(console.width, console.height), refresh=True)


def _listen(client: Client, heard: queue.SimpleQueue[Live | str], bell: int) -> None:
    """Put what the API tells into `heard`, and again after it was away."""
    try:
        for message in follow_live(client, "0"):
            heard.put(message)
            os.write(bell, b".")
    except ApiError as problem:  # not let in any more
        heard.put(str(problem))
        os.write(bell, b".")


def _ends(pressed: bytes) -> bool:
    """Whether a key among these ends it, or nobody is there to press one.  Arrows and the like come
    as several bytes at once, none of them a q."""
    return not pressed or b"q" in pressed.lower()


@contextmanager
def _keys() -> Iterator[list[int]]:
    """The descriptor of standard input, each key as it is pressed; none where it is no terminal."""
    if not sys.stdin.isatty():
        yield []
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield [sys.stdin.fileno()]
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
