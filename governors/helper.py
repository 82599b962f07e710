"""`edged-governor-helper`: writes a board's limits for a daemon that may not.

It runs as root and takes one JSON line a request over a unix socket (see
`actuators._helper_client`): the name of a knob or switch, which of its files, and a value.  No path
crosses the socket, and nothing is written but what `actuators.allow` finds and permits.

Who may speak: the socket is 0660 of root and the group; the kernel's word on who connected
(SO_PEERCRED) must name root, this user or a member of the group, and is logged.  One thread, at
most CONNECTIONS connections (a new one displaces the one that was silent for longest), LINE_MAX
bytes a line, IDLE_S seconds of silence; who floods it is served in turns.

A socket that systemd passes (sd_listen_fds(3)) takes the place of its own and outlives it: whoever
connects starts the helper.
"""

from __future__ import annotations

import argparse
import contextlib
import grp
import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from governors.actuators.allow import AllowList
from governors.simulated.kernel import open_root

CONNECTIONS = 16
LINE_MAX = 512
IDLE_S = 30.0
SO_PEERGROUPS = 59
SOCKET = "/run/edged/governor.sock"
PASSED_FD = 3
"""Where systemd passes its socket."""


class HelperPeer:
    """A connection."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.line, self.active_s = link, b"", monotonic()

    def lines(self) -> Iterator[bytes]:
        """Whole lines of what has arrived.  Raises ConnectionError where it must end."""
        received = self.link.recv(LINE_MAX)
        if not received:
            raise ConnectionError("closed")
        self.active_s = monotonic()
        *whole, self.line = (self.line + received).split(b"\n")
        if max(map(len, (*whole, self.line))) > LINE_MAX:
            raise ConnectionError("a line is too long")
        yield from whole


class Helper:
    """The socket's side."""

    def __init__(
        self, board: AllowList, listener: socket.socket, gid: int | None, idle_s: float = IDLE_S
    ) -> None:
        self._board, self._listener, self._gid = board, listener, gid
        self._idle_s = idle_s
        self._peers: dict[int, HelperPeer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until a signal ends the process."""
        while True:
            for key, _ in self._selector.select(self._idle_s if self._peers else None):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fd in self._peers:
                    self._serve(self._peers[key.fd])
            for peer in [
                p for p in self._peers.values() if monotonic() - p.active_s > self._idle_s
            ]:
                self._drop(peer)

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError as problem:
            print(f"accept: {problem}", file=sys.stderr, flush=True)  # noqa: T201
            return
        pid, uid, gid = struct.unpack(
            "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        allowed = uid in (0, os.geteuid()) or (
            self._gid is not None and self._gid in groups(link, gid)
        )
        print(  # noqa: T201
            f"{'serving' if allowed else 'refused'} process {pid} uid {uid} gid {gid}",
            file=sys.stderr,
            flush=True,
        )
        if not allowed:
            link.close()
            return
        link.setblocking(False)
        if len(self._peers) == CONNECTIONS:
            self._drop(min(self._peers.values(), key=lambda peer: peer.active_s))
        self._peers[link.fileno()] = HelperPeer(link)
        self._selector.register(link, selectors.EVENT_READ)

    def _serve(self, peer: HelperPeer) -> None:
        try:
            for line in peer.lines():
                try:
                    request = json.loads(line)
                except (ValueError, RecursionError):
                    request = None
                peer.link.sendall(json.dumps(self._board.answer(request)).encode() + b"\n")
        except OSError:  # gone, or it does not read its answers
            self._drop(peer)

    def _drop(self, peer: HelperPeer) -> None:
        self._selector.unregister(peer.link)
        del self._peers[peer.link.fileno()]
        peer.link.close()


def groups(link: socket.socket, gid: int) -> set[int]:
    """The groups of who connected."""
    with contextlib.suppress(OSError):  # Linux before 4.13 knows the first only
        raw = link.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
        return {gid, *struct.unpack(f"{len(raw) // 4}I", raw)}
    return {gid}


def listen(path: Path, gid: int | None) -> socket.socket:
    """A socket that only root and the group may connect to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    if gid is not None:
        os.chown(path, -1, gid)
    listener.listen(socket.SOMAXCONN)
    listener.setblocking(False)
    return listener


def systemd_socket() -> socket.socket | None:
    """The socket that systemd passed to this process, if any."""
    environ = os.environ
    if environ.get("LISTEN_PID") != str(os.getpid()) or environ.get("LISTEN_FDS") != "1":
        return None
    listener = socket.socket(fileno=PASSED_FD)
    listener.setblocking(False)
    return listener


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description="Write a board's limits for an unprivileged edged."
    )
    parser.add_argument("--socket", type=Path, default=Path(SOCKET))
    parser.add_argument("--group", help="Who may connect, besides root.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="The board's tree.")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="Seconds of silence allowed.")
    options = parser.parse_args()
    gid = grp.getgrnam(options.group).gr_gid if options.group else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    own = None
    if (listener := systemd_socket()) is None:
        own = listener = listen(options.socket, gid)
    try:
        Helper(AllowList(open_root(options.root)), listener, gid, options.idle).serve()
    finally:
        if own is not None:
            options.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
