"""What `edged central check` and `edged central repair` share: their output and exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from edged.errors import ConfigError

EXIT_MENDABLE, EXIT_LOST = 10, 65


def run(landing: Path, as_json: bool, repair: bool) -> None:
    """Check or repair; ends with 0, EXIT_MENDABLE or EXIT_LOST."""
    from edged.central import segments
    from edged.central.rot import check

    if not segments.segments_dir(landing).is_dir():
        raise ConfigError(f"{landing} is not a landing: it has no directory segments/")
    report = check(landing, repair)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        for finding in report.findings:
            click.echo(f"{finding.state}: {finding.file}: {finding.problem}")
        click.echo(
            f"{report.segments} segments, {report.pages:,} pages: "
            f"{len(report.findings)} damaged places, {len(report.lost)} of them lost"
        )
    if report.lost:
        sys.exit(EXIT_LOST)
    if report.findings and not repair:
        sys.exit(EXIT_MENDABLE)
