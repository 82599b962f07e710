"""Landed pages as a Spark data source, batch and streaming: `format("edged")`.

    spark.dataSource.register(EdgedDataSource)
    spark.read.format("edged").option("landing", DIR).option("stream", "curve@1").load()
    spark.readStream.format("edged").option("landing", DIR).option("stream", "curve@1").load()

Options

    landing             the landing's directory, seen by driver and executors alike (required)
    stream              `name@version`, or `name`: its latest version when the query starts
    columns             comma-separated: only these are decoded and in the schema; Spark does not
                        pass the used columns to Python sources
    metadata            true adds _device, _epoch, _partition, _seq and _landed_at
    devices             comma-separated: only rows of these
    since, until, time  only rows whose column `time` is at or after `since` and before `until`, as
                        for `edged.read_landing`
    corrupt             skip (default): a damaged page is left out and marked in LANDING/corrupt;
                        fail: it ends the query
    partition_bytes     page bytes per task, at most (64MiB)
    bytes_per_trigger   page bytes per micro-batch, at most, but never less than a page (256MiB)
    pages_per_trigger   pages per micro-batch, at most (no limit)
    consumer            a name: the position that Spark has committed is kept in
                        LANDING/consumers/<name>.json, which tells retention what is still needed
    position            batch: exactly these pages, `{segment: rows}`, and no compacted rows

A batch read covers compacted rows (`edged/central/compacted.py`) as well; with
`edged.central.landing_frame` Spark reads those itself, which is faster.  Streams read pages only.

Guarantees

1. An offset is `{segment: pages read of it}`, sorted, integers only: equal positions are equal
   texts.  Offsets never go back, and data below one never changes.
2. `partitions(start, end)` depends only on its arguments and the landing's files below `end`.
3. `read` keeps no state; reading a task twice gives the same batches.
4. `commit` is lazy and may be repeated; it deletes nothing.
5. A page counts completely or not at all: its checksum is verified before any row of it is used.

Executors need numpy, pyarrow and pyspark beside `edged/`; see `edged.central.package`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from edged.central import compacted, consumers, segments
from edged.central._source_parquet import RowGroups
from edged.central._source_parquet import plan as plan_row_groups
from edged.central._source_parquet import read as read_row_groups
from edged.central._source_plan import (
    BatchLimits,
    Position,
    Slice,
    advance,
    canonical,
    drop_retired,
)
from edged.central._source_plan import tasks as plan_tasks
from edged.central._source_read import read as read_slices
from edged.central.consumers import Consumer
from edged.central.local_directory import local_directory
from edged.central.read_request import Request, resolve
from edged.central.time_range import time_range
from edged.documents.units import size_bytes
from edged.errors import ConfigError

try:
    from pyspark.sql.streaming.datasource import ReadMaxBytes, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.0 and 4.1: no limits, a trigger reads everything available
    SupportsTriggerAvailableNow = object
    ReadMaxBytes = None

OPTIONS = frozenset(
    {
        *("landing", "path", "stream", "columns", "metadata", "corrupt", "partition_bytes"),
        *("bytes_per_trigger", "pages_per_trigger", "consumer"),
        *("devices", "since", "until", "time", "position"),
    }
)
_CONSUMER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,126}")
_SPARK: dict[pa.DataType, DataType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.decimal128(20, 0): DecimalType(20, 0),
    pa.timestamp("us", tz="UTC"): TimestampType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}


class EdgedDataSource(DataSource):  # type: ignore[misc]
    """The data source; see the module's docstring for its options."""

    _request: Request | None = None

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "edged"

    def schema(self) -> StructType:
        """The registered schema of the stream, reduced to the requested columns.

        Resolves the stream's version once; the pickled source carries it from then on.
        """
        return spark_schema(self.request())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of everything landed when the query is planned."""
        return _BatchReader(self.request(schema), self._settings())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of micro-batches."""
        if "position" in self.options:
            raise ConfigError("option position: a stream starts at its checkpoint")
        return _StreamReader(self.request(schema), self._settings())

    def request(self, schema: StructType | None = None) -> Request:
        """The request of the options.  Raises ConfigError for invalid ones, CentralError for an
        unregistered stream."""
        if self._request is None:
            self._request = _resolve(self.options)
        if schema is None or schema.fieldNames() == list(self._request.columns):
            return self._request
        names = ",".join(schema.fieldNames())
        return _resolve({**self.options, "columns": names, "metadata": "false"})

    def _settings(self) -> dict[str, Any]:
        return {
            "task_bytes": _size(self.options, "partition_bytes", "64MiB"),
            "bytes_per_trigger": _size(self.options, "bytes_per_trigger", "256MiB"),
            "pages_per_trigger": _number(self.options, "pages_per_trigger"),
            "consumer": self.options.get("consumer", ""),
            "position": _position(self.options),
        }


