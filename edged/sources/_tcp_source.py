"""The running TCP source: receive, decode, acknowledge.

An edge-triggered epoll of the source holds all admitted connections; the event loop polls its
descriptor.  `ingest` queues connections with input and works in rounds: each connection is received
from once (into a shared arena, or within a long message into its own buffer), then one kernel pass
for each stream stages the complete messages.  A connection whose stream has no room is not received
from: its bytes stay in the kernel and TCP closes the window.

Python code does no work for a message, nor for a connection that sends only short messages.  The
listener and connections without a greeting belong to `_tcp_admission`.
"""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.client import frames
from edged.data.columns import address
from edged.data.staging import TIME_MAX_US, Staging
from edged.errors import ProtocolError
from edged.sources import _tcp_calls as calls
from edged.sources._tcp_admission import Admission
from edged.sources._tcp_connection import CLOSED, OPEN, Connection, MessageMemory
from edged.sources._tcp_decode import SLOW_LAYOUT, Decoder
from edged.sources._tcp_feed import Sealed, StreamFeed
from edged.sources._tcp_greeting import Greeting
from edged.sources._tcp_receive import READ_BYTES_MAX, READ_BYTES_MIN, Receiver
from edged.sources._tcp_schema import match
from edged.sources._tcp_socket import TcpSettings
from edged.sources._tcp_socket_table import DescriptorQueue, Int64s, SocketTable
from edged.sources.base import Source
from edged.sources.peer_boundary import PeerBoundary

if TYPE_CHECKING:
    from edged.data.workers import Workers

MEMORY_BYTES_MIN = 8 << 20
"""Least memory for unfinished messages, whatever the streams' limits."""
BURST_BYTES = 4 << 20
"""A connection with so many bytes waiting counts as one whose receive buffer was full."""
INGEST_BYTES_MAX = 16 << 20
"""Most bytes received by one `ingest`, so that a fast sender cannot prolong it without limit."""
SENDS_MAX = 512
"""ACKs sent while the lock is held: about 3 ms."""

