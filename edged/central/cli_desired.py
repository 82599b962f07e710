"""`edged central desired`: sets or shows a device's desired state."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from edged.central.landing_option import existing_landing
from edged.errors import ConfigError, JobError


@click.command("desired")
@click.argument("device")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@existing_landing
@click.option(
    "--clear", is_flag=True, help="Clear the desired state: the device keeps its jobs and settings."
)
@click.option("--show", is_flag=True, help="Print the document and the device's answer to it.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    device: str, file: str | None, landing: Path, clear: bool, show: bool, as_json: bool
) -> None:
    """Set the desired state of DEVICE from FILE: jobs, policy, upload windows (TOML or JSON).

    A string in `jobs` names a job document's file, relative to FILE.  The document is checked here
    as far as possible without the device, gets the next version, and is sent to the device with
    the collector's next answer.  The device checks it again.  See docs/central.md.
    """
    from edged.central.schemas import valid_id

    if not valid_id(device):
        raise ConfigError(f"{device!r} cannot name a device: a-z, then a-z 0-9 _ -, at most 63")
    if (file is not None) + clear + show != 1:
        raise click.UsageError("give one of FILE, --clear, --show")
    if not show:
        _write(landing, device, None if file is None else _document(Path(str(file))))
    status = _status(landing, device)
    if as_json or show:
        click.echo(json.dumps(status, indent=None if as_json else 1))
    else:
        click.echo(f"version {status['version']} is the desired state of {device}")


def _document(file: Path) -> dict[str, Any]:
    """The document with its jobs included.  Raises JobError."""
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
    change_documents(landing, [device], lambda _: {device: document})


def change_documents(
    landing: Path,
    devices: Sequence[str],
    change: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> list[str]:
    """Change the desired states of several devices under one lock; returns those written.

    `change` gets the documents by device (None: there is none) and returns the new ones; each gets
    its device's next version.  Nothing is written where one of them is too large: JobError.
    """
    from edged.central import landing_format
    from edged.central.tables import replace_file
    from edged.centre_link.desired_state import BYTES_MAX, read
    from edged.documents import checked_json

    landing_format.require(landing)
    directory, files = landing / "desired", dict[str, bytes]()
    with _locked(directory):
        now = {device: read(directory / f"{device}.json") for device in devices}
        wanted = change({device: state.get("document") for device, state in now.items()})
        for device, document in wanted.items():
            version = max(int(now[device].get("version", 0)), _reported(landing, device)) + 1
            files[device] = checked_json.pack({"version": version, "document": document})
            if len(files[device]) > BYTES_MAX:
                problem = f"of {device} has {len(files[device])} bytes"
                raise JobError("document", problem, f"at most {BYTES_MAX}")
        for device, data in files.items():
            replace_file(directory / f"{device}.json", data)
    return list(files)


def _reported(landing: Path, device: str) -> int:
    """The version that the device has, a lower bound: the device accepts only later ones."""
    from edged.central.fleet import Fleet

    known = Fleet(landing).device(device)
    row = (known.row if known is not None else None) or {}
    return int(row.get("desired_version") or 0)


def _status(landing: Path, device: str) -> dict[str, Any]:
    from edged.central.fleet import Fleet
    from edged.centre_link.desired_state import read

    desired = read(landing / "desired" / f"{device}.json")
    known = Fleet(landing).device(device)
    row = (known.row if known is not None else None) or {}
    return {
        "device": device,
        "version": int(desired.get("version", 0)),
        "document": desired.get("document"),
        "received": row.get("desired_version"),
        "applied": row.get("applied_version"),
        "problem": row.get("desired_problem") or "",
    }


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock under which versions are assigned."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / ".lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