class EdgedPartition(InputPartition):  # type: ignore[misc]
    """One task: slices of segments."""

    def __init__(self, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.slices = slices


class CompactedPartition(InputPartition):  # type: ignore[misc]
    """One task: row groups of a compacted file."""

    def __init__(self, part: RowGroups) -> None:
        super().__init__(part)
        self.part = part


class _SliceReader:
    """The common part of both readers."""

    def __init__(self, request: Request, settings: dict[str, Any]) -> None:
        self._request, self._settings = request, settings

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches."""
        if isinstance(partition, CompactedPartition):
            return read_row_groups(self._request, partition.part)
        if not isinstance(partition, EdgedPartition):  # Spark's placeholder for "no partitions"
            return iter(())
        return read_slices(self._request, partition.slices)

    def _plan(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        request = self._request
        size = self._settings["task_bytes"]
        found = plan_tasks(request.landing, request.stream_hash, start, end, size)
        return [EdgedPartition(slices) for slices in found]


class _BatchReader(_SliceReader, DataSourceReader):  # type: ignore[misc]
    def partitions(self) -> Sequence[InputPartition]:
        request, position = self._request, self._settings["position"]
        if position is not None:
            return self._plan({}, position)
        found = compacted.snapshot(request.landing)
        files = found.files(request.landing, request.name)
        groups = plan_row_groups(files, self._settings["task_bytes"])
        return [*map(CompactedPartition, groups), *self._plan({}, found.position)]


class _StreamReader(_SliceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    _target: Position | None = None
    _registered = False

    def initialOffset(self) -> Position:
        """The empty position.  Spark calls this once, for a new checkpoint."""
        self._register(anew=True)
        return {}

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxBytes(self._settings["bytes_per_trigger"])

    def latestOffset(self, start: Position | None = None, limit: Any = None) -> Position:
        """The furthest end of the next micro-batch.

        PySpark 4.0 and 4.1 pass neither argument: the end is then everything landed.
        """
        self._register()
        landing = self._request.landing
        end = segments.positions(landing) if self._target is None else self._target
        if start is None:
            return canonical(end)
        reached = advance(landing, self._request.stream_hash, start, end, self._limits(limit))
        return reached if reached == start else drop_retired(landing, reached)

    def prepareForTriggerAvailableNow(self) -> None:
        """Ignore pages that land from now on."""
        self._register()
        self._target = canonical(segments.positions(self._request.landing))

    def reportLatestOffset(self) -> Position:
        """Everything landed, for the query's progress report."""
        return canonical(segments.positions(self._request.landing))

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        return self._plan(start, end)

    def commit(self, end: Position) -> None:
        """Record for retention that everything below `end` is processed."""
        name = self._settings["consumer"]
        if name:
            consumers.advance(self._request.landing, self._consumer(canonical(end)))

    def _register(self, anew: bool = False) -> None:
        """Register with retention before the first look at the landing."""
        name = self._settings["consumer"]
        if name and (anew or not self._registered):
            consumers.register(self._request.landing, self._consumer({}), anew)
            self._registered = True

    def _consumer(self, position: Position) -> Consumer:
        stream = f"{self._request.stream}@{self._request.version}"
        return Consumer(self._settings["consumer"], stream, position)

    def _limits(self, limit: Any) -> BatchLimits:
        """Spark's limit combined with the options'.  ReadAllAvailable overrides the options."""
        kind, pages = type(limit).__name__, self._settings["pages_per_trigger"]
        if kind == "ReadAllAvailable":
            return BatchLimits()
        if kind == "ReadMaxBytes":
            return BatchLimits(bytes=limit.max_bytes, pages=pages)
        if kind == "ReadMaxRows":
            return BatchLimits(rows=limit.max_rows, pages=pages)
        if kind == "ReadMaxFiles":
            return BatchLimits(pages=min(limit.max_files, pages or limit.max_files))
        if kind == "ReadMinRows" and self._target is None:
            return BatchLimits(rows_min=limit.min_rows, pages=pages)
        return BatchLimits(bytes=self._settings["bytes_per_trigger"], pages=pages)


def spark_schema(request: Request) -> StructType:
    """The Spark types of what `request` reads."""
    return StructType(
        [
            StructField(f.name, _spark_type(f.type), f.nullable, _metadata(f))
            for f in request.arrow_schema()
        ]
    )


def _spark_type(kind: pa.DataType) -> DataType:
    if pa.types.is_list(kind):
        return ArrayType(_SPARK[kind.value_type], False)
    return _SPARK[kind]


def _metadata(column: pa.Field) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in (column.metadata or {}).items()}


