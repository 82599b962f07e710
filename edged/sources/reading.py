"""Rows of Parquet, CSV and NDJSON files as batches of a schema, in file order.

Values are converted exactly or not at all: a value that does not fit its column, or a null in a
column that is not nullable, raises a ConfigError with file and row.  Timestamps in text are ISO
8601 (without an offset: UTC) or, in CSV, whole microseconds since 1970. In CSV an empty field is a
null; in a text column that is not nullable it is "".  Files whose names end in `.gz` (CSV, NDJSON)
are decompressed while reading.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from edged.data.columns import Batch
from edged.data.debezium import DebeziumDecoder, EventError
from edged.data.nested import flat_schema, flattened, nested_schema
from edged.data.schema import STRING, TIMESTAMP, Field, Schema
from edged.errors import ConfigError

FORMATS = ("parquet", "csv", "ndjson")
BATCH_ROWS = 1 << 16
_BLOCK_BYTES = 4 << 20
_LINE_BYTES_MAX = 64 << 20
_SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
}


def find_files(path: str, root: Path = Path()) -> list[str]:
    """The file, the files of the directory, or the matches of the glob, sorted by name.

    A relative path starts at `root`.  In directories, files whose names begin with `.` or `_` are
    skipped.  Raises ConfigError if there is none.
    """
    given = root / path
    if given.is_file():
        return [str(given)]
    if given.is_dir():
        inside = sorted(p for p in given.iterdir() if p.is_file() and p.name[0] not in "._")
        files = [str(p) for p in inside]
    else:
        found = glob.glob(path, root_dir=root, recursive=True)  # noqa: PTH207 - may be absolute
        files = sorted(str(root / f) for f in found if (root / f).is_file())
    if not files:
        raise ConfigError(f"{root / path}: no such file; give a file, a directory or a glob")
    return files


def format_of(file: str) -> str | None:
    """The format of a file's suffix, None for an unknown suffix."""
    return _SUFFIXES.get(Path(file.removesuffix(".gz")).suffix.lower())


