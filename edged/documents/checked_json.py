"""Small JSON files that carry their own checksum.

A file is a JSON object with one more key, `crc`: the CRC-32 of the object without it, as JSON with
sorted keys and without spaces.  An object without `crc`, as earlier versions and other programs
write it, is taken as it is.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

_CRC = "crc"


def pack(content: Mapping[str, Any]) -> bytes:
    """The file of an object."""
    return json.dumps({**content, _CRC: _checksum(content)}).encode()


def unpack(data: bytes) -> Any:
    """The value in a file.  Raises ValueError for bytes that are not JSON or do not match their
    checksum."""
    content = json.loads(data)
    if isinstance(content, dict):
        if any(map(_is_flipped, content)):
            raise ValueError("damaged: the name of its checksum has a flipped bit")
        if _CRC in content and content.pop(_CRC) != _checksum(content):
            raise ValueError("damaged: it does not match its checksum")
    return content


def _is_flipped(key: str) -> bool:
    """Whether a key is the checksum's with one flipped bit."""
    if len(key) != len(_CRC):
        return False
    return sum((ord(a) ^ ord(b)).bit_count() for a, b in zip(key, _CRC, strict=True)) == 1


def _checksum(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
