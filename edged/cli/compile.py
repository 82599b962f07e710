"""`edged compile`: compile every kernel before the first start."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable

import click

TOLD_EVERY = 10


@click.command(name="compile")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def command(as_json: bool) -> None:
    """Compile all kernels into the on-disk cache: about a minute once, then milliseconds."""
    from edged.daemon.compilation import compile_kernels

    lines = not as_json and not sys.stderr.isatty()
    count, seconds = compile_kernels(
        quiet=as_json, on_ready=_counter() if lines else lambda _: None
    )
    if as_json:
        click.echo(json.dumps({"kernels": count, "seconds": round(seconds, 3)}))
    else:
        click.echo(f"{count} kernels ready in {seconds:.1f} s")


def _counter() -> Callable[[str], None]:
    """Progress without a terminal: a line every few kernels."""
    from kernels.registry import KERNELS

    ready = itertools.count(1)

    def on_ready(_: str) -> None:
        if (done := next(ready)) % TOLD_EVERY == 0:
            click.echo(f"{done} of {len(KERNELS)} kernels compiled", err=True)

    return on_ready
