"""HTTP ingest: request bodies become batches, which are sent to the source like any producer's.  A
request is answered 202 after the commit.

Bodies that are being read, decoded or committed are limited to PENDING_BYTES_MAX bytes and
PENDING_MAX requests; further requests are answered 429, with the estimated time until there is
room.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from api.door_client import DoorClient, Snapshot
from api.ingest.decoders import Decoders
from api.ingest.keys import Keys
from api.problems import ApiProblem
from edged.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from api.ingest.stream_producer import StreamProducer

PENDING_BYTES_MAX = 64 << 20
PENDING_MAX = 256
ACK_S = 30.0
"""Longest wait of a request for its commit."""
RETRY_S_MAX = 30


@dataclass(frozen=True)
class StreamVersion:
    """A stream in one definition of its job."""

    job: str
    stream: str
    version: int
    created_us: int
    """When the job was created: a job that replaces a deleted one of its name starts at version 1
    again."""

    def is_current(self, jobs: dict[str, Any]) -> bool:
        """Whether the job is in a snapshot's jobs with this definition."""
        job = jobs.get(self.job, {})
        return (job.get("version"), job.get("created_us")) == (self.version, self.created_us)


class Acceptance(NamedTuple):
    """What became of the rows of a request."""

    rows: int
    """Committed rows, those that are dropped by their times included."""
    replayed: bool
    """Whether an earlier request with the same key brought them."""
    lost: int | None
    """Rows of this and of concurrent requests that were dropped by their times; None: that is not
    known."""


