"""The producers' protocol (docs/producers.md) for asyncio: connect, greet, receive frames.

`edged.client.Producer` implements it for threads, with blocking calls; both share messages and
frames.
"""

from __future__ import annotations

import asyncio
from collections import deque

from anyio import fail_after

from edged.client import frames

CONNECT_S = 5.0
HELLO_S = 10.0
"""Longest wait for HELLO, which waits for the commit of staged batches."""
TAKEN_OVER = "took over"


class ProducerRefused(Exception):
    """The daemon sent ERROR: a retry would fail too."""


class AsyncFrameConnection:
    """One connection of one producer; `hello` is the last committed number, which is final."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._frames = frames.FrameReader()
        self._waiting: deque[tuple[int, bytes]] = deque()
        self.hello = 0

    @classmethod
    async def connect(cls, address: str, greeting: bytes) -> AsyncFrameConnection:
        """Connect, greet, and wait for HELLO.  Raises OSError and ProducerRefused."""
        with fail_after(CONNECT_S):
            wire = await cls._open(address)
        try:
            wire.writer.write(greeting)
            with fail_after(HELLO_S):
                wire.hello = await wire._greeted()
        except BaseException:
            wire.close()
            raise
        return wire

    async def frame(self) -> tuple[int, bytes]:
        """The next frame.  Raises OSError when the connection ends, ProducerRefused for ERROR."""
        while not self._waiting:
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionResetError("edged closed the connection")
            try:
                self._waiting.extend(self._frames.feed(data))
            except ValueError as problem:
                raise ConnectionResetError(str(problem)) from None
        kind, payload = self._waiting.popleft()
        if kind == frames.ERROR:
            text = payload.decode(errors="replace")
            if TAKEN_OVER in text:  # an abandoned connection was admitted after this one
                raise ConnectionResetError(text)
            raise ProducerRefused(text)
        if kind == frames.AGAIN:
            raise ConnectionResetError(payload.decode(errors="replace"))
        return kind, payload

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()

    @classmethod
    async def _open(cls, address: str) -> AsyncFrameConnection:
        if address.startswith("/"):
            return cls(*await asyncio.open_unix_connection(address))
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host.strip("[]"), int(port)))

    async def _greeted(self) -> int:
        while True:
            kind, payload = await self.frame()
            if kind == frames.HELLO:
                return frames.seq_of(payload)
