"""`edged plugins`: the kinds of sources, sinks, operators, meters, policies and functions."""

from __future__ import annotations

import json

import click
from rich import box
from rich.console import Console
from rich.table import Table


@click.command()
@click.option("--all", "every", is_flag=True, help="List the built-in kinds too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(every: bool, as_json: bool) -> None:
    """List installed plug-ins: kind, name, package, version and module.

    A plug-in that does not load is listed with its error, and the exit code is 1.
    """
    from edged.plugin.installed import installed

    kinds = installed()
    shown = [kind for kind in kinds if every or kind.distribution != "edged" or kind.problem]
    if as_json:
        click.echo(json.dumps([kind.to_json() for kind in shown], indent=2))
    elif not shown:
        click.echo(f"No plug-ins are installed; edged has {len(kinds)} built-in kinds (--all).")
    else:
        table = Table("group", "name", "package", "module", box=box.SIMPLE)
        for kind in shown:
            table.add_row(kind.group, kind.name, f"{kind.distribution} {kind.version}", kind.module)
        Console().print(table)
        for kind in shown:
            if kind.problem:
                click.echo(f"{kind.group} {kind.name}: {kind.problem}", err=True)
    if any(kind.problem for kind in shown):
        raise click.exceptions.Exit(1)
