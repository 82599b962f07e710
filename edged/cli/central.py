"""`edged central`: the centre's commands, each a module `edged/central/cli_<name>.py`."""

from __future__ import annotations

import pkgutil

import click

import edged.central
from edged.cli._group import Lazy

_PREFIX = "cli_"


class _CentralCommands(Lazy):
    def modules(self) -> dict[str, str]:
        names = (m.name for m in pkgutil.iter_modules(edged.central.__path__))
        return {
            n.removeprefix(_PREFIX): f"edged.central.{n}" for n in names if n.startswith(_PREFIX)
        }


@click.group(cls=_CentralCommands)
def command() -> None:
    """The centre: collect pages from devices, aggregate them with Spark."""
