"""A page of a link: whole Arrow IPC messages, as they are sent, behind a header that is not.

| offset | type | content |
|---|---|---|
| 0 | u32 | magic, "EdLk" |
| 4 | u32 | version of the schema: CRC-32 of its JSON form |
| 8 | u64 | number of the first message |
| 16 | u64 | number of the last message, which is also the page's |
| 24 | u64 | digest of the last message |
| 32 | u32 | instance |
| 36 | u32 | CRC-32 of the link's name |
| 40 | u64 | rows |
| 48 | u64 | length of the page |
| 56 | u32 | CRC-32 of the bytes before |
| 60 | u32 | 0 |

A sender reads the header, and lets the kernel copy the messages from the file to the socket.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

LINK_PREFIX = "link:"
"""The names of links begin with it as names of streams of pages; no stream of a job's does."""
LINK_HEADER_BYTES = 64
_MAGIC = 0x6B4C6445
_HEADER = struct.Struct("<IIQQQIIQQ")
_CRC = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class LinkPage:
    """What a header says."""

    version: int
    first: int
    last: int
    digest: int
    instance: int
    rows: int
    length: int

    def pack(self, link: str) -> bytes:
        """The header of a page of `link`."""
        head = _HEADER.pack(
            _MAGIC, self.version, self.first, self.last, self.digest, self.instance,
            zlib.crc32(link.encode()), self.rows, self.length,
        )  # fmt: skip
        return head + _CRC.pack(zlib.crc32(head), 0)


def unpack_header(link: str, data: bytes) -> LinkPage | None:
    """The header of a page of `link`; None: the bytes are none."""
    if len(data) < LINK_HEADER_BYTES:
        return None
    magic, version, first, last, digest, instance, name, rows, length = _HEADER.unpack_from(data)
    crc, _ = _CRC.unpack_from(data, _HEADER.size)
    whole = crc == zlib.crc32(data[: _HEADER.size])
    if not whole or magic != _MAGIC or name != zlib.crc32(link.encode()):
        return None
    return LinkPage(version, first, last, digest, instance, rows, length)


def is_link(stream: str) -> bool:
    """Whether pages of this name belong to a link, not to the centre."""
    return stream.startswith(LINK_PREFIX)


def link_name(job: str, sink: str) -> str:
    """The name of the pages of a job's link."""
    return f"{LINK_PREFIX}{job}/{sink}"
