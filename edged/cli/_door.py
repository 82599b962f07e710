"""Common part of `edged stop`, `reload` and `ab`: they use the control door and need no API."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edged.config import CONFIG
from edged.errors import ConfigError


def at_door(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--door` and `--config`, which names the door, to a command; its first argument is the
    door."""

    @click.option("--config", type=click.Path(path_type=Path), show_default=str(CONFIG),
                  help="The daemon's configuration, which names its door.")  # fmt: skip
    @click.option("--door", type=click.Path(path_type=Path), help="The daemon's control socket.")
    @functools.wraps(command)
    def with_door(*, config: Path | None, door: Path | None, **options: Any) -> None:
        command(door or _configured_door(config), **options)

    return with_door


def _configured_door(config: Path | None) -> Path:
    """The door in a configuration, whose other faults are ignored.

    Raises ConfigError for a file that is missing: the default door may be another daemon's.
    """
    from edged.config import read

    if config is not None and not config.exists():
        raise ConfigError(f"--config {config}: there is no such file")
    return read(config or (CONFIG if CONFIG.exists() else None))[0].door
