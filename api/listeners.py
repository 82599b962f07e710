"""The API's listening sockets: from systemd, the unix socket, TCP.

    LISTEN_FDS sockets, if systemd passed some (sd_listen_fds(3)): a unix one replaces api.socket,
                        a TCP one replaces api.listen
    else                api.socket, mode 0660, group api.group
                        and api.listen, if it is set

A client that may open the unix socket may do everything: the file's mode and group decide, and the
kernel reports the client's user.  On TCP every client needs a token or a certificate, also on
loopback, where any process of the machine can connect.  Other addresses require TLS.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edged.config.sections import ApiSection
from edged.errors import ConfigError
from edged.platform.loopback import is_loopback

BACKLOG = 128
SOCKET_MODE = 0o660
FIRST_FD = 3


@dataclass(frozen=True)
class ApiListener:
    """A listening socket and what it implies for its clients."""

    sock: socket.socket
    address: str
    trusted: bool
    """True for a unix socket: the file's mode has authorised the client."""
    tls: ssl.SSLContext | None = None


def open_listeners(settings: ApiSection, environ: Mapping[str, str]) -> list[ApiListener]:
    """All sockets of the settings and of systemd.  Raises ConfigError."""
    passed = [_adopt(settings, fd) for fd in passed_fds(environ)]
    if not any(listener.trusted for listener in passed):
        passed.append(open_unix(settings.socket, settings.group))
    if settings.listen and all(listener.trusted for listener in passed):
        passed.append(open_tcp(settings))
    return passed


def passed_fds(environ: Mapping[str, str]) -> list[int]:
    """Descriptors that systemd passed to this process, as in sd_listen_fds(3)."""
    if environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    count = environ.get("LISTEN_FDS", "0")
    return list(range(FIRST_FD, FIRST_FD + (int(count) if count.isdecimal() else 0)))


def open_unix(path: str, group: str) -> ApiListener:
    """The unix socket at `path`; replaces a socket that no process listens on.  Raises
    ConfigError."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        _remove_dead(path)
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        mask = os.umask(0o177)  # closed to others until mode and group are set
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
        with contextlib.suppress(LookupError, PermissionError):  # no such group: keep the owner's
            shutil.chown(path, group=group)
        os.chmod(path, SOCKET_MODE)  # noqa: PTH101
        sock.listen(BACKLOG)
    except OSError as problem:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {problem}; set api.socket") from problem
    return ApiListener(sock, path, trusted=True)


def open_tcp(settings: ApiSection) -> ApiListener:
    """The TCP listener of api.listen.  Raises ConfigError if it would be unsafe."""
    host, _, _ = settings.listen.rpartition(":")
    return bind_tcp(settings.listen, "api.listen", check_tcp(settings, host.strip("[]")))


def bind_tcp(listen: str, setting: str, tls: ssl.SSLContext | None = None) -> ApiListener:
    """A listener on HOST:PORT, the value of `setting`.  Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    try:
        where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(where[4][:2], family=where[0], backlog=BACKLOG)
    except OSError as problem:
        raise ConfigError(f"cannot listen on {listen}: {problem}; set {setting}") from None
    return ApiListener(sock, _address(sock), trusted=False, tls=tls)


def check_tcp(settings: ApiSection, host: str) -> ssl.SSLContext | None:
    """The TLS settings of a TCP listener on `host`.  Raises ConfigError if they are
    insufficient."""
    guarded = bool(settings.tokens_file) or bool(settings.client_ca and settings.client_names)
    if not guarded:
        raise ConfigError(
            f"api.listen {settings.listen or host} admits every client: set api.tokens_file, "
            "or api.client_ca and api.client_names"
        )
    if not settings.tls_cert or not settings.tls_key:
        if not is_loopback(host):
            raise ConfigError(
                f"api.listen {settings.listen or host} is beyond loopback and without TLS: set "
                "api.tls_cert and api.tls_key, or listen on 127.0.0.1"
            )
        return None
    return _tls(settings)


def _tls(settings: ApiSection) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL  # a token suffices; a certificate must be valid
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            f"api.tls_cert {settings.tls_cert}, api.tls_key or api.client_ca: {problem}"
        ) from problem
    return context


def _adopt(settings: ApiSection, fd: int) -> ApiListener:
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return ApiListener(sock, _address(sock), trusted=True)
    return ApiListener(sock, _address(sock), False, check_tcp(settings, sock.getsockname()[0]))


def _address(sock: socket.socket) -> str:
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return str(name)
    return f"[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def _remove_dead(path: str) -> None:
    """Remove a socket that no process listens on; anything else stays, and bind fails."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):  # noqa: PTH110, PTH116
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # noqa: PTH108


def addresses(listeners: Sequence[ApiListener]) -> str:
    """All addresses, for messages."""
    return ", ".join(listener.address for listener in listeners)
