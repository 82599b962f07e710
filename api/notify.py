"""Telling systemd that the API is ready, or ends (sd_notify(3)); nothing without $NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping


def notify(environ: Mapping[str, str], text: str) -> None:
    """Send lines of KEY=VALUE.  Never raises."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(text.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
