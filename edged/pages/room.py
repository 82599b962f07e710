"""Buffers of open pages: size classes, and a pool of free buffers of each class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ROOM_BYTES_MIN, ROOM_FACTOR = 1 << 12, 4
"""The smallest size class, and the ratio of one class to the class below it."""
POOL_BYTES_MAX = 1 << 22
"""Free buffers of a class that are kept."""


def room_class(need: int, capacity: int) -> int:
    """The least class of at least `need` bytes; at most `capacity`, which is a class itself."""
    room = ROOM_BYTES_MIN
    while room < need:
        room *= ROOM_FACTOR
    return min(room, capacity)


class BufferPool:
    """Free buffers by size.  Several threads may take and give at a time."""

    def __init__(self) -> None:
        self._free: dict[int, list[npt.NDArray[np.uint8]]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        """A buffer of `size` bytes with undefined contents."""
        try:
            return self._free[size].pop()
        except (KeyError, IndexError):
            return np.empty(size, np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Keep a buffer that is no longer used, or drop it if its class is full."""
        free = self._free.setdefault(buffer.size, [])
        if (len(free) + 1) * buffer.size <= POOL_BYTES_MAX:
            free.append(buffer)

    def held_bytes(self) -> int:
        """Memory of the free buffers in bytes."""
        return sum(size * len(free) for size, free in list(self._free.items()))
