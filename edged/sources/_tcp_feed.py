"""One stream of a TCP source: its connections, their regions, its acknowledgements.

`_table` has a row for each connection in the layout of `kernels.cpu.ipc`'s regions, with the
constant fields set.  A round picks its regions from it, decodes them in one kernel pass and keeps
unconsumed bytes in another; Python code handles only errors, ends, duplicates and long messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edged.data.growing import at_least
from edged.data.staging import Staging
from edged.errors import ProtocolError
from edged.sources import _tcp_calls as calls
from edged.sources._tcp_decode import Decoder, problem
from edged.sources._tcp_slow import SlowReader
from edged.sources._tcp_socket_table import DescriptorQueue
from edged.sources.peer_boundary import PeerBoundary
from kernels.cpu import ipc

if TYPE_CHECKING:
    from edged.sources._tcp_connection import Connection, MessageMemory
    from edged.sources._tcp_greeting import Greeting
    from edged.sources._tcp_socket_table import SocketTable

Int64s = npt.NDArray[np.int64]

SMALL_BYTES = 64 << 10
"""Messages above this size are received into the connection's own buffer,"""
TAIL_BYTES_MAX = 16 << 10
"""as soon as more than this of one has arrived."""


BATCH = "batch"
"""The reason of a refusal for what a batch holds."""
Texts = dict[int, tuple[str, str]]
"""By region: the error for the peer, and the reason."""


@dataclass
class Sealed:
    """A ticket for one stream: the producers whose last staged number has changed, these numbers,
    and the producers whose end of stream was staged."""

    feed: StreamFeed
    numbers: Int64s
    seqs: Int64s
    ends: list[int]


@dataclass
class ConnectionOutcome:
    """The result of a round for one connection, beyond rows."""

    connection: Connection
    error: str | None = None
    reason: str = BATCH
    ended: bool = False
    duplicate: int = 0
    again: str = ""
    """Why the connection has to be made again."""


