"""`edged central`: the centre's commands, each a module `edged/central/cli_<name>.py`."""

from __future__ import annotations

import importlib
import pkgutil

import click

import edged.central

_PREFIX = "cli_"


class _Commands(click.Group):
    """Finds the commands by looking into `edged.central`; only the one that is run is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (m.name for m in pkgutil.iter_modules(edged.central.__path__))
        return sorted(n[len(_PREFIX) :] for n in names if n.startswith(_PREFIX))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"edged.central.{_PREFIX}{name}")
        command: click.Command = module.command
        return command


@click.group(cls=_Commands)
def command() -> None:
    """The centre: collect pages from devices, aggregate them with Spark."""
