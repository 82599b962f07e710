"""A landing's rows as Arrow, without Spark: `edged.read_landing`.

    reader = edged.read_landing("/srv/landing", "curve@1", since="2026-11-01")
    duckdb.sql("SELECT turbine, avg(power_kw) FROM reader GROUP BY 1")
    polars.from_arrow(reader)

Batches are decoded while they are read, some megabytes at a time, and their memory is handed over
without a copy.  A reader covers what has landed when it is made, and can be read once.  Types are
those of the job's document (`edged.data.schema`): unsigned integers stay unsigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from edged.central import segments
from edged.central._source_plan import Slice, tasks
from edged.central._source_read import OnCorrupt, read
from edged.central.read_request import Request, resolve
from edged.errors import ConfigError

TASK_BYTES = 1 << 40
"""One task holds everything: there is one reader."""
Time = str | date | datetime | None


@dataclass(frozen=True)
class TimeRange:
    """Rows whose `column` is at or after `since_us` and before `until_us` (µs since 1970 UTC)."""

    column: str
    since_us: int | None
    until_us: int | None

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows within; those without a time are left out."""
        times = batch.column(self.column)
        mask = pc.is_valid(times)
        for bound_us, compare in ((self.since_us, pc.greater_equal), (self.until_us, pc.less)):
            if bound_us is not None:
                bound = pa.scalar(bound_us, pa.timestamp("us", tz="UTC"))
                mask = pc.and_(mask, pc.fill_null(compare(times, bound), False))
        return batch.filter(mask)


@dataclass(frozen=True)
class LandingRead:
    """A resolved read: its rows, and how many there are before the time range is applied."""

    request: Request
    slices: tuple[Slice, ...]
    schema: pa.Schema
    rows: int
    times: TimeRange | None

    def batches(
        self, on_read: Callable[[int], None], on_corrupt: OnCorrupt
    ) -> Iterator[pa.RecordBatch]:
        """The rows in landing order; `on_read` gets the number of rows decoded for each batch."""
        for batch in read(self.request, self.slices, on_corrupt):
            on_read(batch.num_rows)
            kept = batch if self.times is None else self.times.keep(batch)
            if kept.num_rows:
                yield kept.select(self.schema.names)


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
        devices=tuple(segments.device_hash(device) for device in devices),
    )
    shown = request.arrow_schema()
    times = _time_range(request, time, since, until)
    if times is not None and times.column not in request.columns:
        request = replace(request, columns=(*request.columns, times.column))
    end = segments.positions(landing)
    found = tasks(str(landing), request.stream_hash, {}, end, TASK_BYTES)
    slices = tuple(s for task in found for s in task)
    return LandingRead(request, slices, shown, _count(request, slices), times)


def _count(request: Request, slices: Sequence[Slice]) -> int:
    rows = 0
    for name, first, stop in slices:
        index = segments.read_rows(request.landing, name, first, stop)
        rows += int(request.wanted(index)["tuples"].sum())
    return rows


def _time_range(request: Request, column: str, since: Time, until: Time) -> TimeRange | None:
    if since is None and until is None:
        if column:
            raise ConfigError(f"time {column!r} needs since or until")
        return None
    times = [f.name for f in request.schema if f.dtype.name == "timestamp"]
    if not column and len(times) == 1:
        column = times[0]
    if column not in times:
        raise ConfigError(
            f"{request.name}: name the time column that since and until bound; it has "
            + (", ".join(times) or "no timestamp column")
        )
    return TimeRange(column, _us("since", since), _us("until", until))


def _us(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            text = f"{name}: {value!r} is not a time; write e.g. 2026-11-24 or 2026-11-24T12:30:00Z"
            raise ConfigError(text) from None
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    at: datetime = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
    since_1970: timedelta = at - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds
