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


class _Benchmarks(Lazy):
    def modules(self) -> dict[str, str]:
        return {name: f"edged.bench.{name}" for name in _NAMES}


@click.group(cls=_Benchmarks, name="bench")
def command() -> None:
    """Measure edged on this machine; `--json FILE` writes the figures."""
