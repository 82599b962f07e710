"""Writes a landing's streams to files of other tools: Parquet, CSV, NDJSON, Arrow.

A file appears complete under its name, or not at all: it is written beside it, synced and renamed,
and replaces an older one.  Rows are in landing order.  CSV and NDJSON write binary values as
hexadecimal text; an empty CSV field is null.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from edged.central.landing_reader import LandingRead
from edged.central.segments import sync_directory
from edged.data.ndjson import hexadecimal, ndjson
from edged.errors import CentralError, ConfigError

SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".arrow": "arrow",
    ".feather": "arrow",
}
FORMATS = ("parquet", "csv", "ndjson", "arrow")
ROW_GROUP = 1 << 20
"""Rows of a Parquet row group, about."""


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""

    def close(self) -> None:
        """Complete the file; the stream stays open."""


@dataclass
class Exported:
    """What was written of one stream."""

    stream: str
    path: str
    rows: int = 0
    bytes: int = 0
    corrupt_pages: int = 0


def format_of(path: Path, given: str | None) -> str:
    """The format of an output file: `given`, else by its suffix.  Raises ConfigError."""
    found = given or SUFFIXES.get(path.suffix)
    if found is None:
        raise ConfigError(f"{path}: give --format, or a suffix: {', '.join(SUFFIXES)}")
    return found


def export(
    source: LandingRead, path: Path | None, kind: str, out: BinaryIO, on_read: Callable[[int], None]
) -> Exported:
    """Write the rows to `path`, or to the stream `out` where it is None.

    `on_read` gets the number of rows read for each batch.  Raises CentralError where the file
    cannot be written.
    """
    result = Exported(source.request.name, "-" if path is None else str(path))

    def on_corrupt(*_: Any) -> None:
        result.corrupt_pages += 1

    try:
        with _target(path, out) as file:
            writer = _WRITERS[kind](file, source.schema, seekable=path is not None)
            for batch in source.batches(on_read, on_corrupt):
                writer.write(batch)
                result.rows += batch.num_rows
            writer.close()
        if path is not None:
            result.bytes = path.stat().st_size
    except OSError as problem:
        raise CentralError(f"{result.path}: cannot be written: {problem}") from problem
    return result


@contextmanager
def _target(path: Path | None, out: BinaryIO) -> Iterator[BinaryIO]:
    if path is None:
        yield out
        out.flush()
        return
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_directory(path.parent)
    finally:
        part.unlink(missing_ok=True)


class _Parquet:
    def __init__(self, out: BinaryIO, schema: pa.Schema, seekable: bool) -> None:
        del seekable
        self._schema = schema
        self._writer = pq.ParquetWriter(out, schema)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
            self._batches, self._rows = [], 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


class _Arrow:
    """An IPC file; an IPC stream where the output cannot seek."""

    def __init__(self, out: BinaryIO, schema: pa.Schema, seekable: bool) -> None:
        self._writer = (pa.ipc.new_file if seekable else pa.ipc.new_stream)(out, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Csv:
    def __init__(self, out: BinaryIO, schema: pa.Schema, seekable: bool) -> None:
        del seekable
        fields = [f.with_type(pa.string()) if pa.types.is_binary(f.type) else f for f in schema]
        self._schema = pa.schema(fields)
        self._writer = pa.csv.CSVWriter(out, self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [hexadecimal(c) if pa.types.is_binary(c.type) else c for c in batch.columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _Ndjson:
    def __init__(self, out: BinaryIO, schema: pa.Schema, seekable: bool) -> None:
        del schema, seekable
        self._out = out

    def write(self, batch: pa.RecordBatch) -> None:
        for part in ndjson(pa.Table.from_batches([batch])):
            self._out.write(part)

    def close(self) -> None:
        """Nothing follows the last line."""


_WRITERS: dict[str, Callable[..., _Writer]] = {
    "parquet": _Parquet,
    "csv": _Csv,
    "ndjson": _Ndjson,
    "arrow": _Arrow,
}
