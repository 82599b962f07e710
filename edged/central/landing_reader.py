"""A landing's rows as Arrow, without Spark: `edged.read_landing`.

    reader = edged.read_landing("/srv/landing", "curve@1", since="2026-11-01")
    duckdb.sql("SELECT turbine, avg(power_kw) FROM reader GROUP BY 1")
    polars.from_arrow(reader)

Batches are decoded while they are read, some megabytes at a time, and their memory is handed over
without a copy.  A reader covers what has landed when it is made, and can be read once.  Compacted
rows come first, in each Parquet file by device and then as they landed; pages follow in landing
order.  Types are those of the job's document (`edged.data.schema`): unsigned integers stay
unsigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from edged.central import compacted, segments
from edged.central._source_parquet import RowGroups, plan
from edged.central._source_parquet import read as read_compacted
from edged.central._source_plan import Slice, tasks
from edged.central._source_read import OnCorrupt, read
from edged.central.read_request import Request, resolve
from edged.central.time_range import Time, TimeRange, time_range
from edged.errors import ConfigError

TASK_BYTES = 1 << 40
"""One task holds everything: there is one reader."""


@dataclass(frozen=True)
class LandingRead:
    """A resolved read: its rows, and how many there are before the time range is applied, and in
    compacted rows the devices."""

    request: Request
    slices: tuple[Slice, ...]
    compacted: tuple[RowGroups, ...]
    schema: pa.Schema
    rows: int
    times: TimeRange | None

    def batches(
        self, on_read: Callable[[int], None], on_corrupt: OnCorrupt
    ) -> Iterator[pa.RecordBatch]:
        """The rows, see `read_landing`; `on_read` gets the number of rows read for each batch."""
        for batch in self._all(on_corrupt):
            on_read(batch.num_rows)
            kept = batch if self.times is None else self.times.keep(batch)
            if kept.num_rows:
                yield kept.select(self.schema.names)

    def _all(self, on_corrupt: OnCorrupt) -> Iterator[pa.RecordBatch]:
        request = replace(self.request, times=self.times)
        for part in self.compacted:
            yield from read_compacted(request, part)
        yield from read(self.request, self.slices, on_corrupt)


def read_landing(
    landing: str | Path,
    stream: str,
    *,
    columns: Sequence[str] = (),
    devices: Sequence[str] = (),
    since: Time = None,
    until: Time = None,
    time: str = "",
    metadata: bool = False,
    corrupt: str = "skip",
) -> pa.RecordBatchReader:
    """The landed rows of `stream` (`name@version`, or `name` for its latest version).

    `columns` and `devices`: none means all.  `since` (included) and `until` (excluded) bound the
    column `time`, which may be omitted where the stream has one timestamp column: ISO 8601 text,
    UTC without an offset, a date or a datetime.  `metadata` adds the origin of each row: _device,
    _epoch, _partition, _seq, _landed_at.  Damaged pages are left out; with `corrupt="fail"` they
    raise PageError.

    Raises ConfigError for wrong arguments, CentralError for an unregistered stream.
    """
    if corrupt not in ("skip", "fail"):
        raise ConfigError(f"corrupt: {corrupt!r} is neither skip nor fail")
    found = select(
        landing, stream, columns=columns, devices=devices, since=since, until=until, time=time,
        metadata=metadata,
    )  # fmt: skip
    found = replace(found, request=replace(found.request, fail_on_corrupt=corrupt == "fail"))
    rows = found.batches(lambda _: None, lambda *_: None)
    return pa.RecordBatchReader.from_batches(found.schema, rows)


def select(
    landing: str | Path,
    stream: str,
    *,
    columns: Sequence[str] = (),
    devices: Sequence[str] = (),
    since: Time = None,
    until: Time = None,
    time: str = "",
    metadata: bool = False,
) -> LandingRead:
    """Resolve the arguments of `read_landing`."""
    if not segments.segments_dir(landing).is_dir():
        raise ConfigError(f"{landing} is not a landing: it has no directory segments/")
    request = resolve(landing, stream, columns, metadata)
    request = replace(
        request,
        spark_types=False,
        devices=tuple(devices),
    )
    shown = request.arrow_schema()
    times = time_range(request.name, request.schema, time, since, until)
    if times is not None and times.column not in request.columns:
        request = replace(request, columns=(*request.columns, times.column))
    found = compacted.snapshot(landing)
    files = found.files(landing, request.name)
    pages = tasks(str(landing), request.stream_hash, {}, found.position, TASK_BYTES)
    slices = tuple(s for task in pages for s in task)
    rows = _count(request, slices) + sum(file.rows for _, file in files)
    return LandingRead(request, slices, tuple(plan(files, TASK_BYTES)), shown, rows, times)


def _count(request: Request, slices: Sequence[Slice]) -> int:
    rows = 0
    for name, first, stop in slices:
        index = segments.read_rows(request.landing, name, first, stop)
        rows += int(request.wanted(index)["tuples"].sum())
    return rows
