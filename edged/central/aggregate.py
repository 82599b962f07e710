"""Aggregation: merges streams of landed pages into tables, counting each row once.

Each table has one streaming query, with its checkpoint at `CHECKPOINT/<table>` and its directory at
`OUTPUT/<table>` (see `edged.central.tables`).  Batch N makes version N from version N-1:

    offsets of N logged │ sql over the rows of N │ merge with v=N-1 │ write v=N │ publish │ commit N
                        ╰──────────────────────── repeated after a crash ───────╯

Invariants

1. A batch that Spark repeats has the offsets that were logged for it.  Version N therefore always
   has the same rows.  It is computed from N-1, never from what an interrupted run left of N.
2. If N is already published with the same offsets, repeating it changes nothing.
3. Output and checkpoint belong together: a table written with another checkpoint, or a checkpoint
   without its table, is refused, because going on would lose or repeat rows.
4. One aggregation at a time writes to an output: it holds a lock on it.

Merge mode has no watermark over the fleet: rows of a device that was offline for a day merge into
their keys like any others.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from edged.central.column_pruning import needed_columns
from edged.central.datasource import EdgedDataSource, corrupt_pages
from edged.central.merge import changes, conform, left, merged, published, state_schema
from edged.central.session import open_session, register_source
from edged.central.spec import Spec, TableSpec
from edged.central.tables import APPEND, CHANGES, FINAL, MERGE, Manifest, TableDirectory
from edged.errors import CentralError, EdgedError, JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Event = dict[str, Any]
_POLL_S = 0.2
_INITIALIZING_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class AggregateOptions:
    """How an aggregation runs; driver and executors must see the same paths."""

    landing: str
    output: str
    checkpoint: str
    master: str = "local[*]"
    trigger_us: int | None = None
    """Time between micro-batches; None: process everything landed, then end."""
    stop_when_idle_s: float | None = None
    """End when nothing new has landed for this time; None: never."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark settings that override edged's own."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Further options of the data source, e.g. bytes_per_trigger."""


class TableQuery:
    """The streaming query of one table."""

    def __init__(
        self, spark: SparkSession, spec: Spec, table: TableSpec, options: AggregateOptions
    ) -> None:
        """Check the table's SQL against the stream's schema.  Raises JobError, CentralError."""
        from pyspark.errors import PySparkException

        self.table, self.options = table, options
        self.directory = TableDirectory(Path(options.output) / table.name)
        self.failure: BaseException | None = None
        self.spark = spark
        self.source_options, schema = self._resolve(spec.streams[table.source])
        try:
            self.state = self._checked(schema)
        except PySparkException as problem:
            raise JobError(f"tables.{table.name}.sql", _first_line(problem)) from problem
        self._check_output()

    def _resolve(self, stream: str) -> tuple[dict[str, str], StructType]:
        options = {**self.options.source, "landing": self.options.landing, "stream": stream}
        options["consumer"] = self._consumer()
        whole = EdgedDataSource(options).request()
        also = [self.table.watermark[0]] if self.table.watermark else []
        names = needed_columns(self.table.sql, whole.schema.names, also)
        weight = whole.schema.weight
        if weight and weight not in names:
            raise JobError(
                f"tables.{self.table.name}.sql", f"leaves out {weight}, the weight of its rows",
                f"a row of weight -1 takes one back: sum({weight}) counts, sum({weight} * x) adds",
            )  # fmt: skip
        options |= {"stream": f"{whole.stream}@{whole.version}", "columns": ",".join(names)}
        return options, EdgedDataSource(options).schema()

    def _consumer(self) -> str:
        """This query's name for retention, unique by its checkpoint."""
        base = self.options.source.get("consumer", "aggregate")
        place = hashlib.sha256(str(self._checkpoint().resolve()).encode()).hexdigest()[:8]
        return f"{base}-{self.table.name}-{place}" if base else ""

    def _checked(self, schema: StructType) -> StructType | None:
        """The state's schema in merge mode, from a dry run over no rows."""
        empty = self.spark.createDataFrame([], schema)
        empty.createOrReplaceTempView(self.table.source)
        partial = self.spark.sql(self.table.sql)
        if self.table.mode == APPEND:
            return None
        state = state_schema(partial, self.table)
        if self.table.view:
            self.spark.createDataFrame([], state).createOrReplaceTempView("this")
            try:
                self.spark.sql(self.table.view)
            except Exception as problem:
                path = f"tables.{self.table.name}.view"
                raise JobError(path, _first_line(problem)) from problem
        return state

    def _check_output(self) -> None:
        current = self.directory.current()
        if current is None:
            return
        if current.fingerprint != self.table.fingerprint() or current.columns != self._columns():
            raise CentralError(
                f"{self.directory.path}: was written with other keys, merge functions or column "
                f"types than tables.{self.table.name} has now; its rows cannot be carried over: "
                "give a new --output and a new --checkpoint to aggregate everything in the landing "
                "again"
            )
        self.directory.link_published(current)

    def start(self) -> Any:
        """Start the query; returns Spark's StreamingQuery."""
        source = register_source(self.spark, f"edged-{self.table.name}")
        reader = self.spark.readStream.format(source).options(**self.source_options)
        rows = reader.load()
        if self.table.mode == APPEND:
            if self.table.watermark:
                column, delay_us = self.table.watermark
                rows = rows.withWatermark(column, f"{delay_us} microseconds")
            rows.createOrReplaceTempView(self.table.source)
            rows = self.spark.sql(self.table.sql)
        process = self.append_batch if self.table.mode == APPEND else self.merge_batch
        writer = rows.writeStream.queryName(self.table.name).foreachBatch(self._guarded(process))
        writer = writer.option("checkpointLocation", str(self._checkpoint()))
        if self.options.trigger_us is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self.options.trigger_us} microseconds").start()

    def merge_batch(self, rows: DataFrame, batch: int) -> None:
        """Make version `batch` of the table from the one before and `rows`."""
        offset, query = self._offset(batch), _query_id(rows)
        if self._published(batch, query, offset):
            return
        session = rows.sparkSession
        rows.createOrReplaceTempView(self.table.source)
        assert self.state is not None
        partial = conform(session.sql(self.table.sql), self.state)
        if batch > 0:
            state = session.read.schema(self.state).parquet(str(self._state(batch - 1)))
            partial = state.unionByName(partial)
        whole = left(merged(partial, self.table), self.table)
        self.write_state(conform(whole, self.state), batch)
        self.write_view(session, batch)
        self._publish(batch, query, offset, self._state(batch))

    def append_batch(self, rows: DataFrame, batch: int) -> None:
        """Write `rows` as the rows of `batch`."""
        offset, query = self._offset(batch), _query_id(rows)
        if self._published(batch, query, offset):
            return
        self._write(rows, self.directory.batch(batch))
        self._publish(batch, query, offset, self.directory.batch(batch))

    def write_state(self, state: DataFrame, batch: int) -> None:
        """Write the merged rows of version `batch`, overwriting what an interrupted run left."""
        state.write.mode("overwrite").parquet(str(self._state(batch)))

    def write_view(self, session: SparkSession, batch: int) -> None:
        """Write the published rows of version `batch`, or how they differ from those before."""
        if self.table.mode == CHANGES:
            before = self._view(session, batch - 1) if batch > 0 else None
            self._write(changes(before, self._view(session, batch)), self.directory.batch(batch))
        elif self._has_final():
            self._write(self._view(session, batch), self.directory.version(batch) / FINAL)

    def _has_final(self) -> bool:
        """Whether published rows are others than the state's."""
        return bool(self.table.view or self.table.weight)

    def _view(self, session: SparkSession, version: int) -> DataFrame:
        """The published rows of a version."""
        state = session.read.schema(self.state).parquet(str(self._state(version)))
        rows = published(state, self.table)
        if not self.table.view:
            return rows
        rows.createOrReplaceTempView("this")
        return session.sql(self.table.view)

    def _write(self, rows: DataFrame, place: Path) -> None:
        writer = rows.write.mode("overwrite").format(self.table.format)
        if self.table.format == "csv":
            writer = writer.option("header", "true")
        writer.save(str(place))

    def _publish(self, batch: int, query: str, offset: str, counted: Path) -> None:
        shown = FINAL if self._has_final() else "state"
        shown = shown if self.table.mode == MERGE else "batch"
        manifest = Manifest(
            version=batch,
            query=query,
            mode=self.table.mode,
            format="parquet" if shown == "state" else self.table.format,
            shown=shown,
            fingerprint=self.table.fingerprint(),
            columns=self._columns(),
            offset=offset,
            rows=_rows_in(counted),
        )
        self.directory.publish(manifest)
        self.directory.prune(manifest)

    def _published(self, batch: int, query: str, offset: str) -> bool:
        """Whether `batch` is in the table already.  Raises CentralError if table and checkpoint do
        not belong together."""
        current = self.directory.current()
        if current is None and batch == 0:
            return False
        if current is None or current.query != query or not 0 <= batch - current.version <= 1:
            had = "nothing" if current is None else f"version {current.version}"
            raise CentralError(
                f"{self.directory.path} holds {had}, the checkpoint {self._checkpoint()} is at "
                f"batch {batch}: they do not belong together. Restore both from the same moment, "
                "or start again with a new --output and a new --checkpoint"
            )
        return current.version == batch and current.offset == offset

    def _offset(self, batch: int) -> str:
        """The source offset that Spark logged for `batch`; empty if it is not readable here."""
        try:
            log = (self._checkpoint() / "offsets" / str(batch)).read_text("utf-8")
        except OSError:
            return ""
        return log.rstrip("\n").rpartition("\n")[2]

    def _columns(self) -> str:
        return "" if self.state is None else str(self.state.json())

    def _state(self, version: int) -> Path:
        return self.directory.version(version) / "state"

    def _checkpoint(self) -> Path:
        return Path(self.options.checkpoint) / self.table.name

    def _guarded(
        self, process: Callable[[DataFrame, int], None]
    ) -> Callable[[DataFrame, int], None]:
        """`process` with its exception kept: Spark returns only the exception's text."""

        def guarded(rows: DataFrame, batch: int) -> None:
            try:
                process(rows, batch)
            except BaseException as problem:
                self.failure = problem
                raise

        return guarded


