"""`edged central expire`: deletes old landed pages that every consumer has read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import click

from edged.central.landing_option import existing_landing
from edged.documents.units import duration_us
from edged.errors import ConfigError, JobError


@click.command("expire")
@existing_landing
@click.option(
    "--older-than", required=True, metavar="DURATION", help="Smallest age of a page, e.g. 90d."
)
@click.option(
    "--unread",
    multiple=True,
    metavar="STREAM",
    help="A stream without consumers, e.g. edged.telemetry (repeatable).",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def command(
    landing: Path, older_than: str, unread: tuple[str, ...], dry_run: bool, as_json: bool
) -> None:
    """Delete landed segments that are old and that every consumer has read.

    Consumers are the tables of `edged central aggregate`, and your own streaming queries with the
    option `consumer`.  A segment that a consumer has not processed stays.  Collectors and
    aggregations may run meanwhile.  See docs/central.md.
    """
    from edged.central.expire import expire

    require_owner(landing)
    before_us = time.time_ns() // 1000 - age("--older-than", older_than)
    found = expire(landing, before_us, unread, dry_run)
    if as_json:
        click.echo(json.dumps({**asdict(found), "dry_run": dry_run}))
        return
    verb = "to delete" if dry_run else "deleted"
    click.echo(
        f"{len(found.segments)} segments {verb}: {found.pages:,} pages, {found.bytes:,} bytes"
    )
    if found.files:
        click.echo(f"{found.files} Parquet files {verb}: {found.file_bytes:,} bytes")
    for why, count in sorted(found.kept.items()):
        click.echo(f"{count} kept: {why}")


def age(option: str, text: str) -> int:
    """A duration in microseconds.  Raises ConfigError, which names the option."""
    try:
        return duration_us(option, text)
    except JobError as problem:
        raise ConfigError(str(problem)) from problem


def require_owner(landing: Path) -> None:
    """Require the collector's user, which must be able to read what is written."""
    owner = landing.stat().st_uid
    if os.geteuid() != owner:
        raise ConfigError(
            f"{landing} belongs to user {owner}: run this as that user, like the collector"
        )
