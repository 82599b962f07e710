"""Counting the deaths within races, so that input that crashes a kernel is never a crash loop.

A mapped file says whether a race is under way (no system call); a process that dies in one leaves
that there, and the next process counts it.

1. Beats do not tell whose fault a death was: after a restart other rows may come first.  So after
   `limit - CAREFUL` deaths the heart is *careful*: it races one chunk (one message) at a time, each
   durable before the next, and the file names that chunk by a fingerprint of its contents, which
   is the same whenever its producer sends it again.
2. A chunk that was raced carefully and died CAREFUL times is to be set aside: `begin` says so.  The
   heart is no longer careful then, nor in a process that has lived for CALM_US.
3. `kill -9` in the middle of races looks the same, and costs no more than a slow minute.

    u64 deaths | u64 racing | u64 fingerprint (0: not careful) | 8 x (u64 fingerprint, u64 deaths)
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from edged.platform.disk import DISK_FULL

CAREFUL = 2
"""Deaths of one chunk, raced alone, after which it is set aside."""
CALM_US = 60_000_000
_KEPT = 8
_BYTES = 8 * (3 + 2 * _KEPT)
_DEATHS, _RACING, _FINGERPRINT = range(3)


class Attempts:
    """Who has died in a race, over restarts; see the module's docstring."""

    def __init__(self, path: Path, limit: int, now_us: int) -> None:
        self._map = _mapped(path)
        self._words = np.frombuffer(self._map, np.uint64)
        self._table = self._words[3:].reshape(_KEPT, 2)
        self._started_us = now_us
        if self._words[_RACING]:
            self._words[_DEATHS] += np.uint64(1)
            self._count(int(self._words[_FINGERPRINT]))
        self._words[_RACING] = 0
        self.careful = int(self._words[_DEATHS]) >= limit - CAREFUL

    def begin(self, fingerprint: int = 0) -> bool:
        """A race begins; False where this chunk must not be raced."""
        self._words[_FINGERPRINT], self._words[_RACING] = fingerprint, 1
        found = np.flatnonzero(self._table[:, 0] == np.uint64(fingerprint))
        fatal = fingerprint != 0 and found.size > 0 and self._table[found[0], 1] >= CAREFUL
        if fatal:
            self._forget()
        return not fatal

    def end(self, now_us: int) -> None:
        """The race is over, and everybody lives."""
        self._words[_RACING] = 0
        if self._words[_DEATHS] and now_us - self._started_us >= CALM_US:
            self._forget()

    def close(self) -> None:
        """Unmap."""
        del self._words, self._table
        self._map.close()

    def _forget(self) -> None:
        self._words[_DEATHS], self._table[:] = 0, 0
        self.careful = False

    def _count(self, fingerprint: int) -> None:
        """One more death of this chunk; where all places are taken, the least deadly one gives."""
        if fingerprint == 0:
            return
        found = np.flatnonzero(self._table[:, 0] == np.uint64(fingerprint))
        at = int(found[0]) if found.size else int(self._table[:, 1].argmin())
        if not found.size:
            self._table[at] = fingerprint, 0
        self._table[at, 1] += np.uint64(1)


def _mapped(path: Path) -> mmap.mmap:
    """The file, or where the disk is too full for one memory that no later process will see."""
    try:
        if not path.exists() or path.stat().st_size != _BYTES:
            path.write_bytes(bytes(_BYTES))
    except OSError as problem:
        if problem.errno not in DISK_FULL:
            raise
        return mmap.mmap(-1, _BYTES)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _BYTES)
