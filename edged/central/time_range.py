"""The range of a column's times that a read covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

from edged.data.schema import Schema
from edged.errors import ConfigError

Time = str | date | datetime | None
_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class TimeRange:
    """Rows whose `column` is at or after `since_us` and before `until_us` (µs since 1970 UTC)."""

    column: str
    since_us: int | None
    until_us: int | None

    @staticmethod
    def text(at_us: int) -> str:
        """A bound as `time_range` reads it."""
        return (_1970 + timedelta(microseconds=at_us)).isoformat()

    def mask(self, times: pa.Array) -> pa.Array:
        """Which of the times are within; none that is null."""
        import pyarrow.compute as pc

        mask = pc.is_valid(times)
        for bound_us, compare in ((self.since_us, pc.greater_equal), (self.until_us, pc.less)):
            if bound_us is not None:
                mask = pc.and_(mask, pc.fill_null(compare(times, _scalar(bound_us)), False))
        return mask

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows within; those without a time are left out."""
        return batch.filter(self.mask(batch.column(self.column)))

    def expression(self, ds: Any) -> Any:
        """The same as an expression of `pyarrow.dataset`, which is `ds`."""
        column = ds.field(self.column)
        found = column.is_valid()
        if self.since_us is not None:
            found = found & (column >= _scalar(self.since_us))
        if self.until_us is not None:
            found = found & (column < _scalar(self.until_us))
        return found


def time_range(
    stream: str, schema: Schema, column: str, since: Time, until: Time
) -> TimeRange | None:
    """The range of `since` (included) to `until` (excluded) over `column`, which may be empty where
    the schema has one timestamp column; None where neither is given.

    Raises ConfigError, which names `stream`.
    """
    if since is None and until is None:
        if column:
            raise ConfigError(f"time {column!r} needs since or until")
        return None
    times: Sequence[str] = [f.name for f in schema if f.dtype.name == "timestamp"]
    if not column and len(times) == 1:
        column = times[0]
    if column not in times:
        raise ConfigError(
            f"{stream}: name the time column that since and until bound; it has "
            + (", ".join(times) or "no timestamp column")
        )
    return TimeRange(column, _us("since", since), _us("until", until))


def _scalar(at_us: int) -> pa.Scalar:
    return pa.scalar(at_us, pa.timestamp("us", tz="UTC"))


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
    since_1970: timedelta = at - _1970
    return (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds
