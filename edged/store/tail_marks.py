"""The mark behind the last durable record of a log segment.

A record is proven durable by any record behind it (`durable`).  The last one has none behind it, so
the log writes a mark there once the record's fdatasync has returned.  A start that finds the mark
and not the record knows that the record was durable, hence damaged; without a mark it is a torn
write.  The mark is not synced: it survives kills, and a power cut once the kernel has written it
back.  The next record of the segment overwrites it.

A mark is one block of 4096 bytes, little-endian: u32 magic 0x4D676445 ("EdgM"), u16 version 1, u16
zero, u64 number of the segment, u64 beat of the durable record, u32 CRC-32 of the 24 bytes before,
which starts from the CRC-32 of the segment's nonce; zeros.  A segment whose last record fills it
has none.
"""

from __future__ import annotations

import struct
import zlib

MARK_MAGIC = 0x4D676445
MARK_BYTES = 4096
_MARK = struct.Struct("<IHHQQI")
_VERSION = 1


def pack_mark(segment: int, seed: int, beat: int) -> bytes:
    """The block of a mark: the record of `beat` is durable."""
    head = _MARK.pack(MARK_MAGIC, _VERSION, 0, segment, beat, 0)[:-4]
    return (head + struct.pack("<I", zlib.crc32(head, seed))).ljust(MARK_BYTES, b"\0")


def parse_mark(data: bytes, segment: int, seed: int) -> int | None:
    """The durable beat that a block's first bytes name; None: they are no mark of this segment."""
    if len(data) < _MARK.size:
        return None
    magic, version, _, number, beat, crc = _MARK.unpack_from(data)
    if (magic, version, number) != (MARK_MAGIC, _VERSION, segment):
        return None
    return int(beat) if crc == zlib.crc32(data[: _MARK.size - 4], seed) else None
