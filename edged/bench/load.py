"""The load generator: `python -m edged.bench.load CONFIG.json`, a separate process.

It sends two streams in step, `r` and `s`, of (key int32, value float32, ts timestamp), as Arrow
IPC messages over many connections. Keys and values come from a pool much longer than the join's
window; the pool is cycled. A message is a template written by pyarrow, into which a compiled
function writes the sequence number and the three columns, so sending is cheap.

Mode `full` sends as fast as the sockets accept data; event time advances by one microsecond every
`tuples_per_us` rows of a stream. Mode `rate` is an open loop: every `tick_s` it sends the rows
that are due, stamped with their due time, even if the sockets are behind.

It writes JSON lines to standard output: `{"ready": true}` once connected, `{"sent": rows a stream,
…}` once everything is sent and committed.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("key", pa.int32(), nullable=False),
        pa.field("value", pa.float32(), nullable=False),
        pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)
START_US = 1_704_067_200_000_000
"""Event time of the first row in mode `full`: 2024-01-01."""
SPREAD_ROWS = 250_000
"""Largest distance, in rows, between the connections of a stream (approximate)."""
_DIGITS = 14
_POOL_ROWS = 1 << 23


@dataclass(frozen=True)
class Load:
    """Configuration of a load."""

    address: str
    connections: int
    """Connections of each stream."""
    batch: int
    """Rows of a message."""
    keys: int
    """Keys are uniform in 0..keys-1."""
    seed: int = 1
    mode: str = "full"
    """`full` or `rate`."""
    seconds: float = 60.0
    tuples_per_us: int = 5
    """Rows of a stream for each microsecond of event time, in mode `full`."""
    rate: float = 0.0
    """Rows per second of each stream in mode `rate`."""
    tick_s: float = 0.01
    """Time between two sends in mode `rate`."""
    warm_s: float = 0.0
    """Seconds at half the rate, at the start of mode `rate`."""
    streams: str = "rs"
    """The streams that are sent, a letter each."""

    def pool(self, stream: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The keys and values that a stream's rows cycle through."""
        rows = _POOL_ROWS - _POOL_ROWS % self.batch
        random = np.random.default_rng([self.seed, ord(stream)])
        keys = random.integers(0, self.keys, rows, dtype=np.int32)
        return keys, random.random(rows, dtype=np.float32)


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def fill(
    out: Any,
    template: Any,
    count: int,
    sequence: int,
    digits_at: int,
    body: Any,
    batch: int,
    key: Any,
    value: Any,
    first: int,
    ts: int,
    phase: int,
    per_us: int,
) -> None:
    """Write `count` messages into `out`: the template with sequence number and columns filled in.

    `body` holds the offsets of the three columns in the template. Row j of message m has the time
    `ts + (phase + m * batch + j) // per_us`, or `ts` for all rows if `per_us` is 0.
    """
    size = template.size
    for m in range(count):
        at = m * size
        out[at : at + size] = template
        number = sequence + m
        for d in range(_DIGITS):
            out[at + digits_at + _DIGITS - 1 - d] = 48 + number % 10
            number //= 10
        start = first + m * batch
        span = out[at + body[0] : at + body[0] + 4 * batch].view(np.int32)
        span[:] = key[start : start + batch]
        reals = out[at + body[1] : at + body[1] + 4 * batch].view(np.float32)
        reals[:] = value[start : start + batch]
        times = out[at + body[2] : at + body[2] + 8 * batch].view(np.int64)
        for j in range(batch):
            times[j] = ts
            phase += 1
            if phase == per_us:
                phase, ts = 0, ts + 1


class _Template:
    """A message of `batch` rows as pyarrow writes it, and the offsets of its parts."""

    def __init__(self, batch: int) -> None:
        columns = [
            pa.array(np.full(batch, 0x1A2B3C4D, np.int32)),
            pa.array(np.full(batch, np.float32(123456.0))),
            pa.array(np.full(batch, 0x0A0B0C0D0E0F, np.int64)).cast(SCHEMA.field("ts").type),
        ]
        sink = pa.BufferOutputStream()
        opened = SCHEMA.serialize().size
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            writer.write_batch(rows, custom_metadata={"edged.seq": "7" * _DIGITS})
            data = sink.tell()
        text = sink.getvalue().to_pybytes()[opened:data]
        self.bytes = np.frombuffer(bytearray(text), np.uint8)
        self.digits_at = text.index(b"7" * _DIGITS)
        marks = (struct.pack("<i", 0x1A2B3C4D), struct.pack("<f", 123456.0),
                 struct.pack("<q", 0x0A0B0C0D0E0F))  # fmt: skip
        self.body = np.array([text.index(m * batch) for m in marks], np.int64)


