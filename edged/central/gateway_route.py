"""A route of a gateway: the pages of one partition of a device, on their way into the daemon.

A route is a producer (docs/producers.md) with a connection of its own on the daemon's unix socket.
A page is a batch, and its number is the batch's.  The daemon keeps the number with its beats: what
HELLO and LINK say of it outlives both processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from dataclasses import dataclass

import pyarrow as pa
from anyio import fail_after

from edged.client import frames
from edged.client.greeting import greeting_message
from edged.data.schema import Schema
from edged.sources._tcp_session import FENCED

_FRAME = struct.Struct("<II")
_BASE_MAX = 10**18 - 1
"""As the base of a session: the device sends again what it has, whatever its session before did."""
OPEN_S = 20.0
"""How long to wait for the daemon's greeting."""


class RouteClosed(Exception):
    """The daemon took no more, or refused; `fenced`: because of a newer session."""

    def __init__(self, detail: str, fenced: bool = False) -> None:
        super().__init__(detail)
        self.fenced = fenced


@dataclass(frozen=True, slots=True)
class RouteName:
    """What a route says of itself in its greeting."""

    stream: str
    """Of the job."""
    producer: str
    session: tuple[int, int]
    """Counter and nonce of the device."""


class DaemonRoute:
    """See the module's docstring.  `high` and `sum` are number and checksum of the last page that
    the daemon has staged, `acked` is the last that is durable."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.high = self.sum = self.acked = 0
        self.closed: RouteClosed | None = None
        self._changed = asyncio.Event()
        self._head = 0
        self._arrow = pa.schema([])
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: str, name: RouteName, schema: Schema, first: int) -> DaemonRoute:
        """Connect and greet; `first` is the first page that the device has, 0: not said.  Raises
        RouteClosed."""
        metadata = {
            frames.STREAM_KEY: name.stream.encode(),
            frames.PRODUCER_KEY: name.producer.encode(),
            frames.SESSION_KEY: b"%d.%x.%d" % (*name.session, _BASE_MAX),
        }
        if first:
            metadata[frames.FROM_KEY] = b"%d" % first
        greeting = greeting_message(schema.to_arrow(), metadata)
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except OSError as problem:
            raise RouteClosed(f"the daemon does not listen: {problem.strerror}") from None
        route = cls(reader, writer)
        route._arrow = schema.to_arrow().with_metadata(metadata)
        route._head = len(greeting)
        try:
            writer.write(greeting)
            with fail_after(OPEN_S):
                await route._greeted()
        except (OSError, EOFError, TimeoutError) as problem:
            route.close()
            raise RouteClosed(f"the daemon does not answer: {type(problem).__name__}") from None
        except BaseException:
            route.close()
            raise
        route._task = asyncio.create_task(route._run())
        return route

    def send(self, seq: int, sum: int, batch: pa.RecordBatch) -> None:
        """Send a page's rows.  Without a number (0) it is not acknowledged."""
        numbered = {frames.SEQ_KEY: b"%d" % seq, frames.SUM_KEY: b"%016x" % sum}
        out = io.BytesIO()
        with pa.ipc.new_stream(out, self._arrow) as writer:
            rows = batch.replace_schema_metadata(self._arrow.metadata)
            writer.write_batch(rows, custom_metadata=numbered if seq else None)
        data = out.getbuffer()[self._head : -len(frames.END_OF_STREAM)]
        self._writer.write(data)
        self.high = max(self.high, seq)

    async def ready(self) -> None:
        """Wait until the daemon has read most of what was sent.  Raises RouteClosed."""
        try:
            await self._writer.drain()
        except OSError as problem:
            self._end(RouteClosed(f"the daemon closed: {type(problem).__name__}"))
        if self.closed is not None:
            raise self.closed

    async def durable(self, seq: int) -> None:
        """Wait until all pages up to `seq` are durable.  Raises RouteClosed."""
        while self.acked < seq:
            if self.closed is not None:
                raise self.closed
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
        self._end(RouteClosed("the route was closed"))
        self._writer.close()

    async def _greeted(self) -> None:
        """Take HELLO and LINK."""
        for _ in range(2):
            kind, payload = await self._frame()
            if kind == frames.HELLO:
                self.acked = frames.seq_of(payload)
            elif kind == frames.LINK:
                self.high, self.sum = frames.losses_of(payload)
        self.high = max(self.high, self.acked)

    async def _run(self) -> None:
        try:
            while True:
                kind, payload = await self._frame()
                if kind == frames.ACK:
                    self.acked = max(self.acked, frames.seq_of(payload))
                    self._changed.set()
        except RouteClosed as problem:
            self._end(problem)
        except (OSError, EOFError) as problem:
            self._end(RouteClosed(f"the daemon closed: {type(problem).__name__}"))
        with contextlib.suppress(OSError):
            self._writer.close()

    async def _frame(self) -> tuple[int, bytes]:
        """The next frame.  Raises RouteClosed for one that ends the connection."""
        kind, length = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
        payload = await self._reader.readexactly(min(length, frames.PAYLOAD_MAX))
        if kind in (frames.ERROR, frames.AGAIN):
            text = payload.decode(errors="replace")
            raise RouteClosed(text, fenced=text.startswith(FENCED))
        return kind, payload

    def _end(self, problem: RouteClosed) -> None:
        self.closed = self.closed or problem
        self._changed.set()
