"""The collector's listening socket, which leaves descriptors to the landing.

Anybody who reaches the port can open connections, before a token or TLS says anything.  With no
descriptor left the landing could not open a record, which it takes for its failure.  A connection
that would take one of the last KEPT is hung up on at once; devices come again after a pause.
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
"""Descriptors for a group's records, segments, and files that are read or written meanwhile."""
SAID_S = 60.0
"""Between two lines in the log."""
_LOG = logging.getLogger(__name__)


class Listener(socket.socket):
    """Listens; `most` is the first descriptor that no connection gets.

    The kernel gives the lowest free one, so its number says how many are taken.
    """

    most: int = 1 << 30
    _said_s: float | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """As `socket.accept`, of the next that may stay.  BlockingIOError where there is none."""
        while True:
            connection, address = super().accept()
            if connection.fileno() < self.most:
                return connection, address
            connection.close()
            now_s = time.monotonic()
            if self._said_s is None or now_s - self._said_s >= SAID_S:
                self._said_s = now_s
                _LOG.warning("connections are hung up on: %d descriptors are taken", self.most)


def listen(host: str, port: int) -> Listener:
    """A listener on `host:port`; the process may have all descriptors that its hard limit allows.

    Raises ConfigError where the address cannot be had.
    """
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {problem.strerror}") from problem
    listener.set_inheritable(False)
    files = _descriptors()
    listener.most = max(files - KEPT, files // 4)
    return listener


def _descriptors() -> int:
    """How many this process may have, after asking for all it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
