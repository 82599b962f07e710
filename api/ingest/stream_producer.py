"""The API's producer for one stream: numbers batches, keeps them until their ack, resends them.

    submit ─► queue ─► [keys durable, one transaction for all queued] ─► sent ─► ack ─► done

Each request is one batch, so that all of its rows are committed or none.  Batches are kept while
the daemon is away.  Each connection asks to settle (docs/producers.md): batches up to HELLO's
number are committed; other sent batches never will be, and return to the queue for new numbers.  If
the daemon refused a batch, it is the first one after HELLO's number.

A batch that ends a table's first rows is named in the greeting before it is sent, so that its
commit is that of the end as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from api.ingest.frame_connection import HELLO_S, AsyncFrameConnection, ProducerRefused
from api.ingest.keys import KeyRecord, Keys
from api.ingest.media_types import POPULATED
from api.ingest.store_full import RETRY_FULL_S, STORE_DO
from api.problems import ApiProblem, ProblemFault
from edged.client import frames
from edged.client.messages import Prepared, Serializer
from edged.platform.backoff import jitter

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
END_S = 3.0
"""Longest wait for outstanding batches when the API ends."""
_T = TypeVar("_T")


@dataclass
class PendingBatch:
    """The rows of a request until their commit."""

    message: Prepared
    key: str | None
    digest: bytes
    done: asyncio.Future[int | None]
    """Completes with the rows that this producer lost while the batch was on its way; None: that
    is not known."""
    last: bool = False
    """Whether a table's first rows end with it."""
    seq: int = 0
    lost_before: int | None = None
    """Rows that this producer had lost when the batch was sent."""

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return self.message.size