class Aggregation:
    """The running queries of all tables of a spec."""

    def __init__(self, spark: SparkSession, spec: Spec, options: AggregateOptions) -> None:
        self.options = options
        self.tables = {n: TableQuery(spark, spec, t, options) for n, t in spec.tables.items()}
        self.queries: dict[str, Any] = {}
        for name, table in self.tables.items():
            self.queries[name] = table.start()
            _wait_until_initialized(self.queries[name])
        self._seen = dict.fromkeys(self.tables, -1)
        self._busy_at = time.monotonic()
        self.rows = dict.fromkeys(self.tables, 0)
        """Input rows per table, of the batches of this run."""

    def events(self) -> Iterator[Event]:
        """One event for each micro-batch that has ended since the last call."""
        for name, query in self.queries.items():
            for progress in query.recentProgress:
                batch = int(progress["batchId"])
                if int(progress["numInputRows"]) > 0 and batch > self._seen[name]:
                    self._seen[name], self._busy_at = batch, time.monotonic()
                    yield self._event(name, batch, progress)

    def _event(self, name: str, batch: int, progress: Any) -> Event:
        rows = int(progress["numInputRows"])
        self.rows[name] += rows
        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        manifest = self.tables[name].directory.current()
        return {
            "event": "batch",
            "table": name,
            "batch": batch,
            "rows": rows,
            "seconds": seconds,
            "rows_per_s": round(rows / seconds) if seconds else None,
            "table_rows": manifest.rows if manifest else 0,
            "corrupt_pages": corrupt_pages(self.options.landing),
        }

    def running(self) -> bool:
        """Whether any query still runs; raises the cause of a failed one as edged's own error."""
        for name, query in self.queries.items():
            problem = query.exception()
            if problem is not None:
                raise self._error(name, problem)
        return any(query.isActive for query in self.queries.values())

    def idle_s(self) -> float:
        """Seconds since a batch with rows ended, or since the start."""
        return time.monotonic() - self._busy_at

    def stop(self) -> None:
        """Stop all queries; an unfinished batch is repeated after a restart."""
        for query in self.queries.values():
            query.stop()

    def _error(self, name: str, problem: Any) -> EdgedError:
        cause = self.tables[name].failure
        if isinstance(cause, EdgedError):
            return cause
        return CentralError(f"table {name}: {_first_line(cause or problem)}")


