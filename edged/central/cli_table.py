"""`edged central table`: the rows of a table, in the terminal."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import pyarrow as pa


@click.command("table")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--rows", default=20, show_default=True, type=click.IntRange(1),
              help="Rows that are shown.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print all rows, one JSON object each.")
def command(directory: Path, rows: int, as_json: bool) -> None:
    """Print a table that `edged central aggregate` keeps: OUTPUT/<table>.

    Shows the published version, sorted by its columns from left to right.  Exits with 75 where
    nothing was published yet.
    """
    from edged.central.tables import read

    table = read(directory)
    table = table.sort_by([(name, "ascending") for name in table.column_names])
    if as_json:
        for row in table.to_pylist():
            click.echo(json.dumps(row, default=str))
    else:
        _print(directory.name, table, rows)


def _print(title: str, table: pa.Table, rows: int) -> None:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=f"{title}: {table.num_rows:,} rows", title_justify="left")
    for field in table.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        shown.add_column(field.name, justify="right" if numeric else "left")
    for row in table.slice(0, rows).to_pylist():
        shown.add_row(*map(_cell, row.values()))
    if table.num_rows > rows:
        shown.add_row(*["…"] * table.num_columns)
    Console().print(shown)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return value.strftime("%Y-%m-%d %H:%M:%S") if isinstance(value, datetime) else str(value)
