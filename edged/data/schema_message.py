"""Bounds of an untrusted Arrow schema message, checked before pyarrow reads it.

Flatbuffers may share parts: a message of 1 MiB can name one text of 500 KiB 40 000 times, or nest
structs whose children are all one table.  pyarrow copies each mention, which takes gigabytes.
`check_schema_message` therefore adds up what the schema is with every mention written out.  Only
structs and lists of fixed size have columns of their own; each of them counts as a column.  It
reads Message.fbs and Schema.fbs of apache/arrow; the numbers are field ids:

    Message  2 header   4 custom metadata [KeyValue {0 key, 1 value}]
    Schema   1 fields   2 custom metadata
    Field    0 name     2 type of the type   3 type   5 children   6 custom metadata
    Timestamp (type 10)  1 time zone
"""

from __future__ import annotations

import struct

from edged.errors import ProtocolError

SCHEMA_COLUMNS_MAX = 1024
"""More than a stream can have (`edged.data.schema_document.COLUMNS_MAX`), so that a sender learns
which of its columns are too many."""
TEXT_BYTES_MAX = 1 << 20
"""Bytes of all names, time zones and metadata together."""
PAIRS_MAX = 4096
"""Entries of metadata, of the schema and of all columns together."""
STRUCT_DEPTH_MAX = 8
"""Structs within each other."""
_TIMESTAMP, _STRUCT, _FIXED_SIZE_LIST = 10, 13, 16


def check_schema_message(message: bytes | memoryview) -> None:
    """Check the encapsulated message `message` (FF FF FF FF, size, flatbuffer), a schema.

    Takes time in proportion to SCHEMA_COLUMNS_MAX and PAIRS_MAX.  Raises ProtocolError.
    """
    try:
        _Bounds(bytes(message[8 : 8 + struct.unpack_from("<i", message, 4)[0]])).check()
    except (struct.error, IndexError):
        raise ProtocolError("the schema's metadata is damaged") from None


class _Bounds:
    """Adds up the parts of one flatbuffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._text_bytes = self._pairs = self._columns = 0

    def check(self) -> None:
        """Raises ProtocolError where a bound is passed, struct.error for a bad position."""
        message = self._target(0)
        self._metadata(message, 4)
        schema = self._child(message, 2)
        if not schema:
            return
        self._metadata(schema, 2)
        self._fields(self._child(schema, 1), 0)

    def _fields(self, fields: int, depth: int) -> None:
        count = self._u32(fields) if fields else 0
        self._columns += count
        if self._columns > SCHEMA_COLUMNS_MAX:
            raise ProtocolError(
                f"the schema has {self._columns} columns; at most {SCHEMA_COLUMNS_MAX} are accepted"
            )
        for i in range(count):
            self._column(self._target(fields + 4 + 4 * i), depth)

    def _column(self, column: int, depth: int) -> None:
        self._text(self._child(column, 0))
        self._metadata(column, 6)
        kind, made = self._field(column, 2), self._child(column, 3)
        children = self._child(column, 5)
        if children and self._u32(children):
            if not kind or self._data[kind] not in (_STRUCT, _FIXED_SIZE_LIST):
                problem = "a column has columns of its own and is no struct"
                raise ProtocolError(f"{problem}; send plain columns, structs, lists of fixed size")
            if depth == STRUCT_DEPTH_MAX:
                raise ProtocolError(f"structs are nested deeper than {STRUCT_DEPTH_MAX}")
            self._fields(children, depth + 1)
        if kind and made and self._data[kind] == _TIMESTAMP:
            self._text(self._child(made, 1))

    def _metadata(self, table: int, index: int) -> None:
        pairs = self._child(table, index)
        count = self._u32(pairs) if pairs else 0
        self._pairs += count
        if self._pairs > PAIRS_MAX:
            raise ProtocolError(f"the schema has more than {PAIRS_MAX} entries of metadata")
        for i in range(count):
            pair = self._target(pairs + 4 + 4 * i)
            self._text(self._child(pair, 0))
            self._text(self._child(pair, 1))

    def _text(self, at: int) -> None:
        self._text_bytes += self._u32(at) if at else 0
        if self._text_bytes > TEXT_BYTES_MAX:
            raise ProtocolError(
                f"names and metadata of the schema take more than {TEXT_BYTES_MAX} bytes"
            )

    def _u32(self, at: int) -> int:
        found: int = struct.unpack_from("<I", self._data, at)[0]
        return found

    def _target(self, at: int) -> int:
        return at + self._u32(at)

    def _child(self, table: int, index: int) -> int:
        """Position of the table, text or vector in a field; 0: absent."""
        at = self._field(table, index)
        return self._target(at) if at else 0

    def _field(self, table: int, index: int) -> int:
        """Position of a field; 0: absent."""
        vtable = table - int(struct.unpack_from("<i", self._data, table)[0])
        if vtable < 0:
            raise struct.error("a table without fields")
        (size,) = struct.unpack_from("<H", self._data, vtable)
        if 6 + 2 * index > size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, vtable + 4 + 2 * index)
        return table + int(offset) if offset else 0
