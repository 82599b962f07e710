"""`edged central aggregate`: keeps tables up to date with the landing."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from edged.central.aggregation_metrics import AggregationMetrics
from edged.central.cli_collect import parse_listen
from edged.central.local_directory import local_directory
from edged.central.metrics import listen
from edged.central.spec import Spec, load_spec
from edged.documents.units import duration_us
from edged.errors import ConfigError, EdgedError, JobError

if TYPE_CHECKING:
    from edged.central.aggregate import Event


@click.command("aggregate")
@click.argument("spec", type=click.Path(dir_okay=False))
@click.option("--landing", required=True, help="The collector's landing directory.")
@click.option("--output", required=True, help="Directory of the tables: OUTPUT/<table>.")
@click.option("--checkpoint", required=True, help="Directory of Spark's position.")
@click.option("--master", default="local[*]", show_default=True, help="Spark master.")
@click.option(
    "--trigger",
    default="available-now",
    show_default=True,
    help="available-now: process everything landed, then end; or the time between batches: 1s.",
)
@click.option("--stop-when-idle", metavar="SECONDS", type=float, help="End after this idle time.")
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting (repeatable).")
@click.option(
    "--source",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the page source, e.g. bytes_per_trigger=64MiB (repeatable).",
)
@click.option(
    "--metrics",
    metavar="ADDRESS:PORT",
    help="Serve metrics for Prometheus here, at /metrics: batches, rows, how far behind.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per batch on stdout.")
def command(
    spec: str,
    landing: str,
    output: str,
    checkpoint: str,
    master: str,
    trigger: str,
    stop_when_idle: float | None,
    conf: tuple[str, ...],
    source: tuple[str, ...],
    metrics: str | None,
    as_json: bool,
) -> None:
    """Merge the streams in a landing into the tables that SPEC describes, each row once.

    Killed at any moment and started again on the same checkpoint, it continues without losing or
    repeating rows. Ctrl-C and SIGTERM end it in order. See docs/spark.md for the spec.
    """
    from edged.central.session import check_pyspark

    for option, directory in (
        ("--landing", landing), ("--output", output), ("--checkpoint", checkpoint),
    ):  # fmt: skip
        local_directory(directory, option)
    document = load_spec(spec)
    interval = None if trigger == "available-now" else _interval_us(trigger)
    check_pyspark()
    from edged.central.aggregate import AggregateOptions, aggregate

    options = AggregateOptions(
        landing=landing,
        output=output,
        checkpoint=checkpoint,
        master=master,
        trigger_us=interval,
        stop_when_idle_s=stop_when_idle,
        conf=_pairs("--conf", conf),
        source=_pairs("--source", source),
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    counts = AggregationMetrics(document, landing, output, interval)
    with _serving_metrics(metrics, counts), _Display(document, as_json) as display:

        def show(event: Event) -> None:
            counts.on_event(event)
            display.show(event)

        try:
            display.show(aggregate(document, options, show, stop))
        except EdgedError:
            counts.on_failure()
            raise


@contextmanager
def _serving_metrics(metrics: str | None, counts: AggregationMetrics) -> Iterator[None]:
    if metrics is None:
        yield
        return
    address, close = listen(*parse_listen(metrics, "--metrics"), counts.exposition)
    click.echo(f"metrics on {address}", err=True)
    try:
        yield
    finally:
        close()


class _Display:
    """Progress on stderr; with `--json`, events on stdout."""

    def __init__(self, spec: Spec, as_json: bool) -> None:
        self._json = as_json
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=as_json,
        )
        self._tasks = {n: self._progress.add_task(n, total=None, text="") for n in spec.tables}
        self._rows = dict.fromkeys(spec.tables, 0)

    def __enter__(self) -> _Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Display one event."""
        if self._json:
            click.echo(json.dumps(event, separators=(",", ":")))
        elif event["event"] == "batch":
            name = event["table"]
            self._rows[name] += event["rows"]
            text = f"batch {event['batch']}: {self._rows[name]:,} rows in"
            text += f", {event['rows_per_s'] or 0:,} rows/s, {event['table_rows']:,} in the table"
            self._progress.update(self._tasks[name], text=text + _damage(event))
        else:
            rows = ", ".join(f"{n} {r:,}" for n, r in event["rows"].items())
            text = f"done in {event['seconds']:.1f} s; rows taken: {rows}{_damage(event)}"
            self._progress.console.print(text)


def _damage(event: Event) -> str:
    pages = event["corrupt_pages"]
    return f"; {pages} damaged pages left out, see LANDING/corrupt" if pages else ""


def _interval_us(trigger: str) -> int:
    try:
        return duration_us("--trigger", trigger, least=1_000)
    except JobError as problem:
        raise ConfigError(f"{problem}; or available-now") from problem


def _pairs(option: str, values: tuple[str, ...]) -> dict[str, str]:
    found = dict(value.partition("=")[::2] for value in values)
    for value in values:
        if "=" not in value:
            raise ConfigError(f"{option} {value}: write KEY=VALUE")
    return found
