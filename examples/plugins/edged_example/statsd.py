"""`statsd`: sends the number of rows of each beat as a StatsD counter.

    [sinks.rows]
    type = "statsd"
    input = "celsius"
    metric = "edged.rows"
    to = "127.0.0.1:8125"

StatsD is UDP: a counter is lost where no server listens, and a replay after a crash counts the
replayed beats again.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from edged.plugin import (
    BeatContext,
    Flow,
    Flush,
    JobError,
    Link,
    PageKey,
    Reach,
    SealedPage,
    Sink,
    SinkContext,
    SinkPlan,
    State,
    read,
    sink,
)


@sink("statsd")
@dataclass(frozen=True)
class StatsdPlan(SinkPlan):
    """A checked `statsd` sink."""

    id: str
    metric: str
    host: str
    port: int

    keys: ClassVar[frozenset[str]] = frozenset({"metric", "to"})

    @classmethod
    def parse(cls, path: str, id: str, document: Mapping[str, Any], input: Link) -> StatsdPlan:
        """Check the table."""
        host, _, port = read.text(path, document, "to", "127.0.0.1:8125").rpartition(":")
        if not host or not port.isdigit():
            raise JobError(f"{path}.to", "is no address", "HOST:PORT, as 127.0.0.1:8125")
        return cls(id, read.text(path, document, "metric"), host, int(port))

    def build(self, context: SinkContext) -> Statsd:
        """The running sink."""
        return Statsd(self)

    def reach(self, root: Path) -> Reach:
        """The server; without this method no job over the API may use it."""
        return Reach(connects={"to": f"{self.host}:{self.port}"})

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [f"counter {self.metric} to {self.host}:{self.port}"]

    def signature(self) -> str:
        """There is no state to carry over."""
        return "statsd"


class Statsd(Sink):
    """One datagram a beat with rows."""

    def __init__(self, plan: StatsdPlan) -> None:
        self._plan = plan
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._sent = self._lost = 0

    def write(self, beat: BeatContext, flow: Flow) -> None:
        """Send the beat's count."""
        if not flow.batch.rows:
            return
        message = f"{self._plan.metric}:{flow.batch.rows}|c".encode()
        try:
            self._socket.sendto(message, (self._plan.host, self._plan.port))
            self._sent += 1
        except OSError:
            self._lost += 1

    def seal(self, beat: BeatContext, flush: Flush) -> list[SealedPage]:
        """Nothing stays open, and there are no pages."""
        return []

    def open_rows(self) -> int:
        """None."""
        return 0

    def save(self) -> State:
        """No state."""
        return {}

    def load(self, state: State) -> None:
        """No state."""

    def skip(self, beat: int, keys: Sequence[PageKey]) -> None:
        """A beat that recovery passes over sends nothing."""

    def counters(self) -> Mapping[str, int | float]:
        """Figures for status and metrics."""
        return {"sent": self._sent, "lost": self._lost}
