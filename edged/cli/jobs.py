"""`edged jobs`: the jobs of a running daemon."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.cli._api import as_json, on_api
from edged.errors import ConfigError, JobError
from edged.rest import ApiError, Client, all_of

if TYPE_CHECKING:
    from edged.rest.answers import Verdict
    from edged.rest.answers.base import Fault

EX_DATAERR, EX_UNAVAILABLE = 65, 69
_TYPES = {".toml": "application/toml", ".json": "application/json"}

_document = click.argument("document", type=click.Path(dir_okay=False, path_type=Path))
_version = click.option("--if-version", type=click.IntRange(1),
                        help="Only if the job is at this version.")  # fmt: skip
_wait = click.option(
    "--wait", is_flag=True, help="Wait until the operation is done, with progress."
)
_LONG = "respond-async"


@click.group(name="jobs")
def command() -> None:
    """Jobs of a running daemon: list, change, pause, drain.

    Uses the REST API.  Exits with 65 for a wrong document, 69 where the API is unreachable, 77
    where the token does not permit it, 78 for an unknown job.
    """


@command.command("list")
@on_api
@as_json
def list_(client: Client, as_json: bool) -> None:
    """All jobs, their versions and states."""
    found = list(all_of(client.jobs))
    if as_json:
        click.echo(json.dumps(found))
        return
    if not found:
        click.echo("no job: `edged jobs put FILE` creates one", err=True)
    width = max((len(job["name"]) for job in found), default=0)
    for job in found:
        problem = f"  {job['problem']}" if job["problem"] else ""
        text = f"{job['name']:{width}}  {job['state']:8}  version {job['version']}"
        click.echo(f"{text}  {job['origin']}{problem}")


@command.command("show")
@click.argument("name")
@on_api
def show(client: Client, name: str) -> None:
    """A job with its definition, as JSON."""
    click.echo(json.dumps(client.job(name), indent=2))


@command.command("put")
@_document
@_version
@click.option("--create", is_flag=True, help="Only if the job does not exist.")
@on_api
@as_json
def put(
    client: Client, document: Path, if_version: int | None, create: bool, as_json: bool
) -> None:
    """Create the job of DOCUMENT (TOML or JSON), or replace the one of its name.

    A replaced operator keeps its state where its id, type and schema are unchanged.
    """
    if create and if_version is not None:
        raise click.UsageError("--create and --if-version exclude each other")
    name, body, kind = _read(document)
    match, none = _etag(client, name, if_version), "*" if create else None
    job = client.put_job(
        name, body, kind, if_match=match, if_none_match=none, on_progress=_progress()
    )
    if as_json:
        click.echo(json.dumps(job))
        return
    click.echo(f"{job['name']}: {job['state']}, version {job['version']}")
    for note in job["notes"]:
        click.echo(f"  {note}")


@command.command("set")
@click.argument("name")
@click.argument("path")
@click.argument("value")
@_version
@on_api
@as_json
def set_(
    client: Client, name: str, path: str, value: str, if_version: int | None, as_json: bool
) -> None:
    """Change one value of the running job NAME, and keep its state.

    PATH is dotted, as `operators.x.schedule`; VALUE is written as in a TOML document, as
    `{every = "1s"}`, or is plain text.  The job is replaced as by `put`.
    """
    found = client.job(name)
    document = found["document"]
    *tables, key = path.split(".")
    table: Any = document
    for depth, part in enumerate(tables):
        table = table.get(part) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            at = ".".join(tables[: depth + 1])
            raise JobError(at, f"is no table of job {name}", f"see `edged jobs show {name}`")
    table[key] = _value(path, value)
    version = found["version"] if if_version is None else if_version
    body, match = json.dumps(document).encode(), f'"{version}.{found["created_us"]}"'
    job = client.put_job(name, body, _TYPES[".json"], if_match=match, on_progress=_progress())
    if as_json:
        click.echo(json.dumps(job))
        return
    click.echo(f"{name}: {path} = {json.dumps(table[key])}, version {job['version']}")


@command.command("validate")
@_document
@on_api
@as_json
@click.pass_context
def validate(ctx: click.Context, client: Client, document: Path, as_json: bool) -> None:
    """Check whether the device would accept DOCUMENT, and list its faults.

    The daemon decides as for `put`.  Where it does not answer, the document alone is checked; if
    that is valid, the exit code is 69.
    """
    from edged.documents.unchecked import unchecked_line

    _, body, kind = _read(document)
    try:
        verdict = client.validate_job(body, kind, on_progress=_progress())
    except ApiError as problem:
        if problem.status:
            raise
        click.echo(f"edged: {problem}", err=True)
        verdict = _checked_here(document)
    if as_json:
        click.echo(json.dumps(verdict))
    else:
        for fault in verdict["faults"]:
            advice = f" ({fault['do']})" if fault["do"] else ""
            click.echo(f"edged: {fault['where']}: {fault['what']}{advice}", err=True)
        for warning in verdict["warnings"]:
            click.echo(f"edged: warning: {warning}", err=True)
        for note in verdict["notes"]:
            click.echo(note)
        if verdict["unchecked"]:
            line = unchecked_line(verdict["unchecked"], "ask again when the daemon runs")
            click.echo(f"edged: {line}", err=True)
        if verdict["valid"]:
            click.echo(f"{document} is valid")
    unsure = EX_UNAVAILABLE if verdict["unchecked"] else 0
    ctx.exit(unsure if verdict["valid"] else EX_DATAERR)


@command.command("pause")
@click.argument("name")
@_version
@on_api
@as_json
def pause(client: Client, name: str, if_version: int | None, as_json: bool) -> None:
    """Stop reading the job's sources: its producers wait, nothing is lost."""
    _print_result(client.pause_job(name, if_match=_etag(client, name, if_version)), as_json)


