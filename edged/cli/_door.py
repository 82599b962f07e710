"""What `edged stop`, `reload` and `ab` share: they speak to the daemon's door and need no API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edged.config import CONFIG
from edged.errors import ConfigError


def at_door(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--door` and `--config`, which tells it; its first argument is the door."""

    @click.option("--config", type=click.Path(path_type=Path), show_default=str(CONFIG),
                  help="The daemon's configuration: tells its door.")  # fmt: skip
    @click.option("--door", type=click.Path(path_type=Path), help="The daemon's control socket.")
    @functools.wraps(command)
    def asked(*, config: Path | None, door: Path | None, **options: Any) -> None:
        command(door or _told(config), **options)

    return asked


def _told(config: Path | None) -> Path:
    """The door that a configuration tells; faults in it are the daemon's to tell, or nobody's.

    Raises ConfigError for a file that is not there: the default's door may be another daemon's.
    """
    from edged.config import read

    if config is not None and not config.exists():
        raise ConfigError(f"--config {config}: there is no such file")
    return read(config or (CONFIG if CONFIG.exists() else None))[0].door