class StreamFeed:
    """One stream of the source.  `index` is its index among the source's feeds."""

    def __init__(
        self,
        index: int,
        staging: Staging,
        decoder: Decoder,
        lines: SocketTable,
        memory: MessageMemory,
        way: int,
        producers_max: int,
        boundary: PeerBoundary,
    ) -> None:
        self._boundary = boundary
        self.producers_max = producers_max
        self.ending: set[int] = set()
        """Producers whose end of stream is staged and not committed."""
        self._settling: dict[int, int] = {}
        """Producers whose HELLO waits until this number is committed.  They are not in `fds`, so
        that no ACK precedes HELLO."""
        self.index, self.staging, self.decoder = index, staging, decoder
        self._lines, self._memory, self._way = lines, memory, way
        self.connections: list[Connection | None] = []
        self.by_number: dict[int, Connection] = {}
        self.askers: dict[int, Connection] = {}
        """Those of them that have asked for LOST frames."""
        self.fds: Int64s = np.full(64, -1, np.int64)
        """Descriptor of each producer's connection, by number; -1: none."""
        self.waiting, self.ahead = DescriptorQueue(), DescriptorQueue()
        """Connections with input for which staging had no room, and with rows too late for any beat
        yet."""
        self.duplicates = self.messages = self.slow_messages = 0
        self._table = np.zeros((64, len(ipc.REGION)), np.int64)
        self._free: list[int] = []
        self._committed = np.zeros(64, np.int64)
        self._sealed = np.zeros(64, np.int64)
        self._ends: list[int] = []

    def start(self) -> None:
        """Take over the recovered sequence numbers as committed."""
        seq = self.staging.producers.seq
        self._committed, self._sealed = seq.copy(), seq.copy()

    def wire_room(self) -> int:
        """Bytes that may be received for this stream now."""
        return int(self.staging.room() / self.staging.staged_per_wire_byte)

    def attach(self, connection: Connection, greeting: Greeting, monotonic_us: int) -> None:
        """Add a connection to the table and mark its producer as seen."""
        producer = greeting.producer
        producers = self.staging.producers
        if producer and not producers.known(producer):
            self._make_room()
        number = producers.number(producer) if producer else 0
        producers.seen_us[number] = monotonic_us
        if producer:
            producers.contents.put(number, greeting.content)
        if greeting.session is not None:
            producers.sessions.put(number, str(greeting.session))
        if greeting.first and producers.go_on_from(number, greeting.first):
            self._committed = at_least(self._committed, number + 1)
            self._committed[number] = greeting.first - 1
        connection.id, connection.number, connection.feed = producer, number, self.index
        if self._free:
            slot = self._free.pop()
            self.connections[slot] = connection
        else:
            slot = len(self.connections)
            self.connections.append(connection)
            if slot == len(self._table):
                self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        connection.slot = slot
        row = self._table[slot]
        row[:] = 0
        row[ipc.REGION.layout], row[ipc.REGION.producer] = connection.layout, number
        row[ipc.REGION.named], row[ipc.REGION.slow] = int(number != 0), int(connection.slow)
        if number:
            self.by_number[number] = connection
            self.fds = at_least(self.fds, number + 1, -1)
            self.fds[number] = connection.fd
        self._lines.open(connection.fd, self._way, self.index, slot)

    def detach(self, connection: Connection) -> None:
        """Remove a connection before its descriptor is closed."""
        if connection.slot >= 0:
            self.connections[connection.slot] = None
            self._free.append(connection.slot)
            connection.slot = -1
        if self.by_number.get(connection.number) is connection:
            del self.by_number[connection.number]
            self.fds[connection.number] = -1
            self.askers.pop(connection.number, None)
            self._settling.pop(connection.number, None)

    def check_content(self, producer: str, content: str) -> None:
        """Note what a producer sends.  Raises ProtocolError where its numbers belong to something
        else."""
        producers = self.staging.producers
        number = producers.number(producer) if producers.known(producer) else 0
        sent = int(producers.seq[number]) if number else 0
        if content and sent and producers.contents.get(number) != content:
            raise ProtocolError(
                f"producer {producer} has already sent {sent} batches of other content: take"
                " another id, or go on with the same files, columns and size of batches"
            )

    def check_session(self, greeting: Greeting) -> None:
        """Raise ProtocolError where another daemon has taken a link's producer over, or where only
        senders can send that have all that was not acknowledged."""
        producers = self.staging.producers
        if not greeting.first and self.staging.forwards:
            raise ProtocolError(
                f"stream {greeting.stream} is of a hop that keeps no log (through): it takes links"
                " of other daemons only, which name an edged.from"
            )
        if greeting.session is not None and producers.known(greeting.producer):
            number = producers.number(greeting.producer)
            known, sent = producers.sessions.get(number, ""), int(producers.seq[number])
            greeting.session.check(greeting.producer, known, sent)

    def losses(self, number: int) -> tuple[int, int]:
        """Rows of a producer that were dropped: late ones, and ones too far ahead."""
        producers = self.staging.producers
        return int(producers.late[number]), int(producers.ahead[number])

    def named(self, producer: str) -> Connection | None:
        """The connection of a producer, or None."""
        producers = self.staging.producers
        if not producer or not producers.known(producer):
            return None
        return self.by_number.get(producers.number(producer))

    def mark_waiting_seen(self, unread: Int64s, monotonic_us: int) -> None:
        """Mark producers with unread input as seen, so that they do not become idle.

        `unread`: connections of this feed that `ingest` has left for its next call.
        """
        for fds in (self.waiting.view(), self.ahead.view(), unread):
            if fds.size:
                self.staging.producers.seen_us[self._numbers(fds)] = monotonic_us

    def are_ahead(self, fds: Int64s) -> npt.NDArray[np.bool_]:
        """Whether the producers of these connections should stay unread
        (`Staging.read_until_us`)."""
        numbers = self._numbers(fds)
        late = self.staging.producers.latest_us[numbers] > self.staging.read_until_us()
        mask: npt.NDArray[np.bool_] = late & (numbers != 0)
        return mask

    def _make_room(self) -> None:
        """Forget producers above `producers_max`: first ended ones, then those seen longest ago.

        Connected producers, and those with staged or uncommitted data, are kept.
        """
        producers, staging = self.staging.producers, self.staging
        surplus = producers.count() - self.producers_max + 1
        if surplus <= 0:
            return
        n = len(producers)
        may = np.array([bool(id) for id in producers.ids])
        may &= at_least(self.fds, n, -1)[:n] < 0
        may &= at_least(self._committed, n)[:n] == producers.seq
        for chunks in (staging.chunks(), staging.unlogged()[1]):
            may[chunks.producer] = False
        may[[*self.ending]] = False
        numbers = np.flatnonzero(may)
        order = np.lexsort([producers.seen_us[numbers], producers.ended[numbers] == 0])
        for number in numbers[order[:surplus]].tolist():
            producers.forget(number)
            if self.staging.origins is not None:
                self.staging.origins.forget(number)
            for known in (self._committed, self._sealed):
                if number < known.size:
                    known[number] = 0

    def _numbers(self, fds: Int64s) -> Int64s:
        """The producers of connections."""
        slots = self._lines.table[fds, calls.S_SLOT]
        numbers: Int64s = self._table[slots, ipc.REGION.producer]
        return numbers

    def committed(self, number: int) -> int:
        """The last committed sequence number of a producer."""
        return int(self._committed[number]) if number < self._committed.size else 0

    def last(self, number: int) -> tuple[int, int]:
        """Number and sum of the last batch staged of a producer, the sum as 64 bits; 0: none."""
        producers = self.staging.producers
        return int(producers.seq[number]), int(producers.sums[number]) & (2**64 - 1)

    def commit(self, numbers: Int64s, seqs: Int64s) -> None:
        """Mark batches up to these numbers as durable.  Needs the source's lock."""
        if numbers.size:
            self._committed = at_least(self._committed, int(numbers[-1]) + 1)
            np.maximum.at(self._committed, numbers, seqs)

    def settle(self, number: int) -> bool:
        """Whether HELLO is final: the producer's earlier connections have ended and everything
        staged from them is committed.  If not, `settled` returns it later.  Needs the source's
        lock."""
        seq = int(self.staging.producers.seq[number])
        if self.committed(number) >= seq:
            return True
        self._settling[number], self.fds[number] = seq, -1
        return False

    def settled(self) -> list[Connection]:
        """Connections whose HELLO has become final with the last `commit`.  Needs the source's
        lock."""
        numbers = [n for n, seq in self._settling.items() if self.committed(n) >= seq]
        for number in numbers:
            del self._settling[number]
            self.fds[number] = self.by_number[number].fd
        return [self.by_number[number] for number in numbers]

    def end(self, connection: Connection) -> None:
        """Stage the end of stream; the anonymous producer ends with its last connection."""
        number = connection.number
        if number == 0:
            others = (c for c in self.connections if c is not None and c.number == 0)
            if any(c is not connection and not c.ended for c in others):
                return
        else:
            self._ends.append(number)
            self.ending.add(number)
        self.staging.producers.ended[number] = 1

    def seal(self) -> Sealed | None:
        """A ticket for everything staged since the last call; None for nothing.  Without a log it
        is for what beats have taken since then: what is only staged holds its senders back."""
        log, seq = self.staging.origins, self.staging.producers.seq
        ends, self._ends = self._ends, []
        if log is not None and not log.forwards:
            staged, seq = seq, log.taken(seq.size)
            self._ends = [number for number in ends if seq[number] < staged[number]]
            ends = [number for number in ends if number not in self._ends]
        self._sealed = at_least(self._sealed, seq.size)
        changed = (seq > self._sealed[: seq.size]).nonzero()[0]
        if changed.size == 0 and not ends:
            return None
        self._sealed[changed] = seq[changed]
        return Sealed(self, changed, seq[changed], ends)

    def decode(
        self,
        received: Int64s,
        monotonic_us: int,
        wall_us: int,
        arena: memoryview,
        base: int,
    ) -> list[ConnectionOutcome]:
        """Stage a round's regions (rows of `_tcp_calls`).  `arena` is the memory at address `base`;
        regions elsewhere are in connections' own buffers."""
        slots, fds = received[:, calls.G_SLOT].copy(), received[:, calls.G_FD].copy()
        regions = self._table[slots]
        places: Int64s = received[:, calls.G_START]
        own = ((places < base) | (places >= base + len(arena))).nonzero()[0].tolist()
        regions[:, ipc.REGION.address] = places
        regions[:, ipc.REGION.length] = received[:, calls.G_LENGTH]
        refused, staged = self.staging.refused_ahead, self.staging.unlogged_chunks
        slow, texts = self._run(regions, slots, wall_us)
        if len(slow):
            texts |= self._decode_slow(slow, slots, regions, wall_us)
        heard = regions[:, ipc.REGION.producer]
        if self.staging.refused_ahead > refused:
            came = self.staging.unlogged()[1].producer[staged:]
            whole = regions[:, ipc.REGION.messages] > 0
            heard = heard[~whole | np.isin(heard, came)]  # refused rows are as good as none
        self.staging.producers.seen_us[heard] = monotonic_us
        self.messages += int(np.maximum(regions[:, ipc.REGION.messages], 0).sum())
        self.duplicates += int(regions[:, ipc.REGION.duplicates].sum())
        left = regions[:, ipc.REGION.length] - regions[:, ipc.REGION.consumed]
        for i in own:
            self._keep_own(self._at(int(slots[i])), regions[i], int(left[i]))
        starts = regions[:, ipc.REGION.address] + regions[:, ipc.REGION.consumed]
        rest, lines = left.copy(), self._lines
        shared = None if not own else np.delete(np.arange(len(slots)), own)
        if shared is not None:
            fds, starts, rest = fds[shared], starts[shared], rest[shared]
        self._memory.bytes += calls.keep(fds, starts, rest, lines.table, lines.tails, self._way)
        for j in rest.nonzero()[0].tolist():
            i = j if shared is None else int(shared[j])
            self._keep(self._at(int(slots[i])), regions[i], int(left[i]), arena, base)
        return self._outcomes(slots, regions, texts)

    def _run(self, regions: Int64s, slots: Int64s, wall_us: int) -> tuple[Int64s, Texts]:
        """`Decoder.run`.  If it raises, each region is decoded alone, so that only the one at fault
        is refused."""
        before = regions.copy()
        try:
            return self.decoder.run(regions, wall_us), {}
        except Exception as problem:
            regions[:] = before
            if len(regions) == 1:
                name = self._at(int(slots[0])).name
                texts = {0: self._boundary.refusal(name, problem, BATCH)}
                return np.empty((0, len(ipc.MESSAGE)), np.int64), texts
        slow, texts = [], {}
        for i in range(len(regions)):
            found, wrong = self._run(regions[i : i + 1], slots[i : i + 1], wall_us)
            found = found.copy()  # the next run uses the same memory
            found[:, ipc.MESSAGE.region] = i
            slow.append(found)
            if wrong:
                texts[i] = wrong[0]
        return np.concatenate(slow), texts

    def _at(self, slot: int) -> Connection:
        connection = self.connections[slot]
        assert connection is not None
        return connection

    def _keep(
        self, connection: Connection, region: Int64s, left: int, arena: memoryview, base: int
    ) -> None:
        """Keep the beginning of a message that is in the arena and longer than a tail."""
        self._lines.table[connection.fd, calls.S_WAY] = calls.SINGLE
        at = int(region[ipc.REGION.address] + region[ipc.REGION.consumed]) - base
        need = int(region[ipc.REGION.need])
        if need <= SMALL_BYTES or left <= TAIL_BYTES_MAX:
            connection.keep(bytes(arena[at : at + left]))
            return
        connection.grow_own(min(need, 2 * left))
        connection.own[:left] = np.frombuffer(arena[at : at + left], np.uint8)
        connection.filled, connection.need, connection.expect = left, need, need

    def _keep_own(self, connection: Connection, region: Int64s, left: int) -> None:
        """Keep the beginning of a message that is in the connection's own buffer."""
        consumed, need = int(region[ipc.REGION.consumed]), int(region[ipc.REGION.need])
        if consumed and left:
            connection.own[:left] = connection.own[consumed : consumed + left]
        connection.filled, connection.need = left, need
        if need > SMALL_BYTES:
            connection.expect = need
        elif left <= SMALL_BYTES and consumed < SMALL_BYTES:
            connection.keep(bytes(connection.own[:left]))
            connection.drop_own()

    def _decode_slow(self, slow: Int64s, slots: Int64s, regions: Int64s, wall_us: int) -> Texts:
        """Decode messages with pyarrow; returns errors by region."""
        texts: Texts = {}
        producers = self.staging.producers
        for message in slow:
            r = int(message[ipc.MESSAGE.region])
            if r in texts or regions[r, ipc.REGION.messages] < 0:
                continue
            connection = self._at(int(slots[r]))
            try:
                batch = self._reader(connection).take(message)
                if batch is None:
                    continue
                self.slow_messages += 1
                rows = self.staging.append(batch, connection.number, wall_us)
                if self.staging.origins is not None:
                    seq, watermark = message[ipc.MESSAGE.seq], message[ipc.MESSAGE.watermark]
                    entry = (connection.number, seq, watermark, rows)
                    self.staging.origins.add(*(np.array([n], np.int64) for n in entry))
            except Exception as wrong:
                texts[r] = self._boundary.refusal(connection.name, wrong, BATCH)
                continue
            producers.promise(connection.number, int(message[ipc.MESSAGE.watermark]))
            if message[ipc.MESSAGE.seq]:
                producers.seq[connection.number] = message[ipc.MESSAGE.seq]
                producers.sums[connection.number] = message[ipc.MESSAGE.sum]
        return texts

    def _reader(self, connection: Connection) -> SlowReader:
        if connection.reader is None:
            connection.reader = SlowReader(
                connection.schema_message, self.staging.schema, self.staging.batch_bytes_max
            )
        return connection.reader

    def _outcomes(self, slots: Int64s, regions: Int64s, texts: Texts) -> list[ConnectionOutcome]:
        """Results with an error, an end of stream or duplicates."""
        self._table[slots, ipc.REGION.slow] = regions[:, ipc.REGION.slow]
        odd = (regions[:, ipc.REGION.error] != 0) | (regions[:, ipc.REGION.end] != 0)
        odd |= regions[:, ipc.REGION.duplicates] != 0
        if texts:
            odd[list(texts)] = True
        outcomes = []
        for i in odd.nonzero()[0].tolist():
            outcome = ConnectionOutcome(self._at(int(slots[i])))
            if i in texts:
                outcome.error, outcome.reason = texts[i]
            elif self._jumped(outcome.connection, regions[i]):
                outcome.again = "batches before this one are lost here; go on with it"
            elif regions[i, ipc.REGION.error]:
                most = self.decoder.message_bytes_max
                outcome.error = problem(regions[i], self.staging, most)
            outcome.ended = not (outcome.error or outcome.again) and bool(
                regions[i, ipc.REGION.end]
            )
            outcome.duplicate = int(regions[i, ipc.REGION.duplicate_seq])
            outcomes.append(outcome)
        return outcomes

    def _jumped(self, connection: Connection, region: Int64s) -> bool:
        """Whether a gap before a batch is one that a damaged store has left.  The producer goes on
        with that batch then."""
        if region[ipc.REGION.error] != ipc.E_GAP:
            return False
        number, seq = connection.number, int(region[ipc.REGION.detail])
        if not self.staging.producers.jump(number, seq):
            return False
        self._committed = at_least(self._committed, number + 1)
        self._committed[number] = seq - 1
        return True
