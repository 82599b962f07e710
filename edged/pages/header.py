"""The fixed part of the page header: its layout and checksum, with the standard library alone.

`edged.pages.format` specifies the fields and parses them.  The uplink process uses only this
module, because the format module imports pyarrow.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

MAGIC = b"EDGP"
HEADER = struct.Struct("<4sBBBBIIIIIIQQQIIqqqII64s64s")
HEADER_BYTES = HEADER.size
CHECKSUM_AT = 28
"""Offset of `checksum` in a page."""
SEALED_AT_OFFSET = 80
"""Offset of `sealed_at_us` in a page."""
_NO_CHECKSUM = bytes(4)


def checksum(page: Any) -> int:
    """The checksum that a page (header and stored body, any contiguous buffer) must carry."""
    view = memoryview(page).cast("B")
    start = zlib.crc32(_NO_CHECKSUM, zlib.crc32(view[:CHECKSUM_AT]))
    return zlib.crc32(view[CHECKSUM_AT + 4 :], start)
