"""`edged explain`: the plan of a job, before anything runs."""

from __future__ import annotations

import json

import click


@click.command(name="explain")
@click.argument("job", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
def command(job: str, as_json: bool) -> None:
    """Print what JOB (a TOML or JSON document) will do: graph, operators, state, schemas."""
    from rich.console import Console

    from edged.job.explain import explain, show
    from edged.job.plan import load_job

    plan = load_job(job)
    if as_json:
        click.echo(json.dumps(explain(plan), indent=2))
        return
    show(plan, Console(highlight=False))
