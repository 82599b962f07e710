"""The child's end of the socket to its source."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from edged.sources import _postgres_wire as wire
from edged.sources._postgres_wire import Position

REMIND_S = 10.0
"""Between two calls of `on_wait`."""


class SourceChannel:
    """The socket to the source."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self._frames = wire.Frames()
        self.confirmed = 0
        """Changes up to this LSN are committed."""
        self._said: wire.ChildState | None = None
        self.on_wait: Callable[[], None] = lambda: None
        """Called every REMIND_S while the source takes nothing."""

    def config(self) -> dict[str, Any]:
        """The first frame."""
        while True:
            for kind, payload in self._frames:
                assert kind == wire.CONFIG
                found: dict[str, Any] = json.loads(payload)
                return found
            self._receive()

    def rows(self, position: Position, batch: pa.RecordBatch) -> None:
        """Send rows; waits while the source takes none."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        payload = wire.rows_payload(position, sink.getvalue().to_pybytes())
        self._send(wire.frame(wire.ROWS, payload))

    def populated(self, position: Position) -> None:
        """Say that the first rows are sent."""
        self._send(wire.frame(wire.POPULATED, position.text().encode()))

    def state(self, problem: str = "", final: bool = False) -> None:
        """Say what is wrong, where that has changed."""
        state = wire.ChildState(problem, final)
        if state != self._said:
            self._said = state
            self._send(wire.json_frame(wire.STATE, {"problem": problem, "final": final}))

    def heed(self, wait_s: float = 0.0) -> None:
        """Read what has come, or comes within `wait_s`."""
        if select.select([self.socket], [], [], wait_s)[0]:
            self._receive()
            for kind, payload in self._frames:
                assert kind == wire.CONFIRM
                (lsn,) = wire.NUMBER.unpack(payload)
                self.confirmed = max(self.confirmed, lsn)

    def _send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if select.select([], [self.socket], [], REMIND_S)[1]:
                left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]
            else:
                self.on_wait()

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            os._exit(0)
        self._frames.feed(data)
