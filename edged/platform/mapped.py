"""Maps of files: how much of them is in memory, and what is read of them ahead."""

from __future__ import annotations

import mmap
import os
import resource
from typing import Any

import numpy.typing as npt

ASKED_BYTES = 1 << 17
"""Bytes that one request names; Linux reads no more of a larger one than its read-ahead."""


def mapped_bytes() -> int:
    """Bytes of mapped files that are resident in this process, those of its code included."""
    fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 128).split()[2]) * mmap.PAGESIZE
    finally:
        os.close(fd)


def major_faults() -> int:
    """How often this process has waited for a page of a file."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def let_go(mapped: npt.NDArray[Any]) -> None:
    """Drop the pages of a file's map from this process; the next access maps them again."""
    _advise(mapped, mmap.MADV_DONTNEED)


def read_at_random(mapped: npt.NDArray[Any]) -> None:
    """A page of a file's map that is missing is read alone from now on.

    By default Linux reads as many pages around it as its read-ahead has: 32 to 2048.
    """
    _advise(mapped, mmap.MADV_RANDOM)


def will_read(mapped: npt.NDArray[Any], start: int, stop: int) -> None:
    """Begin to read a range of bytes of a file's map, without waiting for it."""
    start -= start % mmap.PAGESIZE
    for at in range(start, stop, ASKED_BYTES):
        _advise(mapped, mmap.MADV_WILLNEED, at, min(stop - at, ASKED_BYTES))


def _advise(mapped: npt.NDArray[Any], *advice: int) -> None:
    """Advise about the map whose memory an array is part of; nothing where it is no map's."""
    owner: Any = mapped
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
    if owner is not None:
        owner.madvise(*advice)
