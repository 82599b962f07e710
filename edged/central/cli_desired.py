"""`edged central desired`: what the centre wants of a device."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edged.errors import ConfigError, JobError


@click.command("desired")
@click.argument("device")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--landing",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The collectors' landing.",
)
@click.option("--clear", is_flag=True, help="Want nothing any more: all stays as it is there.")
@click.option("--show", is_flag=True, help="Print the document, and what the device says of it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    device: str, file: str | None, landing: Path, clear: bool, show: bool, as_json: bool
) -> None:
    """Want what FILE says of DEVICE: jobs, policy, upload windows (TOML or JSON).

    A text among its `jobs` names a job document's file beside FILE.  It is judged here, as far as
    that can be done without the device, gets the next version, and goes with the collector's next
    answer to the device, which judges it again.  See docs/central.md.
    """
    from edged.central.schemas import valid_id

    if not valid_id(device):
        raise ConfigError(f"{device!r} cannot name a device: a-z, then a-z 0-9 _ -, at most 63")
    if (file is not None) + clear + show != 1:
        raise click.UsageError("give one of FILE, --clear, --show")
    if not show:
        _write(landing, device, None if file is None else _document(Path(str(file))))
    told = _told(landing, device)
    if as_json or show:
        click.echo(json.dumps(told, indent=None if as_json else 1))
    else:
        click.echo(f"version {told['version']} is wanted of {device}")


def _document(file: Path) -> dict[str, Any]:
    """The document with its jobs in it.  Raises JobError."""
    from edged.centre_link.desired_state import check_jobs, parse
    from edged.documents.reader import load_document

    document = load_document(file)
    jobs = document.get("jobs")
    if isinstance(jobs, list):
        document["jobs"] = [
            load_document(file.parent / job) if isinstance(job, str) else job for job in jobs
        ]
    check_jobs(parse(document).jobs or ())
    return document


def _write(landing: Path, device: str, document: dict[str, Any] | None) -> None:
    from edged.central.tables import replace_file
    from edged.centre_link.desired_state import BYTES_MAX, read

    path = landing / "desired" / f"{device}.json"
    with _locked(path.parent):
        version = max(int(read(path).get("version", 0)), _reported(landing, device)) + 1
        data = json.dumps({"version": version, "document": document}).encode()
        if len(data) > BYTES_MAX:
            raise JobError("document", f"has {len(data)} bytes", f"at most {BYTES_MAX}")
        replace_file(path, data)


def _reported(landing: Path, device: str) -> int:
    """The version that the device has: it takes only later ones, whatever was lost here."""
    from edged.central.fleet import Fleet

    known = Fleet(landing).device(device)
    row = (known.row if known is not None else None) or {}
    return int(row.get("desired_version") or 0)


def _told(landing: Path, device: str) -> dict[str, Any]:
    from edged.central.fleet import Fleet
    from edged.centre_link.desired_state import read

    wanted = read(landing / "desired" / f"{device}.json")
    known = Fleet(landing).device(device)
    row = (known.row if known is not None else None) or {}
    return {
        "device": device,
        "version": int(wanted.get("version", 0)),
        "document": wanted.get("document"),
        "received": row.get("desired_version"),
        "applied": row.get("applied_version"),
        "problem": row.get("desired_problem") or "",
    }


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Versions are given one at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
