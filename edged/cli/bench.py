"""`edged bench`: the benchmarks, each a module of `edged.bench` with its own `command`."""

from __future__ import annotations

import click

from edged.cli._group import Lazy

_NAMES = (
    "compress",
    "cost",
    "durability",
    "e2e",
    "energy",
    "equipment",
    "fleet",
    "heat",
    "idle",
    "join",
    "kernels",
    "promise",
    "relay",
    "shuffle",
    "soak",
    "spark",
    "staircase",
    "start",
    "tables",
)


_WITHOUT_COMPILER = ("tables",)
"""Their own process calls kernels, from the libraries, as a daemon does."""


class _Benchmarks(Lazy):
    def modules(self) -> dict[str, str]:
        return {name: f"edged.bench.{name}" for name in _NAMES}

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command; one that needs no compiler has the libraries before it is imported."""
        if name in _WITHOUT_COMPILER:
            from edged.platform.libraries import use_libraries

            use_libraries()
        return super().get_command(ctx, name)


@click.group(cls=_Benchmarks, name="bench")
def command() -> None:
    """Measure edged on this machine; `--json FILE` writes the figures."""