class _Connection:
    """One producer's connection."""

    def __init__(self, load: Load, stream: str, number: int) -> None:
        host, _, port = load.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        meta = {"edged.stream": stream, "edged.producer": f"load-{stream}-{number}"}
        self.socket.sendall(SCHEMA.with_metadata(meta).serialize())
        self.sequence = 0
        self._received = b""
        self.acked = -1
        self.ended = False

    def listen(self, block: bool) -> None:
        """Read acks; with `block`, wait for at least one frame."""
        self.socket.setblocking(block)
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            data = b""
        else:
            if not data:
                raise ConnectionError("the daemon closed the connection")
        self.socket.setblocking(True)
        self._received += data
        while len(self._received) >= 8:
            kind, size = struct.unpack_from("<II", self._received)
            if len(self._received) < 8 + size:
                break
            payload, self._received = self._received[8 : 8 + size], self._received[8 + size :]
            if kind == 3:
                raise ConnectionError(payload.decode())
            if kind in (1, 2):
                self.acked = struct.unpack("<Q", payload)[0]
            self.ended |= kind == 4


class Generator:
    """Sends both streams in step."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.template = _Template(load.batch)
        self.pools = {s: load.pool(s) for s in load.streams}
        self.connections = {
            s: [_Connection(load, s, i) for i in range(load.connections)] for s in load.streams
        }
        for own in self.connections.values():
            for connection in own:
                connection.listen(block=True)
        self.rows = 0
        share = SPREAD_ROWS // (load.connections * load.batch)
        self.run = max(1, min(64, (1 << 20) // self.template.bytes.size, share))
        self.buffer = np.empty(self.run * self.template.bytes.size, np.uint8)
        self._turn = 0

    def full(self) -> None:
        """Send as fast as the sockets accept data, for `seconds`."""
        end = time.monotonic() + self.load.seconds
        while time.monotonic() < end:
            self._round(START_US + self.rows // self.load.tuples_per_us, self.load.tuples_per_us)

    def open_loop(self) -> None:
        """Send `rate` rows per second of each stream, for `seconds`, stamped with the due time.

        The first `warm_s` seconds run at half the rate, since the first use of files and buffers is
        slow.
        """
        start_wall, start = time.time_ns() // 1000, time.monotonic()
        ticks = int(self.load.seconds / self.load.tick_s)
        due_rows = 0.0
        for tick in range(ticks):
            due = start + tick * self.load.tick_s
            time.sleep(max(0.0, due - time.monotonic()))
            stamp = start_wall + int(tick * self.load.tick_s * 1e6)
            pace = 0.5 if tick * self.load.tick_s < self.load.warm_s else 1.0
            due_rows += pace * self.load.rate * self.load.tick_s
            while self.rows < due_rows:
                self._round(stamp, 0, runs=1)

    def end(self) -> None:
        """Send end-of-stream on every connection and wait until it is committed."""
        marker = struct.pack("<II", 0xFFFFFFFF, 0)
        connections = [c for own in self.connections.values() for c in own]
        for connection in connections:
            connection.socket.sendall(marker)
        for connection in connections:
            while not connection.ended:
                connection.listen(block=True)

    def _round(self, ts: int, per_us: int, runs: int | None = None) -> None:
        """Send a run of messages on the next connection of each stream."""
        t, n, count = self.template, self.load.batch, runs or self.run
        pool_rows = self.pools["r"][0].size
        first, phase = self.rows % pool_rows, self.rows % per_us if per_us else 0
        count = min(count, (pool_rows - first) // n)
        size = count * t.bytes.size
        for stream in self.load.streams:
            key, value = self.pools[stream]
            connection = self.connections[stream][self._turn]
            fill(self.buffer, t.bytes, count, connection.sequence + 1, t.digits_at, t.body, n,
                 key, value, first, ts, phase, per_us)  # fmt: skip
            connection.sequence += count
            connection.socket.sendall(self.buffer[:size].data)
            connection.listen(block=False)
        self.rows += count * n
        self._turn = (self._turn + 1) % self.load.connections


def main() -> None:
    """Run the load that the configuration file describes."""
    load = Load(**json.loads(Path(sys.argv[1]).read_text()))
    generator = Generator(load)
    _say({"ready": True})
    generator.full() if load.mode == "full" else generator.open_loop()
    sent = time.monotonic()
    generator.end()
    _say({"sent": generator.rows, "sent_at": sent, "committed_at": time.monotonic()})


def write_config(load: Load, path: Path) -> None:
    """Write `load` to the file that `main` reads."""
    path.write_text(json.dumps(asdict(load)))


def _say(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