def aggregate(
    spec: Spec,
    options: AggregateOptions,
    on_event: Callable[[Event], None] = lambda event: None,
    stop: threading.Event | None = None,
) -> Event:
    """Run the aggregation until everything landed is in the tables, it has been idle for
    `stop_when_idle_s`, or `stop` is set.  Returns a summary: rows, seconds, corrupt pages."""
    stop = stop or threading.Event()
    started = time.monotonic()
    with locked(options.output):
        spark = open_session(options.master, "edged aggregate", options.conf)
        try:
            run = Aggregation(spark, spec, options)
            try:
                _watch(run, on_event, stop)
            finally:
                run.stop()
        finally:
            spark.stop()
    return {
        "event": "end",
        "rows": run.rows,
        "seconds": round(time.monotonic() - started, 3),
        "corrupt_pages": corrupt_pages(options.landing),
    }


def _watch(run: Aggregation, on_event: Callable[[Event], None], stop: threading.Event) -> None:
    limit = run.options.stop_when_idle_s
    while run.running() and not stop.is_set():
        for event in run.events():
            on_event(event)
        if limit is not None and run.idle_s() > limit:
            return
        time.sleep(_POLL_S)  # not stop.wait: a signal that sets it would meet the lock of the wait
    for event in run.events():
        on_event(event)


@contextmanager
def locked(output: str) -> Iterator[None]:
    """Hold the output's lock.  Raises CentralError if another aggregation holds it."""
    place = Path(output)
    place.mkdir(parents=True, exist_ok=True)
    with open(place / ".lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CentralError(
                f"{place}: another aggregation writes here; stop it, or give another --output"
            ) from None
        yield


def _wait_until_initialized(query: Any) -> None:
    """Wait until Spark has made the query's source, or the query has ended.

    Spark starts a Python process for each query's source and gives it 10 s, which concurrent
    starts on a busy machine may miss ("Python worker failed to connect back").
    """
    while query.isActive and query.status["message"].startswith("Initializing"):
        time.sleep(_INITIALIZING_POLL_S)


def _query_id(rows: DataFrame) -> str:
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _rows_in(place: Path) -> int:
    return sum(pq.ParquetFile(f).metadata.num_rows for f in place.glob("*.parquet"))


def _first_line(problem: Any) -> str:
    text = str(problem).strip()
    return text.splitlines()[0] if text else type(problem).__name__