class Reader:
    """Reads files one after the other.  `columns` maps the schema's names to the files'."""

    def __init__(
        self,
        files: Sequence[str],
        schema: Schema,
        columns: Mapping[str, str] | None = None,
        format: str | None = None,
        events: bool = False,
        key: Sequence[str] = (),
    ) -> None:
        """With `events` the lines of NDJSON are events of Debezium (`edged.data.debezium`), of a
        table with this key."""
        self._files = files
        self._schema = schema
        self._columns = {f.name: (columns or {}).get(f.name, f.name) for f in schema}
        self._format = format
        self._events: DebeziumDecoder | None = None
        if events:
            self._events = DebeziumDecoder(schema, columns, key)
            self._columns = {f.name: f.name for f in schema}
        self.bytes_total = sum(_size(file) for file in files)
        self.bytes_read = 0
        """Bytes of the files that were read so far, some of them ahead of the batches; for a
        Parquet file its size in proportion to its rows."""
        self.rows_total: int | None = None
        """Rows of all files after `check`, where all are Parquet."""
        self.populated = False
        """Whether the events of a table's first population are read, with the batches before."""

    def check(self) -> None:
        """Raise ConfigError for a file of unknown format or without a column of the schema."""
        rows, known = 0, True
        for file in self._files:
            known &= self._kind(file) == "parquet"
            if self._events is not None and self._kind(file) != "ndjson":
                raise ConfigError(f"{file}: events of Debezium are read from NDJSON")
            if self._kind(file) == "parquet":
                with _named(file), pq.ParquetFile(file) as opened:
                    self._all_there(file, flat_schema(opened.schema_arrow).names)
                    rows += opened.metadata.num_rows
            elif self._kind(file) == "csv":
                with _named(file), self._open_csv(file, []) as opened:
                    self._all_there(file, opened.schema.names)
        self.rows_total = rows if known else None

    def content(self) -> str:
        """What tells these files from those of another time: how many, and their size."""
        return f"{len(self._files)} files, {self.bytes_total} bytes"

    def batches(self, skip: int = 0) -> Iterator[Batch]:
        """All rows after the first `skip`, in batches of at most 64 Ki rows."""
        before = 0
        for file in self._files:
            self.bytes_read = before
            before += _size(file)
            if self._kind(file) == "parquet" and (whole := _parquet_rows(file)) <= skip:
                skip -= whole
                continue
            row = 0
            for raw, first in self._raw(file, skip):
                drop = min(max(skip - first, 0), raw.num_rows)
                row = first + raw.num_rows
                if drop < raw.num_rows:
                    yield self._convert(file, raw.slice(drop), first + drop)
            skip = max(0, skip - row)
        self.bytes_read = before

    def _kind(self, file: str) -> str:
        kind = self._format or format_of(file)
        if kind is None:
            raise ConfigError(f"{file}: its name does not say its format; set format")
        return kind

    def _all_there(self, file: str, names: Sequence[str]) -> None:
        for name, inside in self._columns.items():
            if inside not in names:
                have = ", ".join(names)
                raise ConfigError(
                    f"{file}: no column {inside} for the stream's {name}; it has {have}"
                )

    def _raw(self, file: str, skip: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Arrow batches of a file, each with its first row; some before `skip` are left out."""
        kind = self._kind(file)
        with _named(file):
            if kind == "parquet":
                yield from self._parquet(file, skip)
                return
            row = 0
            for batch in self._lines(file, kind):
                for start in range(0, batch.num_rows, BATCH_ROWS):
                    piece = batch.slice(start, BATCH_ROWS)
                    yield piece, row
                    row += piece.num_rows

    def _parquet(self, file: str, skip: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        before, size = self.bytes_read, _size(file)
        with pq.ParquetFile(file) as opened:
            sizes = [opened.metadata.row_group(i).num_rows for i in range(opened.num_row_groups)]
            group, row = 0, 0
            while group < len(sizes) and row + sizes[group] <= skip:
                row += sizes[group]
                group += 1
            rest = list(range(group, len(sizes)))
            names = list(dict.fromkeys(self._columns.values()))
            for batch in opened.iter_batches(BATCH_ROWS, rest, names, use_threads=False):
                yield flattened(batch), row
                row += batch.num_rows
                self.bytes_read = before + size * row // max(1, sum(sizes))

    def _open_csv(
        self, file: str | pa.NativeFile, include: Sequence[str]
    ) -> pa.csv.CSVStreamingReader:
        text = [f for f in self._schema if f.dtype is STRING]
        types = {
            self._columns[f.name]: pa.string() if f.dtype is TIMESTAMP else f.dtype.arrow
            for f in self._schema
        }
        return pa.csv.open_csv(
            file,
            pa.csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                include_columns=list(include),
                strings_can_be_null=any(f.nullable for f in text),
                quoted_strings_can_be_null=False,
            ),
        )

    def _csv(self, file: str) -> Iterator[pa.RecordBatch]:
        names, before = list(dict.fromkeys(self._columns.values())), self.bytes_read
        with pa.OSFile(file) as raw, self._open_csv(_unpacked(file, raw), names) as opened:
            for batch in opened:
                self.bytes_read = before + raw.tell()
                yield batch

    def _lines(self, file: str, kind: str) -> Iterator[pa.RecordBatch]:
        if self._events is not None:
            return self._debezium(file, self._events)
        return self._csv(file) if kind == "csv" else self._ndjson(file)

    def _debezium(self, file: str, decoder: DebeziumDecoder) -> Iterator[pa.RecordBatch]:
        before, line = self.bytes_read, 0
        for block, at in _line_blocks(file, blank=True):
            self.bytes_read = before + at
            try:
                found = decoder.decode(block)
            except EventError as problem:
                raise ConfigError(
                    f"{file}: line {line + problem.line}: {problem.problem}"
                ) from None
            yield found.rows
            self.populated |= found.populated
            line += block.count(b"\n") + 1

    def _ndjson(self, file: str) -> Iterator[pa.RecordBatch]:
        fields = {
            self._columns[f.name]: pa.string() if f.dtype is TIMESTAMP else _json_type(f)
            for f in self._schema
        }
        parse = pa.json.ParseOptions(
            explicit_schema=nested_schema(fields.items()), unexpected_field_behavior="ignore"
        )
        before = self.bytes_read
        for block, at in _line_blocks(file):
            self.bytes_read = before + at
            options = pa.json.ReadOptions(use_threads=False, block_size=len(block) + 1)
            opened = pa.json.read_json(pa.BufferReader(block), options, parse)
            yield from map(flattened, opened.combine_chunks().to_batches())

    def _convert(self, file: str, raw: pa.RecordBatch, row: int) -> Batch:
        last = row + raw.num_rows
        with _named(f"{file}: rows {row + 1} to {last}"):
            arrays = [self._array(file, f, raw.column(self._columns[f.name])) for f in self._schema]
            batch = pa.RecordBatch.from_arrays(arrays, names=list(self._schema.names))
            return Batch.from_arrow(batch, self._schema)

    def _array(self, file: str, f: Field, array: pa.Array) -> pa.Array:
        if f.dtype is TIMESTAMP and pa.types.is_string(array.type):
            return _timestamps(array)
        if f.dtype is STRING and not f.nullable and self._kind(file) == "csv":
            return array.fill_null("")
        return array


def _json_type(f: Field) -> pa.DataType:
    """The type of a column in NDJSON; pyarrow reads lists of any size alone."""
    return f.dtype.arrow if f.dtype.item is None else pa.list_(f.dtype.item.arrow)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turn Arrow's and the system's errors about a file into a ConfigError with its name."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as problem:
        raise ConfigError(f"{what}: {problem}") from problem


def _size(file: str) -> int:
    with _named(file):
        return Path(file).stat().st_size


def _parquet_rows(file: str) -> int:
    with _named(file), pq.ParquetFile(file) as opened:
        rows: int = opened.metadata.num_rows
        return rows


def _timestamps(array: pa.Array) -> pa.Array:
    """Text as timestamps; a batch is all with offsets, all without, or all integers."""
    wrong: list[Exception] = []
    for step in (None, pa.timestamp("us"), pa.int64()):
        try:
            plain = array if step is None else array.cast(step)
            return plain.cast(TIMESTAMP.arrow)
        except pa.ArrowInvalid as problem:
            wrong.append(problem)
    raise wrong[0]


def _unpacked(file: str, raw: pa.NativeFile) -> pa.NativeFile:
    """The bytes of an open file, decompressed where its name ends as those of a codec do."""
    try:
        return pa.CompressedInputStream(raw, pa.Codec.detect(file).name)
    except (TypeError, ValueError):  # the name is of no codec
        return raw


def _line_blocks(file: str, blank: bool = False) -> Iterator[tuple[bytes, int]]:
    """The file's bytes in blocks of whole lines, each with the position in the file up to which it
    was read; without blank blocks, unless they are asked for.  A block has no last line's end."""
    rest = b""
    with pa.OSFile(file) as raw, _unpacked(file, raw) as opened:
        while block := opened.read(_BLOCK_BYTES):
            whole, newline, tail = block.rpartition(b"\n")
            if newline:
                if blank or (rest + whole).strip():
                    lines = rest + whole
                    yield lines, raw.tell()
                rest = tail
            else:
                rest += block
            if len(rest) > _LINE_BYTES_MAX:
                raise ConfigError(f"{file}: a line is longer than 64 MiB; this is not NDJSON")
        if rest.strip():
            yield rest, raw.tell()
