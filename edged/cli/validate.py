"""`edged validate`: check a job document or a configuration and list all faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.errors import EdgedError, JobError

if TYPE_CHECKING:
    from edged.config import Config

_JOB_KEYS = frozenset(("name", "streams", "operators", "sinks", "promises"))


@click.command(name="validate")
@click.argument("document", type=click.Path())
@click.option(
    "--values", is_flag=True, help="For a configuration: show every value and its origin."
)
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def command(document: str, values: bool, as_json: bool) -> None:
    """Check DOCUMENT without running anything: a job (TOML or JSON), or a configuration such as
    /etc/edged/edged.toml, with its drop-ins, the environment, and the jobs that it names.

    No daemon is asked: `edged jobs validate` checks whether a running one accepts the job.

    Exits with 0 where it is valid, 65 where a job is not, 78 where the configuration is not; every
    fault carries its path.
    """
    from edged.platform.libraries import use_libraries

    use_libraries()
    from edged.documents.unchecked import UNCHECKED, unchecked_line

    config, paths, unchecked = None, dict[str, str](), list[str]()
    if _is_config(document):
        wrong, notes, config = _config(document)
    else:
        wrong, notes, paths = check_job(document)
        unchecked = [] if wrong else [*UNCHECKED]
    if as_json:
        verdict = _verdict(document, wrong, notes)
        more: dict[str, Any] = {"values": config.values()} if config is not None and values else {}
        if unchecked:
            more["unchecked"] = unchecked
        click.echo(json.dumps({**verdict, **({"paths": paths} if paths else {}), **more}, indent=2))
    else:
        if config is not None and values:
            _print_values(config)
        _print_faults(document, wrong, notes)
        for part, path in paths.items():
            click.echo(f"  {part}: {path}")
        if unchecked:
            line = unchecked_line(unchecked, "`edged jobs validate` asks the daemon")
            click.echo(f"edged: {line}", err=True)
    if wrong:
        sys.exit(wrong[0].exit_code)


def _is_config(path: str) -> bool:
    """Whether the document is a configuration: by its name, or by its sections."""
    from edged.config.sections import SECTIONS
    from edged.documents.reader import load_document

    if Path(path).name == "edged.toml" or Path(path).parent.name == "edged.toml.d":
        return True
    try:
        keys = set(load_document(path))
    except JobError:
        return False
    return bool(keys & set(SECTIONS)) and not keys & _JOB_KEYS


def _config(path: str) -> tuple[list[EdgedError], list[str], Config]:
    from edged.config import read
    from edged.config.code_directories import set_code_directories
    from edged.daemon import configuration

    config, faults = read(path)
    set_code_directories(config)
    wrong: list[EdgedError] = list(faults)
    if not wrong:
        wrong = configuration.problems(config)
    return wrong, [], config


def check_job(path: str) -> tuple[list[EdgedError], list[str], dict[str, str]]:
    """Faults, warnings, and the paths of its sources and sinks from the working directory."""
    from edged.documents.reader import load_document
    from edged.job.explain import paths
    from edged.job.plan import faults, parse_job
    from edged.job.plan_warnings import warnings

    try:
        document = load_document(path)
    except JobError as fault:
        return [fault], [], {}
    wrong: list[EdgedError] = list(faults(document))
    if wrong:
        return wrong, [], {}
    plan = parse_job(document)
    if any(part.checks_code for part in plan.operators.values()):
        from edged.job.check import code_faults

        if refused := code_faults(plan):
            return [*refused], [], {}
    return [], warnings(plan), paths(plan, Path.cwd())


def _verdict(document: str, wrong: list[EdgedError], notes: list[str]) -> dict[str, Any]:
    rows = [
        {
            "path": getattr(fault, "path", None) or getattr(fault, "key", ""),
            "problem": getattr(fault, "problem", str(fault)),
            "advice": getattr(fault, "advice", ""),
            **({"origin": fault.origin} if hasattr(fault, "origin") else {}),
        }
        for fault in wrong
    ]
    return {"job": document, "valid": not wrong, "faults": rows, "warnings": notes}


def _print_faults(document: str, wrong: list[EdgedError], notes: list[str]) -> None:
    for fault in wrong:
        click.echo(f"edged: {fault}", err=True)
    for note in notes:
        click.echo(f"edged: warning: {note}", err=True)
    if wrong:
        count = "1 fault" if len(wrong) == 1 else f"{len(wrong)} faults"
        click.echo(f"edged: {document}: {count}", err=True)
    else:
        click.echo(f"{document} is valid")


def _print_values(config: Config) -> None:
    for row in config.values():
        click.echo(f"{row['key']} = {json.dumps(row['value'])}  [{row['origin']}]")
