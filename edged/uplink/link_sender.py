"""The sender of one instance of a link: a thread with a connection of its own, in the uplink
process.

Links do not disturb each other: each waits for its own address.  A page's messages go from its file
to the socket within the kernel; this process reads the header.

    connecting ─► greeting ─► connected ─► … (lost) ─► backing_off ─► connecting
                                  │
                                  └─► refused: another schema, a clone, a wrong token; tried again
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from edged.client import frames
from edged.client.ack_wait import AckWait
from edged.client.connection import FrameConnection, host_and_port, tls_context
from edged.links.flatbuffer import messages
from edged.links.page import LINK_HEADER_BYTES, LinkPage, unpack_header
from edged.platform.backoff import Backoff, jitter
from edged.uplink.link_queue import LinkQueue, LinkRefused
from edged.uplink.send_queue import PageLocation

CONNECT_S = 10.0
LINK_S, LINK_WAITS = 0.5, 1
"""How long, and how often, to wait for LINK behind HELLO."""
REFUSED_BASE_S, REFUSED_S_MAX = 1.0, 30.0
"""Bounds of the pause after a refusal, which grows."""
BACKOFF_S_MAX = 5.0
IDLE, CONNECTING, GREETING, CONNECTED = "idle", "connecting", "greeting", "connected"
BACKING_OFF, REFUSED = "backing_off", "refused"
FROM_BLANK = b"f" * 18
"""The digits of the first number in a greeting, as the daemon has made it."""


class _Unreadable(Exception):
    """A page is not at its place."""


class LinkSender:
    """Sends one instance's pages; `target` is its part of the daemon's `links` command."""

    def __init__(
        self,
        name: str,
        instance: int,
        target: dict[str, Any],
        on_acked: Callable[[LinkSender, int], None],
        on_unreadable: Callable[[LinkSender], None],
        on_change: Callable[[LinkSender], None],
    ) -> None:
        """`on_acked` gets the number up to which pages are acknowledged."""
        self.name, self.instance = name, instance
        self._target = target
        self._queue = LinkQueue(int(target["base"]))
        self._queue.forwards = bool(target["forwards"])
        self._on_acked, self._on_unreadable = on_acked, on_unreadable
        self._on_change = on_change
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._renew = self._closing = False
        self._backoff = Backoff(jitter, cap_s=BACKOFF_S_MAX)
        self._refusals = Backoff(jitter, REFUSED_BASE_S, REFUSED_S_MAX, REFUSED_S_MAX)
        self._state, self._problem = IDLE, ""
        self._counts = dict.fromkeys(("rows", "bytes", "pages", "connections", "failures"), 0)
        self._wait = AckWait(jitter)
        self._file: tuple[str, int] | None = None
        self._thread = threading.Thread(target=self._run, name=f"{name}/{instance}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # other threads -----------------------------------------------------------------------------

    def offer(self, place: PageLocation) -> None:
        """Add a page to send, or a new location of one."""
        with self._lock:
            new = self._queue.offer(place)
        if new:
            self._notify()
        else:
            self._acked(place.seq)

    def lost(self, first: int, last: int) -> None:
        """Forget pages whose bytes are lost."""
        with self._lock:
            self._renew |= self._queue.lost(first, last)
        self._notify()

    def follow(self, target: dict[str, Any]) -> None:
        """Send to another address, or as another producer, from now on."""
        with self._lock:
            self._renew |= target != self._target
            self._target = target
            self._queue.forwards = bool(target["forwards"])
            self._queue.newest = max(self._queue.newest, int(target["base"]))
        self._notify()

    def retry(self) -> None:
        """End a pause."""
        self._notify()

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._notify()

    def status(self) -> dict[str, Any]:
        """State and figures."""
        with self._lock:
            return {
                "link": self.name, "instance": self.instance, "to": self._target["to"],
                "state": self._state, "problem": self._problem,
                "in_flight_bytes": self._queue.bytes, "in_flight_pages": len(self._queue),
                "acked": self._queue.acked, **self._counts,
            }  # fmt: skip

    def _notify(self) -> None:
        os.eventfd_write(self._wake, 1)

    # this thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            try:
                pause_s = self._connection()
                self._backoff.succeeded()
            except LinkRefused as problem:
                self._set(REFUSED, str(problem))
                pause_s = REFUSED_BASE_S + self._refusals.failed()
            except _Unreadable as problem:
                self._set(BACKING_OFF, str(problem))
                self._on_unreadable(self)
                pause_s = self._backoff.failed()
            except OSError as problem:
                self._set(BACKING_OFF, str(problem) or type(problem).__name__)
                pause_s = self._backoff.failed()
            except Exception as problem:  # damaged frames raise anything: the link tries again
                self._set(BACKING_OFF, f"{type(problem).__name__}: {problem}")
                pause_s = self._backoff.failed()
            self._counts["failures"] += pause_s > 0
            self._pause(pause_s)

    def _pause(self, seconds: float) -> None:
        if seconds > 0 and not self._closing:
            select.select([self._wake], [], [], seconds)
        self._clear()

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _set(self, state: str, problem: str = "") -> None:
        changed = (state, problem) != (self._state, self._problem)
        self._state, self._problem = state, problem
        if changed:
            self._on_change(self)

    def _connection(self) -> float:
        """Connect, greet, and send until the target changes; returns the pause before the next."""
        with self._lock:
            target, self._renew = self._target, False
        greetings = target["greetings"]
        if not target["to"] or target.get("problem"):
            self._set(BACKING_OFF, target.get("problem") or "the link no longer has this instance")
            return REFUSED_S_MAX
        version = self._next_version() or str(target["version"])
        if version not in greetings:
            raise LinkRefused("the columns of these messages are not known any more")
        self._set(CONNECTING)
        connection = self._connect(target)
        try:
            self._set(GREETING)
            connection.give([self._greeting(greetings[version])])
            self._counts["connections"] += 1
            self._wait.stop()
            self._hello(connection)
            self._backoff.succeeded()
            self._set(CONNECTED)
            self._send(connection, version)
        finally:
            connection.close()
            self._close_file()
        return 0.0

    def _connect(self, target: dict[str, Any]) -> FrameConnection:
        host, port = host_and_port(target["to"])
        tls = (target["ca"] or True) if target["tls"] else None
        try:
            return FrameConnection(host, port, tls_context(tls), CONNECT_S)
        except ssl.SSLCertVerificationError as problem:
            raise LinkRefused(f"{target['to']}: {problem}") from None
        except OSError as problem:
            raise OSError(f"{target['to']}: {problem.strerror or problem}") from None

    def _greeting(self, text: str) -> bytes:
        """The greeting, with the first number that can be sent.

        Without a page it follows the last one acknowledged to this process: a new process may not
        have been offered yet what the one before had in flight, and a receiver skips what is before
        the first number.  Where it is too small for a receiver with a fresh store, that one refuses
        the first page, and the next greeting names its number.
        """
        with self._lock:
            place, acked = self._queue.first(), self._queue.acked
        first = acked + 1 if place is None else self._header(place).first
        return base64.b64decode(text).replace(FROM_BLANK, b"%018d" % first)

    def _next_version(self) -> str:
        """The schema of the first page; empty without one."""
        with self._lock:
            place = self._queue.first()
        return "" if place is None else str(self._header(place).version)

    def _hello(self, connection: FrameConnection) -> None:
        """Wait for HELLO and, since this greeting names a session, for LINK."""
        committed: int | None = None
        waits = 0
        while committed is None or waits < LINK_WAITS:
            for kind, payload in connection.receive():
                if kind == frames.HELLO:
                    committed = frames.seq_of(payload)
                elif kind == frames.LINK:
                    self._verify(*frames.losses_of(payload))
                    waits = LINK_WAITS
                else:
                    self._frame(kind, payload)
            if committed is None:
                self._sleep(connection, True)
            elif waits < LINK_WAITS:  # of a receiver that knows no links none comes
                waits += 1
                connection.wait(LINK_S)
        with self._lock:
            done = self._queue.hello(committed)
        self._acked(done)

    def _verify(self, seq: int, digest: int) -> None:
        """Raise LinkRefused where the receiver has a message `seq` with other rows."""
        with self._lock:
            place = self._queue.page_with(seq)
        if place is None or not digest:
            return
        self._header(place)
        size = place.length - LINK_HEADER_BYTES
        data = os.pread(self._open(place.file), size, place.offset + LINK_HEADER_BYTES)
        for _, metadata in messages(memoryview(data)):
            if int(metadata[frames.SEQ_KEY]) == seq:
                if int(metadata[frames.SUM_KEY], 16) != digest:
                    raise LinkRefused(
                        f"the receiver has other rows as message {seq} of this link: another copy "
                        "of this store has sent them"
                    )
                return

    def _send(self, connection: FrameConnection, version: str) -> None:
        """Send pages and read acks; returns when another connection is needed."""
        place: PageLocation | None = None
        at = 0
        while not self._closing:
            while True:
                if place is None:
                    with self._lock:
                        if self._renew:
                            return
                        place, at = self._queue.unsent(), LINK_HEADER_BYTES
                    if place is None:
                        break
                    head = self._header(place)
                    if str(head.version) != version:
                        if not self._queue.in_flight():
                            return
                        place = None
                        break
                took = connection.send_file(self._open(place.file), place.offset + at,
                                            place.length - at)  # fmt: skip
                at += took
                self._counts["bytes"] += took
                if at < place.length:
                    break
                with self._lock:
                    self._queue.sent()
                self._counts["pages"] += 1
                self._counts["rows"] += head.rows
                place = None
            self._sleep(connection, self._queue.in_flight(), place is not None)
            for kind, payload in connection.receive():
                self._frame(kind, payload)
            if place is not None and place.seq <= self._queue.acked:
                if at > LINK_HEADER_BYTES:
                    return  # the store may use the place of its bytes for others now
                place = None

    def _sleep(self, connection: FrameConnection, due: bool, unsent: bool = False) -> None:
        """Wait for bytes to read, for room to write with `unsent`, or for news of the daemon.
        Raises TimeoutError where an answer is `due` for too long."""
        if due:
            self._wait.expect(time.monotonic())
        else:
            self._wait.stop()
        left_s = self._wait.left_s(time.monotonic())
        if left_s is not None and left_s <= 0:
            self._wait.in_vain()
            raise TimeoutError("no answer for too long")
        poll = select.poll()
        blocked = unsent or not connection.idle
        poll.register(connection.fileno(), select.POLLIN | (select.POLLOUT if blocked else 0))
        poll.register(self._wake, select.POLLIN)
        poll.poll(None if left_s is None else max(1, int(left_s * 1000)))
        self._clear()
        if not connection.idle:
            connection.send()

    def _frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.ACK:
            with self._lock:
                done = self._queue.ack(frames.seq_of(payload))
            self._wait.answered(time.monotonic())
            self._refusals.succeeded()
            self._acked(done)
        elif kind == frames.ERROR:
            raise LinkRefused(payload.decode(errors="replace"))
        elif kind == frames.AGAIN:
            raise OSError(payload.decode(errors="replace"))

    def _acked(self, done: int | None) -> None:
        if done is not None:
            self._on_acked(self, done)

    # pages -------------------------------------------------------------------------------------

    def _header(self, place: PageLocation) -> LinkPage:
        """The header of a page.  Raises _Unreadable where it is not there."""
        try:
            data = os.pread(self._open(place.file), LINK_HEADER_BYTES, place.offset)
        except OSError as problem:
            raise _Unreadable(f"{place.file}: {problem.strerror}") from None
        head = unpack_header(place.stream, data)
        named = (place.seq, place.partition, place.length)
        if head is None or (head.last, head.instance, head.length) != named:
            raise _Unreadable(f"another page or none lies at byte {place.offset} of {place.file}")
        return head

    def _open(self, path: str) -> int:
        if self._file is None or self._file[0] != path:
            self._close_file()
            self._file = path, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._file[1]

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file[1])
            self._file = None
