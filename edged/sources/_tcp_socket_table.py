"""The socket table (`_tcp_calls`) with the kept beginnings of messages, and queues of descriptors.

Both belong to the event loop's thread.  The commit thread reads `table` under the source's lock, so
`open` and `close` need that lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edged.sources import _tcp_calls as calls

Int64s = npt.NDArray[np.int64]


class DescriptorQueue:
    """Descriptors of connections that wait; each is in at most one queue."""

    def __init__(self) -> None:
        self.fds: Int64s = np.empty(256, np.int64)
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def view(self) -> Int64s:
        """The waiting descriptors, in order."""
        return self.fds[: self.count]

    def reserve(self, size: int) -> None:
        """Extend the queue's array to `size`."""
        if self.fds.size < size:
            self.set(self.view(), size)

    def set(self, fds: Int64s, size: int = 0) -> None:
        """Replace the content by `fds`, in an array of at least `size`."""
        grown = np.empty(max(size, self.fds.size, fds.size), np.int64)
        grown[: fds.size] = fds
        self.fds, self.count = grown, fds.size

    def push(self, fd: int) -> None:
        """Append one descriptor."""
        if self.count == self.fds.size:
            self.reserve(2 * self.count)
        self.fds[self.count] = fd
        self.count += 1

    def put_first(self, fds: Int64s) -> None:
        """Insert descriptors at the front."""
        self.set(np.concatenate([fds, self.view()]))

    def drop(self, fd: int) -> None:
        """Remove one descriptor."""
        left = self.view()[np.flatnonzero(self.view() != fd)]
        self.fds[: left.size] = left
        self.count = left.size

    def take(self) -> Int64s:
        """Remove and return all descriptors; they are in no queue afterwards."""
        taken: Int64s = self.view().copy()
        self.count = 0
        return taken


class SocketTable:
    """Rows by descriptor."""

    def __init__(self) -> None:
        self.table: Int64s = np.zeros((256, calls.LINE_WIDTH), np.int64)
        self.tails: npt.NDArray[np.uint8] = np.empty((256, calls.TAIL_BYTES), np.uint8)

    def __len__(self) -> int:
        return len(self.table)

    def open(self, fd: int, way: int, feed: int, slot: int) -> None:
        """Initialize the row of a descriptor."""
        if fd >= len(self.table):
            self._grow(max(fd + 1, 2 * len(self.table)))
        row = self.table[fd]
        row[:] = 0
        row[calls.S_WAY], row[calls.S_FEED], row[calls.S_SLOT] = way, feed, slot

    def close(self, fd: int) -> bool:
        """Clear a row; returns whether it was in a queue."""
        if fd >= len(self.table):
            return False
        queued = bool(self.table[fd, calls.S_QUEUED])
        self.table[fd] = 0
        return queued

    def get(self, fd: int, what: int) -> int:
        """One value of a row; 0 if the table has no such row."""
        return int(self.table[fd, what]) if fd < len(self.table) else 0

    def tail(self, fd: int) -> Any:
        """The kept beginning of a message, as a view."""
        return self.tails[fd, : self.table[fd, calls.S_TAIL]]

    def _grow(self, size: int) -> None:
        table = np.zeros((size, calls.LINE_WIDTH), np.int64)
        tails = np.empty((size, calls.TAIL_BYTES), np.uint8)
        table[: len(self.table)] = self.table
        kept = np.flatnonzero(self.table[:, calls.S_TAIL])
        tails[kept] = self.tails[kept]
        self.table, self.tails = table, tails