_IN = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class TcpSource(Source):
    """Feeds the streams of one listener."""

    def __init__(
        self,
        settings: TcpSettings,
        stagings: Mapping[str, Staging],
        workers: Workers | None = None,
    ) -> None:
        tls = settings.tls_cert is not None
        total = sum(s.bytes_max for s in stagings.values())
        self._memory = MessageMemory(max(MEMORY_BYTES_MIN, total // 2))
        self._lines = SocketTable()
        boundary = PeerBoundary(lambda peer, problem: self.on_defect(peer, problem))
        way = calls.SINGLE if tls else calls.MANY
        self._feeds: dict[str, StreamFeed] = {}
        for i, (name, staging) in enumerate(stagings.items()):
            decoder = Decoder(staging, settings.message_bytes_max, workers)
            self._feeds[name] = StreamFeed(
                i, staging, decoder, self._lines, self._memory, way, settings.producers_max,
                boundary,
            )  # fmt: skip
        self._connections: dict[int, Connection] = {}
        self._ready = DescriptorQueue()
        self._lock = threading.Lock()
        self._receiver = Receiver(tls, self._lock, self._memory, self._lines, len(self._feeds))
        self._counts: Counter[str] = Counter()
        self._admission = Admission(
            settings, self._connections, self._lock, self._memory, self._lines, self._counts,
            self._admit, self._close, lambda reason, text: self.on_refused(reason, text),
            boundary,
        )  # fmt: skip
        self._tls = tls
        self.takes_http = not tls and settings.token_file is None
        self._rejected: frozenset[str] = frozenset()
        self._acks = 0
        self._epoll: Any = None
        self._events = np.empty(calls.EVENTS_MAX * calls.EVENT_BYTES, np.uint8)
        self._writable = np.empty(1 + 2 * calls.EVENTS_MAX, np.int64)
        self._frame = np.empty(calls.ACK_BYTES, np.uint8)
        self._received = 0
        self._pressure = 0.0

    @property
    def port(self) -> int:
        """The bound port; the one that the kernel chose if the job says 0."""
        return self._admission.port

    def check(self, leaving: Sequence[Source]) -> None:
        """Read the token and the certificate; bind, unless a source that leaves has the port."""
        self._admission.check({s.port for s in leaving if isinstance(s, TcpSource)})

    def start(self) -> None:
        """Bind and listen; read the token and the certificate."""
        calls.prepare()
        self._admission.start()
        self._epoll = select.epoll()
        for feed in self._feeds.values():
            feed.start()

    def fileno(self) -> int:
        """The epoll's descriptor."""
        return int(self._epoll.fileno())

    def control_fileno(self) -> int:
        """The descriptor of the admission's epoll."""
        return self._admission.fileno()

    def serve_control(self, monotonic_us: int) -> None:
        """Admit connections on the event loop's thread, between beats."""
        self._admission.serve(monotonic_us)

    def reject(self, streams: frozenset[str], monotonic_us: int) -> None:
        """Refuse the connections of these streams, now and while they come."""
        self._rejected = streams
        feeds = list(self._feeds)
        for connection in list(self._connections.values()) if streams else ():
            if connection.state == OPEN and feeds[connection.feed] in streams:
                self._refuse(connection, frames.STORE_FULL, "store_full", monotonic_us)

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Receive and stage input up to the room in staging."""
        self._admission.serve(monotonic_us)
        self._take_events()
        for feed in self._feeds.values():
            if feed.ahead:
                self._ready.put_first(feed.ahead.take())
            if feed.waiting and feed.staging.room():
                self._ready.put_first(feed.waiting.take())  # connections that waited come first
        self._received, self._pressure = 0, 0.0
        most = min(INGEST_BYTES_MAX, self._memory.bytes_max // 2)
        share = most // max(1, len(self._connections))
        self._receiver.share = max(READ_BYTES_MIN, min(READ_BYTES_MAX, share))
        while self._ready and self._received < INGEST_BYTES_MAX:
            for feed in self._feeds.values():
                self._receiver.budgets[feed.index] = feed.wire_room()
            self._receive_round()
            self._decode_round(monotonic_us, wall_us)
            if self._memory.spent():
                self._free_memory()
        unread = self._ready.view()
        index = self._lines.table[unread, calls.S_FEED] if unread.size else unread
        for feed in self._feeds.values():
            feed.mark_waiting_seen(unread[index == feed.index], monotonic_us)

    def more(self) -> bool:
        """Whether connections wait because their stream's staging is full, or until another
        stream's producers catch up."""
        return any(feed.waiting or feed.ahead for feed in self._read_feeds())

    def unread(self) -> bool:
        """Whether `ingest` stopped at INGEST_BYTES_MAX with connections left."""
        return bool(self._ready)

    def pressure(self) -> float:
        """The fill level of the fullest receive buffer."""
        full = self._ready or any(feed.waiting for feed in self._read_feeds())
        return 1.0 if full else min(1.0, self._pressure)

    def seal(self) -> list[Sealed]:
        """Producers and numbers that were staged since the last call."""
        return [s for s in (feed.seal() for feed in self._feeds.values()) if s is not None]

    def committed(self, ticket: Sequence[Sealed]) -> None:
        """Send ACKs.  Called on the commit thread."""
        for sealed in ticket:
            self._tell_losses(sealed)
            if sealed.feed.staging.forwards:
                continue  # `forwarded` acknowledges
            for first in range(0, max(1, sealed.numbers.size), SENDS_MAX):
                part = slice(first, first + SENDS_MAX)
                self._acknowledge(sealed.feed, sealed.numbers[part], sealed.seqs[part])
            for number in sealed.ends:
                self._acknowledge_end(sealed.feed, number)

    def forwarded(self, stream: str, producer: str, seq: int) -> None:
        """Send an ACK.  Called on the commit thread."""
        feed = self._feeds[stream]
        if (producers := feed.staging.producers).known(producer):
            numbers = np.array([producers.number(producer)], np.int64)
            self._acknowledge(feed, numbers, np.array([seq], np.int64))

    def finished(self) -> bool:
        """Always false: a producer may connect at any time."""
        return False

    def close(self) -> None:
        """Send AGAIN to every peer, and close."""
        frame = frames.text_frame(frames.AGAIN, "this edged is stopping")
        for connection in list(self._connections.values()):
            with self._lock:
                if connection.state == OPEN and connection.number:
                    connection.send(frame)
            self._close(connection)
        self._admission.close()
        if self._epoll is not None:
            self._epoll.close()

    def counters(self) -> Mapping[str, int | float]:
        """Connections, bytes, messages, and refusals by reason."""
        feeds = self._feeds.values()
        return {
            "connections": len(self._connections),
            "messages": sum(f.messages for f in feeds),
            "slow_messages": sum(f.slow_messages for f in feeds),
            "duplicates": sum(f.duplicates for f in feeds),
            "acks": self._acks,
            **self._counts,
        }

    def _read_feeds(self) -> list[StreamFeed]:
        """Feeds of streams that are not held; input of held streams stays unread."""
        return [feed for feed in self._feeds.values() if not feed.staging.held]

    # Receiving ---------------------------------------------------------------------------------

    def _take_events(self) -> None:
        """Queue connections with input; send kept frames to peers that read again."""
        fileno, events = self._epoll.fileno(), address(self._events)
        more = True
        while more:
            self._ready.reserve(len(self._lines))
            self._ready.count = calls.wait(
                fileno, events, self._lines.table, self._ready.fds, self._ready.count,
                self._writable,
            )  # fmt: skip
            writable = self._writable[1 : 1 + int(self._writable[0])].tolist()
            for fd in writable:
                self._unblock(self._connections[fd])
                if self._tls:
                    self._queue(self._connections[fd])
            more = len(writable) > calls.EVENTS_MAX

    def _receive_round(self) -> None:
        """Receive once from each connection with input, up to arena and budgets.

        Connections without a turn come first in the next round, so that all progress evenly.
        """
        self._receiver.begin()
        feeds = list(self._feeds.values())
        received = self._receiver.receive_many(self._without_ahead(self._ready.take()))
        self._received += received.bytes
        self._counts["bytes"] += received.bytes
        self._pressure = max(self._pressure, received.burst_bytes / BURST_BYTES)
        for fd in received.held.tolist():
            feeds[self._lines.table[fd, calls.S_FEED]].waiting.push(fd)
        for fd in received.lost.tolist():
            self._lost(self._connections[fd])
        self._ready.set(received.again, len(self._lines))
        unserved = []
        for fd in received.single.tolist():
            connection = self._connections[fd]
            if self._receiver.full(connection):
                unserved.append(fd)
            else:
                self._receive(connection)
        if unserved or received.later.size:
            self._ready.put_first(np.array([*received.later.tolist(), *unserved], np.int64))

    def _without_ahead(self, fds: Int64s) -> Int64s:
        """These connections without those whose rows no beat could take; these are set aside."""
        limited = [f for f in self._feeds.values() if f.staging.read_until_us() != TIME_MAX_US]
        if not limited:
            return fds
        index = self._lines.table[fds, calls.S_FEED]
        for feed in limited:
            mine = fds[index == feed.index]
            ahead = mine[feed.are_ahead(mine)]
            if ahead.size:
                feed.ahead.put_first(ahead)
                stays = ~np.isin(fds, ahead)
                fds, index = fds[stays], index[stays]
        return fds

    def _receive(self, connection: Connection) -> None:
        """Receive from one connection."""
        line = self._lines.table[connection.fd]
        line[calls.S_QUEUED] = 0
        got, wanted = self._receiver.receive(connection)
        if got < 0:
            self._lost(connection)
            return
        self._counts["bytes"] += got
        self._received += got
        line[calls.S_BURST] += got
        self._pressure = max(self._pressure, int(line[calls.S_BURST]) / BURST_BYTES)
        if got < wanted:
            line[calls.S_BURST] = 0
        if got == wanted or (line[calls.S_HUNG] and got):
            self._queue(connection)
        if got:
            self._receiver.offer(connection, got, got == wanted)

    def _queue(self, connection: Connection) -> None:
        """Queue a connection that may have input."""
        line = self._lines.table[connection.fd]
        if not line[calls.S_QUEUED]:
            line[calls.S_QUEUED] = 1
            self._ready.push(connection.fd)

    def _decode_round(self, monotonic_us: int, wall_us: int) -> None:
        regions, receiver = self._receiver.regions(), self._receiver
        if not len(regions):
            return
        for feed in self._feeds.values():
            mine = (regions[:, calls.G_FEED] == feed.index).nonzero()[0]
            if not mine.size:
                continue
            view, base = receiver.view, receiver.base
            for outcome in feed.decode(regions[mine], monotonic_us, wall_us, view, base):
                self._settle(feed, outcome, monotonic_us)

    def _settle(self, feed: StreamFeed, outcome: Any, monotonic_us: int) -> None:
        """Handle the result of decoding for one connection."""
        connection = outcome.connection
        if outcome.error is not None:
            self._refuse(connection, outcome.error, outcome.reason, monotonic_us)
            return
        if outcome.again:
            self._send_away(connection, outcome.again)
            return
        if outcome.duplicate:
            committed = feed.committed(connection.number)
            if outcome.duplicate <= committed:
                with self._lock:
                    self._flushed(connection, connection.ack(committed))
        if outcome.ended:
            connection.ended = True
            feed.end(connection)

    # Connections -------------------------------------------------------------------------------

    def _admit(self, connection: Connection, greeting: Greeting, monotonic_us: int) -> None:
        """Admit a connection that sent its greeting.  Raises PeerError if it must not be
        admitted."""
        feed = self._feeds.get(greeting.stream)
        if feed is None and (reason := self.away(greeting.stream)):
            self._send_away(connection, reason)
            return
        if feed is None:
            known = ", ".join(sorted(self._feeds))
            raise ProtocolError(f"no stream {greeting.stream!r} here; there are: {known}")
        if greeting.stream in self._rejected:
            self._admission.refuse(connection, frames.STORE_FULL, "store_full", monotonic_us)
            return
        layout = feed.decoder.layout(match(greeting.schema, feed.staging.schema, greeting.stream))
        connection.layout, connection.slow = layout, layout == SLOW_LAYOUT
        connection.schema_message = greeting.message
        feed.check_content(greeting.producer, greeting.content)
        feed.check_session(greeting)
        older = feed.named(greeting.producer)
        if older is not None:
            text = f"a newer connection of producer {greeting.producer} took over"
            self._refuse(older, text, "taken_over", monotonic_us)
        self._admission.let_in(connection)
        with self._lock:
            feed.attach(connection, greeting, monotonic_us)
            connection.links = greeting.session is not None
            connection.state = OPEN
            if greeting.last:
                feed.staging.producers.end_first_rows(connection.number, greeting.last)
            if greeting.losses:
                connection.told = feed.losses(connection.number)
                feed.askers[connection.number] = connection
            self._epoll.register(connection.fd, _IN)
            if connection.number and (not greeting.settle or feed.settle(connection.number)):
                self._say_hello(feed, connection)
        if self._tls:  # decrypted bytes do not make the socket readable
            self._flushed(connection, False)

    def _send_away(self, connection: Connection, reason: str) -> None:
        """Send AGAIN and close: the peer may connect again later."""
        self._counts["sent_away"] += 1
        self.on_refused("away", f"{connection.name}: {reason}")
        with self._lock:
            connection.send(frames.text_frame(frames.AGAIN, reason))
        self._close(connection)

    def _refuse(self, connection: Connection, text: str, reason: str, monotonic_us: int) -> None:
        """Refuse an admitted connection: send the error and hand it to the admission."""
        self._detach(connection)
        self._epoll.unregister(connection.fd)
        self._admission.refuse(connection, text, reason, monotonic_us)

    def _free_memory(self) -> None:
        """Free memory of unfinished messages: first empty buffers, then disconnect the largest
        holders, which may connect again."""
        holders = sorted(self._connections.values(), key=Connection.held, reverse=True)
        for unused in (c for c in holders if c.own is not None and c.filled == 0):
            unused.drop_own()
        text = "unfinished messages take too much memory here"
        for connection in holders:
            if not self._memory.spent():
                return
            self._counts["sent_away"] += 1
            with self._lock:
                if connection.number:
                    connection.send(frames.text_frame(frames.AGAIN, text))
            self._close(connection)

    def _lost(self, connection: Connection) -> None:
        """Handle a connection that the peer closed or that broke."""
        if connection.state == OPEN and not connection.ended:
            self._counts["lost"] += 1
            self._counts["half_messages"] += connection.half()
        self._close(connection)

    def _detach(self, connection: Connection) -> None:
        """Stop receiving from a connection."""
        if connection.slot < 0:
            return
        feed, fd = list(self._feeds.values())[connection.feed], connection.fd
        with self._lock:
            self._memory.bytes -= self._lines.get(fd, calls.S_TAIL)
            feed.detach(connection)
            queued = self._lines.close(fd)
        if queued:
            for queue in (self._ready, feed.waiting, feed.ahead):
                queue.drop(fd)

    def _close(self, connection: Connection) -> None:
        self._detach(connection)
        with self._lock:
            self._connections.pop(connection.fd, None)
            connection.close()
        self._admission.forget(connection)

    # Frames ------------------------------------------------------------------------------------

    def _say_hello(self, feed: StreamFeed, connection: Connection) -> None:
        hello = frames.numbered(frames.HELLO, feed.committed(connection.number))
        if connection.told is not None:
            hello += frames.lost(*connection.told)
        if connection.links:
            hello += frames.link(*feed.last(connection.number))
        self._flushed(connection, connection.send(hello))

    def _tell_losses(self, sealed: Sealed) -> None:
        """Send LOST before the ACKs, to those that asked for it and have lost rows."""
        feed = sealed.feed
        with self._lock:
            for connection in feed.askers.values():
                losses = feed.losses(connection.number)
                if losses != connection.told:
                    connection.told = losses
                    self._flushed(connection, connection.send(frames.lost(*losses)))

    def _acknowledge(self, feed: StreamFeed, numbers: Int64s, seqs: Int64s) -> None:
        """Send ACKs in one call, and individually to connections that it cannot serve."""
        with self._lock:
            feed.commit(numbers, seqs)
            for settled in feed.settled():
                self._say_hello(feed, settled)
            unsent = np.zeros(numbers.size, np.int64)
            if not self._tls:
                frame, table = address(self._frame), self._lines.table
                self._acks += calls.send(numbers, seqs, feed.fds, table, frame, frames.ACK, unsent)
            for i in (unsent >= 0).nonzero()[0].tolist():
                connection = feed.by_number.get(int(numbers[i]))
                if connection is not None and feed.fds[connection.number] >= 0:
                    self._acks += 1
                    sent = connection.ack_rest(int(seqs[i]), int(unsent[i]))
                    self._flushed(connection, sent)

    def _acknowledge_end(self, feed: StreamFeed, number: int) -> None:
        with self._lock:
            feed.ending.discard(number)
            connection = feed.by_number.get(number)
            if connection is not None:
                self._acks += 1
                self._flushed(connection, connection.send(frames.end_ack()))

    def _flushed(self, connection: Connection, done: bool) -> None:
        """If frames are kept, ask for an event when the peer reads again."""
        line = self._lines.table[connection.fd]
        if not done and not line[calls.S_BLOCKED]:
            line[calls.S_BLOCKED] = 1
            self._epoll.modify(connection.fd, _IN | select.EPOLLOUT)

    def _unblock(self, connection: Connection) -> None:
        with self._lock:
            line = self._lines.table[connection.fd]
            if connection.state != CLOSED and connection.flush() and line[calls.S_BLOCKED]:
                line[calls.S_BLOCKED] = 0
                self._epoll.modify(connection.fd, _IN)
