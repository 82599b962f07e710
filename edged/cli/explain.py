"""`edged explain`: the plan of a job, before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(name="explain")
@click.argument("job", type=click.Path())
@click.option(
    "--store",
    "directory",
    type=click.Path(path_type=Path),
    help="A store that was calibrated: which kernels would run there.",
)
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
def command(job: str, directory: Path | None, as_json: bool) -> None:
    """Print what JOB (a TOML or JSON document) will do: graph, operators, state, schemas."""
    from rich.console import Console

    from edged.calibration import load_profile
    from edged.job.explain import explain, show
    from edged.job.plan import load_job

    plan = load_job(job)
    profile = None if directory is None else load_profile(directory)
    if as_json:
        click.echo(json.dumps(explain(plan, profile), indent=2))
        return
    show(plan, Console(highlight=False), profile)
