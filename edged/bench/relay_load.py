"""The load of the relay benchmarks: `python -m edged.bench.relay_load CONFIG.json`, a process.

It sends packets on one connection for each target, numbered from 1 on each, in bulk or packet by
packet. `full` sends as fast as acknowledgements allow: at most `window` packets of a connection are
unacknowledged. `rate` is an open loop: packets are stamped with the time at which they are due.

It writes JSON lines to standard output: `{"ready": true}` once connected, `{"sent": [packets of
each target], …}` at the end. The file `progress` has packets sent and acknowledged so far.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edged.bench.relay_packets import STREAM, PacketTemplate, arrow_schema, fill_packets
from edged.client import frames

RUN_BYTES = 256 << 10
"""About as much is given to a socket at once."""


@dataclass(frozen=True)
class PacketLoad:
    """Configuration of a load."""

    targets: list[str]
    """Addresses."""
    packet_bytes: int
    batch: int
    """Packets of a message."""
    seconds: float
    window: int
    """Packets that may be unacknowledged, for each target."""
    progress: str
    rate: float = 0.0
    """Packets per second in all; 0: as many as acknowledgements allow."""
    tick_s: float = 0.002
    senders: list[int] | None = None
    """The sender's number in the packets of each target; default: all 0."""
    streams: list[str] | None = None


def write_load(load: PacketLoad, path: Path) -> None:
    """Write the configuration that `main` reads."""
    path.write_text(json.dumps(asdict(load)))


class _PacketConnection:
    """One target's connection."""

    def __init__(self, load: PacketLoad, index: int) -> None:
        host, _, port = load.targets[index].rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = load.streams[index] if load.streams else STREAM
        meta = {"edged.stream": stream, "edged.producer": f"load-{index}"}
        self.socket.sendall(arrow_schema(load.packet_bytes).with_metadata(meta).serialize())
        sender = load.senders[index] if load.senders else 0
        self.template = PacketTemplate(load.packet_bytes, load.batch, sender)
        t = self.template
        self.at = np.array([t.digits_at, t.seq_at, t.ts_at], np.int64)
        self.batch = load.batch
        self.run = max(1, RUN_BYTES // t.bytes.size) if load.batch > 1 else 1
        self.buffer = np.empty(self.run * t.bytes.size, np.uint8)
        self.messages = self.acked = 0
        self.ended = False
        self._received = b""

    @property
    def in_flight(self) -> int:
        """Packets that are not acknowledged."""
        return (self.messages - self.acked) * self.batch

    def send(self, count: int, ts: int) -> None:
        """Send `count` messages."""
        t = self.template
        size = count * t.bytes.size
        fill_packets(self.buffer, t.bytes, count, self.messages + 1, self.at, self.batch,
                     self.messages * self.batch + 1, ts)  # fmt: skip
        self.messages += count
        self.socket.sendall(self.buffer[:size].data)

    def listen(self) -> None:
        """Read the frames that are there."""
        try:
            data = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionError("the daemon closed the connection")
        self._received += data
        while len(self._received) >= 8:
            kind, size = struct.unpack_from("<II", self._received)
            if len(self._received) < 8 + size:
                break
            payload, self._received = self._received[8 : 8 + size], self._received[8 + size :]
            if kind in (frames.ERROR, frames.AGAIN):
                raise ConnectionError(payload.decode())
            if kind in (frames.HELLO, frames.ACK):
                self.acked = struct.unpack("<Q", payload)[0]
            self.ended |= kind == frames.END_ACK


class PacketGenerator:
    """Sends to all targets in turn."""

    def __init__(self, load: PacketLoad) -> None:
        self.load = load
        self.connections = [_PacketConnection(load, i) for i in range(len(load.targets))]
        self.progress = np.memmap(load.progress, np.int64, "w+", shape=(2,))

    def full(self) -> None:
        """As fast as acknowledgements allow."""
        end = time.monotonic() + self.load.seconds
        while time.monotonic() < end:
            sent = 0
            for c in self.connections:
                c.listen()
                count = min(c.run, (self.load.window - c.in_flight) // c.batch)
                if count > 0:
                    c.send(count, time.time_ns() // 1000)
                    sent += count
            self._note()
            if not sent:
                select.select([c.socket for c in self.connections], [], [], 0.1)

    def open_loop(self) -> None:
        """At a rate, stamped with the time at which they are due."""
        wall, start = time.time_ns() // 1000, time.monotonic()
        due, sent, tick = 0.0, 0, 0
        while tick * self.load.tick_s < self.load.seconds:
            time.sleep(max(0.0, start + tick * self.load.tick_s - time.monotonic()))
            stamp = wall + int(tick * self.load.tick_s * 1e6)
            due += self.load.rate * self.load.tick_s
            while sent < due:
                c = self.connections[sent // self.load.batch % len(self.connections)]
                count = max(1, min(c.run, int(due - sent) // c.batch))
                c.send(count, stamp)
                c.listen()
                sent += count * c.batch
            self._note()
            tick += 1

    def end(self) -> None:
        """Wait until all is acknowledged."""
        for c in self.connections:
            while c.acked < c.messages:
                select.select([c.socket], [], [], 0.1)
                c.listen()
        self._note()

    def _note(self) -> None:
        self.progress[0] = sum(c.messages * c.batch for c in self.connections)
        self.progress[1] = sum(c.acked * c.batch for c in self.connections)


def main() -> None:
    """Run the load that the configuration file describes."""
    generator = PacketGenerator(PacketLoad(**json.loads(Path(sys.argv[1]).read_text())))
    for c in generator.connections:
        while not select.select([c.socket], [], [], 60.0)[0]:
            raise ConnectionError("no greeting in a minute")
        c.listen()
    warm = generator.connections[0]
    fill_packets(warm.buffer, warm.template.bytes, 1, 1, warm.at, warm.batch, 1, 0)
    _say({"ready": True})
    generator.open_loop() if generator.load.rate else generator.full()
    generator.end()
    _say({"sent": [c.messages * c.batch for c in generator.connections]})


def _say(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
