"""One connection to edged: sends bytes, parses received bytes into frames.

Only `connect` and `wait` block.  A failure of the connection raises OSError; the producer then
makes a new connection.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import TYPE_CHECKING

from edged.client.frames import FrameReader

if TYPE_CHECKING:
    from collections.abc import Sequence

RECEIVE_BYTES = 1 << 16


class Closed(ConnectionResetError):
    """The peer closed the connection in order."""


class FrameConnection:
    """A connected socket and its unsent bytes."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        sock = socket.create_connection((host, port), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=host)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        self._sock, self._tls = sock, tls is not None
        self._frames = FrameReader()
        self._unsent: list[memoryview] = []
        self.finished = False
        """Whether the sending side was shut down."""

    @property
    def idle(self) -> bool:
        """Whether the kernel has taken all bytes."""
        return not self._unsent

    def give(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Queue `parts` and send what the kernel takes; returns whether it took all."""
        self._unsent.extend(memoryview(part) for part in parts if len(part))
        return self.send()

    def send(self) -> bool:
        """Send queued bytes; returns whether none is left.  Raises OSError."""
        try:
            while self._unsent:
                part = self._unsent[0]
                sent = self._sock.send(part)
                if sent < len(part):
                    self._unsent[0] = part[sent:]
                else:
                    del self._unsent[0]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        return True

    def finish(self) -> None:
        """Shut down the sending side.  Raises OSError."""
        if self.finished:
            return
        self.finished = True
        if not isinstance(self._sock, ssl.SSLSocket):
            self._sock.shutdown(socket.SHUT_WR)
            return
        # sends close_notify; reading goes on
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            self._sock.unwrap()

    def receive(self) -> list[tuple[int, bytes]]:
        """The frames received so far.  Raises OSError at the end of the connection."""
        frames: list[tuple[int, bytes]] = []
        while True:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return frames
            except OSError:
                if frames:
                    return frames  # frames first; the next call raises the error
                raise
            if not data:
                if frames:
                    return frames
                raise Closed("edged closed the connection")
            frames += self._frames.feed(data)
            if not self._tls and len(data) < RECEIVE_BYTES:
                return frames

    def wait(self, timeout_s: float) -> None:
        """Sleep until bytes can be received, or sent if some are queued."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(max(0, round(timeout_s * 1000)))

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._sock.close()
