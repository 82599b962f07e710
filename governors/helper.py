"""`edged-governor-helper`: writes a board's limits for an unprivileged daemon.

It runs as root and reads one JSON line per request from a unix socket (`actuators._helper_client`):
the name of a knob or switch, one of its files, and a value.  No path crosses the socket.  Only
files and values of `actuators.allow` are written.  With `--suspend` a peer may also suspend the
machine, until an alarm that the helper sets (`actuators.suspend`).

Access: the socket has mode 0660 of root and the group.  The peer's credentials (SO_PEERCRED) must
name root, this user or a member of the group, and are logged.  Limits: one thread, CONNECTIONS
connections (a new one replaces the one idle for longest), LINE_MAX bytes per line, IDLE_S seconds
of silence.  Peers are served in turn, so one that floods the helper does not block others.

A socket passed by systemd (sd_listen_fds(3)) replaces the helper's own and outlives it: a
connection then starts the helper.
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
"""File descriptor of the socket that systemd passes."""


class HelperPeer:
    """A connected client."""

    def __init__(self, link: socket.socket) -> None:
        self.link, self.line, self.active_s = link, b"", monotonic()

    def lines(self) -> Iterator[bytes]:
        """Complete lines that have arrived.  Raises ConnectionError where the connection must
        end."""
        received = self.link.recv(LINE_MAX)
        if not received:
            raise ConnectionError("closed")
        self.active_s = monotonic()
        *whole, self.line = (self.line + received).split(b"\n")
        if max(map(len, (*whole, self.line))) > LINE_MAX:
            raise ConnectionError("a line is too long")
        yield from whole


class Helper:
    """Server of the socket."""

    def __init__(
        self, board: AllowList, listener: socket.socket, gid: int | None, idle_s: float = IDLE_S
    ) -> None:
        self._board, self._listener, self._gid = board, listener, gid
        self._idle_s = idle_s
        self._peers: dict[int, HelperPeer] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._woken, self._wakeup = socket.socketpair()
        self._wakeup.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until a signal ends the process, also one that comes just before epoll_wait(2)."""
        signal.set_wakeup_fd(self._wakeup.fileno())
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
        verdict = "serving" if allowed else "refused"
        print(f"{verdict} process {pid} uid {uid} gid {gid}", file=sys.stderr, flush=True)  # noqa: T201
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
        except OSError:  # disconnected, or does not read its replies
            self._drop(peer)

    def _drop(self, peer: HelperPeer) -> None:
        self._selector.unregister(peer.link)
        del self._peers[peer.link.fileno()]
        peer.link.close()


def groups(link: socket.socket, gid: int) -> set[int]:
    """Groups of the peer."""
    with contextlib.suppress(OSError):  # Linux before 4.13 reports the primary group only
        raw = link.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
        return {gid, *struct.unpack(f"{len(raw) // 4}I", raw)}
    return {gid}


def listen(path: Path, gid: int | None) -> socket.socket:
    """A socket that accepts root and the group only."""
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
    parser.add_argument("--group", help="Group that may connect, besides root.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="The board's tree.")
    parser.add_argument(
        "--suspend", action="store_true", help="Peers may suspend the machine for a time."
    )
    parser.add_argument("--idle", type=float, default=IDLE_S, help="Seconds of silence allowed.")
    options = parser.parse_args()
    gid = grp.getgrnam(options.group).gr_gid if options.group else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    own = None
    if (listener := systemd_socket()) is None:
        own = listener = listen(options.socket, gid)
    try:
        board = AllowList(open_root(options.root), suspends=options.suspend)
        Helper(board, listener, gid, options.idle).serve()
    finally:
        if own is not None:
            options.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
