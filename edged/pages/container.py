"""A container: pages of one device, as a gateway received them, within a page of its own store.

    page = header of `edged.pages.format` | u32 length | u32 CRC-32 of the table | table | pages

The header is the gateway's: its device and epoch, the stream `via:JOB/SINK`, one row of the
body's length.  The table is JSON:

    {"device", "epoch", "session": [counter, nonce], "token",
     "pages": [[stream, version, partition, seq, rows, length], ...]}

The pages follow end to end, byte for byte.  A reader of the table does not read them.  This module
imports the standard library and the header alone: the uplink process uses it.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from edged.pages.header import CHECKSUM_AT, HEADER, HEADER_BYTES, MAGIC, checksum

CARRIED_PREFIX = "via:"
"""The names of containers' streams begin with it; no stream of a job's does."""
GATEWAY_DIRECTORY = "pages"
"""In a store's directory: what a gateway's processes share of the devices."""
CONTAINER_BYTES_MAX = 4 << 20
"""A container takes no further page beyond so many bytes of pages."""
CARRIED_PAGE_BYTES_MAX = 15 << 20
"""The largest page that fits into a container."""
TABLE_AT = HEADER_BYTES + 8
_DENSE, _CRC_32 = 1, 1
_CAPACITY = 16 << 20
_HEAD = struct.Struct("<II")


def is_carried(stream: str) -> bool:
    """Whether pages of this name are containers of devices' pages."""
    return stream.startswith(CARRIED_PREFIX)


def carried_name(job: str, sink: str) -> str:
    """The name of the containers of a job's sink."""
    return f"{CARRIED_PREFIX}{job}/{sink}"


@dataclass(frozen=True, slots=True)
class CarriedPage:
    """A device's page in a container; `at` is counted from the container's first byte."""

    stream: str
    version: int
    partition: int
    seq: int
    rows: int
    at: int
    length: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The table of a container."""

    device: str
    epoch: int
    session: tuple[int, int]
    """Counter and nonce."""
    token: str
    pages: tuple[CarriedPage, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """What a gateway's header says of a container."""

    device: str
    """The gateway's."""
    epoch: int
    stream: str
    partition: int
    seq: int
    beat: int
    sealed_at_us: int


def pack(
    label: Label,
    device: str,
    session: tuple[int, int],
    token: str,
    pages: Sequence[bytes | memoryview],
) -> bytes:
    """The container of whole pages of one device and epoch, the table first."""
    entries, epoch = [], 0
    for page in pages:
        fields = HEADER.unpack_from(page)
        rows, epoch, seq, partition, version = (fields[i] for i in (8, 11, 12, 14, 15))
        stream = fields[22].rstrip(b"\0").decode()
        entries.append([stream, version, partition, seq, rows, len(page)])
    table = json.dumps(
        {"device": device, "epoch": epoch, "session": session, "token": token, "pages": entries},
        separators=(",", ":"),
    ).encode()
    body = b"".join((_HEAD.pack(len(table), zlib.crc32(table)), table, *pages))
    size, at_us = HEADER_BYTES + len(body), label.sealed_at_us
    header = HEADER.pack(
        MAGIC, 1, _DENSE, _CRC_32, 0, _CAPACITY, size, size, 1, len(body), 0, label.epoch,
        label.seq, label.beat, label.partition, 1, at_us, at_us, at_us, 0, 0,
        label.device.encode(), label.stream.encode(),
    )  # fmt: skip
    whole = bytearray(header + body)
    struct.pack_into("<I", whole, CHECKSUM_AT, checksum(whole))
    return bytes(whole)


def is_whole(page: bytes | memoryview) -> bool:
    """Whether the bytes have a page's header and the length that it names."""
    return len(page) >= HEADER_BYTES and page[:4] == MAGIC and _u(page, 12, 4) == len(page)


def epoch_of(page: bytes | memoryview) -> int:
    """The epoch in a whole page's header."""
    return _u(page, 32, 8)


def _u(page: bytes | memoryview, at: int, size: int) -> int:
    return int.from_bytes(page[at : at + size], "little")


def table_bytes(start: bytes) -> int:
    """The length of the table, from the first TABLE_AT bytes.  Raises ValueError."""
    if len(start) < TABLE_AT or start[:4] != MAGIC:
        raise ValueError("no container begins there")
    return int(_HEAD.unpack_from(start, HEADER_BYTES)[0])


def contents(stream: str, partition: int, seq: int, start: bytes) -> Contents:
    """The contents of a container, of which `start` has all but the pages.  Raises ValueError where
    it is another one, or damaged."""
    length, crc = table_bytes(start), _HEAD.unpack_from(start, HEADER_BYTES)[1]
    fields = HEADER.unpack_from(start)
    named = (fields[22].rstrip(b"\0").decode(errors="replace"), fields[14], fields[12])
    if named != (stream, partition, seq):
        raise ValueError("another page lies there")
    data = start[TABLE_AT : TABLE_AT + length]
    if len(data) != length or zlib.crc32(data) != crc:
        raise ValueError("the table of the container is damaged")
    table = json.loads(data)
    pages, at = [], TABLE_AT + length
    for name, version, part, number, rows, size in table["pages"]:
        pages.append(CarriedPage(name, version, part, number, rows, at, size))
        at += size
    counter, nonce = table["session"]
    return Contents(table["device"], table["epoch"], (counter, nonce), table["token"], tuple(pages))
