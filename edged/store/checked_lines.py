"""Small files of two lines: a JSON document, and the CRC-32 of its line in decimal."""

from __future__ import annotations

import json
import zlib
from typing import Any

from edged.platform.disk import Disk, replace_file


def write_checked(disk: Disk, path: str, document: object, *, sync: bool = True) -> None:
    """Replace the file.  Raises OSError."""
    body = json.dumps(document, separators=(",", ":")).encode()
    crc = str(zlib.crc32(body)).encode()
    replace_file(disk, path, [body + b"\n" + crc + b"\n"], sync=sync)


def read_checked(disk: Disk, path: str) -> Any:
    """The document; None where the file is damaged.  Raises OSError, also where it is missing."""
    file = disk.open(path)
    try:
        text = file.pread(file.size(), 0)
    finally:
        file.close()
    body, _, crc = text.rstrip(b"\n").rpartition(b"\n")
    return json.loads(body) if body and crc == str(zlib.crc32(body)).encode() else None
