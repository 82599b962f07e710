"""The sending end of a link by hand: greeting, numbered messages with their marks, answers."""

from __future__ import annotations

import socket

import pyarrow as pa

from edged.client import frames
from tests.sources.tcp_rig import next_frame

END = 2**63 - 1


class LinkPeer:
    """A link's connection to the stream `stream` of a listener on this machine."""

    def __init__(
        self,
        port: int,
        schema: pa.Schema,
        stream: str = "r",
        producer: str = "7f/job/site/0",
        session: str = "1.a.0",
        first: int = 1,
        compression: str | None = None,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(120)
        given = {"edged.stream": stream, "edged.producer": producer, "edged.session": session}
        if first:
            given["edged.from"] = str(first)
        self.schema = schema
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._skip = len(self._written(schema))
        self.socket.sendall(self._written(schema.with_metadata(given)))
        self.acked = 0

    def __enter__(self) -> LinkPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def greeted(self) -> tuple[int, int, int]:
        """The number of HELLO, and number and sum of LINK."""
        kind, payload = next_frame(self.socket)
        assert kind == frames.HELLO, payload
        hello = frames.seq_of(payload)
        kind, payload = next_frame(self.socket)
        assert kind == frames.LINK
        seq, sum = frames.losses_of(payload)
        return hello, seq, sum

    def send(
        self,
        seq: int,
        batch: pa.RecordBatch | None = None,
        watermark_us: int | None = None,
        sum: int | None = None,
    ) -> None:
        """Send one message; without `batch` it has no rows."""
        self.socket.sendall(self.message(seq, batch, watermark_us, sum))

    def message(
        self,
        seq: int,
        batch: pa.RecordBatch | None = None,
        watermark_us: int | None = None,
        sum: int | None = None,
    ) -> bytes:
        """The bytes that `send` sends."""
        marks = {"edged.seq": f"{seq:018}"}
        if watermark_us is not None:
            marks["edged.watermark"] = f"{watermark_us:+020}"
        if sum is not None:
            marks["edged.sum"] = f"{sum:016x}"
        batch = pa.RecordBatch.from_pylist([], self.schema) if batch is None else batch
        return self._written(self.schema, batch, marks)[self._skip :]

    def await_ack(self, seq: int) -> None:
        """Wait until everything up to `seq` is acknowledged."""
        while self.acked < seq:
            kind, payload = next_frame(self.socket)
            assert kind == frames.ACK, payload
            self.acked = frames.seq_of(payload)

    def error(self) -> str:
        """The text of the ERROR that comes next."""
        kind, payload = next_frame(self.socket)
        assert kind == frames.ERROR, kind
        return payload.decode()

    def _written(
        self,
        schema: pa.Schema,
        batch: pa.RecordBatch | None = None,
        marks: dict[str, str] | None = None,
    ) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=self._options) as writer:
            if batch is not None:
                writer.write_batch(batch, custom_metadata=marks)
        return sink.getvalue().to_pybytes()[:-8]
