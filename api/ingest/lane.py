"""One stream's way into the daemon: numbers batches, keeps them until their ack, resends them.

    submit ─► queue ─► [keys durable, one transaction for all that wait] ─► sent ─► ack ─► done

Each request is one batch, so that its rows come in whole or not at all.  While the daemon is away
batches are kept, and sent again under their numbers, which it drops where it has seen them.  Where
it refuses one, the producer is over: it is settled (`api.ingest.wire`), what was committed is told
so, the batch in question its error, the others that they may come again; the next request begins a
new producer.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from api.ingest.keys import Entry, Keys
from api.ingest.wire import Refused, Wire, settle
from api.problems import Fault, Problem
from edged.client import frames
from edged.client.messages import Prepared, Serializer

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
END_S = 3.0
"""How long the end of a lane may take when the API ends."""
_T = TypeVar("_T")


@dataclass
class Batch:
    """A request's rows on their way."""

    message: Prepared
    key: str | None
    digest: bytes
    done: asyncio.Future[None]
    seq: int = 0

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.message.size


class Lane:
    """The way into `stream` of `job`; `address` tells where its source listens now."""

    def __init__(
        self,
        job: str,
        stream: str,
        schema: pa.Schema,
        address: Callable[[], Awaitable[str]],
        keys: Keys,
        thread: Executor,
    ) -> None:
        self.job, self.stream, self.schema = job, stream, schema
        self._address, self._keys, self._thread = address, keys, thread
        self._serializer = Serializer(schema)
        self._queue: deque[Batch] = deque()
        self._unacked: deque[Batch] = deque()
        self._sent = 0
        self._acks: dict[str, Batch] = {}
        """By key: acknowledged, and not noted in the file yet."""
        self._coming: dict[str, bytes] = {}
        """Digest by key: on their way."""
        self._clean = False
        """No producer but the present one is unsettled."""
        self._settling = asyncio.Lock()
        self._news = asyncio.Event()
        self._wire: Wire | None = None
        self._producer = ""
        self._last = 0
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0
        """Of batches that are not acknowledged."""

    @property
    def waiting(self) -> int:
        """Batches that are not acknowledged."""
        return len(self._queue) + len(self._unacked)

    async def reserve(self, key: str, digest: bytes) -> int | None:
        """Rows of the committed request of this key; None: the key is the caller's, until `submit`
        or `release`.

        Raises Problem 409 where it is on its way, 422 where the key stands for something else.
        """
        if key in self._coming:
            _same(key, self._coming[key], digest)
            raise Problem(
                "conflict", f"a request with Idempotency-Key {key!r} is on its way",
                "wait a second, and repeat the request with the same key", retry_after_s=1,
            )  # fmt: skip
        if key in self._acks:
            _same(key, self._acks[key].digest, digest)
            return self._acks[key].message.rows
        self._coming[key] = digest
        try:
            await self._settled()
            entry = await self._blocking(self._keys.find, self.job, self.stream, key)
        except (OSError, asyncio.TimeoutError) as problem:
            self.release(key)
            raise Problem(
                "unavailable", f"what became of earlier requests is not known yet: {problem}",
                retry_after_s=1,
            ) from None  # fmt: skip
        except BaseException:
            self.release(key)
            raise
        if entry is None:
            return None
        self.release(key)
        _same(key, entry.digest, digest)
        return entry.rows

    def release(self, key: str) -> None:
        """Nothing comes under this key after all."""
        self._coming.pop(key, None)

    def submit(self, batch: pa.RecordBatch, key: str | None, digest: bytes) -> Batch:
        """Take rows for sending; their `done` comes with the ack, or is a Problem."""
        message = self._serializer.prepare(batch)
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look)  # nobody may wait for it any more
        one = Batch(message, key, digest, done)
        self._queue.append(one)
        self.bytes += one.size
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._news.set()
        return one

    async def close(self) -> None:
        """Wait a little for what is on its way, then end the producer."""
        if self._task is None:
            return
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._finish(), END_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for one in [*self._unacked, *self._queue]:
            self._drop(one, Problem("unavailable", "the API ends", retry_after_s=2))

    async def _finish(self) -> None:
        await asyncio.gather(
            *(one.done for one in [*self._unacked, *self._queue]), return_exceptions=True
        )
        if self._task is not None:
            self._task.cancel()
        if self._producer:
            await self._end(self._producer)

    # The connection ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep the connection as long as there is something to send; wait without one else."""
        pause_s = BACKOFF_S_MIN
        while True:
            if not self._queue and not self._unacked and self._wire is None:
                self._news.clear()
                await self._news.wait()
            try:
                await self._settled()
                await self._connect()
                pause_s = BACKOFF_S_MIN
                await self._serve()
            except Refused as problem:
                await self._refused(str(problem))
            except Problem as problem:
                self._fail(problem)
            except (OSError, asyncio.TimeoutError):
                pass
            except sqlite3.Error as problem:
                self._fail(
                    Problem(
                        "unavailable", f"keys cannot be made durable: {problem}", retry_after_s=10
                    )
                )
            finally:
                self._hang_up()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(BACKOFF_S_MAX, 2 * pause_s)

    async def _connect(self) -> None:
        if not self._producer:
            self._producer, self._last = f"http-{secrets.token_hex(8)}", 0
            await self._blocking(self._keys.begin, self._producer, self.job, self.stream)
        greeting = self._serializer.greeting(self.stream, self._producer, None)
        self._wire = await Wire.connect(await self._address(), greeting)
        self._acked(self._wire.hello)
        first = self._unacked[0].seq if self._unacked else self._last + 1
        if self._wire.hello < first - 1:
            raise Refused("the store is another one, or was reset")
        self._sent = 0

    async def _serve(self) -> None:
        """Send and hear until the connection is lost."""
        hearing = asyncio.create_task(self._hear())
        sending = asyncio.create_task(self._send())
        try:
            done, _ = await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending in done and not hearing.done():  # why it broke may have been said
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(asyncio.shield(hearing), 1.0)
            for task in (hearing, sending):
                if task.done():
                    task.result()
        finally:
            for task in (hearing, sending):
                task.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)

    async def _hear(self) -> None:
        assert self._wire is not None
        while True:
            kind, payload = await self._wire.frame()
            if kind == frames.ACK:
                self._acked(frames.seq_of(payload))

    async def _send(self) -> None:
        assert self._wire is not None
        while True:
            await self._number()
            while self._sent < len(self._unacked):
                one = self._unacked[self._sent]
                self._sent += 1
                self._wire.writer.writelines(one.message.numbered(one.seq))
                await self._wire.writer.drain()
            if not self._queue:
                self._news.clear()
                await self._news.wait()

    async def _number(self) -> None:
        """Give all that wait their numbers; keys are durable before."""
        fresh = list(self._queue)
        if not fresh:
            return
        for offset, one in enumerate(fresh, 1):
            one.seq = self._last + offset
        entries = [
            Entry(
                self.job, self.stream, one.key, one.digest, self._producer, one.seq,
                one.message.rows,
            )
            for one in fresh
            if one.key is not None
        ]  # fmt: skip
        if entries:
            acks, self._acks = [(self.job, self.stream, key) for key in self._acks], {}
            await self._blocking(self._keys.write, entries, acks)
        self._last += len(fresh)
        for one in fresh:
            self._queue.popleft()
            self._unacked.append(one)

    def _acked(self, seq: int) -> None:
        """Batches up to `seq` are committed."""
        while self._unacked and self._unacked[0].seq <= seq:
            one = self._unacked.popleft()
            self._sent = max(0, self._sent - 1)
            if one.key is not None:
                self._acks[one.key] = one
            self._drop(one, None)

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # When something goes wrong -----------------------------------------------------------------

    async def _settled(self) -> None:
        """Find out what became of earlier producers of this stream."""
        if self._clean:
            return
        async with self._settling:  # a second connection of a producer would end the first
            while not self._clean:
                known = await self._blocking(self._keys.unsettled, self.job, self.stream)
                others = [id for id in known if id != self._producer]
                for id in others:
                    await self._end(id)
                self._clean = not others

    async def _end(self, id: str) -> int:
        try:
            final = await settle(await self._address(), self.stream, self.schema, id)
        except Refused as problem:
            if "no stream" not in str(problem):
                raise ConnectionRefusedError(str(problem)) from None
            final = 0  # the stream is gone, and with it all that knew the producer
        await self._blocking(self._keys.settle, id, final)
        return final

    async def _refused(self, text: str) -> None:
        """The producer is over; tell each of its batches what became of it."""
        self._hang_up()
        id = self._abandon()
        try:
            async with self._settling:
                self._acked(await self._end(id) if id else 0)
        except (OSError, asyncio.TimeoutError):
            self._fail(Problem("unknown-outcome", f"stream {self.stream} was refused: {text}"))
            return
        culprit = Problem(
            "invalid", f"stream {self.stream} refuses the rows: {text}",
            "send fewer rows at a time, or see the stream's source",
            (Fault(f"streams.{self.stream}", text),),
        )  # fmt: skip
        if self._unacked:
            self._drop(self._unacked.popleft(), culprit)
        elif self._queue:
            self._drop(self._queue.popleft(), culprit)
        self._fail(
            Problem("unavailable", "another request was refused, and this one with it",
                    retry_after_s=1)
        )  # fmt: skip

    def _fail(self, problem: Problem) -> None:
        """Give up on all that waits; what was sent may be committed, and is settled some day."""
        self._abandon()
        for one in [*self._unacked, *self._queue]:
            self._drop(one, problem)
        self._unacked.clear()
        self._queue.clear()

    def _abandon(self) -> str:
        """The present producer sends no more."""
        id, self._producer, self._clean = self._producer, "", False
        return id

    def _drop(self, one: Batch, problem: Problem | None) -> None:
        self.bytes -= one.size
        if one.key is not None:
            self.release(one.key)
        if one.done.done():
            return
        if problem is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(problem)

    async def _blocking(self, call: Callable[..., _T], *arguments: object) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*arguments))


def _same(key: str, known: bytes, digest: bytes) -> None:
    if known != digest:
        fault = Fault(
            "header.idempotency-key", f"{key!r} stands for other tuples", "take a new key"
        )
        raise Problem("invalid", "the key was used with other tuples", errors=(fault,))


def _look(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
