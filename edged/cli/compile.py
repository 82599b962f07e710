"""`edged compile`: compile every kernel before the first start."""

from __future__ import annotations

import json

import click


@click.command(name="compile")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def command(as_json: bool) -> None:
    """Compile all kernels into the on-disk cache: about a minute once, then milliseconds."""
    from edged.daemon.compilation import compile_kernels

    count, seconds = compile_kernels(quiet=as_json)
    if as_json:
        click.echo(json.dumps({"kernels": count, "seconds": round(seconds, 3)}))
    else:
        click.echo(f"{count} kernels ready in {seconds:.1f} s")
