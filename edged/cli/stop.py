"""`edged stop`: have a running daemon stop, and wait until it has."""

from __future__ import annotations

import os
import select
from pathlib import Path

import click

from edged.config import CONFIG

END_S = 60
"""After the drain: the last beat, its commit, a snapshot."""


@click.command(name="stop")
@click.option("--config", default=CONFIG, type=click.Path(path_type=Path), show_default=True,
              help="The daemon's configuration: tells its door.")  # fmt: skip
@click.option("--door", type=click.Path(path_type=Path), help="The daemon's control socket.")
@click.option("--drain", is_flag=True, help="First race what was accepted, and ship all pages.")
@click.option("--within", "within_s", default=10, show_default=True, type=click.IntRange(1, 86_400),
              help="Seconds that the drain may take.")  # fmt: skip
def command(config: Path, door: Path | None, drain: bool, within_s: int) -> None:
    """Stop the daemon.  What it has acknowledged is durable in any case; with --drain it leaves
    nothing behind that the centre could take in time."""
    from edged.config import read
    from edged.door import ask

    path = door or read(config if config.exists() else None)[0].door
    process = os.pidfd_open(ask(path, "status")["pid"])
    try:
        ask(path, "stop", drain=drain, within_s=within_s)
        if not select.select([process], [], [], within_s + END_S)[0]:
            raise click.ClickException("the daemon has not ended yet")
    finally:
        os.close(process)
