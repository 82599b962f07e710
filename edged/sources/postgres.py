"""`postgres`: a table of a PostgreSQL server and its changes, by logical replication.

    source = { type = "postgres", host = "10.0.0.7", database = "plant", user = "edged",
               password_file = "/etc/edged/plant", table = "public.devices",
               publication = "edged", slot = "edged_devices" }
    changes = "postgres"

The first rows are a copy of the table as of the moment at which its replication slot begins; then
come its changes.  With a `key` rows are named by it; without one the table needs `REPLICA IDENTITY
FULL` for updates and deletes (`edged.sources.postgres_child.pgoutput`).

- Exactly once: the position in the changes is in the record of the beat that stages them.  The slot
  advances behind the commit.  Where the server or the daemon ends, changes go on behind the last
  one that is committed.
- What cannot go on (a slot that is gone, a column that was dropped, a truncated table) is the
  source's `problem`; nothing more is read.  A server that is away is tried again with backoff.
- A child process talks to the server (`edged.sources.postgres_child`).  It needs psycopg2:
  `pip install 'edged[postgres]'`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from edged.data.columns import Batch
from edged.data.table_terms import POSTGRES
from edged.documents import reader as doc
from edged.documents.reach import Reach
from edged.errors import ConfigError, JobError
from edged.platform.backoff import Backoff, jitter
from edged.platform.clock import boot_us
from edged.platform.timers import TimerFd
from edged.sources import _postgres_wire as wire
from edged.sources._postgres_wire import Position
from edged.sources.base import Source, SourcePlan, source

if TYPE_CHECKING:
    from edged.data.schema import Schema
    from edged.data.staging import Staging
    from edged.data.workers import Workers

TLS = ("disable", "prefer", "require", "verify-ca", "verify-full")
"""libpq's modes."""
DIRECTORY = "postgres"
"""Of copies, in the store's directory."""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_RECEIVE_BYTES = 1 << 18
_INSTALL = "pip install 'edged[postgres]'"


@source(POSTGRES)
@dataclass(frozen=True)
class PostgresPlan(SourcePlan):
    """A checked `postgres` source."""

    host: str
    port: int
    database: str
    user: str
    password_file: str
    tls: str
    table: str
    publication: str
    slot: str
    snapshot: bool
    columns: dict[str, str]
    schema: Schema = field(repr=False)
    key: tuple[str, ...] = ()

    keys: ClassVar[frozenset[str]] = frozenset(
        {
            "host", "port", "database", "user", "password_file", "tls", "table", "publication",
            "slot", "snapshot", "columns",
        }
    )  # fmt: skip

    @classmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> PostgresPlan:
        """Check the table; the server is asked when the source starts."""
        renamed = doc.table(path, document, "columns", {})
        for name in renamed:
            if name not in stream.schema:
                advice = doc.did_you_mean(name, stream.schema.names)
                raise JobError(f"{path}.columns.{name}", "there is no such column", advice)
            doc.text(doc.below(path, "columns"), renamed, name)
        return cls(
            doc.text(path, document, "host", "127.0.0.1"),
            doc.integer(path, document, "port", 5432, least=1, most=65535),
            doc.text(path, document, "database"),
            doc.text(path, document, "user"),
            doc.text(path, document, "password_file", ""),
            doc.choice(path, document, "tls", TLS, "prefer"),
            _table_name(path, document),
            _name(path, document, "publication"),
            _name(path, document, "slot"),
            doc.boolean(path, document, "snapshot", True),
            dict(renamed),
            stream.schema,
            () if stream.table is None else stream.table.key,
        )

    def share_key(self) -> str:
        """Each slot has one consumer."""
        return f"{POSTGRES}:{self.slot}@{self.host}:{self.port}"

    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> PostgresSource:
        """The running replication.  Raises JobError where two streams read one slot."""
        if len(stagings) > 1:
            *_, last = stagings
            problem = f"slot {self.slot} is another table's as well"
            raise JobError(f"{last}.source.slot", problem, "a slot has one consumer")
        (staging,) = stagings.values()
        return PostgresSource(self, staging)

    def reach(self, root: Path) -> Reach:
        """The server, and the file of the password."""
        files = {"password_file": self.password_file} if self.password_file else {}
        if self.host.startswith("/"):
            return Reach(files={**files, "host": self.host})
        return Reach(files=files, connects={"host": f"{self.host}:{self.port}"})

    def endless(self) -> str:
        """A table may change at any time."""
        return "a table of a database may change at any time"

    def describe(self) -> list[str]:
        """The server, the table, and how its changes come."""
        how = "a copy of it, then its changes" if self.snapshot else "its changes from now on"
        lines = [
            f"{self.table} of {self.database} at {self.host}:{self.port}: {how}",
            f"slot {self.slot}, publication {self.publication}",
        ]
        return lines + [f"{name} is its column {inside}" for name, inside in self.columns.items()]


