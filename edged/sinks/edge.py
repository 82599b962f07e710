"""The `edge` sink: a link to `tcp` sources of other daemons, the instances of the next stage.

    [sinks.readings]
    type = "edge"
    input = "joined"
    stream = "readings"           # stream of the next job; default: the sink's id
    to = ["10.0.0.2:9100", "10.0.0.3:9100"]
    partition = "hash"            # hash, random, round_robin, broadcast, direct, or an expression
    by = ["key"]                  # the columns of hash; the integer column of direct
    buffer = "64KiB"              # bytes of a message, 1KiB..16MiB; 0: each row is a message
    linger = "10ms"               # how long rows wait for a full message; default 0s
    high = "64MiB"                # more in flight, and the job takes no rows until it is
    low = "16MiB"                 # down to this
    when_full = "wait"            # or "spool": the store takes it first
    compress = "auto"             # or "never", "always"
    entropy_max = 7.0             # bits per byte, 0..8: above it `auto` does not compress
    token_file = "link.token"     # the receivers' token
    tls = true                    # TLS, verified by the system's certificates
    ca = "ca.pem"                 # or by these

Rows become Arrow IPC messages (`edged.links`).  They are pages of the store, numbered for each
instance: durable with their beat, sent byte for byte until they are acknowledged, never made again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.client.connection import host_and_port
from edged.data.columns import empty_batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.origins import Origins
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.documents.reach import Reach
from edged.documents.units import show_duration, show_size
from edged.errors import JobError
from edged.links import partition
from edged.links.compression import AUTO, COMPRESS
from edged.links.forwarded import Forwarding
from edged.links.messages import MessageWriter
from edged.links.open_rows import OPEN_ROWS, OpenRows, TrainPage
from edged.links.page import link_name
from edged.links.partition import Direction, Partitioner, Shares
from edged.links.target import LinkTarget
from edged.pages.seal import ENTROPY_BITS_MAX
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.loopback import is_loopback
from edged.sinks.base import Flush, OpenBytes, Sink, SinkContext, SinkPlan, sink

BUFFER_MIN, BUFFER_MAX = 1 << 10, 16 << 20
INSTANCES_MAX = 256
NAME_CHARACTERS_MAX = 57
"""Of job and sink together: the store takes names of pages of up to 63 bytes."""
WAIT, SPOOL = "wait", "spool"
_LINGER_US_MAX = 3_600_000_000


class EdgeSink(Sink):
    """A link's open rows, for each instance, and its partitioner."""

    gauges = frozenset({"open_bytes", "in_flight_bytes"})

    def __init__(self, plan: EdgePlan, context: SinkContext) -> None:
        schema = plan.input.schema
        self._plan, self._in_flight = plan, context.in_flight
        self.name = link_name(plan.job, plan.id)
        self._writer = writer = MessageWriter(
            schema, plan.compress, plan.entropy_max, context.segments
        )
        self._open = [
            OpenRows(self.name, k, schema, writer, plan.buffer) for k in range(len(plan.to))
        ]
        self._dealer = Partitioner(plan.partition, len(plan.to), plan.by, plan.direction)
        self._forwarding = Forwarding(self.name, len(plan.to), writer, self._in_flight)
        self._past: list[int] = []
        """Numbers of the last messages of instances that the link no longer has."""
        self._none = Shares([_no_rows() for _ in plan.to])
        self._empty = empty_batch(schema)
        self._batch, self._shares = self._empty, self._none
        self._watermark_us = 0
        self._origins: Origins | None = None
        self._counts = dict.fromkeys(
            ("rows", "rows_without_instance", "messages", "messages_compressed", "pages",
             "page_bytes", "page_bytes_raw"), 0,
        )  # fmt: skip
        self.prompt = not plan.linger_us

    @property
    def full(self) -> bool:
        """Whether it has too much in flight."""
        if self._in_flight is None:
            return False
        routes = self._forwarding.routes.values()
        return self._in_flight.is_full(self.name) or any(map(self._in_flight.is_full, routes))

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Deal the rows out; `seal` makes messages of them."""
        self._writer.memory.turn()
        self._batch, self._watermark_us = flow.batch, flow.watermark_us
        self._shares, self._origins = self._none, flow.origins
        if flow.batch.rows:
            self._shares = self._dealer.deal(flow.batch, beat.workers)
            self._counts["rows"] += flow.batch.rows
            self._counts["rows_without_instance"] += self._shares.lost

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """Pages of the full messages, and of all rows that are due, in order of instances."""
        found: list[SealedPage] = []
        if self._origins is not None:
            made = self._forwarding.pages(self._batch, self._shares, self._origins)
            return self._counted([TrainPage(page, train) for page, train in made])
        for k, rows in enumerate(self._shares.rows):
            mine = self._open[k]
            count = self._batch.rows if rows is None else rows.size
            due = flush == Flush.ALL or self._is_due(mine, count, beat.wall_us)
            if count or mine.rows or due:
                sealed = mine.add(self._batch, rows, self._watermark_us, beat.wall_us, due)
                found += self._counted(sealed)
        self._batch, self._shares = self._empty, self._none
        return found

    def forwarded(self, name: str, instance: int, seq: int) -> tuple[str, int] | None:
        """What all instances have of a producer's messages; see `Sink.forwarded`."""
        return self._forwarding.acked(name, instance, seq)

    def links_shown(self) -> list[str]:
        """The link, or those of the producers of a hop."""
        return list(self._forwarding.routes.values()) or super().links_shown()

    def succeed(self, old: Sink) -> None:
        """Go on with the producers whose messages are on their way."""
        if isinstance(old, EdgeSink):
            self._forwarding.succeed(old._forwarding)

    def links(self, plan: SinkPlan) -> list[LinkTarget]:
        """The link; of a hop without a log one for each producer, too."""
        target, found = plan.link(), list(super().links(plan))
        for id, name in self._forwarding.routes.items():
            assert target is not None
            producer = f"{id}>{target.job}/{target.sink}"
            found.append(replace(target, name=name, forwards=producer))
        return found

    def _is_due(self, mine: OpenRows, new: int, wall_us: int) -> bool:
        """Whether no row may stay open; without rows the watermark is said at once."""
        linger_us = self._plan.linger_us
        if not linger_us or not mine.rows:
            return not linger_us or not new
        return abs(wall_us - mine.opened_us) >= linger_us

    def _counted(self, sealed: Sequence[TrainPage]) -> list[SealedPage]:
        counts = self._counts
        for one in sealed:
            counts["messages"] += one.train.messages
            counts["messages_compressed"] += one.train.compressed
            counts["pages"] += 1
            counts["page_bytes"] += len(one.page.data)
            counts["page_bytes_raw"] += one.train.raw_bytes
        return [one.page for one in sealed]

    def exceeds(self, limit: int) -> bool:
        """Whether open rows take more than `limit` bytes."""
        return sum(mine.nbytes() for mine in self._open) > limit

    def seal_early(self, beat: BeatContext, limit: int) -> list[SealedPage]:
        """All open rows, where they take more than `limit` bytes."""
        if not self.exceeds(limit):
            return []
        return [page for mine in self._open for page in self._counted(mine.close(beat.wall_us))]

    def open_rows(self) -> int:
        """Rows in no message yet."""
        return sum(mine.rows for mine in self._open)

    def due_in_us(self, wall_us: int) -> int | None:
        """The rest of `linger`, also if the wall clock was set back."""
        linger_us = self._plan.linger_us
        due = [linger_us - abs(wall_us - mine.opened_us) for mine in self._open if mine.rows]
        return max(0, min(due)) if due and linger_us else None

    def save(self) -> State:
        """The open rows and numbers of each instance, and the rows dealt out so far."""
        dealt = np.array([self._dealer.count, *self._past], np.int64)
        state = {"dealt": dealt, "compression": self._writer.save()}
        for k, mine in enumerate(self._open):
            state |= {f"{name}.{k}": array for name, array in mine.save().items()}
        return state

    def load(self, state: State) -> None:
        """Restore a saved state, of a link with more or fewer instances, too."""
        self._dealer.count, *past = state["dealt"].tolist()
        self._writer.load(state["compression"])
        saved = 0
        while f"numbers.{saved}" in state:
            own = {name: state[f"{name}.{saved}"] for name in OPEN_ROWS}
            if saved < len(self._open):
                self._open[saved].load(own)
            else:
                past.insert(saved - len(self._open), int(own["numbers"][0]))
            saved += 1
        for mine, seq in zip(self._open[saved:], past, strict=False):
            mine.skip(seq)
        self._past = past[max(0, len(self._open) - saved) :]

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Drop the open rows; continue after the durable messages."""
        for mine in self._open:
            mine.skip(0)
        for key in keys:
            if key.stream == self.name:
                self._skip_to(key.partition, key.seq)

    def _skip_to(self, instance: int, seq: int) -> None:
        if instance < len(self._open):
            self._open[instance].skip(seq)
            return
        at = instance - len(self._open)
        self._past += [0] * (at + 1 - len(self._past))
        self._past[at] = max(self._past[at], seq)

    def numbers(self) -> Mapping[str, list[int]]:
        """The number of each instance's last message."""
        return {self.name: [*(mine.seq for mine in self._open), *self._past]}

    def counters(self) -> Mapping[str, int | float]:
        """Rows, messages, pages and bytes; `rows_without_instance` were dropped."""
        in_flight = 0 if self._in_flight is None else self._in_flight.bytes_of(self.name)
        open_bytes = sum(mine.nbytes() for mine in self._open)
        return {**self._counts, "open_bytes": open_bytes, "in_flight_bytes": in_flight}


