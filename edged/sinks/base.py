"""What a sink is: the end of a job's graph.  One self-registering file a kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.workers import Workers
from edged.pages.sealed import PageKey, SealedPage
from governors.registry import Registry


class Flush(IntEnum):
    """How much of what is open a beat must seal."""

    NO = 0
    PROMPT = 1
    """Rows that the job's latency promise covers would be late in the next beat."""
    ALL = 2
    """Nothing may stay open: the daemon stops, the streams have ended, or inputs are not logged."""


@dataclass(frozen=True, slots=True)
class SinkContext:
    """What a sink is built with beyond its own plan."""

    device: str
    epoch: int
    directory: str
    """Where a sink that writes files of its own may write: the store's `sinks/<id>`."""
    workers: Workers


class Sink(ABC):
    """A running sink."""

    prompt = True
    """Whether the job's latency promise covers rows until they are sealed."""

    @abstractmethod
    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Take one beat's rows."""

    @abstractmethod
    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """End the beat: the pages that are full, or all that hold rows where `flush` asks for it.

        What is returned becomes durable with the beat.  A sink with no pages returns none, and
        must write its files so that doing it again in a replay of the same beat changes nothing.
        """

    @abstractmethod
    def open_rows(self) -> int:
        """Rows taken but not sealed yet."""

    def due_in_us(self, wall_us: int) -> int | None:
        """How long open rows may stay open from `wall_us` on, where the sink itself limits it."""
        return None

    @abstractmethod
    def save(self) -> State:
        """State (open pages, sequence numbers) as copies."""

    @abstractmethod
    def load(self, state: State) -> None:
        """Take over a saved state."""

    @abstractmethod
    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """A recovery passes over a durable beat whose inputs were not logged.

        What it sealed stands, the pages of these names too: the next ones are numbered after them.
        Rows that were not sealed before it are forgotten, since it may have sealed them.
        """

    def numbers(self) -> Mapping[str, list[int]]:
        """For each stream of pages that it ships, the number of each partition's last sealed page
        (0: none yet)."""
        return {}

    def counters(self) -> Mapping[str, int | float]:
        """Figures for people."""
        return {}


class SinkPlan(ABC):
    """A checked sink of a job; `input` is its only link."""

    kind: ClassVar[str]
    keys: ClassVar[frozenset[str]]
    version: ClassVar[int] = 1
    id: str

    @classmethod
    @abstractmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> SinkPlan:
        """Check `document`; raises JobError at `path` or below."""

    @abstractmethod
    def build(self, context: SinkContext) -> Sink:
        """The running sink."""

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for `edged explain`."""

    @abstractmethod
    def signature(self) -> str:
        """Equal signatures mean: the state can be carried over to a replaced job."""

    def schemas(self) -> Sequence[tuple[str, int, str]]:
        """(stream, version, schema JSON) that the centre must know before it gets pages."""
        return ()

    def claims(self) -> Sequence[str]:
        """What no other sink of the daemon may write to, as people call it."""
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
