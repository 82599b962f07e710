"""The crash counter: counts processes that die in a race, so that input which crashes a kernel does
not become a crash loop.

A memory-mapped file says whether a race is under way, at no system call.  A process that dies in a
race leaves that mark, and the next process counts it.

1. A count does not say which rows caused the crash: after a restart other rows may come first.  So
   after `limit - CHUNK_CRASHES_MAX` deaths the heart is *careful*: it races one chunk (one message)
   at a time and makes it durable before the next.  The file names that chunk by a fingerprint of
   its contents, which is the same when its producer sends it again.
2. A chunk that was raced carefully and died CHUNK_CRASHES_MAX times is set aside: `begin` returns
   False.  The heart is then no longer careful, nor after a process has lived for CALM_US.
3. `kill -9` during races looks the same, and costs at most a slow minute.

    u64 deaths | u64 racing | u64 fingerprint (0: not careful) | 8 x (u64 fingerprint, u64 deaths)
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from edged.platform.disk import DISK_FULL

CHUNK_CRASHES_MAX = 2
"""Deaths of one chunk, raced alone, after which it is set aside."""
CALM_US = 60_000_000
"""Lifetime of a process after which earlier deaths are forgotten."""
_CHUNKS = 8
_BYTES = 8 * (3 + 2 * _CHUNKS)
_DEATHS, _RACING, _FINGERPRINT = range(3)


class CrashCounter:
    """Deaths in races over restarts; the heart's thread only."""

    def __init__(self, path: Path, limit: int, now_us: int) -> None:
        self._map = _mapped(path)
        self._words = np.frombuffer(self._map, np.uint64)
        self._table = self._words[3:].reshape(_CHUNKS, 2)
        self._started_us = now_us
        if self._words[_RACING]:
            self._words[_DEATHS] += np.uint64(1)
            self._count(int(self._words[_FINGERPRINT]))
        self._words[_RACING] = 0
        self.careful = int(self._words[_DEATHS]) >= limit - CHUNK_CRASHES_MAX

    def begin(self, fingerprint: int = 0) -> bool:
        """Mark the begin of a race; False where this chunk must not be raced."""
        self._words[_FINGERPRINT], self._words[_RACING] = fingerprint, 1
        if not fingerprint:
            return True
        found = np.flatnonzero(self._table[:, 0] == np.uint64(fingerprint))
        deaths = self._table[found[0], 1] if found.size else 0
        is_fatal = deaths >= CHUNK_CRASHES_MAX
        if is_fatal:
            self._forget()
        return not is_fatal

    def end(self, now_us: int) -> None:
        """Mark the end of a race that the process survived."""
        self._words[_RACING] = 0
        if self._words[_DEATHS] and now_us - self._started_us >= CALM_US:
            self._forget()

    def close(self) -> None:
        """Unmap the file."""
        del self._words, self._table
        self._map.close()

    def _forget(self) -> None:
        self._words[_DEATHS], self._table[:] = 0, 0
        self.careful = False

    def _count(self, fingerprint: int) -> None:
        """Count a death of this chunk.  A full table drops the chunk with the fewest deaths."""
        if fingerprint == 0:
            return
        found = np.flatnonzero(self._table[:, 0] == np.uint64(fingerprint))
        at = int(found[0]) if found.size else int(self._table[:, 1].argmin())
        if not found.size:
            self._table[at] = fingerprint, 0
        self._table[at, 1] += np.uint64(1)


def _mapped(path: Path) -> mmap.mmap:
    """The file; where the disk is too full for one, memory that no later process sees."""
    try:
        if not path.exists() or path.stat().st_size != _BYTES:
            path.write_bytes(bytes(_BYTES))
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
        return mmap.mmap(-1, _BYTES)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _BYTES)
