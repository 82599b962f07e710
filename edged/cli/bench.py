"""`edged bench`: the benchmarks, each a module of `edged.bench` that names a `command`."""

from __future__ import annotations

import importlib

import click

_NAMES = ("e2e", "energy", "idle", "join", "spark")


class _Benchmarks(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_NAMES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _NAMES:
            return None
        found: click.Command = importlib.import_module(f"edged.bench.{name}").command
        return found


@click.group(cls=_Benchmarks, name="bench")
def command() -> None:
    """Measure edged on this machine; `--json FILE` keeps the figures."""
