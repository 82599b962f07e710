"""One connection of the TCP source: its socket, unfinished input and unsent frames.

Received bytes are in the source's arena for one round.  The beginning of an unfinished message is
kept in one of three places: up to a page in the socket table (`_tcp_socket_table`), more in `tail`,
most in a buffer of the connection (`own`) into which the rest is received directly.

Only the event loop's thread receives and closes.  Both threads send frames, so `send` and `close`
and everything they call need the source's lock: the descriptor of a closed socket is reused.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.client import frames
from edged.sources._tcp_calls import S_TAIL
from edged.sources._tcp_socket_table import SocketTable

if TYPE_CHECKING:
    from edged.sources._tcp_slow import SlowReader

GREETING, OPEN, LEAVING, CLOSED = "greeting", "open", "leaving", "closed"
OWN_BYTES_MIN = 64 << 10
"""Initial size of a connection's own buffer."""


class MessageMemory:
    """Counts the bytes of all unfinished messages of a source against their limit."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes, self.bytes_max = 0, bytes_max

    def spent(self) -> bool:
        """Whether the limit is exceeded."""
        return self.bytes > self.bytes_max


class Connection:
    """A connection and its state.  `slot` is its row in its feed's table."""

    __slots__ = (
        "_ack",
        "_lines",
        "_memory",
        "_others",
        "_rest",
        "discarded",
        "ended",
        "expect",
        "fd",
        "feed",
        "filled",
        "id",
        "layout",
        "links",
        "need",
        "number",
        "own",
        "peer",
        "reader",
        "run",
        "schema_message",
        "since_us",
        "slot",
        "slow",
        "sock",
        "state",
        "tail",
        "tls_shaking",
        "told",
        "view",
    )  # fmt: skip

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        since_us: int,
        tls: bool,
        memory: MessageMemory,
        lines: SocketTable,
    ) -> None:
        self._memory, self._lines = memory, lines
        self.sock, self.fd, self.peer, self.since_us = sock, sock.fileno(), peer, since_us
        self.state, self.tls_shaking = GREETING, tls
        self.ended = self.slow = self.links = False
        self.told: tuple[int, int] | None = None
        """The losses of the last LOST frame; None: the producer has not asked for them."""
        self.feed = -1
        """Index of its feed among the source's; -1 until the connection is admitted."""
        self.id, self.number, self.slot, self.layout = "", 0, -1, 0
        self.schema_message = b""
        self.reader: SlowReader | None = None
        self.tail: bytes | bytearray = b""
        self.own: Any = None
        self.view: memoryview | None = None
        self.filled = self.need = self.expect = self.run = self.discarded = 0
        self._rest = b""
        self._ack = -1
        self._others: list[bytes] = []

    @property
    def name(self) -> str:
        """A name for messages: the producer and its address."""
        return f"{self.id} at {self.peer}" if self.id else self.peer

    def held(self) -> int:
        """Bytes of memory used by the unfinished message."""
        line = self._lines.get(self.fd, S_TAIL) if self.state == OPEN else 0
        return line + len(self.tail) + (0 if self.own is None else self.own.size)

    def half(self) -> bool:
        """Whether an incomplete message is kept."""
        line = self._lines.get(self.fd, S_TAIL) if self.state == OPEN else 0
        return bool(line or self.tail or self.filled)

    def keep(self, tail: bytes) -> None:
        """Replace the kept beginning of a message by `tail`."""
        self._memory.bytes += len(tail) - len(self.tail)
        self.tail = tail

    def grow_own(self, size: int) -> None:
        """Grow the connection's own buffer to `size` bytes or more, keeping its content."""
        if self.own is None or self.own.size < size:
            own = np.empty(max(size, OWN_BYTES_MIN), np.uint8)
            if self.filled:
                own[: self.filled] = self.own[: self.filled]
            self._memory.bytes += own.size - (0 if self.own is None else self.own.size)
            self.own, self.view = own, memoryview(own.data)

    def drop_own(self) -> None:
        """Release the own buffer and its content."""
        self._memory.bytes -= 0 if self.own is None else self.own.size
        self.own = self.view = None
        self.filled = self.need = self.expect = self.run = 0

    def extend(self, data: bytes) -> None:
        """Append to the kept beginning of a greeting, in time proportional to `data`."""
        self._memory.bytes += len(data)
        if not isinstance(self.tail, bytearray):
            self.tail = bytearray(self.tail)
        self.tail += data

    def forget(self) -> None:
        """Release everything that was received and not staged."""
        self.drop_own()
        self.keep(b"")
        self.reader = None

    def ack_rest(self, seq: int, sent: int) -> bool:
        """Like `ack`, when the first `sent` bytes of the frame have been sent."""
        if not sent:
            return self.ack(seq)
        self._rest = frames.numbered(frames.ACK, seq)[sent:]
        return self.flush()

    def ack(self, seq: int) -> bool:
        """Send an ACK; if the peer does not read, keep only the newest one."""
        self._ack = seq
        return self.flush()

    def send(self, frame: bytes) -> bool:
        """Send a frame, or keep it until the peer reads."""
        self._others.append(frame)
        return self.flush()

    def flush(self) -> bool:
        """Send what is kept; false if some of it remains."""
        if self.state == CLOSED:
            self._rest, self._ack, self._others = b"", -1, []
            return True
        try:
            while self.wants_to_send():
                if not self._rest:
                    parts = [] if self._ack < 0 else [frames.numbered(frames.ACK, self._ack)]
                    self._rest = b"".join(parts + self._others)
                    self._ack, self._others = -1, []
                sent = self.sock.send(self._rest)
                self._rest = self._rest[sent:]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        except OSError:  # the event loop meets the error when it receives
            self._rest, self._ack, self._others = b"", -1, []
        return True

    def wants_to_send(self) -> bool:
        """Whether frames wait until the peer reads."""
        return bool(self._rest or self._ack >= 0 or self._others)

    def finish_sending(self) -> None:
        """Shut down sending: the peer sees the end after the last frame."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        self.state = CLOSED
        self.forget()
        with contextlib.suppress(OSError):
            self.sock.close()
