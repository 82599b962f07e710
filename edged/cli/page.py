"""`edged page FILE`: the content of pages, as text or JSON.

FILE holds one page or several in sequence, as a segment of the landing does.  The schema is
`--schema`'s, else that of the landing that contains the file (`schemas/<stream>@<version>.json`
beside its `segments/`); without one only headers are shown.

JSON: {"file", "bytes", "pages": [{"offset", "stored_bytes", header fields..., "rows": [...]}],
"damaged": [{"offset", "bytes", "problem"}]}; binary values are hexadecimal, timestamps ISO 8601,
NaN and infinities text.  A damaged page is reported without content; the exit code is 65.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from edged.data.schema import Schema
from edged.errors import ConfigError, PageError
from edged.pages.format import LAYOUT_DENSE, Header, ScannedPage, scan_pages
from edged.pages.read import read_page, read_weights

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Schema JSON; default: that of the landing that contains FILE.",
)
@click.option("--rows", default=10, show_default=True, help="Rows to show of each page.")
def command(file: Path, as_json: bool, schema_file: Path | None, rows: int) -> None:
    """Show the pages in FILE: header, schema, first rows; report damage."""
    schemas = _Schemas(file, schema_file)
    found = [_page_json(f, schemas, rows) for f in scan_pages(file.read_bytes())]
    pages = [entry for entry in found if "problem" not in entry]
    damaged = [entry for entry in found if "problem" in entry]
    if as_json:
        document = {
            "file": str(file),
            "bytes": file.stat().st_size,
            "pages": pages,
            "damaged": damaged,
        }
        click.echo(json.dumps(document, indent=2))
    else:
        _print(found, schemas)
    if damaged:
        sys.exit(PageError.exit_code)


class _Schemas:
    """Schemas of streams, from the given file or from the landing's directory."""

    def __init__(self, file: Path, given: Path | None) -> None:
        self._given = None if given is None else _read_schema(given)
        self._directory = file.resolve().parent.parent / "schemas"
        self._known: dict[str, Schema | None] = {}

    def of(self, name: str) -> Schema | None:
        """The schema of `stream@version`, or None."""
        if self._given is not None:
            return self._given
        if name not in self._known:
            path = self._directory / f"{name}.json"
            safe = "/" not in name and path.is_file()
            self._known[name] = _read_schema(path) if safe else None
        return self._known[name]


def _read_schema(path: Path) -> Schema:
    try:
        return Schema.from_json(path.read_text())
    except (ValueError, KeyError, TypeError) as problem:
        raise ConfigError(f"{path} is not a schema: {problem!r}; give --schema") from None


def _stream(header: Header) -> str:
    return f"{header.stream}@{header.version}"


def _page_json(found: ScannedPage, schemas: _Schemas, rows: int) -> dict[str, Any]:
    """A page, or its damage, as JSON."""
    if found.header is None or found.problem is not None:
        return {"offset": found.offset, "bytes": len(found.data), "problem": str(found.problem)}
    header = found.header
    entry = {"offset": found.offset, **asdict(header), "compressed": header.compressed}
    entry["layout"] = "dense" if header.layout == LAYOUT_DENSE else "slotted"
    schema = schemas.of(_stream(header))
    if schema is None:
        return entry
    try:
        entry["rows"] = _rows(found, schema, rows)
    except PageError as problem:
        return {"offset": found.offset, "bytes": len(found.data), "problem": str(problem)}
    return entry


def _rows(found: ScannedPage, schema: Schema, count: int) -> list[dict[str, Any]]:
    batch = read_page(found.data, schema).slice(0, count)
    columns = {}
    for i, f in enumerate(schema):
        column = batch.column(i)
        if f.dtype.name == "timestamp":
            columns[f.name] = [
                None if v is None else _time(v) for v in column.cast("int64").to_pylist()
            ]
        elif f.dtype.name == "string":
            columns[f.name] = [_text(v) for v in column.cast("binary").to_pylist()]
        else:
            columns[f.name] = [_json(v) for v in column.to_pylist()]
    if found.header is not None and found.header.weighted:
        columns["(weight)"] = read_weights(found.data)[:count].tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _time(us: int) -> str:
    """ISO 8601, or plain microseconds for a year without four digits."""
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{us} us"


def _print(found: list[dict[str, Any]], schemas: _Schemas) -> None:
    console = Console(highlight=False)
    for entry in found:
        if "problem" in entry:
            console.print(
                f"[bold red]damaged[/] at byte {entry['offset']}, {entry['bytes']} bytes: ", end=""
            )
            console.print(entry["problem"], markup=False)
        else:
            _print_page(console, entry, schemas)
    good = sum("problem" not in entry for entry in found)
    tuples = sum(entry.get("tuples", 0) for entry in found)
    console.print(f"{good} pages, {tuples} rows; {len(found) - good} damaged")


def _print_page(console: Console, page: dict[str, Any], schemas: _Schemas) -> None:
    name = f"{page['stream']}@{page['version']}"
    console.print(f"[bold]{name}[/] partition {page['partition']} seq {page['seq']}", end="")
    console.print(f"  from {page['device']} epoch {page['epoch']}, beat {page['beat']}")
    packed = f", LZ4 from {page['raw_bytes']}" if page["compressed"] else ""
    console.print(
        f"  {page['layout']}, {page['tuples']} rows, {page['stored_bytes']} bytes{packed}, "
        f"capacity {page['capacity']}, CRC-32 {page['checksum']:08x}, at byte {page['offset']}"
    )
    console.print(
        f"  times {_time(page['time_min_us'])} to {_time(page['time_max_us'])}, "
        f"sealed {_time(page['sealed_at_us'])}"
    )
    schema = schemas.of(name)
    if schema is None:
        console.print(f"  no schema of {name} is known here: give --schema to see rows")
        return
    types = {f.name: f.dtype.name + ("?" if f.nullable else "") for f in schema}
    table = Table(box=None, pad_edge=False)
    for column in page["rows"][0] if page["rows"] else types:
        table.add_column(f"{column}\n[dim]{types.get(column, 'int32')}[/]", overflow="fold")
    for row in page["rows"]:
        table.add_row(*("[dim]null[/]" if v is None else _escaped(v) for v in row.values()))
    console.print(table)


def _escaped(value: Any) -> str:
    return str(value).replace("[", "\\[")
