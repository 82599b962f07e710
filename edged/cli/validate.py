"""`edged validate`: whether a job document is right, and everything that is wrong with it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from edged.errors import JobError


@click.command(name="validate")
@click.argument("job", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def command(job: str, as_json: bool) -> None:
    """Check JOB (a TOML or JSON document) without running anything.

    Exits with 0 where it is right, 65 where it is not; every fault is named with the path to it.
    """
    from edged.job.plan import faults, parse_job, warnings

    document, wrong = _load(job)
    if not wrong:
        wrong = faults(document)
    notes = [] if wrong else warnings(parse_job(document))
    if as_json:
        click.echo(json.dumps(_verdict(job, wrong, notes), indent=2))
    else:
        _say(job, wrong, notes)
    if wrong:
        sys.exit(wrong[0].exit_code)


def _load(job: str) -> tuple[dict[str, Any], list[JobError]]:
    from edged.job.document import load_document

    try:
        return load_document(job), []
    except JobError as fault:
        return {}, [fault]


def _verdict(job: str, wrong: list[JobError], notes: list[str]) -> dict[str, Any]:
    rows = [{"path": f.path, "problem": f.problem, "advice": f.advice} for f in wrong]
    return {"job": job, "valid": not wrong, "faults": rows, "warnings": notes}


def _say(job: str, wrong: list[JobError], notes: list[str]) -> None:
    for fault in wrong:
        click.echo(f"edged: {fault}", err=True)
    for note in notes:
        click.echo(f"edged: warning: {note}", err=True)
    if wrong:
        count = "1 fault" if len(wrong) == 1 else f"{len(wrong)} faults"
        click.echo(f"edged: {job}: {count}", err=True)
    else:
        click.echo(f"{job} is valid")
