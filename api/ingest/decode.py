"""Decoding of request bodies into record batches; errors name row and column.

    NDJSON   an object a line; keys are the stream's columns, in any order; null or a missing key is
             a null; timestamps are ISO 8601 text, without an offset UTC; binary is the text's UTF-8
    CSV      a header of column names, commas; an empty field is a null, "" an empty text
    Arrow    an IPC stream of plain columns, uncompressed; casts that lose nothing
    Debezium NDJSON of change events (`edged.data.debezium`)

Rows count from 1, like the lines of NDJSON in an editor; CSV's header is not a row.  Decoding takes
memory in proportion to the body's size, whatever its content: no compression, no dictionaries or
views that repeat a value, no more rows than the body has bytes for.
"""

from __future__ import annotations

import csv
import re
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from api.ingest.media_types import ARROW, CSV, DEBEZIUM, KEY, NDJSON, POPULATED
from api.problems import ApiProblem, ProblemFault
from edged.data.debezium import DebeziumDecoder, EventError
from edged.data.nested import flat_schema, has_structs
from edged.data.schema import TYPES, WEIGHT_COLUMN, Field, Schema
from edged.data.schema_message import check_schema_message
from edged.errors import ProtocolError

COLUMNS_MAX = 1024
"""Columns of a body, at most; a stream has fewer."""
FAULTS_MAX = 50
"""Faults that an answer lists."""
EXPANSION_MAX = 16
"""Largest ratio of column bytes to body bytes, above an allowance of 1 MiB."""
DEPTH_MAX = 8
_NESTED = re.compile(rb"[\[{]\s*" * DEPTH_MAX)
_JSON_KEY = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')
_QUOTED = re.compile(rb'"[^"]*"?')
_JSON_ROW = re.compile(r"in row ([0-9]+)")
_JSON_COLUMN = re.compile(r"Column\(/([^)]*)\)")
_CSV_PLACE = re.compile(r"In CSV column #([0-9]+)(?:: Row #([0-9]+))?")
_METADATA_BYTES_MAX = 2 << 20
_PLAIN = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp,
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_null, pa.types.is_fixed_size_list,
)  # fmt: skip


