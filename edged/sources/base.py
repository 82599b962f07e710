"""The interface of a source, which turns external bytes into staged columns, and its registry.

The event loop owns all timing.  A source offers one descriptor that is readable when there is
input; the loop polls it while idle, and ignores it while input is muted.

    start ─► (fileno readable) ─► ingest, once a beat ─► seal ─► [beat is committed] ─► committed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from edged.documents.reach import Reach
from governors.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from edged.data.staging import Staging
    from edged.data.workers import Workers


class Source(ABC):
    """A running source that feeds the staging of one or more streams.

    Its builder sets `kind`, `address` (where it listens or reads) and `feeds`.
    """

    kind = ""
    address = ""
    feeds: tuple[tuple[str, str], ...] = ()
    """Fed streams as (job, stream)."""

    gauges: ClassVar[frozenset[str]] = frozenset({"connections"})
    """Names in `counters` whose value may fall.  All others only grow, and go on where the source
    of this name before it ended."""

    takes_http = False
    """Whether the REST API may send the rows of HTTP requests to `address`, as a producer."""

    on_refused: Callable[[str, str], None] = staticmethod(lambda *_: None)
    """Called when a sender is refused: a word for the reason, and the text sent to it."""

    on_defect: Callable[[str, Exception], None] = staticmethod(lambda *_: None)
    """Called when a defect of edged ends a connection: the peer's name, and the exception."""

    away: Callable[[str], str] = staticmethod(lambda _: "")
    """Why the stream of this name, which it does not feed, is not read for now; empty: it does not
    exist."""

    @property
    def name(self) -> str:
        """The name in events and metrics, unique among running sources."""
        return f"{self.kind}:{self.address}"

    def place(self, directory: Path, files: Path) -> None:
        """Set the directory for the source's own files, and where relative paths of its plan start.
        Called before `start`."""
        return

    def check(self, leaving: Sequence[Source]) -> None:  # noqa: B027 - not every kind can tell
        """Raise ConfigError as `start` would now, if the sources in `leaving` were closed.  It is
        called in place of `start`, and `close` after it."""

    @abstractmethod
    def start(self) -> None:
        """Bind, open, connect.  Raises ConfigError that says what to do."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable when there is something to ingest (an epoll, timerfd or eventfd).

        Input that `ingest` left because staging was full does not make it readable: the loop calls
        again once rows were taken.
        """

    def control_fileno(self) -> int:
        """Readable when `serve_control` has something to do, even while input is muted; -1:
        never."""
        return -1

    def serve_control(self, monotonic_us: int) -> None:
        """Do work that neither stages rows nor waits for a beat, such as accepting connections."""
        return

    def reject(self, streams: frozenset[str], monotonic_us: int) -> None:
        """Refuse the senders of these streams until the next call, because the store is full and
        their jobs want that.  A source without senders waits instead."""
        return

    @abstractmethod
    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Move input into staging, up to its high watermark.  Never blocks."""

    @abstractmethod
    def more(self) -> bool:
        """Whether `ingest` left input behind because staging was full."""

    def due_us(self) -> int | None:
        """When it is ready by itself, on the monotonic clock; None: not before something comes from
        outside."""
        return None

    def unread(self) -> bool:
        """Whether `ingest` left input behind although staging has room: call it again soon."""
        return False

    def pressure(self) -> float:
        """Fill level of the fullest of the senders' buffers at the last ingest, 0 to 1."""
        return 1.0 if self.more() else 0.0

    @abstractmethod
    def seal(self) -> Any:
        """A ticket for everything staged so far, passed to `committed` once it is durable."""

    @abstractmethod
    def committed(self, ticket: Any) -> None:
        """Send the ACKs for what the ticket covers.  Called on the commit thread."""

    def forwarded(self, stream: str, producer: str, seq: int) -> None:  # noqa: B027 - of `through`
        """Everything made of a producer's batches up to `seq` is acknowledged, of a stream whose
        job promises `through`.  Called on the commit thread."""

    @abstractmethod
    def finished(self) -> bool:
        """Whether no more input can come (a file read to its end)."""

    def problem(self) -> str:
        """Why nothing more is read although the input has not ended; empty: it is read."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; connected senders receive the reason."""

    def rows_total(self, stream: str) -> int | None:
        """Rows that it has for a stream until the end; None where it cannot know."""
        return None

    def read_share(self, stream: str) -> float | None:
        """The part of a stream's input that is read; None where it cannot know."""
        return None

    def counters(self) -> Mapping[str, int | float]:
        """Counters for display: connections, bytes, refusals; see `gauges`."""
        return {}


class SourcePlan(ABC):
    """A checked `source` table of a stream."""

    kind: ClassVar[str]
    numbers_batches: ClassVar[bool] = False
    """Whether its senders keep their batches until these are acknowledged, and number them."""
    keys: ClassVar[frozenset[str]]
    polls: ClassVar[bool] = False
    """Whether its input waits for it, so that nothing is lost while the machine is suspended: it
    fetches by its own timer (`Source.due_us`), and no peer has a connection to it."""
    listens: ClassVar[bool] = False
    """Whether streams of several jobs may share a running source: a listener exists once."""

    @classmethod
    @abstractmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> SourcePlan:
        """Check the table.  Raises JobError at `path` or below.  `stream` is the `StreamPlan` it
        feeds."""

    @abstractmethod
    def share_key(self) -> str:
        """Streams whose plans have equal keys are fed by one running source."""

    @abstractmethod
    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> Source:
        """The running source for all streams that share it: stream name → staging and plan.

        `workers` may decode large input in parallel.
        """

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for `edged explain`."""

    def file_path(self, root: Path) -> str:
        """The absolute path that it reads where relative paths start at `root`; empty: none."""
        return ""

    def reach(self, root: Path) -> Reach | None:
        """Files, addresses and programs that it uses, where relative paths start at `root`.  None:
        it does not say, so that no document over the control door may use it."""
        return None

    def endless(self) -> str:
        """Why the source can never end, and what to do; empty: it can."""
        return ""

    def warnings(self) -> list[str]:
        """What is legal but suspicious, for `edged validate`."""
        return []


SOURCES: Registry[type[SourcePlan]] = Registry("edged.sources", "edged.sources", "source")
_Plan = TypeVar("_Plan", bound=type[SourcePlan])


def source(kind: str) -> Callable[[_Plan], _Plan]:
    """Class decorator: register a SourcePlan under the `type` that job documents use."""

    def register(plan: _Plan) -> _Plan:
        SOURCES.register(kind, plan, plan.__module__)
        plan.kind = kind
        return plan

    return register
