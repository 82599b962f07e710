"""Counting the attempts at a beat, so that input that crashes a kernel is never a crash loop.

Before each race the beat's number is written into a mapped 16-byte file (no system call).  A
process that dies in the race leaves it there; when the same number is raced for the N-th time
after that, its input is set aside in the store's quarantine instead.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_LAYOUT = struct.Struct("<QQ")


class Attempts:
    """How often the current beat number has been raced, over restarts."""

    def __init__(self, path: Path, limit: int) -> None:
        if not path.exists() or path.stat().st_size != _LAYOUT.size:
            path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as f:
            self._map = mmap.mmap(f.fileno(), _LAYOUT.size)
        self.limit = limit

    def begin(self, beat: int) -> bool:
        """Note that `beat` is about to be raced; False where it has died too often."""
        last, tries = _LAYOUT.unpack_from(self._map)
        tries = tries + 1 if last == beat else 1
        _LAYOUT.pack_into(self._map, 0, beat, tries)
        return bool(tries <= self.limit)

    def close(self) -> None:
        """Unmap."""
        self._map.close()