def corrupt_pages(landing: str | Path) -> int:
    """The number of damaged pages marked in the landing so far."""
    return sum(1 for _ in Path(landing, "corrupt").glob("seg-*.json"))


def _resolve(options: Any) -> Request:
    for key in options:
        if key.lower() not in OPTIONS:
            raise ConfigError(
                f"option {key!r} of format edged is not known; it has {', '.join(sorted(OPTIONS))}"
            )
    landing = options.get("landing") or options.get("path") or ""
    if not landing:
        raise ConfigError('format edged needs a landing: .option("landing", DIR)')
    local_directory(landing, "option landing")
    stream = options.get("stream", "")
    if not stream:
        raise ConfigError('format edged needs a stream: .option("stream", "curve@1")')
    metadata = options.get("metadata", "false").lower() == "true"
    request = resolve(landing, stream, _names(options.get("columns", "")), metadata)
    consumer = options.get("consumer", "")
    if consumer and not _CONSUMER.fullmatch(consumer):
        raise ConfigError(f"option consumer: {consumer!r} is not a name (letters, digits, _ . -)")
    corrupt = options.get("corrupt", "skip")
    if corrupt not in ("skip", "fail"):
        raise ConfigError(f"option corrupt: {corrupt!r} is neither skip nor fail")
    times = time_range(
        request.name, request.schema, options.get("time", ""), options.get("since"),
        options.get("until"),
    )  # fmt: skip
    devices = tuple(_names(options.get("devices", "")))
    return replace(request, fail_on_corrupt=corrupt == "fail", devices=devices, times=times)


def _position(options: Any) -> Position | None:
    text = options.get("position")
    if text is None:
        return None
    try:
        return canonical({str(name): int(rows) for name, rows in json.loads(text).items()})
    except (ValueError, TypeError, AttributeError) as problem:
        raise ConfigError(f"option position: {text!r} is not {{segment: rows}}") from problem


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _size(options: Any, key: str, default: str) -> int:
    text = options.get(key, default)
    return size_bytes(f"option {key}", int(text) if text.isdigit() else text, least=1)


def _number(options: Any, key: str) -> int | None:
    text = options.get(key)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"option {key}: {text!r} is not a whole number above 0")
    return int(text)
