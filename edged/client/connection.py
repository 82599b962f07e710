"""One connection to edged: sends bytes, parses received bytes into frames.

Only `connect` and `wait` block.  A failure of the connection raises OSError; the producer then
makes a new connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING

from edged.client.frames import FrameReader
from edged.platform.trust import trusting

if TYPE_CHECKING:
    from collections.abc import Sequence

RECEIVE_BYTES = 1 << 16
_TLS_BYTES = 1 << 18


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

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def send_file(self, fd: int, offset: int, size: int) -> int:
        """Send up to `size` bytes of a file, with nothing queued; returns how many the kernel took.
        Without TLS they are not copied here.  Raises OSError."""
        try:
            if self._tls:
                return self._sock.send(os.pread(fd, min(size, _TLS_BYTES), offset))
            return os.sendfile(self._sock.fileno(), fd, offset, size)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._sock.close()


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `host:port` or `[v6]:port`.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def tls_context(tls: ssl.SSLContext | str | bool | None) -> ssl.SSLContext | None:
    """The context of a setting: a context, a file of certificates, True for the system's, or
    none."""
    if tls is None or tls is False:
        return None
    if isinstance(tls, ssl.SSLContext):
        return tls
    return trusting(tls if isinstance(tls, str) else None)
