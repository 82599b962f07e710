"""`edged export`: a landing's rows as Parquet, CSV, NDJSON or Arrow, without Spark."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.errors import CentralError, ConfigError, PageError

if TYPE_CHECKING:
    from edged.central.export import Exported
    from edged.central.landing_reader import LandingRead

TELEMETRY = "edged.telemetry@"


@click.command(
    name="export",
    epilog="For example: edged export /srv/landing curve.parquet --stream curve@1"
    " --since 2026-11-01; or every stream: edged export /srv/landing out/ --format csv",
)
@click.argument("landing", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--stream", "streams", multiple=True, metavar="NAME[@VERSION]",
              help="A stream; may be repeated.  [default: all but telemetry]")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(["parquet", "csv", "ndjson", "arrow"]),
              help="Default: by OUT's suffix; parquet for a directory.")  # fmt: skip
@click.option("--device", "devices", multiple=True,
              help="Rows of this device; may be repeated.  [default: all]")  # fmt: skip
@click.option("--since", help="First time, such as 2026-11-24 or 2026-11-24T12:30:00Z.")
@click.option("--until", help="End of the times, excluded.")
@click.option("--time", default="", metavar="COLUMN",
              help="Column of these times, where a stream has several.")  # fmt: skip
@click.option("--columns", help="Only these, comma-separated.")
@click.option("--metadata", is_flag=True,
              help="Add _device, _epoch, _partition, _seq and _landed_at.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a stream, on stdout.")
def command(
    landing: Path, out: Path, streams: tuple[str, ...], kind: str | None, devices: tuple[str, ...],
    since: str | None, until: str | None, time: str, columns: str | None, metadata: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Write the rows that have landed in LANDING to OUT: a file for one stream, a directory for
    several, - for standard output.

    An existing file is replaced once the new one is whole.  Damaged pages are left out and counted;
    the exit code is then 65.
    """
    from edged.central.landing_reader import select
    from edged.central.read_request import registered_streams

    names = streams or [s for s in registered_streams(landing) if not s.startswith(TELEMETRY)]
    if not names:
        raise CentralError(f"{landing}: no stream is registered here")
    chosen = [name.strip() for name in columns.split(",")] if columns else ()
    sources = [
        select(landing, name, columns=chosen, devices=devices, since=since, until=until, time=time,
               metadata=metadata)
        for name in names
    ]  # fmt: skip
    if out == Path("-") and as_json:
        raise ConfigError("--json: standard output has the rows already")
    results = _write(sources, _targets(sources, out, kind), as_json)
    if any(result.corrupt_pages for result in results):
        sys.exit(PageError.exit_code)


def _targets(sources: list[LandingRead], out: Path, kind: str | None) -> list[tuple[Any, str]]:
    """The path (None: standard output) and the format of each source."""
    from edged.central.export import SUFFIXES, format_of
    from edged.console import options as checks

    directory = out.is_dir() or (out.suffix not in SUFFIXES and out != Path("-"))
    if directory:
        checks.directory("OUT", out)
        chosen = kind or "parquet"
        return [(out / f"{source.request.name}.{chosen}", chosen) for source in sources]
    if len(sources) > 1:
        listed = ", ".join(source.request.name for source in sources)
        raise ConfigError(f"{out}: one file takes one stream; choose with --stream: {listed}")
    if out == Path("-"):
        if kind is None or kind == "parquet":
            raise ConfigError("-: give --format csv, ndjson or arrow")
        return [(None, kind)]
    checks.output("OUT", out)
    return [(out, format_of(out, kind))]


def _write(
    sources: list[LandingRead], targets: list[tuple[Any, str]], as_json: bool
) -> list[Exported]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from edged.central.export import export

    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
    )
    results = []
    with Progress(*columns, console=console, transient=True) as bar:
        for source, (path, kind) in zip(sources, targets, strict=True):
            advance = partial(bar.advance, bar.add_task(source.request.name, total=source.rows))
            results.append(export(source, path, kind, sys.stdout.buffer, advance))
    for result in results:
        if as_json:
            click.echo(json.dumps(asdict(result)))
        else:
            console.print(_line(result), markup=False, soft_wrap=True)
    return results


def _line(result: Exported) -> str:
    size = f", {result.bytes:,} bytes" if result.bytes else ""
    damaged = f"; {result.corrupt_pages} damaged pages left out" if result.corrupt_pages else ""
    return f"{result.stream}: {result.rows:,} rows to {result.path}{size}{damaged}"
