"""Rows of Parquet, CSV, NDJSON and Arrow files in batches that depend on the files alone.

Batch i starts at row `i * size` of all files in order, whatever the blocks of reading.  A restarted
sender thus makes the same batches under the same numbers.  pyarrow infers the types of CSV and
NDJSON columns unless they are given.  Timestamps in text are ISO 8601, without an offset UTC.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from edged.errors import ConfigError

_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".arrow": "arrow",
    ".arrows": "arrow",
}
_READ_ROWS = 1 << 16
_UTC = pa.timestamp("us", tz="UTC")
TYPES: dict[str, pa.DataType] = {
    name: pa.type_for_alias(name)
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float32", "float64", "string", "binary",
    )
} | {"timestamp": _UTC}  # fmt: skip


@dataclass(frozen=True)
class Pick:
    """A column to send: its name in the stream, its name in the file, and its type if given."""

    name: str
    inside: str
    kind: pa.DataType | None = None


def digest_of(paths: Sequence[str], *settings: str) -> str:
    """A digest of files' contents and of the settings that make batches of them; "" where one of
    them is no regular file, which can be read only once.  Raises ConfigError."""
    digest = hashlib.blake2b(digest_size=16)
    for text in (*settings, *(Path(p).suffix for p in paths)):
        digest.update(text.encode() + b"\0")
    try:
        for path in map(Path, paths):
            if not path.is_file():
                return ""
            with path.open("rb") as file:
                digest.update(path.stat().st_size.to_bytes(8, "little"))
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError as problem:
        raise ConfigError(str(problem)) from None
    return digest.hexdigest()


def parse_columns(text: str) -> list[Pick]:
    """`name`, `name=inside` and `name:type=inside`, separated by commas.  Raises ValueError."""
    picks = []
    for part in text.split(","):
        left, equals, inside = (p.strip() for p in part.partition("="))
        name, _, kind = (p.strip() for p in left.partition(":"))
        if not name or (equals and not inside):
            raise ValueError(f"{part.strip()!r} is not name, name=column or name:type=column")
        if kind and kind not in TYPES:
            raise ValueError(f"{kind!r} is not a type; there are {', '.join(sorted(TYPES))}")
        picks.append(Pick(name, inside or name, TYPES.get(kind)))
    return picks


def read_batches(
    files: Sequence[str], size: int, picks: Sequence[Pick] | None = None
) -> Iterator[pa.RecordBatch]:
    """All rows of `files` in batches of `size`, the last one shorter.

    Raises ConfigError for a file that cannot be read or lacks a column.
    """
    held: list[pa.Table] = []
    rows = 0
    for table in _tables(files, picks):
        held.append(table)
        rows += table.num_rows
        while rows >= size:
            whole = pa.concat_tables(held)
            yield _one(whole.slice(0, size))
            held, rows = [whole.slice(size)], rows - size
    if rows:
        yield _one(pa.concat_tables(held))


def _one(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _tables(files: Sequence[str], picks: Sequence[Pick] | None) -> Iterator[pa.Table]:
    schema = None
    for file in files:
        try:
            for raw in _raw(file, picks):
                table = _picked(raw, picks)
                if schema is None:
                    schema = table.schema
                elif table.schema != schema:
                    table = table.cast(schema)
                yield table
        except (pa.ArrowException, OSError, ValueError, KeyError) as problem:
            raise ConfigError(f"{file}: {problem}") from problem


def _raw(file: str, picks: Sequence[Pick] | None) -> Iterable[Any]:
    kind = _FORMATS.get(Path(file.removesuffix(".gz")).suffix.lower())
    if kind is None:
        raise ConfigError(f"{file}: its name ends in none of {', '.join(_FORMATS)}")
    given = {p.inside: p.kind for p in picks or () if p.kind is not None}
    text = {name: pa.string() if k == _UTC else k for name, k in given.items()}
    wanted = None if picks is None else list(dict.fromkeys(p.inside for p in picks))
    if kind == "parquet":
        with pq.ParquetFile(file) as opened:
            _all_there(wanted, opened.schema_arrow.names)
            yield from opened.iter_batches(_READ_ROWS, columns=wanted)
    elif kind == "arrow":
        table = _arrow(file)
        _all_there(wanted, table.column_names)
        yield from (table if wanted is None else table.select(wanted)).to_batches(_READ_ROWS)
    elif kind == "csv":
        options = pa.csv.ConvertOptions(include_columns=wanted or [], column_types=text)
        with pa.csv.open_csv(file, convert_options=options) as opened:
            yield from opened
    else:
        parse = pa.json.ParseOptions(explicit_schema=pa.schema(list(text.items())))
        table = pa.json.read_json(file, parse_options=parse)
        _all_there(wanted, table.column_names)
        yield from table.to_batches(_READ_ROWS)


def _all_there(wanted: Sequence[str] | None, names: Sequence[str]) -> None:
    missing = [name for name in wanted or () if name not in names]
    if missing:
        raise ConfigError(f"no column {', '.join(missing)}; there are {', '.join(names)}")


def _picked(batch: pa.RecordBatch, picks: Sequence[Pick] | None) -> pa.Table:
    """The columns to send, cast to their types; timestamps in microseconds UTC."""
    picks = picks or [Pick(name, name) for name in batch.schema.names]
    arrays = []
    for pick in picks:
        array = batch.column(pick.inside)
        kind = pick.kind
        if kind is None and pa.types.is_timestamp(array.type):
            kind = _UTC
        if kind == _UTC and pa.types.is_string(array.type):
            array = _moments(array)
        arrays.append(array if kind is None else array.cast(kind))
    return pa.table(arrays, names=[pick.name for pick in picks])


def _moments(array: pa.Array) -> pa.Array:
    """Text as timestamps: all with an offset, or all without."""
    try:
        return array.cast(_UTC)
    except pa.ArrowInvalid:
        return array.cast(pa.timestamp("us")).cast(_UTC)


def _arrow(file: str) -> pa.Table:
    """An Arrow file, or the stream in one."""
    with pa.OSFile(file) as opened:
        try:
            return pa.ipc.open_file(opened).read_all()
        except pa.ArrowInvalid:
            opened.seek(0)
            return pa.ipc.open_stream(opened).read_all()