def decode(body: bytes, media_type: str, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a body; where they end a table's first ones, POPULATED is in the schema's
    metadata.  Raises ApiProblem 413, 415 or 422."""
    read: dict[str, Callable[[bytes, pa.Schema], pa.Table]] = {
        NDJSON: _ndjson,
        CSV: _csv,
        ARROW: _arrow,
        DEBEZIUM: _debezium,
    }
    table = read[media_type](body, schema)
    columns = [_column(table, field) for field in schema]
    made = pa.Table.from_arrays(columns, schema=schema).combine_chunks()
    batches = made.to_batches()
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
    return batch.replace_schema_metadata(table.schema.metadata)


def _ndjson(body: bytes, schema: pa.Schema) -> pa.Table:
    _utf8(body)
    _bounded(body, body.count(b"{"), schema)
    if not body.strip():
        return schema.empty_table()
    if not body.lstrip().startswith(b"{"):  # `null` as the first row ends pyarrow's process
        raise wrong("row 1", "is no object", "a row is an object of plain values")
    if _NESTED.search(body):
        raise wrong("body", "is nested", "a row is an object of plain values")
    try:
        return pa.json.read_json(
            pa.BufferReader(body),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
            parse_options=pa.json.ParseOptions(
                explicit_schema=_as_text(schema), unexpected_field_behavior="error"
            ),
        )
    except (pa.ArrowException, ValueError) as problem:
        text = str(problem).removeprefix("JSON parse error: ")
        if "unexpected field" in text:
            raise _unknown_column(body, schema) from None
        row, column = _JSON_ROW.search(text), _JSON_COLUMN.search(text)
        raise wrong(
            _place(int(row[1]) + 1 if row else None, column[1] if column else None), text,
            f"columns are {', '.join(schema.names)}",
        ) from None  # fmt: skip


def _debezium(body: bytes, schema: pa.Schema) -> pa.Table:
    if WEIGHT_COLUMN not in schema.names:
        raise wrong(
            "body", "the stream takes no events of Debezium", 'set changes = "debezium" on it'
        )
    _bounded(body, 2 * body.count(b"{"), schema)
    kinds = {kind.arrow: kind for kind in TYPES.values()}
    columns = Schema.of(Field(f.name, kinds[f.type], f.nullable) for f in schema)
    key = (schema.metadata or {}).get(KEY, b"").decode()
    try:
        found = DebeziumDecoder(columns, key=key.split(",") if key else ()).decode(body)
        table = pa.Table.from_batches([found.rows])
        return table.replace_schema_metadata({POPULATED: b"1"} if found.populated else None)
    except EventError as problem:
        raise wrong(
            f"line {problem.line}", problem.problem, "send events of Debezium, one a line"
        ) from None


def _unknown_column(body: bytes, schema: pa.Schema) -> ApiProblem:
    """The problem for the first key that is not a column."""
    keys = (found[1].decode(errors="replace") for found in _JSON_KEY.finditer(body))
    known = set(schema.names)
    key = next((key for key in keys if key not in known), "?")
    return wrong(
        f"column {key[:80]}", "is no column of the stream", f"columns are {', '.join(schema.names)}"
    )


def _csv(body: bytes, schema: pa.Schema) -> pa.Table:
    _utf8(body)
    _bounded(body, body.count(b"\n") + body.count(b"\r"), schema)
    if not body.strip():
        raise wrong("row 0", "there is no header", f"columns are {', '.join(schema.names)}")
    if (count := _header_columns(body)) > COLUMNS_MAX:
        raise wrong("row 0", f"the header has {count} columns", f"at most {COLUMNS_MAX}")
    nullable = [field.name for field in schema if field.nullable]
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(body),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(body) + 1),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=_as_text(schema), null_values=[""], strings_can_be_null=bool(nullable),
                quoted_strings_can_be_null=False,
            ),
        )  # fmt: skip
    except (pa.ArrowException, ValueError) as problem:
        text = str(problem).removeprefix("CSV parse error: ")
        found = _CSV_PLACE.search(text)
        row = int(found[2]) - 1 if found and found[2] else None
        raise wrong(
            _place(row, _header(body, int(found[1])) if found else None), text,
            f"columns are {', '.join(schema.names)}",
        ) from None  # fmt: skip
    return _named(table, schema)


def _header_columns(body: bytes) -> int:
    """The number of columns of a CSV header, without its quoted texts."""
    line = re.split(rb"[\r\n]", _QUOTED.sub(b"", body.lstrip(b"\r\n")), maxsplit=1)[0]
    return 1 + line.count(b",")


def _header(body: bytes, index: int) -> str:
    """The name of a CSV column."""
    try:
        names = next(csv.reader([body.partition(b"\n")[0].decode(errors="replace")]), [])
    except csv.Error:  # a field longer than csv's limit
        names = []
    return names[index].strip() if index < len(names) else f"#{index + 1}"


def _arrow(body: bytes, schema: pa.Schema) -> pa.Table:
    try:
        _no_compression(body)
        check_schema_message(memoryview(body)[: 8 + _METADATA_BYTES_MAX])
        with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
            for field in flat_schema(reader.schema):
                if not any(is_plain(field.type) for is_plain in _PLAIN):
                    raise wrong(field.name, f"is {field.type}", "send plain columns")
            table = reader.read_all()
            table.validate(full=True)
            while has_structs(table.schema):
                table = table.flatten()
            _ = table.column_names  # raises if a name is not UTF-8
    except (
        pa.ArrowException, OSError, ValueError, LookupError, struct.error, ProtocolError
    ) as problem:  # fmt: skip
        raise wrong(
            "body", f"is not a stream of Arrow: {problem}", "write one with any Arrow library"
        ) from None
    _bounded(body, table.num_rows, schema)
    return _named(table, schema)


def _utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        row = body.count(b"\n", 0, problem.start) + 1
        raise wrong(f"line {row}", f"is not UTF-8: {problem.reason}", "send UTF-8") from None


def _named(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table, if its columns are exactly the stream's."""
    known, count = set(schema.names), Counter(table.column_names)
    faults = [ProblemFault(n, "is no column of the stream") for n in count if n not in known]
    faults += [ProblemFault(n, "appears twice") for n in sorted(count) if count[n] > 1]
    faults += [ProblemFault(n, "is missing") for n in schema.names if n not in count]
    if faults:
        what = f"columns are {', '.join(schema.names)}"
        raise ApiProblem(
            "invalid", "these are not the stream's columns", what, tuple(faults[:FAULTS_MAX])
        )
    return table


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    """A column in the stream's type.  Raises ApiProblem for a null in a column that is not
    nullable."""
    array = table.column(field.name)
    if array.type != field.type:
        array = _cast(array, field)
    if not field.nullable and array.null_count:
        row = pc.index(array.is_null(), True).as_py() + 1
        raise wrong(_place(row, field.name), "is null", "the column is not nullable")
    return array


def _cast(array: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    convert = _moments if pa.types.is_timestamp(field.type) else pa.ChunkedArray.cast
    try:
        return convert(array, field.type)
    except (pa.ArrowException, ValueError) as problem:
        row = _first_bad(array, lambda part: convert(part, field.type))
        raise wrong(_place(row, field.name), str(problem), f"the column is {field.type}") from None


def _moments(array: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    """Text with an offset, or without one as UTC; timestamps of another unit."""
    if not pa.types.is_string(array.type):
        return array.cast(to)
    zoned = pc.match_substring_regex(array, r"[0-9:.](?:[Zz]|[+-][0-9]{2}:?[0-9]{2})\s*$")
    if pc.all(zoned).as_py() is not False:
        return array.cast(to)
    plain = pc.if_else(zoned, pa.scalar(None, array.type), array)
    with_zone = pc.if_else(zoned, array, pa.scalar(None, array.type))
    as_utc = plain.cast(pa.timestamp(to.unit)).cast(to)
    return pc.coalesce(with_zone.cast(to), as_utc)


def _first_bad(array: pa.ChunkedArray, convert: Callable[[Any], Any]) -> int | None:
    """The first row that cannot be converted, from 1, found by bisection."""
    start, stop = 0, len(array)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            convert(array.slice(start, middle - start))
            start = middle
        except (pa.ArrowException, ValueError):
            stop = middle
    return start + 1 if stop > start else None


def _as_text(schema: pa.Schema) -> pa.Schema:
    """The schema for the parsers: timestamps stay text, so that errors can name the row."""
    return pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    )


def _bounded(body: bytes, rows: int, schema: pa.Schema) -> None:
    """Refuse a body whose rows would take far more memory than its bytes."""
    width = sum(max(1, f.type.bit_width // 8) if _fixed(f.type) else 4 for f in schema)
    if rows * width > EXPANSION_MAX * len(body) + (1 << 20):
        raise ApiProblem(
            "too-large", f"{rows} rows of {width} bytes in a body of {len(body)} bytes"
        )


def _fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind))


def _no_compression(body: bytes) -> None:
    """Raise ApiProblem if a message's buffers are compressed: they could expand to any size.

    Reads the flatbuffers of the messages (format/Message.fbs): Message.header is its third field,
    RecordBatch.compression its fourth.
    """
    at = 0
    while at + 8 <= len(body):
        mark, size = struct.unpack_from("<Ii", body, at)
        if mark != 0xFFFFFFFF or size < 0:
            raise ValueError("a message does not begin with FF FF FF FF and its size")
        if size == 0:
            return
        head = body[at + 8 : at + 8 + size]
        root = struct.unpack_from("<I", head)[0]
        kind, batch = _field(head, root, 1), _field(head, root, 2)
        length = _field(head, root, 3)
        if kind and head[kind] == 3 and batch:
            table = batch + struct.unpack_from("<I", head, batch)[0]
            if _field(head, table, 3):
                raise wrong("body", "its buffers are compressed", "write it without compression")
        at += 8 + size + max(0, struct.unpack_from("<q", head, length)[0] if length else 0)


def _field(data: bytes, table: int, index: int) -> int:
    """Offset of a field of a flatbuffers table; 0: the field has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * index >= size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * index)
    return table + offset if offset else 0


def _place(row: int | None, column: str | None) -> str:
    parts = [f"row {row}"] if row is not None else []
    parts += [f"column {column}"] if column is not None else []
    return ", ".join(parts) or "body"


def wrong(where: str, what: str, do: str) -> ApiProblem:
    """A problem 422 with one fault."""
    return ApiProblem("invalid", f"{where}: {what}", do, (ProblemFault(where, what, do),))
