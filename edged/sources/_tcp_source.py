"""The running TCP source: accept, receive, decode, acknowledge.

An epoll of the source's own, edge-triggered, holds the listener and all connections; its descriptor
is what the loop polls.  `ingest` notes who has input and goes round: each connection with input is
received from once a round (into one arena that is reused, or into its own buffer within a long
message), then one pass of the kernels a stream stages what is whole.  A connection whose stream
has no room is not received from: its bytes stay in the kernel, TCP closes the window.

No work is done for a message in Python, and none for a connection without input.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edged.client import frames
from edged.errors import PeerError, ProtocolError, SchemaMismatch, Unauthorized
from edged.sources._tcp_connection import CLOSED, GREETING, LEAVING, OPEN, Connection, Memory
from edged.sources._tcp_decode import SLOW_LAYOUT, Decoder
from edged.sources._tcp_feed import Feed, Sealed
from edged.sources._tcp_greeting import GREETING_BYTES_MAX, read_greeting
from edged.sources._tcp_receive import READ_BYTES_MAX, READ_BYTES_MIN, Receiver
from edged.sources._tcp_schema import match
from edged.sources._tcp_socket import TcpSettings, listen, raise_descriptor_limit, tune
from edged.sources.base import Source
from edged.staging import Staging

if TYPE_CHECKING:
    from edged.workers import Workers

MEMORY_BYTES_MIN = 8 << 20
"""Memory for unfinished messages, however little the streams have."""
BURST_BYTES = 4 << 20
"""A connection that had so much waiting is taken to have had its buffer full."""
INGEST_BYTES_MAX = 16 << 20
"""Most that one `ingest` receives, so that a fast sender cannot keep it going for ever."""
GREETING_US_MAX = 10_000_000
LEAVING_US_MAX = 5_000_000
DISCARD_BYTES_MAX = 64 << 20
"""Most that is read and thrown away so that a peer gets to see its error."""

_IN = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_GONE = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP


class TcpSource(Source):
    """Feeds the streams of one listener; see the module's docstring."""

    def __init__(
        self,
        settings: TcpSettings,
        stagings: Mapping[str, Staging],
        workers: Workers | None = None,
    ) -> None:
        self._settings = settings
        self._feeds = {
            name: Feed(staging, Decoder(staging, settings.message_bytes_max, workers))
            for name, staging in stagings.items()
        }
        total = sum(s.bytes_max for s in stagings.values())
        self._memory = Memory(max(MEMORY_BYTES_MIN, total // 2))
        self._greetings: list[tuple[Connection, bytes]] = []
        self._connections: dict[int, Connection] = {}
        self._unsettled: dict[Connection, None] = {}
        self._ready: dict[Connection, None] = {}
        self._lock = threading.Lock()
        self._receiver = Receiver(settings.tls_cert is not None, self._lock, self._memory)
        self._counts: Counter[str] = Counter()
        self._acks = 0
        self._epoll: Any = None
        self._listener: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._token: bytes | None = None
        self._accepting = False
        self._received = 0
        self._pressure = 0.0

    @property
    def port(self) -> int:
        """The port that is bound (where the job says 0, the one the kernel gave)."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Bind and listen; read token and certificate."""
        settings = self._settings
        self._token, self._tls = settings.read_token(), settings.tls_context()
        raise_descriptor_limit(settings.connections_max)
        self._listener = listen(settings.host, settings.port)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN | select.EPOLLET)
        for feed in self._feeds.values():
            feed.start()

    def fileno(self) -> int:
        """The epoll's descriptor."""
        return int(self._epoll.fileno())

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Receive and stage what has arrived, as far as there is room."""
        self._take_events()
        if self._accepting:
            self._accept(monotonic_us)
        if self._unsettled:
            self._part_with_the_slow(monotonic_us)
        for feed in self._feeds.values():
            if feed.waiting and feed.staging.room():
                self._ready = feed.waiting | self._ready  # who had to wait comes first
                feed.waiting = {}
        self._received, self._pressure = 0, 0.0
        share = INGEST_BYTES_MAX // max(1, len(self._connections))
        self._receiver.share = max(READ_BYTES_MIN, min(READ_BYTES_MAX, share))
        while self._ready and self._received < INGEST_BYTES_MAX:
            for feed in self._feeds.values():
                feed.budget = feed.wire_room()
            self._receive_round(monotonic_us)
            for feed in self._feeds.values():
                for outcome in feed.decode(
                    monotonic_us, wall_us, self._receiver.view, self._receiver.base
                ):
                    self._settle(feed, outcome, monotonic_us)
            greetings, self._greetings = self._greetings, []
            for connection, data in greetings:
                self._greet(connection, data, monotonic_us)
            if self._memory.spent():
                self._free_memory()
        for feed in self._feeds.values():
            feed.hear_waiting(monotonic_us)

    def more(self) -> bool:
        """Whether connections wait because their stream's staging is full."""
        return any(feed.waiting for feed in self._feeds.values())

    def unread(self) -> bool:
        """Whether `ingest` stopped at INGEST_BYTES_MAX with connections left."""
        return bool(self._ready)

    def pressure(self) -> float:
        """How much of the kernel's buffer the fullest connection had waiting."""
        return 1.0 if self._ready or self.more() else min(1.0, self._pressure)

    def seal(self) -> list[Sealed]:
        """Producers and numbers that were staged since the last call."""
        return [s for s in (feed.seal() for feed in self._feeds.values()) if s is not None]

    def committed(self, ticket: Sequence[Sealed]) -> None:
        """Acknowledge; on the commit thread."""
        for sealed in ticket:
            feed = sealed.feed
            with self._lock:
                feed.commit(sealed.numbers, sealed.seqs)
            for number, seq in zip(sealed.numbers, sealed.seqs, strict=True):
                if number:
                    self._acknowledge(feed, number, seq)
            for number in sealed.ends:
                self._acknowledge(feed, number, None)

    def finished(self) -> bool:
        """Never: somebody may always connect."""
        return False

    def close(self) -> None:
        """Tell every peer to come again, and close."""
        frame = frames.told(frames.AGAIN, "this edged is stopping")
        for connection in list(self._connections.values()):
            with self._lock:
                if connection.state == OPEN and connection.number:
                    connection.send(frame)
            self._close(connection)
        if self._listener is not None:
            self._listener.close()
        if self._epoll is not None:
            self._epoll.close()

    def counters(self) -> Mapping[str, int | float]:
        """Connections, bytes, messages, and every reason why something was refused."""
        feeds = self._feeds.values()
        return {
            "connections": len(self._connections),
            "messages": sum(f.messages for f in feeds),
            "slow_messages": sum(f.slow_messages for f in feeds),
            "duplicates": sum(f.duplicates for f in feeds),
            "acks": self._acks,
            **self._counts,
        }

    # Who has input -----------------------------------------------------------------------------

    def _take_events(self) -> None:
        listener = self._listener.fileno() if self._listener is not None else -1
        for fd, mask in self._epoll.poll(0, len(self._connections) + 2):
            if fd == listener:
                self._accepting = True
                continue
            connection = self._connections.get(fd)
            if connection is None:
                continue
            if mask & _GONE:
                connection.hung_up = True
            if mask & select.EPOLLOUT:
                self._unblock(connection)
            if mask & ~select.EPOLLOUT:
                self._ready[connection] = None

    def _accept(self, monotonic_us: int) -> None:
        assert self._listener is not None
        while True:
            try:
                sock, peer = self._listener.accept()
            except BlockingIOError:
                self._accepting = False
                return
            except OSError as problem:  # out of descriptors: tried again in the next beat
                self._counts["accept_failed"] += 1
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    return
                continue
            sock.setblocking(False)
            self._counts["accepted"] += 1
            if len(self._connections) >= self._settings.connections_max:
                self._counts["refused_full"] += 1
                with contextlib.suppress(OSError):
                    sock.send(frames.told(frames.AGAIN, "too many connections"))
                sock.close()
                continue
            self._welcome(sock, f"{peer[0]}:{peer[1]}", monotonic_us)

    def _welcome(self, sock: socket.socket, peer: str, monotonic_us: int) -> None:
        tune(sock, len(self._connections))
        if self._tls is not None:
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        tls = self._tls is not None
        connection = Connection(sock, peer, monotonic_us, tls, self._memory)
        self._connections[connection.fd] = connection
        self._unsettled[connection] = None
        self._epoll.register(connection.fd, _IN)
        self._ready[connection] = None

    def _part_with_the_slow(self, monotonic_us: int) -> None:
        """Close those that take too long to leave, and where connections run short, to greet."""
        scarce = 4 * len(self._connections) > 3 * self._settings.connections_max
        for connection in list(self._unsettled):
            waited = monotonic_us - connection.since_us
            if connection.state == LEAVING and waited > LEAVING_US_MAX:
                self._close(connection)
            elif connection.state == GREETING and scarce and waited > GREETING_US_MAX:
                self._refuse(connection, "no schema arrived in time", "timeout", monotonic_us)

    # Receiving ---------------------------------------------------------------------------------

    def _receive_round(self, monotonic_us: int) -> None:
        """Receive from everybody with input, once, as far as arena and budgets go.

        Who had no turn comes first in the next round, so that connections stay side by side.
        """
        self._receiver.begin()
        ready, self._ready = self._ready, {}
        unserved: dict[Connection, None] = {}
        for connection in ready:
            feed = connection.feed
            if feed is not None and feed.budget <= 0 and connection.state == OPEN:
                feed.waiting[connection] = None
            elif self._receiver.full(connection):
                unserved[connection] = None
            elif connection.state != CLOSED:
                self._receive(connection, monotonic_us)
        if unserved:
            self._ready = unserved | self._ready

    def _receive(self, connection: Connection, monotonic_us: int) -> None:
        if connection.tls_shaking and not self._shake_hands(connection):
            return
        if connection.fresh:  # what came with the greeting, before the connection may end
            self._ready[connection] = None
            self._receiver.offer(connection, 0)
            return
        got, wanted = self._receiver.receive(connection)
        if got < 0:
            self._lost(connection)
            return
        self._counts["bytes"] += got
        self._received += got
        connection.burst += got
        self._pressure = max(self._pressure, connection.burst / BURST_BYTES)
        if got < wanted:
            connection.burst = 0
        if got == wanted or (connection.hung_up and got):
            self._ready[connection] = None
        if connection.state == LEAVING:
            self._discard(connection, got)
        elif got and connection.state == GREETING:
            self._greetings.append((connection, self._receiver.received(connection, got)))
        elif got:
            self._receiver.offer(connection, got)

    def _discard(self, connection: Connection, got: int) -> None:
        connection.discarded += got
        if connection.discarded > DISCARD_BYTES_MAX:
            self._close(connection)

    def _shake_hands(self, connection: Connection) -> bool:
        """Go on with the TLS handshake; whether it is done."""
        sock: Any = connection.sock
        try:
            with self._lock:
                sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if connection.hung_up:
                self._lost(connection)
            return False
        except OSError:
            self._counts["refused_tls"] += 1
            self._close(connection)
            return False
        connection.tls_shaking = False
        return True

    # Greeting and parting ----------------------------------------------------------------------

    def _greet(self, connection: Connection, data: bytes, monotonic_us: int) -> None:
        try:
            greeting = read_greeting(data, self._token)
            if greeting is None:
                if len(data) > GREETING_BYTES_MAX:
                    raise ProtocolError("the first message is too large")
                connection.keep(data)
                return
            feed = self._feeds.get(greeting.stream)
            if feed is None:
                known = ", ".join(sorted(self._feeds))
                raise ProtocolError(f"no stream {greeting.stream!r} here; there are: {known}")
            layout = feed.decoder.layout(
                match(greeting.schema, feed.staging.schema, greeting.stream)
            )
        except PeerError as problem:
            self._refuse(connection, str(problem), _reason(problem), monotonic_us)
            return
        connection.layout, connection.slow = layout, layout == SLOW_LAYOUT
        connection.schema_message = greeting.message
        older = feed.named(greeting.producer)
        if older is not None:
            text = f"a newer connection of producer {greeting.producer} took over"
            self._refuse(older, text, "taken_over", monotonic_us)
        with self._lock:
            feed.attach(connection, greeting.producer, monotonic_us)
            connection.state = OPEN
            if connection.number:
                connection.send(frames.numbered(frames.HELLO, feed.committed(connection.number)))
        self._unsettled.pop(connection, None)
        connection.keep(data[greeting.size :])
        connection.fresh = bool(connection.tail)
        self._ready[connection] = None

    def _settle(self, feed: Feed, outcome: Any, monotonic_us: int) -> None:
        """Act on what decoding found out about a connection."""
        connection = outcome.connection
        if outcome.error is not None:
            self._refuse(connection, outcome.error, "batch", monotonic_us)
            return
        if outcome.duplicate:
            committed = feed.committed(connection.number)
            if outcome.duplicate <= committed:
                with self._lock:
                    self._flushed(connection, connection.ack(committed))
        if outcome.ended:
            connection.ended = True
            feed.end(connection)

    def _refuse(self, connection: Connection, text: str, reason: str, monotonic_us: int) -> None:
        """Tell the peer what was wrong, then let it go; what it still sends is thrown away."""
        self._counts[f"refused_{reason}"] += 1
        with self._lock:
            connection.send(frames.told(frames.ERROR, text))
            connection.finish_sending()
            if connection.feed is not None:
                connection.feed.detach(connection)
            connection.state, connection.since_us = LEAVING, monotonic_us
            connection.forget()
        self._unsettled[connection] = None
        self._ready[connection] = None

    def _free_memory(self) -> None:
        """Unfinished messages take too much memory: free empty buffers, then send away those that
        hold most, to come again later."""
        holders = sorted(self._connections.values(), key=Connection.held, reverse=True)
        for connection in holders:
            if connection.own is not None and connection.filled == 0:
                connection.drop_own()
        text = "unfinished messages take too much memory here"
        for connection in holders:
            if not self._memory.spent():
                return
            self._counts["sent_away"] += 1
            with self._lock:
                if connection.number:
                    connection.send(frames.told(frames.AGAIN, text))
            self._close(connection)

    def _lost(self, connection: Connection) -> None:
        """The peer closed, or the connection broke."""
        if connection.state == OPEN and not connection.ended:
            self._counts["lost"] += 1
            if connection.tail or connection.filled:
                self._counts["half_messages"] += 1
        self._close(connection)

    def _close(self, connection: Connection) -> None:
        with self._lock:
            if connection.feed is not None:
                connection.feed.detach(connection)
            self._connections.pop(connection.fd, None)
            connection.close()
        self._unsettled.pop(connection, None)
        self._ready.pop(connection, None)

    # Frames that had to wait -------------------------------------------------------------------

    def _acknowledge(self, feed: Feed, number: int, seq: int | None) -> None:
        """Send a producer an ACK, or where `seq` is None its END_ACK."""
        with self._lock:
            connection = feed.by_number.get(number)
            if connection is None or connection.state != OPEN:
                return
            self._acks += 1
            sent = connection.send(frames.end_ack()) if seq is None else connection.ack(seq)
            self._flushed(connection, sent)

    def _flushed(self, connection: Connection, done: bool) -> None:
        """Ask for an event when the peer reads again, where something had to wait."""
        if not done and not connection.blocked:
            connection.blocked = True
            self._epoll.modify(connection.fd, _IN | select.EPOLLOUT)

    def _unblock(self, connection: Connection) -> None:
        with self._lock:
            if connection.state != CLOSED and connection.flush() and connection.blocked:
                connection.blocked = False
                self._epoll.modify(connection.fd, _IN)


def _reason(problem: PeerError) -> str:
    if isinstance(problem, Unauthorized):
        return "token"
    return "schema" if isinstance(problem, SchemaMismatch) else "greeting"
