"""`edged stop`: have a running daemon stop, and wait until it has."""

from __future__ import annotations

import os
import select
from pathlib import Path

import click

from edged.cli._door import at_door
from edged.errors import EdgedError

END_S = 60
"""After the drain: the last beat, its commit, a snapshot."""


class StillThere(EdgedError):
    """The daemon takes longer than was waited."""

    exit_code = 75


@click.command(name="stop")
@at_door
@click.option("--drain", is_flag=True, help="First race what was accepted, and ship all pages.")
@click.option("--within", "within_s", default=10, show_default=True, type=click.IntRange(1, 86_400),
              help="Seconds that the drain may take.")  # fmt: skip
def command(door: Path, drain: bool, within_s: int) -> None:
    """Stop the daemon.  What it has acknowledged is durable in any case; with --drain it leaves
    nothing behind that the centre could take in time."""
    from edged.control.door import ask

    try:
        process = os.pidfd_open(ask(door, "status")["pid"])
    except ProcessLookupError:  # it has ended since it answered
        return
    try:
        ask(door, "stop", drain=drain, within_s=within_s)
        if not select.select([process], [], [], within_s + END_S)[0]:
            raise StillThere(f"the daemon at {door} has not ended yet; it goes on with that")
    finally:
        os.close(process)
