"""What a reader wants of a landing: stream, columns, types, devices, times; resolved once, the same
in every process.  Only numpy and pyarrow are imported: this runs on Spark executors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from edged.central import landing_format, schema_files, segments
from edged.central.time_range import TimeRange
from edged.data.schema import Schema
from edged.errors import CentralError, ConfigError

_STREAM = re.compile(r"([a-z][a-z0-9_-]{0,62}|edged\.telemetry)(?:@([0-9]{1,9}))?")
SPARK_TYPES: Mapping[str, pa.DataType] = {
    "uint8": pa.int16(),
    "uint16": pa.int32(),
    "uint32": pa.int64(),
    "uint64": pa.decimal128(20, 0),
}
"""Columns that become the next larger signed type, since Spark has no unsigned integers."""
METADATA: dict[str, pa.DataType] = {
    "_device": pa.string(),
    "_epoch": pa.decimal128(20, 0),
    "_partition": pa.int64(),
    "_seq": pa.decimal128(20, 0),
    "_landed_at": pa.timestamp("us", tz="UTC"),
}
"""The columns that the option `metadata` adds: the origin of each row."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to read from a landing."""

    landing: str
    stream: str
    version: int
    schema: Schema
    columns: tuple[str, ...]
    """The requested columns, in order; may contain names of `METADATA`."""
    fail_on_corrupt: bool = False
    spark_types: bool = True
    """Whether unsigned integers are widened (`SPARK_TYPES`)."""
    devices: tuple[str, ...] = ()
    """The devices whose rows are read; empty: all."""
    times: TimeRange | None = None
    """The times whose rows are read; None: all."""

    @property
    def name(self) -> str:
        """`stream@version`."""
        return f"{self.stream}@{self.version}"

    @property
    def stream_hash(self) -> int:
        """The stream's hash in index rows."""
        return segments.stream_hash(self.stream, self.version)

    def wanted(self, rows: segments.Rows) -> segments.Rows:
        """Those of index rows whose pages are read."""
        mine: segments.Rows = rows[rows["stream_hash"] == self.stream_hash]
        if not self.devices:
            return mine
        hashes = {segments.device_hash(device) for device in self.devices}
        chosen: segments.Rows = mine[[int(d) in hashes for d in mine["device_hash"]]]
        return chosen

    def arrow_schema(self) -> pa.Schema:
        """The types of the batches that are read."""
        return pa.schema([self._arrow_field(name) for name in self.columns])

    def _arrow_field(self, name: str) -> pa.Field:
        if name in self.schema:
            field = self.schema.field(name)
            kind = field.dtype.arrow
            if self.spark_types:
                item = field.dtype.item
                kind = SPARK_TYPES.get(field.dtype.name, kind)
                if item is not None:
                    kind = _spark_list(SPARK_TYPES.get(item.name, item.arrow))
            return pa.field(name, kind, field.nullable, field.metadata() or None)
        kind = METADATA[name]
        if not self.spark_types and pa.types.is_decimal(kind):
            kind = pa.uint64()
        return pa.field(name, kind, False)

    def decoded(self) -> list[str]:
        """The columns to decode: the requested ones, or the narrowest if none of them is data."""
        names = [n for n in self.columns if n in self.schema]
        if self.times is not None and self.times.column not in names:
            names.append(self.times.column)
        narrow = min(self.schema, key=lambda f: (f.dtype.variable, f.dtype.width))
        return names or [narrow.name]


def _spark_list(item: pa.DataType) -> pa.DataType:
    """The Arrow form of Spark's arrays without nulls."""
    return pa.list_(pa.field("element", item, nullable=False))


def resolve(
    landing: str | Path, stream: str, columns: Sequence[str] = (), metadata: bool = False
) -> Request:
    """The request for `columns` (none: all) of `stream`, which is `name@version`, or `name` for its
    latest version.

    Raises ConfigError for an unknown column, CentralError for an unregistered stream and for a
    landing of an unknown format.
    """
    landing_format.require(landing)
    match = _STREAM.fullmatch(stream)
    if match is None:
        raise ConfigError(f"{stream!r} is not the name of a stream; write e.g. curve@1 or curve")
    name = match[1]
    version = int(match[2]) if match[2] else latest_version(landing, name)
    if version is None:
        raise unregistered(Path(landing), name)
    schema = registered_schema(landing, name, version)
    chosen = _columns(f"{name}@{version}", schema, columns, metadata)
    return Request(str(landing), name, version, schema, chosen)


def registered_streams(landing: str | Path) -> list[str]:
    """Every `stream@version` that is registered in the landing, sorted."""
    return schema_files.names(Path(landing, "schemas"))


def latest_version(landing: str | Path, stream: str) -> int | None:
    """The largest registered version of `stream` in the landing; None without one."""
    numbers = [
        name[len(stream) + 1 :]
        for name in registered_streams(landing)
        if name.startswith(f"{stream}@")
    ]
    return max((int(n) for n in numbers if n.isdigit()), default=None)


def registered_schema(landing: str | Path, stream: str, version: int) -> Schema:
    """The schema of `stream@version` in the landing.  Raises CentralError."""
    directory, name = Path(landing, "schemas"), f"{stream}@{version}"
    place, found = schema_files.path(directory, name), schema_files.read(directory, name)
    if found is None:
        raise unregistered(Path(landing), name)
    if found.text is None:
        raise CentralError(
            f"{place}: {found.problem}: restart a collector of this landing, so that the devices "
            "register the schema again, or see edged central check"
        )
    try:
        return Schema.from_json(found.text)
    except (ValueError, KeyError) as problem:
        raise CentralError(f"{place}: not a schema ({problem})") from problem


def unregistered(landing: Path, stream: str) -> CentralError:
    """The error for a stream that the landing does not know."""
    known = registered_streams(landing)
    return CentralError(
        f"{landing}: stream {stream} is not registered here"
        + (f"; there are {', '.join(known)}" if known else ", nor is any other")
        + ". A device registers its streams when it first reaches the collector of this landing: "
        "check the name, the directory, and the device's uplink"
    )


def _columns(
    stream: str, schema: Schema, requested: Sequence[str], metadata: bool
) -> tuple[str, ...]:
    names = list(requested) or list(schema.names)
    for name in names:
        if name not in schema and name not in METADATA:
            raise ConfigError(f"{stream} has no column {name!r}; it has {', '.join(schema.names)}")
    if metadata:
        names += [name for name in METADATA if name not in names]
    if len(set(names)) != len(names):
        raise ConfigError(f"columns: {','.join(requested)!r} names a column twice")
    return tuple(names)
