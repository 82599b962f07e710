"""One connection to edged: connects, sends what it is given, cuts what comes back into frames.

Never blocks but in `connect` and `wait`.  What goes wrong with the connection is `OSError`; it is
over then, and the producer makes a new one.
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
    """A connected socket and what still waits to be sent on it."""

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
        """Whether the peer was told that nothing follows."""

    @property
    def idle(self) -> bool:
        """Whether all that was given has gone to the kernel."""
        return not self._unsent

    def give(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Take `parts` for sending and send what goes; whether all of it went."""
        self._unsent.extend(memoryview(part) for part in parts if len(part))
        return self.send()

    def send(self) -> bool:
        """Send what goes now; whether nothing is left.  Raises OSError."""
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
        """Say, below the protocol, that nothing follows.  Raises OSError."""
        if self.finished:
            return
        self.finished = True
        if not isinstance(self._sock, ssl.SSLSocket):
            self._sock.shutdown(socket.SHUT_WR)
            return
        # close_notify goes out; what the peer has to say, or that it has hung up, is read as ever
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError):
            self._sock.unwrap()

    def receive(self) -> list[tuple[int, bytes]]:
        """Frames that are here now.  Raises OSError at the end of the connection."""
        frames: list[tuple[int, bytes]] = []
        while True:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return frames
            except OSError:
                if frames:
                    return frames  # what was said first; the error comes again
                raise
            if not data:
                if frames:
                    return frames
                raise Closed("edged closed the connection")
            frames += self._frames.feed(data)
            if not self._tls and len(data) < RECEIVE_BYTES:
                return frames

    def wait(self, timeout_s: float) -> None:
        """Sleep until something can be received, or sent where something waits."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(max(0, round(timeout_s * 1000)))

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._sock.close()
