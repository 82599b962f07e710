"""`edged central check`: what is damaged in a landing, and what is lost."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("check")
@click.argument("landing", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(landing: Path, as_json: bool) -> int:
    """Read all of LANDING and report damage; nothing is changed.

    Exit code 0: everything is whole. 10: something is damaged, and `edged central repair` or a
    collector mends it. 65: something is lost; streams, partitions, sequence numbers and times are
    printed. `edged store check` has the same options, report and codes.
    """
    from edged.central.rot import check
    from edged.console.damage_report import show

    return show(check(landing), as_json)