class StreamProducer:
    """The producer for `stream` of `job`; `address` returns the source's current address."""

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
        self._queue: deque[PendingBatch] = deque()
        self._unacked: deque[PendingBatch] = deque()
        self._sent = 0
        """Number of batches in `_unacked` that were sent."""
        self._acks: dict[str, PendingBatch] = {}
        """Acknowledged batches that are not recorded in the file, by key."""
        self._coming: dict[str, bytes] = {}
        """Digests of batches in progress, by key."""
        self._settled = asyncio.Event()
        """Set while connected with all keys settled in the file, except those in `_coming`."""
        self._turned_away = asyncio.Event()
        """Set when the daemon refuses the connection because the store is full."""
        self._askers = 0
        """Requests that wait for `_settled` to learn the outcome of their key."""
        self._refusal = ""
        """Why the last connection was refused after a batch was sent."""
        self._news = asyncio.Event()
        self._wire: AsyncFrameConnection | None = None
        self._last = 0
        """The last assigned number."""
        self._said_last = 0
        """The batch that the last greeting has named as the end of a table's first rows."""
        self._lost: int | None = None
        """Rows of this producer that were dropped by their times, late or too far ahead; None
        until the daemon has said it on this connection."""
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self.bytes = 0
        """Bytes of unacknowledged batches."""

    @property
    def waiting(self) -> int:
        """Number of unacknowledged batches."""
        return len(self._queue) + len(self._unacked)

    async def reserve(self, key: str, digest: bytes) -> int | None:
        """Rows of the committed request of this key.  None: the caller holds the key until `submit`
        or `release`.

        Raises ApiProblem 409 if a request with the key is in progress, 422 if its body differs.
        """
        if key in self._coming:
            _same(key, self._coming[key], digest)
            raise ApiProblem(
                "conflict", f"a request with Idempotency-Key {key!r} is on its way",
                "wait a second, and repeat the request with the same key", retry_after_s=1,
            )  # fmt: skip
        if key in self._acks:
            _same(key, self._acks[key].digest, digest)
            return self._acks[key].message.rows
        self._coming[key] = digest
        try:
            entry = await self._find(key)
        except (TimeoutError, sqlite3.Error) as problem:
            self.release(key)
            raise ApiProblem(
                "unavailable", f"what became of an earlier request is not known yet: {problem}",
                retry_after_s=2,
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
        """Release a key without a batch."""
        self._coming.pop(key, None)

    def submit(self, batch: pa.RecordBatch, key: str | None, digest: bytes) -> PendingBatch:
        """Queue rows for sending; `done` of the result completes with the ack, or raises
        ApiProblem.

        Raises ApiProblem 503 if this producer is closed.
        """
        if self._closed:
            raise ApiProblem("unavailable", "the job was changed, or the API ends", retry_after_s=1)
        message = self._serializer.prepare(batch)
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(_look)  # its request may have been cancelled
        last = POPULATED in (batch.schema.metadata or {})
        one = PendingBatch(message, key, digest, done, last)
        self._queue.append(one)
        self.bytes += one.size
        self._wake()
        return one

    def withdraw(self, one: PendingBatch) -> bool:
        """Remove a batch from the queue; false if it may have been sent."""
        if one not in self._queue:
            return False
        self._queue.remove(one)
        self._drop(one, ApiProblem("unavailable", "withdrawn"))
        return True

    async def close(self) -> None:
        """Wait up to END_S for outstanding batches, then close the connection."""
        self._closed = True
        coming = [one.done for one in [*self._unacked, *self._queue]]
        if coming:
            await asyncio.wait(coming, timeout=END_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(
            ApiProblem("unavailable", "the job was changed, or the API ends", retry_after_s=2)
        )
        if self._acks:
            with contextlib.suppress(sqlite3.Error):  # the next HELLO repeats the acks
                await self._blocking(self._keys.write, self.job, self.stream, [], list(self._acks))

    async def _find(self, key: str) -> KeyRecord | None:
        """The committed request of a key.  If its outcome is unknown, wait for the next HELLO.

        Raises TimeoutError if that does not come, ApiProblem 429 if the store is full.
        """
        entry = await self._blocking(self._keys.find, self.job, self.stream, key)
        if entry is None or entry.acked:
            return entry
        await self._await_settled()
        entry = await self._blocking(self._keys.find, self.job, self.stream, key)
        if entry is not None and not entry.acked:
            raise TimeoutError("the connection was lost again")
        return entry

    async def _await_settled(self) -> None:
        self._turned_away.clear()
        self._askers += 1
        waits = [asyncio.create_task(e.wait()) for e in (self._settled, self._turned_away)]
        try:
            self._wake()
            await asyncio.wait(waits, timeout=HELLO_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._askers -= 1
            for wait in waits:
                wait.cancel()
        if not self._settled.is_set() and self._turned_away.is_set():
            raise _store_full()
        if not self._settled.is_set():
            raise TimeoutError("the daemon does not answer")

    def _wake(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run())
        self._news.set()

    # The connection ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a connection while there is something to send; otherwise wait without one."""
        pause_s = BACKOFF_S_MIN
        while True:
            while not (self._queue or self._unacked or self._askers):
                self._news.clear()
                await self._news.wait()
            try:
                await self._connect()
                pause_s = BACKOFF_S_MIN
                await self._serve()
            except ProducerRefused as problem:
                self._refused(str(problem))
            except ApiProblem as problem:
                self._fail(problem)
            except OSError:  # a TimeoutError, too
                pass
            except sqlite3.Error as problem:
                self._fail(
                    ApiProblem(
                        "unavailable", f"keys cannot be made durable: {problem}", retry_after_s=10
                    )
                )
            finally:
                self._hang_up()
            await asyncio.sleep(pause_s * (0.5 + 0.5 * jitter()))
            pause_s = min(BACKOFF_S_MAX, 2 * pause_s)

    async def _connect(self) -> None:
        """Connect, and settle all batches that were ever sent."""
        producer = await self._blocking(self._keys.producer, self.job, self.stream)
        self._said_last = next((one.seq for one in self._unacked if one.last), 0)
        greeting = self._serializer.greeting(
            self.stream, producer, None, settle=True, losses=True, last=self._said_last
        )
        self._wire = await AsyncFrameConnection.connect(await self._address(), greeting)
        final = self._wire.hello
        self._acked(final)
        self._blame()
        acks = list(self._acks)
        await self._blocking(self._keys.settle, self.job, self.stream, final, acks)
        self._noted(acks)
        for one in self._unacked:
            one.lost_before = None
        self._queue.extendleft(reversed(self._unacked))
        self._unacked.clear()
        self._last, self._sent = final, 0
        self._settled.set()

    async def _serve(self) -> None:
        """Send and receive until the connection is lost."""
        receiving = asyncio.create_task(self._receive())
        sending = asyncio.create_task(self._send())
        try:
            done, _ = await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending in done and not receiving.done():  # the reason may have been received
                await asyncio.wait({receiving}, timeout=1.0)
            for task in (receiving, sending):
                if task.done():
                    task.result()
        finally:
            for task in (receiving, sending):
                task.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)

    async def _receive(self) -> None:
        assert self._wire is not None
        while True:
            kind, payload = await self._wire.frame()
            if kind == frames.ACK:
                self._acked(frames.seq_of(payload))
            elif kind == frames.LOST:
                self._count_losses(payload)

    def _count_losses(self, payload: bytes) -> None:
        """A LOST comes right after HELLO, and before the ACK of what was dropped."""
        try:
            lost = sum(frames.losses_of(payload))
        except ValueError as problem:
            raise ConnectionResetError(str(problem)) from None
        if self._lost is None:
            for one in self._unacked:
                one.lost_before = lost
        self._lost = lost

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
        """Assign numbers to all queued batches, and make their keys durable."""
        fresh = list(self._queue)
        self._queue.clear()
        self._unacked.extend(fresh)
        for one in fresh:
            self._last += 1
            one.seq, one.lost_before = self._last, self._lost
        if any(one.last and one.seq != self._said_last for one in fresh):
            raise ConnectionResetError("the next greeting names the last of a table's first rows")
        entries = [
            KeyRecord(one.key, one.digest, one.seq, one.message.rows)
            for one in fresh
            if one.key is not None
        ]
        if entries:
            acks = list(self._acks)
            await self._blocking(self._keys.write, self.job, self.stream, entries, acks)
            self._noted(acks)

    def _noted(self, acks: list[str]) -> None:
        """Forget acks that the file records."""
        for key in acks:
            self._acks.pop(key, None)

    def _acked(self, seq: int) -> None:
        """Complete batches up to `seq`, which are committed."""
        while self._unacked and self._unacked[0].seq <= seq:
            one = self._unacked.popleft()
            self._sent = max(0, self._sent - 1)
            if one.key is not None:
                self._acks[one.key] = one
            known = self._lost is not None and one.lost_before is not None
            lost = (self._lost or 0) - (one.lost_before or 0) if known else None
            self._drop(one, None, lost)

    def _hang_up(self) -> None:
        self._settled.clear()
        self._lost = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # Errors ------------------------------------------------------------------------------------

    def _refused(self, text: str) -> None:
        """Handle an ERROR frame: the next HELLO shows which batch caused it, if one did."""
        if text == frames.STORE_FULL:
            self._turned_away.set()
            self._fail(_store_full())
        elif self._settled.is_set():
            self._refusal = text if self._sent else ""
        else:  # the stream has changed, and its source with it
            self._fail(ApiProblem("unavailable", f"stream {self.stream}: {text}", retry_after_s=1))

    def _blame(self) -> None:
        """Fail the first sent batch that is not committed with the daemon's error."""
        text, self._refusal = self._refusal, ""
        if text and self._sent:
            culprit = ApiProblem(
                "invalid", f"stream {self.stream} refuses the rows: {text}",
                "send fewer rows at a time, or see the stream's source",
                (ProblemFault(f"streams.{self.stream}", text),),
            )  # fmt: skip
            self._drop(self._unacked.popleft(), culprit)

    def _fail(self, problem: ApiProblem) -> None:
        """Fail all batches.  Sent ones may be committed, which the next HELLO shows."""
        unknown = ApiProblem(
            "unknown-outcome", f"rows were sent, but {problem.detail}",
            retry_after_s=problem.retry_after_s or 1,
        )  # fmt: skip
        for number, one in enumerate(self._unacked):
            self._drop(one, unknown if number < self._sent else problem)
        for one in self._queue:
            self._drop(one, problem)
        self._unacked.clear()
        self._queue.clear()
        self._sent = 0

    def _drop(self, one: PendingBatch, problem: ApiProblem | None, lost: int | None = None) -> None:
        self.bytes -= one.size
        if one.key is not None:
            self.release(one.key)
        if one.done.done():
            return
        if problem is None:
            one.done.set_result(lost)
        else:
            one.done.set_exception(problem)

    async def _blocking(self, call: Callable[..., _T], *arguments: object) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: call(*arguments))


def _store_full() -> ApiProblem:
    return ApiProblem("busy", frames.STORE_FULL, STORE_DO, retry_after_s=RETRY_FULL_S)


def _same(key: str, known: bytes, digest: bytes) -> None:
    if known != digest:
        fault = ProblemFault(
            "header.idempotency-key", f"{key!r} stands for other tuples", "take a new key"
        )
        raise ApiProblem("invalid", "the key was used with other tuples", errors=(fault,))


def _look(done: asyncio.Future[int | None]) -> None:
    if not done.cancelled():
        done.exception()
