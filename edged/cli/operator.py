"""`edged operator`: operators that users write."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from edged.data.flow import Link
    from edged.operators.base import OperatorPlan
    from edged.operators.user.trial import TrialResult

COLUMNS_SHOWN = 8
"""Columns of a table on the terminal."""


@click.group(name="operator")
def command() -> None:
    """Operators that users write: run one alone on a file."""


@command.command(name="test")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--input", "inputs", required=True, multiple=True, metavar="DATA",
              type=click.Path(exists=True, dir_okay=False),
              help="Rows: Parquet, CSV, NDJSON or Arrow.  Repeatable.")  # fmt: skip
@click.option("--keys", default="", help="Key columns, separated by commas.")
@click.option("--time", "time_column", default="",
              help="Event-time column.  [default: the first timestamp]")  # fmt: skip
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE",
              help="A key of the operator's table, as TOML: parameters.limit=0.5.")  # fmt: skip
@click.option("--batch", "rows", default=65_536, show_default=True, type=click.IntRange(1),
              help="Rows of a beat.")  # fmt: skip
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64))
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def test(
    file: Path, inputs: tuple[str, ...], keys: str, time_column: str, pairs: tuple[str, ...],
    rows: int, workers: int, as_json: bool,
) -> None:  # fmt: skip
    """Run the operator in FILE alone over the rows of a file, and show what it makes of them.

    Shown are the outputs, the rows that it could not process with their reasons, the state, and
    the CPU time a row.  Exits with 65 where the code is refused.
    """
    from edged.client.files import read_batches
    from edged.data.flow import Link
    from edged.operators.user.trial import run_trial, schema_of, without_nulls

    batches = list(read_batches(inputs, rows))
    if not batches:
        raise ConfigError("--input: there are no rows")
    schema = schema_of(without_nulls(batches))
    times = [f.name for f in schema if f.dtype.name == "timestamp" and not f.nullable]
    time = time_column or next(iter(times), "")
    if time not in times:
        raise ConfigError(f"--time: {time or 'no column'} is no timestamp without nulls")
    document = _document(pairs)
    if keys:
        document["keys"] = [key.strip() for key in keys.split(",")]
    plan = _plan(file, document, Link(schema, time))
    result = run_trial(plan, schema, batches, workers)
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    else:
        _show(plan, result, batches)


def _document(pairs: Sequence[str]) -> dict[str, Any]:
    """The table that KEY=VALUE pairs describe."""
    from edged.documents.reader import loads

    for pair in pairs:
        if "=" not in pair:
            raise ConfigError(f"--set: {pair!r} is no KEY=VALUE")
    return loads("\n".join(pairs), "--set")


def _plan(file: Path, document: Mapping[str, Any], link: Link) -> OperatorPlan:
    """The checked operator, its kernels compiled."""
    from edged.errors import KernelError
    from edged.expressions import cache
    from edged.operators.kernel import KernelPlan
    from edged.operators.python import PythonPlan, takes_batches
    from edged.operators.user.code import of_file

    code = of_file(file)
    kind: type[KernelPlan | PythonPlan] = PythonPlan if takes_batches(code) else KernelPlan
    plan = kind.of_code("operators.test", "test", document, link, code)
    for text in plan.generated():
        try:
            cache.kernel(text)
        except KernelError as problem:
            raise plan.fault_of(problem) from problem
    return plan


def _show(plan: OperatorPlan, result: TrialResult, batches: Sequence[pa.RecordBatch]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False)

    def table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
        names = list(rows[0])[:COLUMNS_SHOWN]
        cut = f", {len(names)} of {len(rows[0])} columns" if len(names) < len(rows[0]) else ""
        made = Table(title=title + cut, title_justify="left", box=None)
        for name in names:
            made.add_column(name)
        for row in rows:
            made.add_row(*(str(row[name]) for name in names))
        console.print(made)

    for line in plan.describe():
        console.print(f"  {line}", soft_wrap=True)
    table(f"input: {result.rows} rows", batches[0].slice(0, 3).to_pylist())
    for name, count in result.outputs.items():
        first = result.first.get(name, [])
        if first:
            table(f"output {name}: {count} rows", first)
        else:
            console.print(f"output {name}: no rows")
    if result.refused:
        rows = [{"reason": r["reason"], **r["row"]} for r in result.refused]
        table(f"set aside: {result.errors} rows", rows)
    if result.state:
        records = [dict(zip(result.state_names, row, strict=True)) for row in result.state]
        table(f"state: {result.counters.get('records', len(records))} records", records)
    console.print(f"{result.ns_a_row:.1f} ns of CPU time a row")
    if child_us := result.counters.get("child_us"):
        console.print(f"{1000 * child_us / max(1, result.rows):.1f} ns a row in its processes")
