"""Admission to a TCP source: connections before their greeting, and refused ones until they close.

An epoll of its own makes both independent of the beat: the event loop serves it while the data of
all admitted connections stays unread, so that a new producer is greeted within milliseconds.
Exactly the greeting is read from the socket; everything after it is ordinary input.

A refused connection has been sent an error.  What it still sends is read and discarded until the
peer closes: closing first would reset the connection before the peer reads the error.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from edged.client import frames
from edged.sources._tcp_connection import GREETING, LEAVING, Connection, MessageMemory
from edged.sources._tcp_greeting import GREETING_HEAD_BYTES, Greeting, read_greeting, wanted
from edged.sources._tcp_socket import (
    TcpSettings,
    listen,
    listen_unix,
    name_of,
    raise_descriptor_limit,
    tune,
)
from edged.sources._tcp_socket_table import SocketTable
from edged.sources.peer_boundary import PeerBoundary

GREETING_US_MAX = 10_000_000
LEAVING_US_MAX = 5_000_000
DISCARD_BYTES_MAX = 64 << 20
"""Bytes read and discarded from a refused connection before it is closed anyway."""
PASSES_MAX = 8
"""Polls within one `serve`: a new connection often carries its greeting."""

_IN = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_GONE = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP

Admit = Callable[[Connection, Greeting, int], None]
"""Admits a connection; raises PeerError if it must not be."""
Close = Callable[[Connection], None]
Refused = Callable[[str, str], None]
"""Called with the reason for a refusal, and with the peer's name and the error sent to it."""


