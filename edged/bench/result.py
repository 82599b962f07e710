"""The end of a benchmark whose rows are checked: progress, files, tables, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Result = dict[str, Any]


def with_progress(
    console: Any,
    run: Callable[[Callable[[str], None]], Result],
    total: int | None = None,
    completed: Callable[[], int] = lambda: 0,
) -> Result:
    """The result of `run`, which gets a function that shows the text of what comes next; with a
    bar where the number of steps is known."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bars = (BarColumn(), MofNCompleteColumn()) if total is not None else ()
    columns = (*bars, TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        return run(lambda text: bar.update(task, description=text, completed=completed()))


def conclude(
    console: Any,
    result: Result,
    path: Path | None,
    plot: Path | None,
    draw: Callable[[Result, Path], None],
    show: Callable[[Any, Result], None],
) -> None:
    """Write the result as JSON to `path`, print it, and draw it to `plot`, where they are given.

    Raises click.ClickException where rows are wrong."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    show(console, result)
    if plot is not None:
        draw(result, plot)
    wrong = [r for r in result["rows"] if not r["exact"]]
    if wrong:
        raise click.ClickException(f"{len(wrong)} rows have wrong results")