class PostgresSource(Source):
    """A running replication of one table."""

    def __init__(self, plan: PostgresPlan, staging: Staging) -> None:
        self._plan, self._staging = plan, staging
        self._directory = Path()
        self._producer = 0
        self._position = Position()
        self._password = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._frames = wire.Frames()
        self._head: tuple[Batch, Position] | None = None
        """Rows that wait for room, and the position behind them."""
        self._state = wire.ChildState("is starting")
        self._backoff = Backoff(jitter)
        self._retry_us = 0
        """No child is started before this monotonic time."""
        self._timer = TimerFd()
        self._watch = select.epoll()
        self._watch.register(self._timer.fileno(), select.EPOLLIN)
        self._watches_child = False
        self._rows = self._restarts = 0

    def place(self, directory: Path, files: Path) -> None:
        """Copies lie in the store's directory."""
        self._directory = directory / DIRECTORY

    def check(self, leaving: Sequence[Source]) -> None:
        """Whether psycopg2 is there, and the password's file."""
        self._prepare()

    def start(self) -> None:
        """Start the child process.  Raises ConfigError."""
        self._prepare()
        producers = self._staging.producers
        self._producer = producers.number(f"{POSTGRES}:{self._plan.slot}")
        self._position = Position.read(producers.contents.get(self._producer, ""))
        self._start_child()

    def fileno(self) -> int:
        """Readable when rows have come, or the child is to be started again."""
        return self._watch.fileno()

    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Stage what has come, up to the high watermark."""
        if self._channel is None and monotonic_us >= self._retry_us:
            self._start_child()
        self._staging.producers.seen_us[self._producer] = monotonic_us
        while self._stage(wall_us) and self._receive():
            pass
        self._watch_child(self._channel is not None and self._head is None)

    def more(self) -> bool:
        """Whether rows wait for room."""
        return self._head is not None and not self._staging.held

    def seal(self) -> Any:
        """The position that is staged."""
        return self._position

    def committed(self, ticket: Any) -> None:
        """Report the position to the server, through the child."""
        channel = self._channel
        if channel is not None and ticket.system and not ticket.copying:
            with suppress(OSError):  # the next commit reports it, or the next child's start
                channel.send(wire.frame(wire.CONFIRM, wire.NUMBER.pack(ticket.lsn)))

    def finished(self) -> bool:
        """A table has no end."""
        return False

    def problem(self) -> str:
        """Why nothing is read for now, or at all."""
        return self._state.problem

    def close(self) -> None:
        """End the child."""
        self._end_child()
        self._watch.close()
        self._timer.close()

    def counters(self) -> Mapping[str, int | float]:
        """Rows since the start, and starts of the child after its end."""
        connected = int(self._channel is not None and not self._state.problem)
        return {"rows": self._rows, "restarts": self._restarts, "connections": connected}

    def _prepare(self) -> None:
        if importlib.util.find_spec("psycopg2") is None:
            raise ConfigError(f"the source {self.name} needs psycopg2: {_INSTALL}")
        if self._plan.password_file:
            try:
                self._password = Path(self._plan.password_file).read_text().strip()
            except (OSError, ValueError) as problem:
                raise ConfigError(f"password_file of {self.name}: {problem}") from None

    def _start_child(self) -> None:
        self._timer.disarm()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "edged.sources.postgres_child", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._channel, self._frames, self._head = ours, wire.Frames(), None
        self._watch_child(True)
        ours.send(wire.json_frame(wire.CONFIG, self._config()))
        self.committed(self._position)

    def _config(self) -> dict[str, Any]:
        p = self._plan
        return {
            "server": {
                "host": p.host, "port": p.port, "database": p.database, "user": p.user,
                "password": self._password, "tls": p.tls, "table": p.table,
                "publication": p.publication, "slot": p.slot,
            },
            "schema": p.schema.to_json(), "names": p.columns, "key": list(p.key),
            "snapshot": p.snapshot, "directory": str(self._directory),
            "position": self._position.text() if self._position.system else "",
        }  # fmt: skip

    def _end_child(self) -> None:
        if self._channel is not None:
            self._watch_child(False)
            self._channel.close()
            self._channel = None
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _watch_child(self, wanted: bool) -> None:
        """Wake for bytes of the child, and for its end, which epoll reports of any registered
        socket: only while there is room for rows."""
        if wanted != self._watches_child:
            assert self._channel is not None
            self._watches_child = wanted
            if wanted:
                self._watch.register(self._channel.fileno(), select.EPOLLIN)
            else:
                self._watch.unregister(self._channel.fileno())

    def _receive(self) -> bool:
        """Take bytes from the child; returns whether there may be more."""
        if self._channel is None:
            return False
        try:
            data = self._channel.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._frames.feed(data)
            return True
        self._end_child()
        self._restarts += 1
        self._say(wire.ChildState("its process has ended; it starts again"))
        self._retry_us = boot_us() + int(1e6 * self._backoff.failed()) + 1
        self._timer.arm(self._retry_us)
        return False

    def _stage(self, wall_us: int) -> bool:
        """Stage the frames that have come; returns whether there is room for more."""
        while True:
            if self._head is not None and not self._stage_rows(wall_us):
                return False
            frame = next(self._frames, None)
            if frame is None:
                return True
            kind, payload = frame
            if kind == wire.ROWS:
                position, data = wire.rows_of(payload)
                with pa.ipc.open_stream(data) as opened:
                    batch = opened.read_next_batch()
                self._head = Batch.from_arrow(batch, self._plan.schema), position
                self._backoff.succeeded()
            elif kind == wire.POPULATED:
                self._populated(Position.read(payload.decode()))
            else:
                self._say(wire.ChildState(**json.loads(payload)))

    def _stage_rows(self, wall_us: int) -> bool:
        """Stage rows while there is room; returns whether all are."""
        assert self._head is not None
        rows, position = self._head
        producers = self._staging.producers
        while rows.rows:
            room = self._staging.room()
            if room <= 0 or self._staging.held:
                self._head = rows, position
                return False
            take = min(rows.rows, max(1, room * rows.rows // max(1, rows.nbytes())))
            self._staging.append(rows.slice(0, take), self._producer, wall_us)
            producers.seq[self._producer] += take
            self._rows += take
            self._move(self._position.behind(take))
            rows = rows.slice(take, rows.rows)
        self._head = None
        self._move(position)
        return True

    def _move(self, position: Position) -> None:
        """The position is staged with the rows before it."""
        self._position = position
        self._staging.producers.contents.put(self._producer, position.text())

    def _populated(self, position: Position) -> None:
        producers = self._staging.producers
        if not self._staging.timed and self._producer not in producers.lasts:
            producers.end_first_rows(self._producer, int(producers.seq[self._producer]))
        self._move(position)

    def _say(self, state: wire.ChildState) -> None:
        if state.problem and state != self._state:
            self.on_refused("stopped" if state.final else "waits", state.problem)
        self._state = state


def _table_name(path: str, document: Mapping[str, Any]) -> str:
    name = doc.text(path, document, "table")
    space, _, table = name.rpartition(".")
    if not table or "." in space or '"' in name:
        raise JobError(f"{path}.table", f"{name!r} is no table", 'such as "public.devices"')
    return f"{space or 'public'}.{table}"


def _name(path: str, document: Mapping[str, Any], key: str) -> str:
    name = doc.text(path, document, key)
    if not _NAME.fullmatch(name):
        advice = "lower-case letters, digits and _, at most 63"
        raise JobError(f"{path}.{key}", f"{name!r} is no name of a {key}", advice)
    return name