class Admission:
    """Accepts, greets and refuses.  `connections` holds all connections of the source, by
    descriptor."""

    def __init__(
        self,
        settings: TcpSettings,
        connections: dict[int, Connection],
        lock: threading.Lock,
        memory: MessageMemory,
        lines: SocketTable,
        counts: Counter[str],
        admit: Admit,
        close: Close,
        refused: Refused,
        boundary: PeerBoundary,
    ) -> None:
        self._settings, self._connections = settings, connections
        self.path = settings.path
        self._lock, self._memory, self._lines, self._counts = lock, memory, lines, counts
        self._admit, self._close, self._refused = admit, close, refused
        self._boundary = boundary
        self._standing: dict[Connection, None] = {}
        self._epoll: Any = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._token: bytes | None = None
        self._accepting = False

    @property
    def port(self) -> int:
        """The bound port; the one that the kernel chose if the job says 0.  Of a unix socket 0."""
        assert self._listener is not None
        return 0 if self.path else int(self._listener.getsockname()[1])

    def check(self, ours: Collection[int]) -> None:
        """Raise ConfigError as `start` would, with the ports of `ours` free.  The port is held up
        to `close`, so that of two that need it one is refused."""
        settings = self._settings
        settings.read_token(), settings.tls_context()
        if not self.path and settings.port not in ours:
            self._listener = listen(settings.host, settings.port)

    def start(self) -> None:
        """Bind and listen; read the token and the certificate."""
        settings = self._settings
        self._token, self._tls = settings.read_token(), settings.tls_context()
        raise_descriptor_limit(settings.connections_max)
        self._listener = (
            listen_unix(self.path) if self.path else listen(settings.host, settings.port)
        )
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN | select.EPOLLET)

    def fileno(self) -> int:
        """Readable when `serve` has something to do."""
        return int(self._epoll.fileno())

    def serve(self, monotonic_us: int) -> None:
        """Accept connections, read greetings, and drain refused connections."""
        assert self._listener is not None
        listener = self._listener.fileno()
        for _ in range(PASSES_MAX):
            events = self._epoll.poll(0, len(self._standing) + 2)
            for fd, mask in events:
                if fd == listener:
                    self._accepting = True
                elif (connection := self._connections.get(fd)) in self._standing:
                    assert connection is not None
                    self._serve_peer(connection, bool(mask & _GONE), monotonic_us)
            if self._accepting:
                self._accept(monotonic_us)
            elif not events:
                break
        if self._standing:
            self._part_with_the_slow(monotonic_us)

    def refuse(self, connection: Connection, text: str, reason: str, monotonic_us: int) -> None:
        """Send an error and discard further input until the peer closes."""
        self._counts[f"refused_{reason}"] += 1
        self._refused(reason, f"{connection.name}: {text}")
        with self._lock:
            connection.send(frames.text_frame(frames.ERROR, text))
            connection.finish_sending()
            connection.state, connection.since_us = LEAVING, monotonic_us
            connection.forget()
        if connection not in self._standing:
            self._standing[connection] = None
            self._epoll.register(connection.fd, _IN)

    def let_in(self, connection: Connection) -> None:
        """Stop serving a connection that was admitted."""
        self._epoll.unregister(connection.fd)
        del self._standing[connection]

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection; the kernel has removed its descriptor from the epoll."""
        self._standing.pop(connection, None)

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
        if self._epoll is not None:
            self._epoll.close()

    def _accept(self, monotonic_us: int) -> None:
        assert self._listener is not None
        self._accepting = False
        while True:
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as problem:  # out of descriptors: retried with the next event
                self._counts["accept_failed"] += 1
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return
                continue
            sock.setblocking(False)
            self._counts["accepted"] += 1
            if len(self._connections) >= self._settings.connections_max:
                self._counts["refused_full"] += 1
                self._refused("full", "too many connections")
                with contextlib.suppress(OSError):
                    sock.send(frames.text_frame(frames.AGAIN, "too many connections"))
                sock.close()
                continue
            try:
                self._welcome(sock, name_of(sock, peer), monotonic_us)
            except OSError:  # the peer has gone already
                self._counts["refused_tls" if self._tls is not None else "lost"] += 1
                sock.close()

    def _welcome(self, sock: socket.socket, peer: str, monotonic_us: int) -> None:
        tune(sock, len(self._connections))
        tls = self._tls is not None
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        connection = Connection(sock, peer, monotonic_us, tls, self._memory, self._lines)
        connection.need = GREETING_HEAD_BYTES
        self._connections[connection.fd] = connection
        self._standing[connection] = None
        self._epoll.register(connection.fd, _IN)

    def _part_with_the_slow(self, monotonic_us: int) -> None:
        """Close refused connections after LEAVING_US_MAX.  Above three quarters of
        `connections_max`, refuse those that have sent no greeting within GREETING_US_MAX."""
        scarce = 4 * len(self._connections) > 3 * self._settings.connections_max
        for connection in list(self._standing):
            waited = monotonic_us - connection.since_us
            if connection.state == LEAVING and waited > LEAVING_US_MAX:
                self._close(connection)
            elif connection.state == GREETING and scarce and waited > GREETING_US_MAX:
                self.refuse(connection, "no schema arrived in time", "timeout", monotonic_us)

    def _serve_peer(self, connection: Connection, gone: bool, monotonic_us: int) -> None:
        """`_hear`, where any exception ends this connection and no other."""
        try:
            self._hear(connection, gone, monotonic_us)
        except Exception as problem:
            text, reason = self._boundary.refusal(connection.name, problem)
            if connection in self._standing:
                self.refuse(connection, text, reason, monotonic_us)
            else:
                self._counts[f"refused_{reason}"] += 1
                self._close(connection)

    def _hear(self, connection: Connection, gone: bool, monotonic_us: int) -> None:
        """Receive until the socket is empty or the connection is admitted or closed."""
        while connection in self._standing:
            if connection.tls_shaking and not self._shake_hands(connection, gone):
                return
            leaving = connection.state == LEAVING
            size = 1 << 16 if leaving else connection.need - len(connection.tail)
            try:
                with self._lock:
                    data = connection.sock.recv(size)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError:
                data = b""
            connection.discarded += len(data)
            if not data or (leaving and connection.discarded > DISCARD_BYTES_MAX):
                self._close(connection)
            elif not leaving:
                self._counts["bytes"] += len(data)
                connection.extend(data)
                if len(connection.tail) >= connection.need:
                    self._greet(connection, monotonic_us)

    def _shake_hands(self, connection: Connection, gone: bool) -> bool:
        """Continue the TLS handshake; true once it is complete."""
        sock: Any = connection.sock
        try:
            with self._lock:
                sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if gone:
                self._close(connection)
            return False
        except OSError:
            self._counts["refused_tls"] += 1
            self._close(connection)
            return False
        connection.tls_shaking = False
        return True

    def _greet(self, connection: Connection, monotonic_us: int) -> None:
        received = bytes(connection.tail)
        greeting = read_greeting(received, self._token)
        if greeting is None:
            connection.need = len(received) + wanted(received)
            return
        connection.keep(b"")
        connection.need = 0
        self._admit(connection, greeting, monotonic_us)
