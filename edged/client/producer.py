"""`Producer`: numbers batches, keeps them until edged has committed them, and resends them after a
lost connection.

It has no thread: the socket is served within its methods.  A producer that pauses with
unacknowledged batches should call `flush`, or `poll`, which does not wait.  Methods may be called
from several threads and exclude each other.

    with Producer("127.0.0.1:7400", "power", schema, producer="turbine-7") as producer:
        producer.send({"turbine": ["R80711"], "time": [now], "power_kw": [731.2]})

A producer that restarts under its old id continues after the last committed number, which `connect`
returns.  A program that can make the same batches again (from a file) skips that many; nothing is
lost or repeated.

A producer with an id that hears nothing for too long while an answer is due (`AckWait`) makes a new
connection: the old one may be dead and look well.
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from edged.client import frames
from edged.client.ack_wait import AckWait
from edged.client.connection import Closed, FrameConnection, host_and_port, tls_context
from edged.client.messages import Prepared, Serializer
from edged.errors import PeerError, ProtocolError
from edged.platform.backoff import Backoff, jitter
from edged.platform.loopback import require_tls

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import pyarrow as pa

RECONNECT_BASE_S, RECONNECT_EARLY_S_MAX, RECONNECT_S_MAX = 0.05, 2.0, 5.0
"""Longest first pause before a reconnect, and longest pauses at first and later."""


class Producer:
    """A producer of one stream; see the module's docstring.

    `tls` is an SSLContext, the path of a CA's PEM file, or True for the system's CAs.  Without
    `producer` nothing is acknowledged or sent again.  `timeout_s` is the longest wait of a call.
    `content` names what is sent: edged refuses to number other content under the same id.
    With an id `late` and `ahead` count rows that edged has acknowledged and dropped by their time.
    A token beyond loopback needs `tls`, else ConfigError is raised; `plain_token` permits it.
    """

    def __init__(
        self,
        address: str,
        stream: str,
        schema: pa.Schema,
        producer: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | str | bool | None = None,
        *,
        unacked_bytes_max: int = 64 << 20,
        timeout_s: float = 30.0,
        connect_timeout_s: float = 5.0,
        plain_token: bool = False,
        content: str = "",
    ) -> None:
        self._host, self._port = host_and_port(address)
        if token and not tls and not plain_token:
            require_tls(
                address,
                self._host,
                "use TLS (tls=True, --tls), or permit it (plain_token=True, --plain-token)",
            )
        self._address, self._stream, self._id = address, stream, producer
        self._serializer = Serializer(schema)
        self._greeting = self._serializer.greeting(
            stream, producer, token, content=content, losses=producer is not None
        )
        self._tls = tls_context(tls)
        self._unacked_bytes_max = unacked_bytes_max
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._lock = threading.RLock()
        self._link: FrameConnection | None = None
        self._greeted = self._end_sent = False
        self._ended = self._ending = self._parting = False
        self._fatal: PeerError | None = None
        self._forgotten = ""
        """What edged has forgotten of this producer, for an error."""
        self._retry_at = 0.0
        self._backoff = Backoff(jitter, RECONNECT_BASE_S, RECONNECT_S_MAX, RECONNECT_EARLY_S_MAX)
        self._wait, self._silent_until_s = AckWait(jitter), 0.0
        self._unacked: deque[tuple[int, Prepared]] = deque()
        self._unacked_bytes = 0
        self._sent = 0
        self._known = producer is None
        self._last = self._acked = 0
        self.connections = 0
        """Connections made so far."""
        self._losses: tuple[int, int] | None = None
        self.late = self.ahead = 0
        """Rows dropped since the first HELLO: late ones, and ones too far ahead of the clock."""

    @property
    def acked(self) -> int:
        """Number of the last committed batch."""
        return self._acked

    @property
    def sent(self) -> int:
        """Number of the last batch that `send` took."""
        return self._last

    @property
    def unacked_bytes(self) -> int:
        """Bytes kept until they are acknowledged."""
        return self._unacked_bytes

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._serializer.schema

    def connect(self) -> int:
        """Connect, with retries for `timeout_s`; returns the last committed number."""
        with self._lock:
            self._run(lambda: self._link is not None and self._ready(), "no connection")
            return self._acked

    def prepare(self, batch: pa.RecordBatch) -> Prepared:
        """Serialise a batch once, to `send` it several times."""
        return self._serializer.prepare(next(self._serializer.batches(batch)))

    def send(self, data: pa.RecordBatch | pa.Table | dict[str, Any] | Prepared) -> int:
        """Send rows; returns the number of their last batch.

        Waits for the first connection, and while `unacked_bytes_max` bytes are unacknowledged.
        Raises TimeoutError after `timeout_s`, and PeerError if edged refuses this producer.  While
        a lost connection is down, batches are kept.
        """
        with self._lock:
            if self._ending:
                raise ProtocolError("the end of the stream was said; make a new Producer")
            if isinstance(data, Prepared):
                return self._send(data)
            for batch in self._serializer.batches(data):
                self._send(self._serializer.prepare(batch))
            return self._last

    def poll(self) -> int:
        """Read acks, send, reconnect if due; returns the last committed number.

        Waits for nothing but the connection itself.
        """
        with self._lock:
            self._step()
            return self._acked

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all batches are committed; without an id, until all are sent.

        If all batches are committed it returns without a connection: edged may have hung up since,
        and may have deleted the stream.
        """
        with self._lock:
            if self._id is None or self._unacked:
                self._run(self._flushed, "no ack", timeout_s)

    def end(self, timeout_s: float | None = None) -> None:
        """Send end-of-stream and wait until it and all batches are committed.

        Without an id: until edged has received it (`part`).
        """
        with self._lock:
            self._ending = True
            self._run(lambda: self._ended, "the end of the stream is not committed", timeout_s)

    def part(self, timeout_s: float | None = None) -> None:
        """For a producer without an id: hang up, and wait until edged hangs up too.

        edged has then received everything without an error; there are no acks.
        """
        with self._lock:
            self._parting = True
            self._run(lambda: self._ended, "edged has not read everything", timeout_s)

    def close(self) -> None:
        """Close the connection and discard unacknowledged batches."""
        with self._lock:
            self._drop()
            self._unacked.clear()
            self._unacked_bytes = 0

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self._ending:
                self.flush()
        finally:
            self.close()

    # One batch ---------------------------------------------------------------------------------

    def _send(self, message: Prepared) -> int:
        if not self._known or self._id is None:
            self._run(self._ready, "no connection")

        def room() -> bool:
            most = self._unacked_bytes_max
            return not self._unacked or self._unacked_bytes + message.size <= most

        self._step()
        if not room():
            self._run(room, f"{self._unacked_bytes} bytes are not acknowledged")
        self._last += 1
        self._unacked.append((self._last, message))
        self._unacked_bytes += message.size
        self._transmit()
        return self._last

    # The connection ----------------------------------------------------------------------------

    def _ready(self) -> bool:
        return self._link is not None and self._greeted

    def _flushed(self) -> bool:
        """Whether all batches are committed, or all are sent if there are no acks."""
        on_its_way = self._link is not None and self._link.idle
        return not self._unacked and (self._id is not None or on_its_way)

    def _run(self, done: Callable[[], bool], what: str, timeout_s: float | None = None) -> None:
        """Serve the connection until `done`.  Raises TimeoutError that names `what`."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            self._step()
            if done():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._address}: {what} after {timeout_s:g} s")
            if self._link is not None:
                silence_s = self._wait.left_s(time.monotonic())
                self._link.wait(left if silence_s is None else min(left, silence_s))
                self._silent_until_s = time.monotonic()
            else:
                time.sleep(max(0.0, min(left, self._retry_at - time.monotonic())))

    def _step(self) -> None:
        """Connect if due, read frames, send.  Raises PeerError."""
        if self._fatal is not None:
            raise self._fatal
        link = self._link or self._connect()
        if link is None:
            return
        try:
            for kind, payload in link.receive():
                self._frame(kind, payload)
                if self._link is not link:
                    return
        except (OSError, ValueError) as problem:
            self._ended = self._ended or (isinstance(problem, Closed) and link.finished)
            self._lost()
            return
        self._transmit()
        self._watch_silence()

    def _watch_silence(self) -> None:
        """Give a connection up on which an answer is due for too long."""
        if self._link is None:
            return
        now_s = self._silent_until_s = time.monotonic()
        due = not self._greeted or self._sent > 0 or self._end_sent
        if self._id is None or self._ended or not due:
            self._wait.stop()
            return
        self._wait.expect(now_s)
        if (self._wait.left_s(now_s) or 0.0) <= 0:
            self._wait.in_vain()
            self._lost()

    def _connect(self) -> FrameConnection | None:
        """Make a new connection if one is due and edged listens."""
        if time.monotonic() < self._retry_at:
            return None
        try:
            link = FrameConnection(self._host, self._port, self._tls, self._connect_timeout_s)
            try:
                link.give([self._greeting])
            except OSError:
                link.close()
                raise
        except ssl.SSLCertVerificationError as problem:
            raise PeerError(f"{self._address}: {problem}") from None
        except OSError:
            self._lost()
            return None
        self.connections += 1
        self._link, self._greeted = link, self._id is None
        return link

    def _lost(self) -> None:
        """End the connection and schedule the next."""
        self._drop()
        self._retry_at = time.monotonic() + self._backoff.failed()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._greeted, self._end_sent, self._sent = None, False, False, 0
        self._wait.stop()

    def _transmit(self) -> None:
        """Send batches not yet sent on this connection, until the kernel takes no more."""
        link = self._link
        if link is None or not self._greeted:
            return
        try:
            if not link.send():
                return
            while self._sent < len(self._unacked):
                seq, message = self._unacked[self._sent]
                self._sent += 1
                whole = link.give(message.numbered(seq))
                if self._id is None:
                    self._forget(seq)
                if not whole:
                    return
            if self._ending and not self._end_sent:
                self._end_sent = True
                link.give([frames.END_OF_STREAM])
            if (self._end_sent or self._parting) and self._id is None and link.idle:
                link.finish()
        except OSError:
            self._explain_loss()

    def _explain_loss(self) -> None:
        """After a failed send: read the reason that edged may have sent before it closed."""
        with contextlib.suppress(OSError, ValueError):
            while self._link is not None:
                received = self._link.receive()
                for kind, payload in received:
                    self._frame(kind, payload)
                if not received:
                    break
        if self._link is not None:
            self._lost()

    # What edged says ---------------------------------------------------------------------------

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.HELLO:
            self._hello(frames.seq_of(payload))
        elif kind == frames.ACK:
            self._forget(frames.seq_of(payload))
        elif kind == frames.END_ACK:
            self._forget(self._last)
            self._ended = True
        elif kind == frames.LOST:
            self._count_losses(*frames.losses_of(payload))
        elif kind == frames.AGAIN:
            self._lost()
        elif kind == frames.ERROR:
            self._drop()
            text = payload.decode(errors="replace")
            kind_of = ProtocolError if self._forgotten else PeerError
            text = f"{self._address}, stream {self._stream}: {text}{self._forgotten}"
            self._fatal = kind_of(text)
            raise self._fatal

    def _hello(self, seq: int) -> None:
        first = self._unacked[0][0] if self._unacked else self._last + 1
        self._forgotten = ""
        if self._known and seq < first - 1:
            # A store that was damaged takes the next batch all the same; another one refuses it.
            self._forgotten = (
                f"; edged knows batches up to {seq} of {self._id}, but has acknowledged "
                f"{first - 1}: its store is another one or was reset; take a new producer id"
            )
        self._known, self._greeted = True, True
        self._backoff.succeeded()
        self._last = max(self._last, seq)
        self._forget(seq)
        self._sent = 0
        self._wait.stop()

    def _count_losses(self, late: int, ahead: int) -> None:
        """Count what was lost since the last LOST; edged's counts begin at 0 with a new store."""
        if self._losses is not None:
            was_late, was_ahead = self._losses
            self.late += late - (was_late if late >= was_late else 0)
            self.ahead += ahead - (was_ahead if ahead >= was_ahead else 0)
        self._losses = late, ahead

    def _forget(self, seq: int) -> None:
        """Drop batches up to `seq`, which are committed."""
        if seq > self._acked:
            self._wait.answered(self._silent_until_s)
        self._acked = max(self._acked, seq)
        while self._unacked and self._unacked[0][0] <= seq:
            self._unacked_bytes -= self._unacked.popleft()[1].size
            self._sent = max(0, self._sent - 1)
