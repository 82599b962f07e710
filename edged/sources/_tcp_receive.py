"""Receiving: where a connection's bytes go, and how they become regions of a round.

Most connections receive into one arena, each behind the beginning of a message that it had kept;
the kernels parse the arena, what is left over is kept again.  A connection in the middle of a long
message receives into a buffer of its own, up to the end of that message, so that long messages are
copied once only, into staging.
"""

from __future__ import annotations

import ssl
import threading

import numpy as np

from edged.columns import address
from edged.sources._tcp_connection import Connection, Memory

ARENA_BYTES = 4 << 20
"""Memory that a round receives into."""
READ_BYTES_MIN = 16 << 10
"""A round ends when less of the arena is free."""
READ_BYTES_MAX = 1 << 20
"""Most that one connection receives into the arena in a round."""
BUDGET_BYTES_MIN = 4 << 10
"""What is received at least where a stream has any room at all."""


class Receiver:
    """The arena, and the calls that receive."""

    def __init__(self, tls: bool, lock: threading.Lock, memory: Memory) -> None:
        self._arena = np.empty(ARENA_BYTES, np.uint8)
        self.view, self.base = memoryview(self._arena.data), address(self._arena)
        self._tls, self._lock, self._memory = tls, lock, memory
        self._at = 0
        self.share = READ_BYTES_MAX
        """Most that a connection receives in a round: less, the more of them there are."""

    def begin(self) -> None:
        """A new round: the arena is empty."""
        self._at = 0

    def full(self, connection: Connection) -> bool:
        """Whether arena or memory must be seen to before this connection is received from."""
        free = ARENA_BYTES - self._at - len(connection.tail)
        return free < READ_BYTES_MIN or self._memory.spent()

    def receive(self, connection: Connection) -> tuple[int, int]:
        """Bytes received, and asked for.  0: nothing is there now; -1: the connection is over."""
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

    def received(self, connection: Connection, got: int) -> bytes:
        """A copy of what was kept and received in the arena just now."""
        return bytes(self.view[self._at : self._at + len(connection.tail) + got])

    def offer(self, connection: Connection, got: int) -> None:
        """Make what was received, with what was kept before it, a region of this round.

        With nothing received: what was kept alone.
        """
        feed = connection.feed
        assert feed is not None
        if connection.own is not None:
            connection.filled += got
            feed.budget -= connection.filled
            feed.add(connection, address(connection.own), connection.filled)
            return
        if connection.fresh:
            self._target(connection)
            connection.fresh = False
        size = len(connection.tail) + got
        feed.budget -= size
        connection.keep(b"")
        feed.add(connection, self.base + self._at, size)
        self._at += (size + 7) & ~7

    def _target(self, connection: Connection) -> memoryview:
        """Where to receive to; in the arena what was kept is laid before it."""
        feed = connection.feed
        budget = self.share
        if feed is not None:
            budget = max(min(budget, feed.budget), BUDGET_BYTES_MIN)
        if connection.own is None and connection.expect > 0 and not connection.tail:
            connection.grow_own(0)
        if connection.own is not None:
            filled, need = connection.filled, connection.need or connection.expect
            if filled == connection.own.size:
                connection.grow_own(min(max(need, filled + 1), 2 * filled))
            stop = min(connection.own.size, max(need, filled + 1), filled + budget)
            assert connection.view is not None
            return connection.view[filled:stop]
        start = self._at + len(connection.tail)
        if connection.tail:
            self.view[self._at : start] = connection.tail
        size = min(ARENA_BYTES - start, READ_BYTES_MAX, budget)
        return self.view[start : start + size]

    def _receive_tls(self, connection: Connection, target: memoryview) -> int:
        """TLS gives a record at a time, so until it has no more."""
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
                connection.hung_up = True
                return got or -1
            got += n
        return got
