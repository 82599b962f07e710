"""A link between two processes that delays, resets, truncates, flips, repeats, hides and drips.

A `Link` passes connections on to an address.  `mode` is the present fault; None passes bytes on.
What a mode holds back is passed on when it ends, as TCP does after an outage; a connection that it
left half open is reset then, as by a peer that has forgotten it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time

from edged.platform.processes import free_port

MODES = ("delay", "reset", "truncate", "corrupt", "duplicate", "half_open", "black_hole", "drip")
CHUNK = 1 << 16
HEADER_BYTES = 5
"""The header of a TLS record: its length decides for how many bytes a receiver waits."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: close sends RST."""


class Link:
    """See the module.  `address` is where clients connect."""

    def __init__(self, target: str, seed: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._dice = random.Random(seed)
        self.mode: str | None = None
        self.harmed = 0
        """Pieces of bytes that a fault touched."""
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: set[socket.socket] = set()
        self._over = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        self._over, self.mode = True, None
        for peer in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _accept(self) -> None:
        while not self._over:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._over:
                client.close()
                return
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._wait_out("black_hole")
        try:
            server = socket.create_connection(self._target, 5)
        except OSError:
            self._open.discard(client)
            _reset(client)
            client.close()
            return
        server.settimeout(None)
        self._open.add(server)
        ways = [
            threading.Thread(target=self._pass, args=ends, daemon=True)
            for ends in ((client, server), (server, client))
        ]
        for way in ways:
            way.start()
        for way in ways:
            way.join()
        self._open -= {client, server}
        for peer in (client, server):
            peer.close()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(CHUNK):
                if not self._harm(data, source, target):
                    return
            target.shutdown(socket.SHUT_WR)
        except OSError:
            _reset(source)
            _reset(target)

    def _harm(self, data: bytes, source: socket.socket, target: socket.socket) -> bool:
        """Pass bytes on in the present mode; whether the connection goes on."""
        mode, dice = self.mode, self._dice
        if mode is not None:
            self.harmed += 1
        rare = dice.random() < 0.3
        if mode == "delay":
            time.sleep(dice.uniform(0.02, 0.3))
        elif mode == "corrupt" and rare:
            at = dice.randrange(len(data) if dice.random() < 0.5 else min(HEADER_BYTES, len(data)))
            data = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        elif mode == "duplicate" and rare:
            at = dice.randrange(len(data))
            data = data[:at] + data[at:] * 2
        elif mode == "black_hole":
            self._wait_out(mode)
        elif mode == "drip":
            return self._drip(data, target)
        elif mode in ("reset", "truncate") and rare:
            target.sendall(data[: dice.randrange(len(data))])
            if mode == "reset":
                _reset(source)
                _reset(target)
            else:
                for peer in (source, target):
                    peer.shutdown(socket.SHUT_RDWR)
            return False
        elif mode == "half_open":
            self._wait_out(mode)
            _reset(source)
            _reset(target)
            return False
        target.sendall(data)
        return True

    def _drip(self, data: bytes, target: socket.socket) -> bool:
        at = 0
        while at < len(data):
            step = len(data) if self.mode != "drip" else self._dice.randint(1, 40)
            target.sendall(data[at : at + step])
            at += step
            time.sleep(0.005)
        return True

    def _wait_out(self, mode: str) -> None:
        while self.mode == mode:
            time.sleep(0.02)


def _reset(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.shutdown(socket.SHUT_RDWR)
