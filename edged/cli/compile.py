"""`edged compile`: compile every kernel before the first start."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from kernels import ahead
from kernels.ahead.targets import TARGETS


@click.command(name="compile")
@click.option("--for", "target", type=click.Choice([*TARGETS]),
              help="Make objects for a processor by name, also of another machine.  "
              "[default: this processor]")  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False, path_type=Path),
              help="With --for: their directory.  [default: the installation's]")  # fmt: skip
@click.option("--if-missing", is_flag=True,
              help="Compile nothing where a start finds objects.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def command(target: str | None, output: Path | None, if_missing: bool, as_json: bool) -> None:
    """Compile all kernels: a minute or more once, then milliseconds.

    A start loads the objects for its processor, else those that --for has made and that the
    processor runs, best first; where there are none it compiles.
    """
    if output is not None and target is None:
        raise click.UsageError("--output needs --for")
    if target is not None:
        count, seconds = _compile_for(target, output)
    elif if_missing and _found():
        count, seconds = 0, 0.0
    else:
        from edged.daemon.compilation import compile_kernels

        count, seconds = compile_kernels(quiet=as_json)
    if as_json:
        click.echo(json.dumps({"kernels": count, "seconds": round(seconds, 3)}))
    elif if_missing and not count:
        click.echo(f"kernels are ready: {ahead.form()}")
    else:
        click.echo(f"{count} kernels ready in {seconds:.1f} s")


def _found() -> bool:
    from edged.platform.libraries import use_libraries

    return use_libraries()


def _compile_for(target: str, output: Path | None) -> tuple[int, float]:
    """The number of kernels compiled, none where the objects were there, and the seconds."""
    from edged.errors import KernelError
    from edged.platform.libraries import loops
    from kernels.ahead import OBJECTS
    from kernels.ahead.cross import build_for
    from kernels.ahead.elf import LinkError

    began = time.monotonic()
    try:
        count = sum(1 for _ in build_for(target, loops(), output or OBJECTS))
    except (LinkError, OSError) as problem:
        raise KernelError(f"no objects for {target}: {problem}") from None
    return count, time.monotonic() - began
