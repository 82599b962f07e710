"""The command line.  Each module of this package is one command and names it `command`."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys

import click

from edged import __version__
from edged.errors import EdgedError


class _Commands(click.Group):
    """Finds the commands by looking into this package; only the one that is run is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (m.name for m in pkgutil.iter_modules(__path__))
        return sorted(n for n in names if not n.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{name}")
        command: click.Command = module.command
        _brief(command)
        return command


def _brief(command: click.Command) -> None:
    """Have lists of commands tell whole sentences; click cuts them off at a line's end."""
    text = " ".join((command.help or "").partition("\n\n")[0].split())
    command.short_help = re.split(r"[.;] ", text)[0].rstrip(".")
    for one in getattr(command, "commands", {}).values():
        _brief(one)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edged")
def cli() -> None:
    """Energy-aware stream joins on edge devices, shipped in slotted pages to Spark.

    Exit codes are those of sysexits.h: 0 done, 64 wrong usage, 65 bad job or page, 69 nobody
    answers, 70 kernel, 73 store in use, 75 store or centre failed (try again), 77 not allowed,
    78 bad setting.
    """


def main() -> None:
    """Entry point: errors that edged raises on purpose become one line and an exit code."""
    try:
        code = cli.main(standalone_mode=False)  # an exit that a command asks for is returned
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(64)
    except EdgedError as problem:
        click.echo(f"edged: {problem}", err=True)
        sys.exit(problem.exit_code)
