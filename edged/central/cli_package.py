"""`edged central package`: writes the zip for Spark executors."""

from __future__ import annotations

import click

from edged.central.package import zip_edged


@click.command("package")
@click.argument("zip", type=click.Path(dir_okay=False))
def command(zip: str) -> None:
    """Write the zip for `spark-submit --py-files`: the page source for executors."""
    click.echo(str(zip_edged(zip)))
