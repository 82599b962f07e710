"""`edged stop`: stop a running daemon, and wait until it has ended."""

from __future__ import annotations

import os
import select
from pathlib import Path

import click

from edged.cli._door import at_door
from edged.errors import EdgedError

END_S = 60
"""Time after the drain for the last beat, its commit and a snapshot."""


class StopTimeout(EdgedError):
    """The daemon has not ended in time."""

    exit_code = 75


@click.command(name="stop")
@at_door
@click.option("--drain", is_flag=True, help="First process what was accepted, and ship all pages.")
@click.option("--within", "within_s", default=10, show_default=True, type=click.IntRange(1, 86_400),
              help="Time limit of the drain in seconds.")  # fmt: skip
def command(door: Path, drain: bool, within_s: int) -> None:
    """Stop the daemon.  Acknowledged data is durable in any case; --drain also ships everything
    that the centre can take in time."""
    from edged.control.door import ask

    try:
        process = os.pidfd_open(ask(door, "status")["pid"])
    except ProcessLookupError:  # it ended after its answer
        return
    try:
        ask(door, "stop", drain=drain, within_s=within_s)
        if not select.select([process], [], [], within_s + END_S)[0]:
            raise StopTimeout(f"the daemon at {door} has not ended yet; it continues to stop")
    finally:
        os.close(process)
