"""Producers in threads of the campaign's process: what they send, and what was acknowledged.

A producer that is not answered keeps its batches and sends them again, as `edged.client` does; the
thread waits for nothing, so that it can be stopped while a link is down.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from http.client import HTTPConnection, HTTPException

from edged.client import Producer
from edged.errors import PeerError
from tests.campaign.oracle import SCHEMA, batch

PERIOD_S = 0.05
"""Time between two batches of a producer."""
UNACKED_BYTES_MAX = 192 << 10
REFUSED_S = 0.2
"""Pause of a producer that was refused."""
AHEAD_MAX = 40
"""Batches that a producer may be ahead of another: two seconds of event time."""


class Feed:
    """Producers of streams a and b, `count` each; `problems` are answers that none expected."""

    def __init__(self, address: str, count: int = 2, period_s: float = PERIOD_S, **options) -> None:
        self.address, self.period_s, self.options = address, period_s, options
        self.numbers = range(1, count + 1)
        self.acked: dict[tuple[str, int], int] = {}
        self.sent = {(stream, number): 0 for stream in "ab" for number in self.numbers}
        self.problems: list[str] = []
        self._stop, self._goal = threading.Event(), None
        self._threads = [
            threading.Thread(target=self._produce, args=(stream, number), daemon=True)
            for stream in "ab"
            for number in self.numbers
        ]

    def start(self) -> None:
        """Start sending."""
        for thread in self._threads:
            thread.start()

    def pause(self) -> None:
        """Send nothing new once all producers have sent as many batches as the first of them.

        Event time is then the same for all: a join holds no rows back.
        """
        self._goal = max(self.sent.values())

    def resume(self) -> None:
        """Send again."""
        self._goal = None

    def close(self) -> None:
        """End all threads; what was not acknowledged stays so."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def complete(self) -> bool:
        """Whether everything is sent and acknowledged, after `pause`."""
        return all(last == self._goal for last in self.sent.values()) and all(
            self.acked.get(key, 0) >= last for key, last in list(self.sent.items())
        )

    def total(self) -> int:
        """The number of acknowledged batches."""
        return sum(list(self.acked.values()))

    def _produce(self, stream: str, number: int) -> None:
        """Send until the end; a producer that a full store refused comes back."""
        while not self._stop.is_set():
            producer = Producer(
                self.address, stream, SCHEMA, producer=f"{stream}{number}", timeout_s=600,
                connect_timeout_s=2.0, **self.options,
            )  # fmt: skip
            try:
                self._send(producer, (stream, number))
            except (PeerError, OSError, ValueError) as problem:
                if not (isinstance(problem, PeerError) and "full" in str(problem)):
                    self.problems.append(f"producer {stream}{number}: {problem!r}")
                    return
                self._stop.wait(REFUSED_S)
            finally:
                producer.close()

    def _send(self, producer: Producer, key: tuple[str, int]) -> None:
        seq, due = self._connected(producer), time.monotonic()
        self.acked[key] = max(seq, self.acked.get(key, 0))
        self.sent[key] = seq
        while not self._stop.is_set():
            room = producer.unacked_bytes < UNACKED_BYTES_MAX
            if room and time.monotonic() >= due and seq < self._limit():
                seq += 1
                self.sent[key] = seq
                producer.send(batch(key[1], seq))
                due = max(due + self.period_s, time.monotonic() - 1)
            self.acked[key] = producer.poll()
            time.sleep(min(0.01, self.period_s / 2))

    def _connected(self, producer: Producer) -> int:
        """Wait for the first connection; returns the last committed number."""
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                return producer.connect()
        return 0

    def _limit(self) -> int:
        """The last batch that a producer may send now."""
        return min(self.sent.values()) + AHEAD_MAX if self._goal is None else self._goal


class Poster:
    """A client of the REST API: posts batches of stream c under idempotency keys until accepted."""

    NUMBER = 99

    def __init__(self, path) -> None:
        self.acked: dict[tuple[str, int], int] = {("c", self.NUMBER): 0}
        self.problems: list[str] = []
        self._socket = path
        self._stop, self._paused = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._post, daemon=True)

    def start(self) -> None:
        """Start posting."""
        self._thread.start()

    def pause(self) -> None:
        """Post nothing new once the present batch is accepted."""
        self._paused.set()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(30)

    def total(self) -> int:
        """The number of accepted batches."""
        return self.acked["c", self.NUMBER]

    def _post(self) -> None:
        seq = 1
        while not self._stop.is_set():
            if self._paused.is_set():
                time.sleep(0.02)
            elif self._accepted(seq):
                self.acked["c", self.NUMBER] = seq
                seq += 1
            else:
                time.sleep(0.05)

    def _accepted(self, seq: int) -> bool:
        rows = batch(self.NUMBER, seq).to_pylist()
        body = "\n".join(json.dumps({**r, "time": r["time"].isoformat()}) for r in rows)
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"batch-{seq}"}
        with contextlib.closing(UnixConnection(self._socket)) as http:
            try:
                http.request("POST", "/v1/streams/c/tuples", body, headers)
                answer = http.getresponse()
                said = answer.read()
            except (OSError, HTTPException):
                return False
        if answer.status not in (202, 404, 409, 429, 503, 504):
            self.problems.append(f"POST: {answer.status} {said[:300]!r}")
        return answer.status == 202

    def resume(self) -> None:
        """Post again."""
        self._paused.clear()


class UnixConnection(HTTPConnection):
    """HTTP over a unix socket, which is closed also where nothing listens."""

    def __init__(self, path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