def _no_rows() -> npt.NDArray[np.int64]:
    """No row numbers."""
    return np.empty(0, np.int64)


@sink("edge")
@dataclass(frozen=True)
class EdgePlan(SinkPlan):
    """A checked `edge` sink."""

    without_log = True
    keys = frozenset(
        {
            "stream", "to", "partition", "by", "buffer", "linger", "high", "low", "when_full",
            "compress", "entropy_max", "token_file", "tls", "ca",
        }
    )  # fmt: skip

    id: str
    input: Link
    stream: str
    to: tuple[str, ...]
    partition: str
    by: tuple[str, ...]
    direction: Direction | None
    buffer: int
    linger_us: int
    high: int
    low: int
    when_full: str
    compress: str
    entropy_max: float
    token_file: str | None
    tls: bool
    ca: str | None
    job: str = ""

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> EdgePlan:
        """Check `document`; raises JobError for all faults."""
        return _Reader(path, id, document, input).plan()

    def through_problem(self) -> str:
        """The instance of a row must follow from the row alone, so that a resend goes there too."""
        if self.partition in (partition.RANDOM, partition.ROUND_ROBIN) and len(self.to) > 1:
            return f"partition {self.partition} depends on the rows before"
        return ""

    def in_job(self, job: str) -> EdgePlan:
        """The sink of this job.  Raises JobError where the names are too long for the store."""
        if len(job) + len(self.id) > NAME_CHARACTERS_MAX:
            problem = f"has, with the job's name, more than {NAME_CHARACTERS_MAX} characters"
            raise JobError(f"sinks.{self.id}", problem, "shorten one of the names")
        return replace(self, job=job)

    def generated(self) -> tuple[str, ...]:
        """The kernels of its expression."""
        return () if self.direction is None else self.direction.projection.generated()

    def build(self, context: SinkContext) -> EdgeSink:
        """The running sink."""
        return EdgeSink(self, context)

    def link(self) -> LinkTarget:
        """What the sending process needs."""
        schema = self.input.schema.to_json()
        return LinkTarget(
            link_name(self.job, self.id), self.job, self.id, self.stream, self.to,
            zlib.crc32(schema.encode()), schema, self.high, self.low, self.when_full == SPOOL,
            self.token_file or "", self.tls or bool(self.ca), self.ca or "",
        )  # fmt: skip

    def open_bytes(self) -> OpenBytes:
        """A message for each instance, where rows wait for a full one."""
        page = max(self.buffer, BUFFER_MIN) if self.linger_us else 0
        return OpenBytes(len(self.to) * min(page, BUFFER_MIN), len(self.to) * page, page)

    def reach(self, root: Path) -> Reach:
        """The addresses that it connects to, and its files."""
        given = {"token_file": self.token_file, "ca": self.ca}
        files = {key: str(Path(root, path)) for key, path in given.items() if path is not None}
        connects = {f"to[{i}]": address for i, address in enumerate(self.to)}
        return Reach(files=files, connects=connects)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        how = f" by {', '.join(self.by)}" if self.by else ""
        size = f"messages of {show_size(self.buffer)}" if self.buffer else "a message for each row"
        waits = f", rows wait {show_duration(self.linger_us)} for one" if self.linger_us else ""
        full = "the job takes no rows" if self.when_full == WAIT else "the store takes the rest"
        guard = " over TLS" if self.tls or self.ca else ""
        return [
            f"stream {self.stream} at {', '.join(self.to)}{guard}; {self.partition}{how}",
            f"{size}{waits}; compress {self.compress}",
            f"above {show_size(self.high)} in flight {full}, until {show_size(self.low)}",
        ]

    def signature(self) -> str:
        """The schema; addresses, their number and whatever else a link does may change."""
        facts = [self.kind, self.version, self.input.schema.to_json()]
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def schemas(self) -> Sequence[tuple[str, int, str]]:
        """The link's schema, by the name of its pages."""
        text = self.input.schema.to_json()
        return ((link_name(self.job, self.id), zlib.crc32(text.encode()), text),)

    def claims(self) -> Sequence[str]:
        """None: the name of its pages has its job's name in it."""
        return ()