class Ingest:
    """HTTP ingest of all streams.  `file` stores idempotency keys and is opened by the first
    request."""

    def __init__(self, door: DoorClient, file: Path) -> None:
        self._door, self._file = door, file
        self._keys: Keys | None = None
        self._producers: dict[StreamVersion, StreamProducer] = {}
        self._decoders = Decoders()
        self._thread = ThreadPoolExecutor(1, "keys")
        self._opening = asyncio.Lock()
        self._bytes = self._requests = 0
        self._rate: float | None = None
        """Bytes acknowledged per second, averaged over recent requests."""

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Reserve room for a request of `size` bytes within the block.  Raises ApiProblem 429."""
        if self._requests >= PENDING_MAX or (
            self._requests and self._bytes + size > PENDING_BYTES_MAX
        ):
            raise ApiProblem(
                "busy", f"{self._requests} requests with {self._bytes} bytes are not committed yet",
                retry_after_s=self._retry_s(),
            )  # fmt: skip
        self._requests += 1
        self._bytes += size
        try:
            yield
        finally:
            self._requests -= 1
            self._bytes -= size

    async def accept(
        self, target: StreamVersion, body: bytes, media_type: str, key: str | None
    ) -> Acceptance:
        """Commit the rows of a request.  Raises ApiProblem."""
        producer = await self._producer(target)
        digest = hashlib.sha256(media_type.encode() + b"\0" + body).digest()
        if key is not None:
            rows = await producer.reserve(key, digest)
            if rows is not None:
                return Acceptance(rows, True, None)
        try:
            batch = await self._decoders.decode(body, media_type, producer.schema)
        except BaseException:
            if key is not None:
                producer.release(key)
            raise
        if not batch.num_rows:
            if key is not None:
                producer.release(key)
            return Acceptance(0, False, 0)
        lost = await self._commit(producer, batch, key, digest)
        return Acceptance(batch.num_rows, False, lost)

    async def close(self) -> None:
        """Wait for batches on their way, then close the connections."""
        await asyncio.gather(*(producer.close() for producer in self._producers.values()))
        await self._decoders.close()
        self._thread.shutdown(wait=True)
        if self._keys is not None:
            self._keys.close()

    async def _commit(
        self, producer: StreamProducer, batch: pa.RecordBatch, key: str | None, digest: bytes
    ) -> int | None:
        """The rows lost meanwhile; None: that is not known.  Raises ApiProblem."""
        started_s = time.monotonic()
        one = producer.submit(batch, key, digest)
        done, _ = await asyncio.wait([one.done], timeout=ACK_S)
        if not done and producer.withdraw(one):
            raise ApiProblem(
                "unavailable", f"the daemon has not taken the rows within {ACK_S:.0f} s",
                retry_after_s=5,
            )  # fmt: skip
        if not done:
            raise ApiProblem(
                "unknown-outcome", f"the rows are not committed after {ACK_S:.0f} s",
                retry_after_s=5,
            )  # fmt: skip
        lost = one.done.result()
        rate = one.size / max(1e-3, time.monotonic() - started_s)
        self._rate = rate if self._rate is None else 0.8 * self._rate + 0.2 * rate
        return lost

    async def _producer(self, target: StreamVersion) -> StreamProducer:
        if target not in self._producers:
            async with self._opening:
                if target not in self._producers:
                    await self._open(target)
        return self._producers[target]

    async def _open(self, target: StreamVersion) -> None:
        from api.ingest.stream_producer import StreamProducer

        loop = asyncio.get_running_loop()
        if self._keys is None:
            try:
                self._keys = await loop.run_in_executor(self._thread, Keys, self._file)
            except ConfigError as problem:
                raise ApiProblem("unavailable", str(problem), retry_after_s=10) from None
        document = (await self._door.ask("job", name=target.job))["document"]
        snapshot = await self._door.snapshot()
        source = source_of(snapshot, target.job, target.stream)
        schema = _schema(document, target.stream, source)
        for old in [t for t in self._producers if not t.is_current(snapshot["jobs"])]:
            await self._producers.pop(old).close()

        async def address() -> str:
            try:
                source = source_of(await self._door.snapshot(), target.job, target.stream)
                return str(source["address"])
            except ApiProblem as problem:
                if problem.kind == "unavailable":  # the daemon will be back; what was sent is kept
                    raise ConnectionRefusedError(str(problem.detail)) from None
                raise

        self._producers[target] = StreamProducer(
            target.job, target.stream, schema, address, self._keys, self._thread
        )

    def _retry_s(self) -> int:
        rate = self._rate or self._bytes / 2.0
        return max(1, min(RETRY_S_MAX, round(self._bytes / max(1.0, rate))))


def source_of(snapshot: Snapshot, job: str, stream: str) -> dict[str, Any]:
    """The source of a stream.  Raises ApiProblem 404, or 503 while its job is shelved."""
    wanted = {"job": job, "stream": stream}
    for source in snapshot.get("sources", []):
        if wanted in source.get("streams", []):
            return dict(source)
    found = snapshot.get("jobs", {}).get(job, {})
    if found.get("state") == "shelved":
        text = f"job {job} is shelved: {found.get('problem', '')}"
        raise ApiProblem("unavailable", text, retry_after_s=RETRY_S_MAX)
    raise ApiProblem("not-found", f"job {job} has no stream {stream}", "GET /v1/streams lists them")


def _schema(document: dict[str, Any], stream: str, source: dict[str, Any]) -> pa.Schema:
    """The stream's Arrow schema.  Raises ApiProblem 409 if its source takes no HTTP rows."""
    from api.ingest.media_types import KEY
    from edged.data.change_events import with_weight_column
    from edged.data.schema_document import columns
    from edged.data.table_terms import DEBEZIUM

    table = {**document.get("streams", {}), **document.get("tables", {})}[stream]
    if not source.get("takes_http"):
        has_guard = {"token_file", "tls_cert"} & table.get("source", {}).keys()
        raise ApiProblem(
            "conflict",
            f"stream {stream} takes no tuples over HTTP: its source is {source['kind']}"
            + (" with a token or TLS" if has_guard else ""),
            'give it `source = { type = "http" }`, or a tcp source without token and TLS',
        )
    found = columns(f"streams.{stream}", table)
    if table.get("changes") != DEBEZIUM:
        return found.to_arrow()
    key = ",".join(table.get("key", []))
    return with_weight_column(stream, found).to_arrow().with_metadata({KEY: key})
