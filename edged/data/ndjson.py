"""NDJSON from Arrow tables, without Python per row: one object a row.

Numbers and booleans are written as such; NaN, Infinity and -Infinity as strings of that spelling;
timestamps as `"2026-11-21T09:00:00.000000Z"`; binary as hexadecimal text; nulls as null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_CHUNK_ROWS = 1 << 16
_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint16)


def ndjson(table: pa.Table) -> list[memoryview]:
    """The rows as lines of JSON, in parts; see the module's docstring."""
    parts = []
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        pieces: list[Any] = []
        for i, name in enumerate(batch.schema.names):
            pieces += [pa.scalar(("," if i else "{") + f'"{name}":'), _json(batch.column(i))]
        lines = pc.binary_join_element_wise(
            *pieces, pa.scalar("}\n"), "", null_handling="replace", null_replacement="null"
        )
        parts.append(memoryview(_text(lines)))
    return parts


def _text(lines: pa.Array) -> bytes:
    """The bytes of a string array, one value after the other."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)[lines.offset : lines.offset + len(lines) + 1]
    return b"" if data is None else bytes(memoryview(data)[ends[0] : ends[-1]])


def _json(column: pa.Array) -> pa.Array:
    """Each value as JSON text, null if it is null."""
    kind = column.type
    if pa.types.is_string(kind):
        return _quoted(_escaped(column))
    if pa.types.is_binary(kind):
        return _quoted(hexadecimal(column))
    if pa.types.is_timestamp(kind):
        return _quoted(pc.replace_substring(column.cast(pa.string()), " ", "T"))
    if pa.types.is_fixed_size_list(kind):
        return _listed(column)
    text = column.cast(pa.string())
    if not pa.types.is_floating(kind):
        return text
    for spelling, is_it in (
        ('"NaN"', pc.is_nan(column)),
        ('"Infinity"', pc.equal(column, float("inf"))),
        ('"-Infinity"', pc.equal(column, float("-inf"))),
    ):
        text = pc.if_else(is_it, spelling, text)
    return text


def _listed(column: pa.Array) -> pa.Array:
    """Lists of a fixed size as JSON arrays."""
    size, rows = column.type.list_size, len(column)
    elements = _json(column.values.slice(column.offset * size, rows * size))
    lists = pa.ListArray.from_arrays(
        pa.array(range(0, rows * size + 1, size), pa.int32()), elements
    )
    joined = pc.binary_join(lists, ",")
    text = pc.binary_join_element_wise(pa.scalar("["), joined, pa.scalar("]"), "")
    return pc.if_else(column.is_valid(), text, None)


def _quoted(text: pa.Array) -> pa.Array:
    mark = pa.scalar('"')
    return pc.binary_join_element_wise(mark, text, mark, "")


def _escaped(text: pa.Array) -> pa.Array:
    for plain in ("\\", '"'):
        text = pc.replace_substring(text, plain, "\\" + plain)
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        for code in range(32):
            text = pc.replace_substring(text, chr(code), f"\\u{code:04x}")
    return text


def hexadecimal(column: pa.Array) -> pa.Array:
    """Binary values as hexadecimal text."""
    n = len(column)
    if n == 0:
        return pa.array([], pa.string())
    mask, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + n + 1]
    values = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    digits = np.ascontiguousarray(_HEX[values[ends[0] : ends[-1]]])
    twice = pa.py_buffer(np.ascontiguousarray((ends - ends[0]) * 2, np.int32))
    text = pa.Array.from_buffers(pa.string(), n, [None, twice, pa.py_buffer(digits)])
    return text if mask is None else pc.if_else(column.is_valid(), text, None)
