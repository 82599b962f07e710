"""The service manager's notification socket (sd_notify(3)), for the daemon and the API.

`Notifier` sends datagrams of `KEY=VALUE` lines to $NOTIFY_SOCKET; without that variable, as in a
terminal, it does nothing.

Not a library: `sdnotify` (66 lines, last released in 2017) encodes as Latin-1, so that a path
outside it is never reported, and blocks without limit when systemd's queue is full; systemd-python
needs a compiler and libsystemd's headers on the device.  This module has 30 lines of code.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

WAIT_MAX_S = 1.0
"""How long a notification that must arrive may wait for room in systemd's queue."""
_VALUE_CHARACTERS_MAX = 1000


class Notifier:
    """Sends notifications to systemd.  Never raises.  Not thread-safe."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None

    @property
    def is_supervised(self) -> bool:
        """Whether the environment names a notification socket."""
        return bool(self._address)

    def send(self, **values: object) -> None:
        """Send `KEY=VALUE` lines; waits up to WAIT_MAX_S while systemd's queue is full."""
        self._send(WAIT_MAX_S, values)

    def send_nowait(self, **values: object) -> None:
        """Send `KEY=VALUE` lines, or drop them when systemd's queue is full."""
        self._send(0.0, values)

    def close(self) -> None:
        """Close the socket; later notifications are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, timeout_s: float, values: Mapping[str, object]) -> None:
        if self._socket is None:
            return
        lines = "\n".join(f"{key}={_one_line(str(value))}" for key, value in values.items())
        self._socket.settimeout(timeout_s)
        with contextlib.suppress(OSError):  # no receiver, or its queue stayed full
            self._socket.sendto(lines.encode(), self._address)


def _address(name: str) -> str:
    """The socket's address: a path, or with @ a name in the abstract namespace."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _one_line(text: str) -> str:
    return text.replace("\n", " ")[:_VALUE_CHARACTERS_MAX]
