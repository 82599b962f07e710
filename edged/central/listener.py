"""The collector's listening socket, which reserves descriptors for the landing.

Any client that reaches the port can open connections, before any token or TLS check. Without a free
descriptor the landing cannot open a record and reports a failure. A connection that would take one
of the last KEPT descriptors is closed immediately; devices retry after a pause.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import time
from typing import Any

from edged.errors import ConfigError

KEPT = 160
"""Descriptors reserved for a group's records, segments, and other files in use."""
LOG_EVERY_S = 60.0
"""Smallest time between two lines in the log."""
_LOG = logging.getLogger(__name__)


class BoundedListener(socket.socket):
    """A listening socket; connections get only descriptors below `most`.

    The kernel assigns the lowest free descriptor, so its number is the count of those in use.
    """

    most: int = 1 << 30
    _logged_s: float | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Like `socket.accept`, for the next admitted connection.  BlockingIOError without one."""
        while True:
            connection, address = super().accept()
            if connection.fileno() < self.most:
                return connection, address
            connection.close()
            now_s = time.monotonic()
            if self._logged_s is None or now_s - self._logged_s >= LOG_EVERY_S:
                self._logged_s = now_s
                _LOG.warning("connections are refused: %d descriptors are in use", self.most)


def listen(host: str, port: int) -> BoundedListener:
    """A listener on `host:port`, `bounded`.

    Raises ConfigError if the address cannot be bound.
    """
    listener = BoundedListener(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {problem.strerror}") from problem
    listener.set_inheritable(False)
    return bounded(listener)


def bounded(listener: BoundedListener) -> BoundedListener:
    """The listener with its bound; raises the process's descriptor limit to its hard limit."""
    files = _descriptors()
    listener.most = max(files - KEPT, files // 4)
    return listener


def _descriptors() -> int:
    """The descriptor limit of this process, raised as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
