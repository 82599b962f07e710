"""What a source is: bytes from outside become staged columns.  One self-registering file a kind.

The beat's loop owns all timing.  A source offers one file descriptor that is readable when there
is something to ingest; the loop polls it while idle and leaves it alone while the reader is muted.

    start ─► (fileno readable) ─► ingest, once a beat ─► seal ─► [beat is committed] ─► committed
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from governors.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from edged.data.staging import Staging
    from edged.data.workers import Workers


class Source(ABC):
    """A running source that feeds one or more streams' staging.

    Whoever builds it says what it is called: its `kind`, its `address` (where it listens or reads),
    and which streams of which jobs it feeds.
    """

    kind = ""
    address = ""
    feeds: tuple[tuple[str, str], ...] = ()
    """(job, stream)."""

    takes_http = False
    """Whether the REST API may send rows of HTTP requests to `address`, as a producer."""

    on_refused: Callable[[str, str], None] = staticmethod(lambda *_: None)
    """Told of a sender that was refused: a word for the reason, and what it was told."""

    @property
    def name(self) -> str:
        """What events and figures call it; no two running sources have the same."""
        return f"{self.kind}:{self.address}"

    def place(self, directory: Path) -> None:
        """Where the daemon keeps its files, before `start`."""
        return

    @abstractmethod
    def start(self) -> None:
        """Bind, open, connect.  Raises ConfigError with what to do where that fails."""

    @abstractmethod
    def fileno(self) -> int:
        """Readable when there is something to ingest (an epoll, timerfd or eventfd).

        Input that `ingest` left behind because staging was full does not make it readable: the
        loop comes back for it when rows were taken.
        """

    def control_fileno(self) -> int:
        """Readable when `serve_control` has something to do, muted or not; -1: never."""
        return -1

    def serve_control(self, monotonic_us: int) -> None:
        """Do what neither stages rows nor waits for a beat: greet whoever has come."""
        return

    @abstractmethod
    def ingest(self, monotonic_us: int, wall_us: int) -> None:
        """Move what has arrived into staging, up to its high watermark.  Never blocks."""

    @abstractmethod
    def more(self) -> bool:
        """Whether `ingest` left arrived input behind because staging was full."""

    def unread(self) -> bool:
        """Whether `ingest` ended with input left that staging has room for: call it again soon."""
        return False

    def pressure(self) -> float:
        """How full the fullest of the senders' buffers was at the last ingest, 0 to 1."""
        return 1.0 if self.more() else 0.0

    @abstractmethod
    def seal(self) -> Any:
        """A ticket for everything staged so far; handed back to `committed` when durable."""

    @abstractmethod
    def committed(self, ticket: Any) -> None:
        """What the ticket covers is durable: send the acks.  Called on the commit thread."""

    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing more can ever come (a file read to its end)."""

    @abstractmethod
    def close(self) -> None:
        """Release everything; connections are told why."""

    def counters(self) -> Mapping[str, int | float]:
        """Figures for people: connections, bytes, refusals."""
        return {}


class SourcePlan(ABC):
    """A checked `source` table of a stream."""

    kind: ClassVar[str]
    keys: ClassVar[frozenset[str]]
    listens: ClassVar[bool] = False
    """Whether streams of several jobs may share one: a listener, which exists once."""

    @classmethod
    @abstractmethod
    def parse(cls, path: str, document: Mapping[str, Any], stream: Any) -> SourcePlan:
        """Check; raises JobError at `path` or below.  `stream` is the `StreamPlan` it feeds."""

    @abstractmethod
    def share_key(self) -> str:
        """Streams whose plans have equal keys are fed by one running source (one listener)."""

    @abstractmethod
    def build(
        self,
        stagings: Mapping[str, Staging],
        plans: Mapping[str, SourcePlan],
        workers: Workers | None = None,
    ) -> Source:
        """The running source for all streams that share it: stream name → staging and plan.

        `workers` may decode large input side by side.
        """

    @abstractmethod
    def describe(self) -> list[str]:
        """SocketTable for `edged explain`."""


SOURCES: Registry[type[SourcePlan]] = Registry("edged.sources", "edged.sources", "source")
_Plan = TypeVar("_Plan", bound=type[SourcePlan])


def source(kind: str) -> Callable[[_Plan], _Plan]:
    """Class decorator: register a SourcePlan under the `type` that documents use."""

    def register(plan: _Plan) -> _Plan:
        SOURCES.register(kind, plan, plan.__module__)
        plan.kind = kind
        return plan

    return register
