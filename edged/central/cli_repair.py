"""`edged central repair`: mends what is damaged in a landing."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("repair")
@click.argument("landing", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(landing: Path, as_json: bool) -> int:
    """Mend what is damaged in LANDING as far as other bytes say what was there.

    Run it as the collectors' user; they may run meanwhile. Exit code 0: everything is whole now.
    10: the programs that the report names mend the rest. 65: something is lost; it is printed as by
    `edged central check`.
    """
    from edged.central.rot import repair
    from edged.console.damage_report import show

    return show(repair(landing), as_json)