@command.command("resume")
@click.argument("name")
@_version
@on_api
@as_json
def resume(client: Client, name: str, if_version: int | None, as_json: bool) -> None:
    """Continue after a pause or a drain."""
    _print_result(client.resume_job(name, if_match=_etag(client, name, if_version)), as_json)


@command.command("drain")
@click.argument("name")
@_version
@_wait
@on_api
@as_json
def drain(client: Client, name: str, if_version: int | None, wait: bool, as_json: bool) -> None:
    """Accept no new data, process what was accepted, and seal and ship all pages."""
    prefer = _LONG if wait else None
    job = client.drain_job(
        name, if_match=_etag(client, name, if_version), prefer=prefer, on_progress=_progress()
    )
    _print_result(job, as_json)


@command.command("delete")
@click.argument("name")
@_version
@click.option("--now", is_flag=True,
              help="Do not close windows; data that is not in a page is lost.")  # fmt: skip
@_wait
@on_api
@as_json
def delete(
    client: Client, name: str, if_version: int | None, now: bool, wait: bool, as_json: bool
) -> None:
    """End the job as if its producers had ended, then delete it and its state."""
    prefer = _LONG if wait else None
    job = client.delete_job(
        name,
        drain=not now,
        if_match=_etag(client, name, if_version),
        prefer=prefer,
        on_progress=_progress(),
    )
    if as_json:
        click.echo(json.dumps(job))
    else:
        click.echo(f"{name}: " + ("deleted" if now or wait else "draining, then it is deleted"))


@command.command("kernel")
@click.argument("job")
@click.argument("operator")
@click.argument("kernel")
@on_api
@as_json
def kernel(client: Client, job: str, operator: str, kernel: str, as_json: bool) -> None:
    """Switch OPERATOR of the running JOB to KERNEL, or with `auto` leave it to placement.

    The window is carried over: no result is lost or repeated.  After a restart the job's document
    applies again.
    """
    answer = client.set_kernel(job, operator, kernel)
    if as_json:
        click.echo(json.dumps(answer))
        return
    how = "as chosen" if answer["pinned"] else "until placement finds a better one"
    click.echo(f"{job}.{operator} runs {answer['kernel']}, {how}")


def _read(path: Path) -> tuple[str, bytes, str]:
    """The job's name, the document's bytes, and their media type.  Raises JobError, ConfigError."""
    from edged.documents.reader import load_document

    kind = _TYPES.get(path.suffix)
    if kind is None:
        raise ConfigError(f"{path}: a job document is .toml or .json")
    name = load_document(str(path)).get("name")
    if not isinstance(name, str) or not name:
        raise ApiError({"status": 422, "detail": f"{path}: name: is missing"})
    return name, path.read_bytes(), kind


def _checked_here(path: Path) -> Verdict:
    """The verdict on the document alone."""
    from edged.cli.validate import check_job
    from edged.documents.unchecked import UNCHECKED

    faults, warnings, _ = check_job(str(path))
    rows: list[Fault] = [
        {"where": f.path, "what": f.problem, "do": f.advice}
        for f in faults
        if isinstance(f, JobError)
    ]
    return {
        "valid": not faults,
        "name": None,
        "faults": rows,
        "warnings": warnings,
        "notes": [],
        "unchecked": [] if faults else [*UNCHECKED],
    }


def _value(path: str, text: str) -> Any:
    """A value as a TOML document writes it; other text stands for itself."""
    from edged.documents.reader import loads

    try:
        return loads(f"value = {text}", path)["value"]
    except JobError:
        if text[:1] in "{[\"'":
            raise
        return text


def _etag(client: Client, name: str, version: int | None) -> str | None:
    """The ETag of a version of the running job; the API refuses a version that is not current."""
    return None if version is None else f'"{version}.{client.job(name)["created_us"]}"'


def _print_result(job: Any, as_json: bool) -> None:
    click.echo(json.dumps(job) if as_json else f"{job['name']}: {job['state']}")


def _progress() -> Callable[[Any], None]:
    """A callback that prints an operation's progress when it changes."""
    last = ""

    def show_progress(operation: Any) -> None:
        nonlocal last
        step = operation["progress"]
        of = f" {step['done']} of {step['of']}" if step["of"] else ""
        if (text := f"edged: {step['step']}{of}") != last:
            click.echo(text, err=True)
            last = text

    return show_progress
