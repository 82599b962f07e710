"""Simulated devices of `edged bench fleet`: many connections of one process.

A device is one kept connection and the requests that `edged.uplink` makes: pages and reports with
its headers and checksums, as raw HTTP/1.1 without TLS.  Head and body are two writes, as
`http.client` sends them.  Requests are built before a phase, and an answer is read for its status
and length only, so that the devices take little of the machine.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from typing import Any

from edged.pages.header import CHECKSUM_AT, HEADER, MAGIC, checksum
from edged.uplink import telemetry
from edged.uplink.integrity import HEADER as CHECK
from edged.uplink.integrity import request_check

STREAM = "power"
SCHEMA = (
    '[{"name":"k","type":"int32","nullable":false},{"name":"v","type":"float64","nullable":false}]'
)
TUPLES, STRIDE = 300, 12
BACKOFF_S = 5.0
"""Largest wait of a device that got no answer, with full jitter, as the uplink's."""
_EPOCH, _SESSION = "7", "1:77"
_BODY = bytes(TUPLES * STRIDE)
_REPORT = {
    "timestamp": 1_700_000_000_000_000, "int64": 7, "float64": 1.5, "bool": 0, "string": "x",
}  # fmt: skip


class Acks:
    """When acknowledgements came: latencies, and the longest time without one while one was due."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.longest_gap_s = 0.0
        self._due = 0
        self._since_s = 0.0

    def begin(self) -> None:
        """A request is on its way."""
        if not self._due:
            self._since_s = time.monotonic()
        self._due += 1

    def end(self, due_s: float) -> None:
        """The request that was due at `due_s` is acknowledged."""
        now_s = time.monotonic()
        self._due -= 1
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._since_s)
        self._since_s = now_s
        self.seconds.append(now_s - due_s)

    def p99_ms(self) -> float:
        """The 99th percentile of the latencies."""
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


class RawDevice(asyncio.Protocol):
    """One device.  `send` may wait for its earlier requests."""

    def __init__(self, number: int, host: str, port: int) -> None:
        self.name = f"device-{number}"
        self._host, self._port = host, port
        self._seq = 0
        self._reports = 0
        self._turn = asyncio.Lock()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[int] | None = None
        self._received = b""

    # -- requests

    def page(self) -> bytes:
        """A request with the next page."""
        self._seq += 1
        size = HEADER.size + len(_BODY)
        head = HEADER.pack(
            MAGIC, 1, 1, 1, 0, size, size, size, TUPLES, STRIDE, 0, int(_EPOCH), self._seq,
            self._seq, 0, 1, 1000, 2000, 3000, 0, 0, self.name.encode(), STREAM.encode(),
        )  # fmt: skip
        whole = bytearray(head + _BODY)
        struct.pack_into("<I", whole, CHECKSUM_AT, checksum(whole))
        return self._request("POST /v1/pages", "pages", bytes(whole))

    def report(self) -> bytes:
        """A request with the next report."""
        self._reports += 1
        values = [_REPORT[kind] for _, kind, _ in telemetry.COLUMNS]
        seq = telemetry.number(1, self._reports)
        return self._request(
            "POST /v1/pages", "pages", telemetry.page(self.name, int(_EPOCH), seq, values)
        )

    def schemas(self) -> list[bytes]:
        """Requests that register the streams."""
        return [
            self._request(
                f"PUT /v1/schemas/{stream}/{version}", f"{stream}@{version}", text.encode(), True
            )
            for stream, version, text in (
                (STREAM, 1, SCHEMA), (telemetry.STREAM, telemetry.VERSION, telemetry.SCHEMA),
            )
        ]  # fmt: skip

    def _request(self, line: str, what: str, body: bytes, checked: bool = False) -> bytes:
        check = request_check(self.name, _EPOCH, _SESSION, what, body if checked else b"")
        head = (
            f"{line} HTTP/1.1\r\nHost: {self._host}\r\nX-Edged-Device: {self.name}\r\n"
            f"X-Edged-Epoch: {_EPOCH}\r\nX-Edged-Session: {_SESSION}\r\nX-Edged-Desired: 0\r\n"
            f"{CHECK}: {check}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    # -- the connection

    async def send(self, request: bytes) -> None:
        """Send until it is acknowledged: after no answer or 5xx again, after a pause.

        Raises RuntimeError for any other answer.
        """
        async with self._turn:
            wait_s = 0.1
            while (status := await self._try(request)) not in (200, 204):
                if status and status < 500:
                    raise RuntimeError(f"{self.name}: the collector answered {status}")
                await asyncio.sleep(random.uniform(0, wait_s))
                wait_s = min(BACKOFF_S, 2 * wait_s)

    async def _try(self, request: bytes) -> int:
        """The answer's status; 0 without an answer."""
        loop = asyncio.get_running_loop()
        try:
            if self._transport is None:
                await loop.create_connection(lambda: self, self._host, self._port)
        except OSError:
            return 0
        if self._transport is None:
            return 0
        self._answer = loop.create_future()
        body_at = request.index(b"\r\n\r\n") + 4
        self._transport.write(request[:body_at])
        self._transport.write(request[body_at:])
        return await self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        """Read an answer: its status, once all of it is there."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head):
            self._received = b""
            self._say(int(head[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        """The request in flight has no answer."""
        self._transport = None
        self._say(0)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _say(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


def _length(head: bytes) -> int:
    _, _, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0] or 0)


async def send_at_rate(
    work: list[tuple[RawDevice, bytes]], rate: float, acks: Acks, pending: set[Any]
) -> None:
    """Send each request at its time, `rate` a second, whatever is still due; ends with the last
    acknowledgement."""
    start_s = time.monotonic()
    for i, (device, request) in enumerate(work):
        due_s = start_s + i / rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        task = asyncio.create_task(_send(device, request, due_s, acks))
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)


async def _send(device: RawDevice, request: bytes, due_s: float, acks: Acks) -> None:
    acks.begin()
    await device.send(request)
    acks.end(due_s)
