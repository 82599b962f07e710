"""A link of a given speed in user space: a relay of bytes that lets so many through a second.

`python -m edged.bench.shaper PORT TARGET RATE` passes what comes at PORT on to TARGET and back,
for each connection.  RATE is in bits per second, 0 for any.  Bytes are passed on in pieces of 10 ms
of the rate, and below 100 Mbit/s the receive buffers hold about 50 ms of it, as a modem does.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time

PIECE_S, QUEUE_S = 0.01, 0.05
PIECE_BYTES_MAX = 256 << 10


class Shaper:
    """Both directions have the rate each."""

    def __init__(self, port: int, target: tuple[str, int], rate: float) -> None:
        self.rate = rate
        self._target = target
        self._server = socket.create_server(("127.0.0.1", port))

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            near, _ = self._server.accept()
            threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(self._target) as far:
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.rate and self.rate < 1e8:
                    size = int(self.rate / 8 * QUEUE_S)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()

    def _pump(self, come: socket.socket, go: socket.socket) -> None:
        piece = bytearray(PIECE_BYTES_MAX)
        due = time.monotonic()
        with contextlib.suppress(OSError):
            while True:
                rate = self.rate
                most = min(PIECE_BYTES_MAX, int(rate / 8 * PIECE_S)) if rate else PIECE_BYTES_MAX
                size = come.recv_into(piece, max(1, most))
                if not size:
                    break
                if rate:
                    due = max(due, time.monotonic() - PIECE_S) + 8 * size / rate
                    time.sleep(max(0.0, due - time.monotonic()))
                go.sendall(memoryview(piece)[:size])
            go.shutdown(socket.SHUT_WR)


def main() -> None:
    """Serve until the end."""
    port, (host, _, far), rate = int(sys.argv[1]), sys.argv[2].rpartition(":"), float(sys.argv[3])
    shaper = Shaper(port, (host, int(far)), rate)
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    shaper.serve()


if __name__ == "__main__":
    main()
