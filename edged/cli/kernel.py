"""`edged kernel`: choose the kernel of a running join by hand."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(name="kernel")
@click.argument("job")
@click.argument("operator")
@click.argument("kernel")
@click.option(
    "--door",
    required=True,
    type=click.Path(path_type=Path),
    help="The daemon's control socket (STORE/door).",
)
@click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")
def command(job: str, operator: str, kernel: str, door: Path, as_json: bool) -> None:
    """Let OPERATOR of the running JOB go on with KERNEL, or with `auto` leave it to placement.

    The window is carried over: no result is lost or repeated.  A restart goes by the job's document
    again.
    """
    from edged.door import ask

    answer = ask(door, "kernel", job=job, operator=operator, kernel=kernel)
    if as_json:
        click.echo(json.dumps(answer))
        return
    how = "as chosen" if answer["pinned"] else "until placement finds a better one"
    click.echo(f"{job}.{operator} runs {answer['kernel']}, {how}")
