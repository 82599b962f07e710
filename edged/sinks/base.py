"""Sinks: the ends of a job's graph.  One self-registering file per kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.workers import Workers
from edged.documents.reach import Reach
from edged.links.in_flight import InFlight
from edged.links.page import is_link
from edged.links.segments import PageSegments
from edged.links.target import LinkTarget
from edged.pages.container import is_carried
from edged.pages.sealed import PageKey, SealedPage
from edged.platform.disk import Disk
from edged.tables.costs import MergePricing
from governors.registry import Registry


class Flush(IntEnum):
    """Which open pages a beat must seal."""

    NO = 0
    PROMPT = 1
    """Rows under the job's latency promise would be late in the next beat."""
    ALL = 2
    """Nothing may stay open: the daemon stops, the streams have ended, or inputs are not logged."""


class OpenBytes(NamedTuple):
    """Memory of a sink's open pages."""

    least: int
    """Of all partitions with a row each."""
    most: int
    """Of all partitions with a whole page each."""
    page: int
    """Of a whole page."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink needs besides its own plan."""

    device: str
    epoch: int
    directory: str
    """Directory for a sink's own files: the store's `sinks/<id>`."""
    workers: Workers
    files: str = ""
    """Where relative paths start; empty: the working directory."""
    tables: str = ""
    """Directory of the operators' state files: the store's `tables`."""
    disk: Disk | None = None
    """The disk of those files; None: the system's."""
    in_flight: InFlight | None = None
    """What links have in flight; None: it is not counted."""
    segments: PageSegments | None = None
    """Memory for the pages of links of jobs without a log."""
    run_epoch: int = 0
    """As `epoch`, of this run of the daemon."""
    wake: Callable[[], None] = lambda: None
    """Wakes the heart; any thread."""
    pricing: MergePricing = field(default_factory=MergePricing)
    """What probes and merges of tables cost."""


class Sink(ABC):
    """A running sink."""

    gauges: ClassVar[frozenset[str]] = frozenset()
    """Names in `counters` whose value may fall.  All others only grow, and go on where the sink of
    this name before it ended."""

    prompt = True
    """Whether the job's latency promise covers rows until they are sealed."""

    @property
    def full(self) -> bool:
        """Whether the job should take no rows now.  When that ends, the sink calls the context's
        `wake`."""
        return False

    @abstractmethod
    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Take one beat's rows."""

    @abstractmethod
    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """End the beat: return the full pages, or all pages with rows if `flush` demands it.

        The returned pages become durable with the beat.  A sink without pages returns an empty
        list and writes its files idempotently, because a replay repeats the beat.
        """

    def exceeds(self, limit: int) -> bool:
        """Whether open pages take more than `limit` bytes, when memory that their rows do not need
        is given back."""
        return False

    def seal_early(self, beat: BeatContext, limit: int) -> list[SealedPage]:
        """Seal pages before they are full, so that the open ones take at most `limit` bytes.

        Called after `seal`, and again in a replay of the beat: which pages, depends on `limit` and
        on what `save` returns alone.
        """
        return []

    @abstractmethod
    def open_rows(self) -> int:
        """Rows taken but not sealed yet."""

    def due_in_us(self, wall_us: int) -> int | None:
        """How long open rows may still stay open at `wall_us`, if the sink has a limit of its
        own."""
        return None

    @abstractmethod
    def save(self) -> State:
        """State (open pages, sequence numbers) as copies."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Restore a saved state."""

    @abstractmethod
    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """Skip a durable beat whose inputs were not logged; called by recovery.

        What that beat sealed is valid, including the pages with these keys; later pages are
        numbered after them.  Rows unsealed before it are dropped, because it may have sealed them.
        """

    def forwarded(self, name: str, instance: int, seq: int) -> tuple[str, int] | None:
        """An instance of the link `name` has everything up to `seq`: the producer whose messages
        these are, and what all instances have of them.  None: another sink's link.  Called on the
        commit thread, where the job promises `through`."""
        return None

    def succeed(self, old: Sink) -> None:  # noqa: B027 - most sinks have nothing on its way
        """Take over from the sink of the same id in the job that this one's replaces: what no state
        holds, in a job without a log."""

    def links(self, plan: SinkPlan) -> Sequence[LinkTarget]:
        """The links that the sending process serves for it."""
        target = plan.link()
        return [] if target is None else [target]

    def links_shown(self) -> list[str]:
        """The links whose states are this sink's, by the name of their pages."""
        return [name for name in self.numbers() if is_link(name) or is_carried(name)]

    def numbers(self) -> Mapping[str, list[int]]:
        """For each page stream of the sink, the number of each partition's last sealed page (0:
        none)."""
        return {}

    def writes_to(self) -> str:
        """The absolute path of the directory or file that it writes; empty: it writes none."""
        return ""

    def counters(self) -> Mapping[str, int | float]:
        """Figures for the status; see `gauges`."""
        return {}


class SinkPlan(ABC):
    """A checked sink of a job; `input` is its only link."""

    kind: ClassVar[str]
    keys: ClassVar[frozenset[str]]
    version: ClassVar[int] = 1
    without_log: ClassVar[bool] = False
    """Whether it works in a job whose beats leave no records: with each start its pages are
    numbered from 1 on, under another epoch."""
    id: str

    def through_problem(self) -> str:
        """Why it cannot end a hop that keeps no log (durability `through`); empty: it can."""
        return f"{self.kind} sends nothing to a receiver that acknowledges it"

    @classmethod
    @abstractmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> SinkPlan:
        """Check `document`; raises JobError at `path` or below."""

    def in_job(self, job: str) -> SinkPlan:
        """The sink as a part of this job.  Raises JobError where it cannot be one."""
        return self

    def generated(self) -> tuple[str, ...]:
        """The sources of the kernels that its expressions need."""
        return ()

    @abstractmethod
    def build(self, context: SinkContext) -> Sink:
        """The running sink."""

    def open_bytes(self) -> OpenBytes:
        """The memory of its open pages; the default is a sink without pages."""
        return OpenBytes(0, 0, 0)

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for `edged explain`."""

    def file_path(self, root: Path) -> str:
        """The absolute path that it writes to where relative paths start at `root`; empty: none."""
        return ""

    def reach(self, root: Path) -> Reach | None:
        """Files, addresses and programs that it uses, where relative paths start at `root`.  None:
        it does not say, so that no document over the control door may use it."""
        return None

    @abstractmethod
    def signature(self) -> str:
        """With equal signatures the state can be carried over to a replaced job."""

    def schemas(self) -> Sequence[tuple[str, int, str]]:
        """(stream, version, schema JSON) that the centre needs before it receives pages."""
        return ()

    def link(self) -> LinkTarget | None:
        """Where its pages go; None: to the centre, or it has none."""
        return None

    def claims(self) -> Sequence[str]:
        """Targets that no other sink of the daemon may write to, for messages."""
        return [f"pages of {stream}" for stream, _, _ in self.schemas()]


SINKS: Registry[type[SinkPlan]] = Registry("edged.sinks", "edged.sinks", "sink")
_Plan = TypeVar("_Plan", bound=type[SinkPlan])


def sink(kind: str) -> Callable[[_Plan], _Plan]:
    """Class decorator: register a SinkPlan under the `type` that documents use."""

    def register(plan: _Plan) -> _Plan:
        SINKS.register(kind, plan, plan.__module__)
        plan.kind = kind
        return plan

    return register
