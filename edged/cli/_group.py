"""Groups of commands that are found by looking, and imported when they are run."""

from __future__ import annotations

import importlib
import re

import click


class Lazy(click.Group):
    """Commands that are modules: each names its own `command`, and only the one that is run is
    imported."""

    def modules(self) -> dict[str, str]:
        """By the command's name the module's."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted(self.modules())

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of a name; None where there is none."""
        module = self.modules().get(name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        _brief(command)
        return command


def _brief(command: click.Command) -> None:
    """Have lists of commands tell whole sentences; click cuts them off at a line's end."""
    text = " ".join((command.help or "").partition("\n\n")[0].split())
    command.short_help = re.split(r"[.;] ", text)[0].rstrip(".")
    for one in getattr(command, "commands", {}).values():
        _brief(one)
