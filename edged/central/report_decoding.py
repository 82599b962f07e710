"""Reads the last report of a page of telemetry with `struct`.

The general reader (`edged/pages/read.py`) decodes thousands of rows at a time, which costs a single
one milliseconds.  A page that no edged device makes (compressed, dense, with weights) is left to
it.  The page's checksum is checked by the caller.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from edged.data.schema import Schema
from edged.errors import PageError
from edged.pages.format import LAYOUT_SLOTTED, Header
from edged.pages.header import HEADER_BYTES
from edged.pages.read import read_page
from edged.uplink import telemetry

REPORT_BYTES_MAX = 64 << 10
"""A larger report, which no edged device makes, is not kept; its page has landed."""
_SLOT = struct.Struct("<III")
_CODES = {"timestamp": "q", "int64": "q", "float64": "d", "bool": "B"}
_SCHEMAS = {version: Schema.from_json(text) for version, text in telemetry.SCHEMAS.items()}


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a schema version's columns lie in a tuple."""

    columns: tuple[tuple[str, str, bool], ...]
    fixed: struct.Struct
    ends: struct.Struct

    @classmethod
    def of(cls, count: int) -> _Layout:
        columns = telemetry.COLUMNS[:count]
        codes = "".join(_CODES[kind] for _, kind, _ in columns if kind != "string")
        texts = sum(kind == "string" for _, kind, _ in columns)
        return cls(columns, struct.Struct("<" + codes), struct.Struct(f"<{texts}I"))


_LAYOUTS = {version: _Layout.of(len(schema)) for version, schema in _SCHEMAS.items()}


def last_report(header: Header, page: memoryview) -> dict[str, Any] | None:
    """The last row of a page, times as microseconds.

    None for an unknown schema version, a report that is too large, or a page without rows.  Raises
    PageError for a page that does not fit its schema.
    """
    layout = _LAYOUTS.get(header.version)
    if layout is None or header.raw_bytes > REPORT_BYTES_MAX or not header.tuples:
        return None
    if header.flags or header.layout != LAYOUT_SLOTTED:
        return _read(page, _SCHEMAS[header.version])
    try:
        return _decode(layout, _last_tuple(header, page))
    except (struct.error, ValueError) as problem:
        raise PageError(f"{header.name}: the report does not fit its schema: {problem}") from None


def _last_tuple(header: Header, page: memoryview) -> memoryview:
    end = HEADER_BYTES + header.tuples * _SLOT.size
    _, offset, length = _SLOT.unpack_from(page, end - _SLOT.size)
    if header.stride != _SLOT.size or not length <= offset <= len(page) - end:
        raise ValueError("its slot points out of the page")
    at = len(page) - offset
    return page[at : at + length]


def _decode(layout: _Layout, data: memoryview) -> dict[str, Any]:
    bitmap = -(-len(layout.columns) // 8)
    present = int.from_bytes(data[:bitmap], "little")
    fixed: Iterator[Any] = iter(layout.fixed.unpack_from(data, bitmap))
    ends_at = bitmap + layout.fixed.size
    ends = iter(layout.ends.unpack_from(data, ends_at))
    texts, start = data[ends_at + layout.ends.size :], 0
    row: dict[str, Any] = {}
    for i, (name, kind, _) in enumerate(layout.columns):
        if kind == "string":
            end = next(ends)
            if not start <= end <= len(texts):
                raise ValueError(f"column {name} runs past its tuple")
            value: Any = str(texts[start:end], "utf-8")
            start = end
        else:
            value = next(fixed)
            value = bool(value) if kind == "bool" else value
        row[name] = value if present >> i & 1 else None
    return row


def _read(page: memoryview, schema: Schema) -> dict[str, Any]:
    """The last row, by the general reader."""
    return {
        name: _us(value) if isinstance(value, datetime.datetime) else value
        for name, value in read_page(page, schema).to_pylist()[-1].items()
    }


def _us(time_: datetime.datetime) -> int:
    return (time_ - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)) // (
        datetime.timedelta(microseconds=1)
    )
