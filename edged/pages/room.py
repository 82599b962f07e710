"""Buffers of open pages: size classes, and a pool of free buffers of each class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edged.data.columns import address

ROOM_BYTES_MIN, ROOM_FACTOR = 1 << 12, 4
"""The smallest size class, and the ratio of one class to the class below it."""
POOL_BYTES_MAX = 1 << 22
"""Free buffers of a class that are kept."""


class Buffer(NamedTuple):
    """The memory of an open page."""

    memory: npt.NDArray[np.uint8]
    at: int
    """Its address."""


def room_class(need: int, capacity: int) -> int:
    """The least class of at least `need` bytes; at most `capacity`, which is a class itself."""
    room = ROOM_BYTES_MIN
    while room < need:
        room *= ROOM_FACTOR
    return min(room, capacity)


class BufferPool:
    """Free buffers by size, each with its address.  Several threads may take and give at a time.

    It keeps POOL_BYTES_MAX a class, and as many bytes in all as were in use at each of the last two
    flushes: steady work takes no fresh memory, and the memory of a single burst is given back.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Buffer]] = {}
        self._in_use = self._keep = 0

    def take(self, size: int) -> Buffer:
        """A buffer of `size` bytes with undefined contents."""
        try:
            return self._free[size].pop()
        except (KeyError, IndexError):
            memory = np.empty(size, np.uint8)
            return Buffer(memory, address(memory))

    def give(self, buffer: Buffer) -> None:
        """Keep a buffer that is no longer used, or drop it if its class is full."""
        size = buffer.memory.size
        free = self._free.setdefault(size, [])
        if (len(free) + 1) * size <= POOL_BYTES_MAX:
            free.append(buffer)

    def give_all(self, buffers: list[Buffer]) -> None:
        """Keep buffers that are no longer used, or drop those that are too many."""
        held = self.held_bytes()
        for buffer in buffers:
            size = buffer.memory.size
            free = self._free.setdefault(size, [])
            if (len(free) + 1) * size <= POOL_BYTES_MAX or held + size <= self._keep:
                free.append(buffer)
                held += size

    def flushed(self, in_use: int) -> None:
        """Adapt to `in_use` bytes at a flush; drop free buffers that are too many, large first."""
        self._in_use, self._keep = in_use, min(in_use, self._in_use)
        held = self.held_bytes()
        for size, free in sorted(self._free.items(), reverse=True):
            least = POOL_BYTES_MAX // size
            drop = min(len(free) - least, -((self._keep - held) // size))
            if drop > 0:
                del free[-drop:]
                held -= drop * size

    def clear(self) -> None:
        """Drop all free buffers, and keep few from now on."""
        self._free.clear()
        self._in_use = self._keep = 0

    def held_bytes(self) -> int:
        """Memory of the free buffers in bytes."""
        return sum(size * len(free) for size, free in list(self._free.items()))
