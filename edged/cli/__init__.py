"""The command line.  Each module of this package is one command and names it `command`."""

from __future__ import annotations

import pkgutil
import sys
from importlib.util import find_spec

import click

from edged import __version__
from edged.cli._group import Lazy
from edged.errors import EdgedError


class _Commands(Lazy):
    def modules(self) -> dict[str, str]:
        names = {m.name for m in pkgutil.iter_modules(__path__)}
        if find_spec("edged.demo") is None:  # an installed wheel has no demo
            names.discard("demo")
        return {n: f"{__name__}.{n}" for n in names if not n.startswith("_")}


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edged")
def cli() -> None:
    """Energy-aware stream joins on edge devices, shipped in slotted pages to Spark.

    Exit codes are those of sysexits.h: 0 done, 10 damaged and mendable (check, repair), 64 wrong
    usage, 65 bad job or page, rows dropped by their times, or damage with losses, 69 daemon or API
    unreachable, 70 kernel, 73 store in use, 75 store or centre failed (try again), 77 not allowed,
    78 bad setting.
    """


def main() -> None:
    """Entry point: an EdgedError becomes one line and an exit code."""
    try:
        code = cli.main(standalone_mode=False)  # the exit code that a command returns
        sys.exit(code if isinstance(code, int) else 0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as problem:
        problem.show()
        sys.exit(64)
    except EdgedError as problem:
        from edged.events.journal import report_error

        report_error(problem)
        sys.exit(problem.exit_code)
