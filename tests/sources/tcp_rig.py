"""A TCP source with a loop of its own, as the heart runs it: poll, ingest, seal, commit, take."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

import numpy as np
import pyarrow as pa

from edged.client import frames
from edged.data.columns import Batch
from edged.data.flow import State
from edged.data.schema import FLOAT64, INT32, STRING, TIMESTAMP, Field, Schema
from edged.data.staging import Staging
from edged.data.workers import Workers
from edged.platform.clock import boot_us
from edged.sources._tcp_socket import TcpSettings
from edged.sources._tcp_source import TcpSource

SCHEMA = Schema.of(
    [
        Field("time", TIMESTAMP),
        Field("key", INT32),
        Field("name", STRING, True),
        Field("value", FLOAT64, True),
    ]
)
ARROW = SCHEMA.to_arrow()
NOW_US = time.time_ns() // 1000


def rows(first: int, count: int) -> pa.RecordBatch:
    """Rows that are a function of their number, which is `key`."""
    keys = range(first, first + count)
    return pa.record_batch(
        [
            pa.array([NOW_US + k for k in keys], pa.timestamp("us", tz="UTC")),
            pa.array(keys, pa.int32()),
            pa.array([None if k % 5 == 0 else f"n\u00e4me {k % 7}" for k in keys], pa.string()),
            pa.array([None if k % 3 == 0 else k / 4 for k in keys], pa.float64()),
        ],
        schema=ARROW,
    )


def metadata(stream: str = "s", producer: str = "", token: str = "") -> pa.Schema:
    """The schema with the metadata of a greeting."""
    given = {"edged.stream": stream, "edged.producer": producer, "edged.token": token}
    return ARROW.with_metadata({k: v for k, v in given.items() if v})


def messages(
    batches: list[pa.RecordBatch],
    schema: pa.Schema | None = None,
    *,
    producer: str = "",
    first_seq: int | None = None,
    end: bool = False,
    options: pa.ipc.IpcWriteOptions | None = None,
) -> bytes:
    """A stream of these batches as pyarrow's own writer makes it."""
    sink = pa.BufferOutputStream()
    schema = metadata(producer=producer) if schema is None else schema
    writer = pa.ipc.new_stream(sink, schema, options=options)
    for i, batch in enumerate(batches):
        seq = None if first_seq is None else {"edged.seq": str(first_seq + i)}
        writer.write_batch(batch.replace_schema_metadata(schema.metadata), custom_metadata=seq)
    writer.close()
    data = sink.getvalue().to_pybytes()
    return data if end else data[:-8]


class Rig:
    """Runs a source; what was taken is in `table`, errors of the loop end the test."""

    def __init__(
        self,
        settings: TcpSettings | None = None,
        schema: Schema = SCHEMA,
        bytes_max: int = 16 << 20,
        streams: tuple[str, ...] = ("s",),
        workers: Workers | None = None,
        recovered: State | None = None,
    ) -> None:
        hour = 3_600_000_000
        self.stagings = {
            name: Staging(name, schema, "time", bytes_max, 24 * hour) for name in streams
        }
        if recovered is not None:
            self.stagings[streams[0]].load(recovered)
        self.source = TcpSource(settings or TcpSettings("127.0.0.1", 0), self.stagings, workers)
        self.source.start()
        self.port = self.source.port
        self.address = f"127.0.0.1:{self.port}"
        self.staging = self.stagings[streams[0]]
        self.taken: dict[str, list[pa.RecordBatch]] = {name: [] for name in streams}
        self.taking = self.committing = True
        self.beats = self.peak_bytes = self.late_us = 0
        self.problem: BaseException | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._tickets: list[object] = []
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.source.close()
        if self.problem is not None:
            raise self.problem

    def table(self, stream: str = "s") -> pa.Table:
        with self._lock:
            schema = self.stagings[stream].schema.to_arrow()
            return pa.Table.from_batches(self.taken[stream], schema)

    def all_keys(self, stream: str = "s") -> list[int]:
        return self.table(stream).column("key").to_pylist()

    def count(self, stream: str = "s") -> int:
        with self._lock:
            return sum(b.num_rows for b in self.taken[stream])

    def counter(self, name: str) -> float:
        return dict(self.source.counters()).get(name, 0)

    def until(self, condition, what: str = "condition", seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.problem is None, self.problem
            assert time.monotonic() < deadline, f"{what}: {self.source.counters()}, {self.count()}"
            time.sleep(0.005)

    def _loop(self) -> None:
        try:
            while not self._stop.is_set():
                select.select([self.source.fileno()], [], [], 0 if self.source.unread() else 0.01)
                self.beat()
        except BaseException as problem:
            self.problem = problem

    def beat(self) -> None:
        self.beats += 1
        self.source.ingest(boot_us() + self.late_us, time.time_ns() // 1000)
        self._tickets.append(self.source.seal())
        live = sum(s.live_bytes() for s in self.stagings.values())
        self.peak_bytes = max(self.peak_bytes, live)
        for name, staging in self.stagings.items():
            if self.taking:
                pending: Batch = staging.pending()
                if pending.rows:
                    with self._lock:
                        self.taken[name].append(pending.to_arrow())
                staging.consume(len(staging.chunks()), pending.rows)
        if self.committing:
            for staging in self.stagings.values():
                staging.mark_logged()
            for ticket in self._tickets:
                self.source.committed(ticket)
            self._tickets.clear()


def dial(rig: Rig) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", rig.port), 10)
    peer.settimeout(120)
    return peer


def next_frame(peer: socket.socket) -> tuple[int, bytes]:
    def exactly(n: int) -> bytes:
        data = b""
        while len(data) < n:
            got = peer.recv(n - len(data))
            assert got, "closed"
            data += got
        return data

    kind, length = np.frombuffer(exactly(8), "<u4").tolist()
    return kind, exactly(length)


def error_of(peer: socket.socket) -> str:
    kind, payload = next_frame(peer)
    while kind != frames.ERROR:
        kind, payload = next_frame(peer)
    assert peer.recv(1) == b""
    return payload.decode()


def refused(rig: Rig, data: bytes) -> str:
    """Send this and return the error; a healthy connection beside it goes on."""
    with dial(rig) as healthy, dial(rig) as peer:
        healthy.sendall(messages([rows(0, 10)]))
        with contextlib.suppress(OSError):
            peer.sendall(data)
        text = error_of(peer)
        before = rig.count()
        healthy.sendall(messages([rows(10, 10)])[len(messages([])) :])
        rig.until(lambda: rig.count() >= max(20, before), "the healthy connection")
    return text
