"""Receiving: where a connection's bytes go, and how they become regions of a round.

Most connections receive into one arena, each after the kept beginning of its message; the kernels
parse the arena and keep unconsumed bytes.  One call serves all of them (`_tcp_calls.receive`).  A
connection within a long message is received individually, into its own buffer, so that long
messages are copied only once, into staging: up to the end of that message, or, where its sender is
fast, a run of bytes with many messages in it.  TLS connections are received individually too.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.sources import _tcp_calls as calls
from edged.sources._tcp_connection import Connection, MessageMemory
from edged.sources._tcp_socket_table import SocketTable

Int64s = npt.NDArray[np.int64]

ARENA_BYTES = 4 << 20
"""Size of the memory that a round receives into."""
READ_BYTES_MIN = 16 << 10
"""A round ends when less of the arena is free."""
READ_BYTES_MAX = 4 << 20
"""Most bytes received from one connection in a round."""
RUN_BYTES_MIN = 256 << 10
"""The first run of a fast sender; each that was filled is followed by one twice as long."""
BUDGET_BYTES_MIN = 4 << 10
"""Least bytes received for a stream that has any room."""


@dataclass
class Received:
    """Result of one call for many connections; descriptors in the order of their turns."""

    later: Int64s
    """Postponed: the arena is full."""
    again: Int64s
    """To be received from again."""
    held: Int64s
    """Their feed has no budget."""
    single: Int64s
    """Received individually."""
    lost: Int64s
    bytes: int
    burst_bytes: int
    """Most bytes that one of them has sent since its socket was last empty."""


class Receiver:
    """The arena, its regions, and the calls that receive."""

    def __init__(
        self, tls: bool, lock: threading.Lock, memory: MessageMemory, lines: SocketTable, feeds: int
    ) -> None:
        self._arena = np.empty(ARENA_BYTES, np.uint8)
        self.view, self.base = memoryview(self._arena.data), address(self._arena)
        self._tls, self._lock, self._memory, self._lines = tls, lock, memory, lines
        self._at = self._count = 0
        self._regions: Int64s = np.empty((0, calls.REGION_WIDTH), np.int64)
        self._out: Int64s = np.empty((calls.OUT_WIDTH, 0), np.int64)
        self._totals = np.zeros(5 + calls.OUT_WIDTH, np.int64)
        self.budgets = np.zeros(feeds, np.int64)
        """Bytes that each feed may receive in this round."""
        self.share = READ_BYTES_MAX
        """Most bytes for one connection in a round; smaller with more connections."""

    def begin(self) -> None:
        """Start a round with an empty arena."""
        self._at = self._count = 0
        if len(self._regions) < len(self._lines):
            self._regions = np.empty((len(self._lines), calls.REGION_WIDTH), np.int64)
            self._out = np.empty((calls.OUT_WIDTH, len(self._lines)), np.int64)

    def regions(self) -> Int64s:
        """What the round has received, as rows of `_tcp_calls`."""
        return self._regions[: self._count]

    def full(self, connection: Connection) -> bool:
        """Whether the arena or the memory limit must be handled before this connection is
        received."""
        free = ARENA_BYTES - self._at - len(connection.tail) - calls.TAIL_BYTES
        return free < READ_BYTES_MIN or self._memory.spent()

    def receive_many(self, fds: Int64s) -> Received:
        """Receive once from each connection while the arena has room.  Must be the first of a
        round."""
        none = fds[:0]
        if self._memory.spent():
            return Received(fds, none, none, none, none, 0, 0)
        sizes = np.array([READ_BYTES_MIN, self.share, BUDGET_BYTES_MIN], np.int64)
        calls.receive(
            fds, self._lines.table, self._lines.tails, self.budgets, self.base, ARENA_BYTES,
            sizes, self._regions, self._out, self._totals,
        )  # fmt: skip
        self._count, self._at, got, tails, burst, *counts = self._totals.tolist()
        self._memory.bytes -= tails
        later, again, held, single, lost = (self._out[i, :n].copy() for i, n in enumerate(counts))
        return Received(later, again, held, single, lost, got, burst)

    def receive(self, connection: Connection) -> tuple[int, int]:
        """Bytes received, and requested.  0: the socket is empty; -1: the connection has ended."""
        target = self._target(connection)
        if self._tls:
            return self._receive_tls(connection, target), len(target)
        try:
            got = connection.sock.recv_into(target)
        except BlockingIOError:
            return 0, len(target)
        except OSError:
            return -1, len(target)
        return got or -1, len(target)

    def offer(self, connection: Connection, got: int, filled: bool) -> None:
        """Make the received bytes, with what was kept before them, a region of this round.
        `filled`: there were as many as requested."""
        assert connection.feed >= 0
        if connection.own is not None:
            if filled:
                connection.run = min(READ_BYTES_MAX, max(RUN_BYTES_MIN, 2 * connection.run))
            connection.filled += got
            start, size = address(connection.own), connection.filled
        else:
            line = self._lines.table[connection.fd]
            start = self.base + self._at
            size = int(line[calls.S_TAIL]) + len(connection.tail) + got
            self._memory.bytes -= int(line[calls.S_TAIL])
            line[calls.S_TAIL] = 0
            connection.keep(b"")
            self._at += (size + 7) & ~7
        feed = connection.feed
        self.budgets[feed] -= size
        self._regions[self._count] = feed, connection.slot, connection.fd, start, size
        self._count += 1

    def _target(self, connection: Connection) -> memoryview:
        """The memory to receive into; in the arena, the kept bytes are copied in front of it."""
        assert connection.feed >= 0
        budget = max(min(self.share, int(self.budgets[connection.feed])), BUDGET_BYTES_MIN)
        if connection.own is not None:
            filled, need = connection.filled, connection.need or connection.expect
            run = min(connection.run, self.share)
            stop = max(need, filled + 1, run)
            if filled == connection.own.size or run > connection.own.size:
                connection.grow_own(max(min(stop, 2 * filled), run))
            stop = min(connection.own.size, stop, filled + budget)
            assert connection.view is not None
            return connection.view[filled:stop]
        kept = connection.tail or memoryview(self._lines.tail(connection.fd).data)
        start = self._at + len(kept)
        self.view[self._at : start] = kept
        return self.view[start : start + min(ARENA_BYTES - start, READ_BYTES_MAX, budget)]

    def _receive_tls(self, connection: Connection, target: memoryview) -> int:
        """TLS returns one record at a time: read until there is no more."""
        got = 0
        while got < len(target):
            try:
                with self._lock:
                    n = connection.sock.recv_into(target[got:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return got
            except OSError:
                n = 0
            if n == 0:
                self._lines.table[connection.fd, calls.S_HUNG] = 1
                return got or -1
            got += n
        return got
