"""Settings of a TCP source, and the socket calls that apply them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path

from edged.errors import ConfigError

BACKLOG = 4096
FEW_CONNECTIONS = 16
RECEIVE_BUFFER_BYTES = 4 << 20
"""Receive buffer requested while there are few connections; many share the kernel's default."""


@dataclass(frozen=True)
class TcpSettings:
    """The table of a `tcp` source."""

    host: str
    port: int
    token_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    connections_max: int = 16384
    message_bytes_max: int = 64 << 20
    producers_max: int = 65536
    path: str = ""
    """A unix socket in place of host and port."""

    def read_token(self) -> bytes | None:
        """The token, None if none is required.  Raises ConfigError."""
        if self.token_file is None:
            return None
        try:
            token = Path(self.token_file).read_bytes().strip()
        except OSError as problem:
            raise ConfigError(
                f"token_file {self.token_file} cannot be read: {problem.strerror}"
            ) from None
        if not token:
            raise ConfigError(f"token_file {self.token_file} is empty; put a secret into it")
        return token

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS settings, None for plain TCP.  Raises ConfigError."""
        if self.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as problem:
            raise ConfigError(
                f"tls_cert {self.tls_cert} and tls_key {self.tls_key} cannot be used: {problem}"
            ) from None
        return context


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as host and port.  Raises ValueError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking listener.  Raises ConfigError."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as problem:
        raise ConfigError(f"cannot listen on {host}:{port}: {problem}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {problem.strerror}; is another edged running?"
        ) from None
    return listener


def listen_unix(path: str) -> socket.socket:
    """A non-blocking listener on a unix socket of mode 0660; replaces an existing socket.

    Raises ConfigError.
    """
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o117)
    try:
        Path(path).unlink(missing_ok=True)
        listener.setblocking(False)
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {problem}") from None
    finally:
        os.umask(mask)
    return listener


def name_of(sock: socket.socket, peer: object) -> str:
    """A peer's name for messages."""
    if isinstance(peer, tuple):
        return f"{peer[0]}:{peer[1]}"
    pid = int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    return f"process {pid}"


def tune(sock: socket.socket, connections: int) -> None:
    """Send ACKs without delay; give few connections a receive buffer for a long beat.

    A fixed buffer disables the kernel's autotuning, so it is set only if a large one is permitted.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connections < FEW_CONNECTIONS:
        with contextlib.suppress(OSError):
            force = getattr(socket, "SO_RCVBUFFORCE", 33)
            sock.setsockopt(socket.SOL_SOCKET, force, RECEIVE_BUFFER_BYTES)


def raise_descriptor_limit(connections: int) -> None:
    """Raise this process's descriptor limit for so many connections, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = connections + 256
    if soft != resource.RLIM_INFINITY and soft < want:
        most = want if hard == resource.RLIM_INFINITY else min(want, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