class _Reader:
    """Reads the table of an `edge` sink, and notes all faults."""

    def __init__(self, path: str, id: str, document: Mapping[str, Any], input: Link) -> None:
        self._path, self._id, self._document, self._input = path, id, document, input
        self._wrong = FaultCollector()

    def plan(self) -> EdgePlan:
        """The plan; raises JobError for all faults."""
        path, document, wrong = self._path, self._document, self._wrong
        lists = [f.name for f in self._input.schema if f.dtype.item is not None]
        if lists:
            problem = f"has lists ({', '.join(lists)}), which links do not carry"
            wrong.note(f"{path}.input", problem, "leave them out with a map")
        stream = wrong.attempt(
            lambda: doc.is_id(f"{path}.stream", document.get("stream", self._id)), self._id
        )
        to = wrong.attempt(self._addresses, ())
        scheme, by, direction = self._scheme()
        buffer = wrong.attempt(self._buffer, 0)
        linger = wrong.attempt(lambda: doc.duration(path, document, "linger", "0s"), 0)
        if linger > _LINGER_US_MAX:
            wrong.note(f"{path}.linger", "is longer than an hour", "shorten it")
        high = wrong.attempt(lambda: doc.size(path, document, "high", "64MiB", least=1 << 10), 0)
        low = wrong.attempt(lambda: doc.size(path, document, "low", max(1, high // 4), least=1), 0)
        if high and 2 * low > high:
            wrong.note(f"{path}.low", "is more than half of high", "further apart, or it flaps")
        if high and high < buffer:
            wrong.note(f"{path}.high", "is less than a message", f"at least {show_size(buffer)}")
        full = wrong.attempt(lambda: self._choice("when_full", (WAIT, SPOOL), WAIT), WAIT)
        compress = wrong.attempt(lambda: self._choice("compress", COMPRESS, AUTO), AUTO)
        entropy = wrong.attempt(
            lambda: doc.number(path, document, "entropy_max", ENTROPY_BITS_MAX, least=0, most=8),
            ENTROPY_BITS_MAX,
        )
        token = wrong.attempt(lambda: doc.text(path, document, "token_file", None), None)
        tls = wrong.attempt(lambda: doc.boolean(path, document, "tls", False), False)
        ca = wrong.attempt(lambda: doc.text(path, document, "ca", None), None)
        if token is not None and not tls and ca is None:
            self._refuse_plain_token(to)
        wrong.settle()
        return EdgePlan(
            self._id, self._input, stream, to, scheme, by, direction, buffer, linger, high, low,
            full, compress, float(entropy), token, tls, ca,
        )  # fmt: skip

    def _choice(self, key: str, among: Sequence[str], default: str) -> str:
        return doc.choice(self._path, self._document, key, among, default)

    def _addresses(self) -> tuple[str, ...]:
        found = doc.names(self._path, self._document, "to")
        if not found or len(found) > INSTANCES_MAX:
            raise JobError(f"{self._path}.to", f"has {len(found)} addresses", "1 to 256")
        for i, address in enumerate(found):
            try:
                host_and_port(address)
            except ValueError as problem:
                where = f"{self._path}.to[{i}]"
                raise JobError(where, str(problem), "e.g. 10.0.0.2:9100") from None
        return found

    def _buffer(self) -> int:
        size = doc.size(self._path, self._document, "buffer", "64KiB", least=0)
        if size and not BUFFER_MIN <= size <= BUFFER_MAX:
            raise JobError(f"{self._path}.buffer", f"is {size} bytes", "1KiB to 16MiB, or 0")
        return size

    def _scheme(self) -> tuple[str, tuple[str, ...], Direction | None]:
        """Partitioning scheme, its columns, and its expression."""
        path, wrong, schema = self._path, self._wrong, self._input.schema
        by = wrong.attempt(lambda: doc.names(path, self._document, "by", ()), ())
        for i, name in enumerate(by):
            if name not in schema:
                advice = doc.did_you_mean(name, schema.names)
                wrong.note(f"{path}.by[{i}]", f"no column {name!r} here", advice)
        default = partition.HASH if by else partition.ROUND_ROBIN
        scheme = wrong.attempt(lambda: doc.text(path, self._document, "partition", default), "")
        if scheme == partition.HASH and not by:
            wrong.note(f"{path}.partition", "has no key", "set by")
        elif scheme == partition.DIRECT:
            whole = len(by) == 1 and by[0] in schema and schema.field(by[0]).dtype.integer
            if not whole:
                wrong.note(f"{path}.by", "is not one integer column", "the one with the instance")
        elif by and scheme != partition.HASH:
            wrong.note(f"{path}.by", f"has no meaning with partition {scheme}", "leave it out")
        if scheme in ("", *partition.SCHEMES):
            return scheme, by, None
        where = f"{path}.partition"
        direction = wrong.attempt(lambda: Direction.of(where, scheme, schema), None)
        return scheme, by, direction

    def _refuse_plain_token(self, to: Sequence[str]) -> None:
        far = [address for address in to if not is_loopback(host_and_port(address)[0])]
        if far:
            problem = f"would cross the network to {far[0]} without TLS, readable on the way"
            self._wrong.note(f"{self._path}.token_file", problem, "set tls or ca")
