"""Groups whose commands are modules, discovered by name and imported when they run."""

from __future__ import annotations

import importlib
import re

import click

from governors.suggestions import closest


class Lazy(click.Group):
    """A group of modules, each with its own `command`; only the one that runs is imported."""

    def modules(self) -> dict[str, str]:
        """Module by command name."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names."""
        return sorted(self.modules())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Overrides click's, which looks for similar names among imported commands only."""
        if args and not args[0].startswith("-") and args[0] not in self.modules():
            near = closest(args[0], self.list_commands(ctx))
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of a name, or None."""
        module = self.modules().get(name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        _brief(command)
        return command


def _brief(command: click.Command) -> None:
    """Show whole sentences in lists of commands; click cuts them at the end of a line."""
    text = " ".join((command.help or "").partition("\n\n")[0].split())
    command.short_help = re.split(r"[.;] ", text)[0].rstrip(".")
    for one in getattr(command, "commands", {}).values():
        _brief(one)
