"""`edged central package`: the zip for Spark executors."""

from __future__ import annotations

import click

from edged.central.package import zip_edged


@click.command("package")
@click.argument("zip", type=click.Path(dir_okay=False))
def command(zip: str) -> None:
    """Write the zip that `spark-submit --py-files` takes: the page source for executors."""
    click.echo(str(zip_edged(zip)))
