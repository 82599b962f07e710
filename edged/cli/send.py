"""`edged send`: send a file's rows to a TCP source, acknowledged and resumable."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edged.client.messages import ROWS_MAX
from edged.client.replay_speed import due_us, parse_pace
from edged.errors import ConfigError, PeerError, RowsLost

if TYPE_CHECKING:
    import pyarrow as pa

    from edged.client import Producer

QUIET_S_MAX = 120.0
"""Time without an ack after which the command fails."""


@click.command("send")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--to", "address", required=True, metavar="HOST:PORT", help="The source's address.")
@click.option("--stream", required=True, help="The stream to feed.")
@click.option("--producer", metavar="ID", help="Producer's id; enables acks and resumption.")
@click.option("--pace", default="full", show_default=True, help="full, real_time or e.g. 60x.")
@click.option("--time", "time_column", metavar="COLUMN", help="Event time, for --pace.")
@click.option("--columns", metavar="LIST", help="name, name=column or name:type=column, …")
@click.option(
    "--batch",
    "size",
    type=click.IntRange(1, ROWS_MAX),
    default=8192,
    show_default=True,
    help="Rows a batch.",
)
@click.option("--token-file", type=click.Path(), help="File with the source's token.")
@click.option("--tls", is_flag=True, help="Use TLS with the system's authorities.")
@click.option("--ca", type=click.Path(), help="Use TLS with the authorities of this PEM file.")
@click.option("--plain-token", is_flag=True, help="Send the token without TLS beyond loopback.")
@click.option("--no-end", is_flag=True, help="Do not send end-of-stream after the last row.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, no progress.")
def command(files: tuple[str, ...], **options: Any) -> None:
    """Send the rows of Parquet, CSV or NDJSON files to a stream.

    With --producer every batch is acknowledged once it is committed, and sent again after a lost
    connection; an interrupted command continues after the last committed batch when it is run again
    with the same files, id, columns and batch size.  Other files under the same id are refused.
    Without --producer there are no acks and no guarantee.

    Exit code 65: rows were acknowledged and dropped because of their times.
    """
    outcome = SendRun(files, **options).run()
    click.echo(json.dumps(outcome) if options["as_json"] else _summary(outcome))
    if outcome["rows_late"] or outcome["rows_ahead"]:
        raise RowsLost(
            f"{outcome['rows_late']} rows came too late for stream {outcome['stream']}, and"
            f" {outcome['rows_ahead']} are too far ahead of its clock: they are acknowledged and"
            " dropped (docs/jobs.md, Time)"
        )


def _summary(outcome: dict[str, Any]) -> str:
    """The result as a line."""
    parts = [f"{outcome['rows']:,} rows sent"]
    if outcome["producer"] is not None:
        parts.append(f"{outcome['rows_acked']:,} acknowledged")
    if skipped := outcome["batches_skipped"]:
        parts.append(f"{skipped:,} batches skipped: they were committed before")
    return ", ".join(parts)


class SendRun:
    """One run of the command."""

    def __init__(self, files: tuple[str, ...], **options: Any) -> None:
        self._options = options
        self._files = files
        self._size = options["size"]
        try:
            self._factor = parse_pace(options["pace"])
        except ValueError as problem:
            raise ConfigError(f"--pace: {problem}") from None
        self._sent_rows = self._acked_rows = self._skipped = 0
        self._rows_of: dict[int, int] = {}
        self._acked = 0

    def run(self) -> dict[str, Any]:
        """Send everything; returns the counts."""
        from edged.client.files import parse_columns, read_batches

        try:
            text = self._options["columns"]
            picks = None if text is None else parse_columns(text)
        except ValueError as problem:
            raise ConfigError(f"--columns: {problem}") from None
        batches = read_batches(self._files, self._size, picks)
        first = next(batches, None)
        if first is None:
            raise ConfigError(f"{', '.join(self._files)}: no rows")
        producer = self._producer(first.schema)
        began = time.monotonic()
        try:
            with self._progress_line() as show:
                self._send_all(producer, first, batches, show)
                self._finish(producer, show)
        except TimeoutError as problem:
            raise PeerError(f"{problem}; is edged running there?") from None
        finally:
            producer.close()
        seconds = time.monotonic() - began
        return {
            "stream": self._options["stream"],
            "producer": self._options["producer"],
            "rows": self._sent_rows,
            "rows_acked": self._acked_rows,
            "rows_late": producer.late,
            "rows_ahead": producer.ahead,
            "batches_skipped": self._skipped,
            "connections": producer.connections,
            "seconds": round(seconds, 3),
            "rows_per_s": round(self._sent_rows / max(seconds, 1e-9)),
        }

    def _producer(self, schema: pa.Schema) -> Producer:
        from edged.client import Producer
        from edged.client.files import digest_of

        options, token = self._options, None
        content = ""
        if options["producer"] is not None:
            content = digest_of(self._files, options["columns"] or "", str(self._size))
        try:
            if options["token_file"] is not None:
                token = Path(options["token_file"]).read_text().strip()
            tls = options["ca"] if options["ca"] is not None else options["tls"]
            return Producer(
                options["address"],
                options["stream"],
                schema,
                options["producer"],
                token,
                tls,
                timeout_s=QUIET_S_MAX,
                plain_token=options["plain_token"],
                content=content,
            )
        except (OSError, ValueError) as problem:
            raise ConfigError(str(problem)) from None

    def _send_all(
        self, producer: Producer, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], show: Any
    ) -> None:
        done = producer.connect()
        clock = (
            None if self._factor == 0 else _Schedule(self._time_column(first.schema), self._factor)
        )
        number, batch = 1, first
        while batch is not None:
            if number <= done:
                self._skipped += 1
            else:
                while clock is not None and (wait_s := clock.wait_s(batch)) > 0:
                    self._count_acks(producer, show)
                    time.sleep(min(wait_s, 0.2))
                self._rows_of[producer.send(batch)] = batch.num_rows
                self._sent_rows += batch.num_rows
                self._count_acks(producer, show)
            number, batch = number + 1, next(rest, None)

    def _finish(self, producer: Producer, show: Any) -> None:
        """Wait for the last acks while they keep arriving."""
        named = self._options["producer"] is not None
        act = producer.end
        if self._options["no_end"]:
            act = producer.flush if named else producer.part
        quiet_since, acked = time.monotonic(), producer.acked
        while True:
            try:
                act(0.5)
                break
            except TimeoutError:
                if producer.acked != acked:
                    quiet_since, acked = time.monotonic(), producer.acked
                if time.monotonic() - quiet_since > QUIET_S_MAX:
                    raise
            self._count_acks(producer, show)
        self._count_acks(producer, show)

    def _count_acks(self, producer: Producer, show: Any) -> None:
        """Count the batches acknowledged so far."""
        if self._options["producer"] is not None:
            acked = producer.poll() if producer.unacked_bytes else producer.acked
            for number in range(self._acked + 1, acked + 1):
                self._acked_rows += self._rows_of.pop(number, 0)
            self._acked = max(self._acked, acked)
        show(self._sent_rows, self._acked_rows)

    def _time_column(self, schema: Any) -> str:
        import pyarrow as pa

        name: str | None = self._options["time_column"]
        kinds = {f.name: f.type for f in schema}
        if name is None:
            times = [n for n, kind in kinds.items() if pa.types.is_timestamp(kind)]
            if len(times) != 1:
                raise ConfigError("--pace needs the column of event time: give --time COLUMN")
            only: str = times[0]
            return only
        if name not in kinds or not pa.types.is_timestamp(kinds[name]):
            raise ConfigError(f"--time: {name} is not a column of timestamps")
        return name

    @contextmanager
    def _progress_line(self) -> Iterator[Any]:
        """A line of progress on a terminal; nothing with --json."""
        if self._options["as_json"]:
            yield lambda sent, acked: None
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        began = time.monotonic()
        with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()) as p:
            task = p.add_task("connecting")

            def show(sent: int, acked: int) -> None:
                rate = sent / max(time.monotonic() - began, 1e-9)
                acks = f", {acked:,} acked" if self._options["producer"] is not None else ""
                p.update(task, description=f"{sent:,} rows sent{acks}, {rate:,.0f} rows/s")

            yield show


class _Schedule:
    """Schedule of batches: a batch is sent when its last row is due."""

    def __init__(self, column: str, factor: float) -> None:
        self._column, self._factor = column, factor
        self._first_us: int | None = None
        self._began_us = 0

    def wait_s(self, batch: Any) -> float:
        """Seconds until the batch is due; 0 or less: now."""
        import pyarrow as pa
        import pyarrow.compute as pc

        times = batch.column(self._column).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        now_us = time.monotonic_ns() // 1000
        if self._first_us is None:
            self._first_us, self._began_us = pc.min(times).as_py() or 0, now_us
        last_us = pc.max(times).as_py()
        due = due_us(last_us or self._first_us, self._first_us, self._began_us, self._factor)
        return (due - now_us) / 1e6
