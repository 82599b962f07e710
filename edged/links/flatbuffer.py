"""The few parts of a flatbuffer's layout that links need, of messages that this package wrote.

message   u32 0xFFFFFFFF | i32 metadata size | flatbuffer Message | body
Message   2 header (RecordBatch) | 3 body length i64 | 4 custom metadata [KeyValue]
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PREFIX = 8
"""Bytes before the flatbuffer: continuation and size."""
HEADER, BODY, METADATA = 2, 3, 4


def field(data: bytes | memoryview, table: int, index: int) -> int:
    """The place of a field of a table; it is there."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    return int(table + struct.unpack_from("<H", data, vtable + 4 + 2 * index)[0])


def target(data: bytes | memoryview, at: int) -> int:
    """Where the offset at `at` leads."""
    return int(at + struct.unpack_from("<I", data, at)[0])


def messages(data: memoryview) -> Iterator[tuple[int, dict[bytes, bytes]]]:
    """The size and the custom metadata of each message, one behind the other."""
    at = 0
    while at < len(data):
        size = PREFIX + struct.unpack_from("<i", data, at + 4)[0]
        head = data[at : at + size]
        table = target(head, PREFIX)
        size += struct.unpack_from("<q", head, field(head, table, BODY))[0]
        yield size, _metadata(head, target(head, field(head, table, METADATA)))
        at += size


def _metadata(head: memoryview, vector: int) -> dict[bytes, bytes]:
    count = struct.unpack_from("<I", head, vector)[0]
    pairs = [target(head, vector + 4 + 4 * i) for i in range(count)]
    return {_text(head, pair, 0): _text(head, pair, 1) for pair in pairs}


def _text(head: memoryview, table: int, index: int) -> bytes:
    at = target(head, field(head, table, index))
    size = struct.unpack_from("<I", head, at)[0]
    return bytes(head[at + 4 : at + 4 + size])
