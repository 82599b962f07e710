"""What a graph promises: the latencies of its jobs and the lingers of its links, added up.

A job promises `latency` from the arrival of a row to its result in a sealed page.  A link adds its
`linger`, and the wire, of which nothing is promised: what is measured stands in `edged graph
status`.  Windows wait for event time, so their size is no part of the promise, as in a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.documents.units import duration_us, show_duration
from edged.errors import JobError
from edged.graph.stages import Cut, Exchange, Placement

LATENCY_DEFAULT = "1s"


@dataclass(frozen=True)
class LatencyPath:
    """A way from a stream to a sink's stage: its stages, and its latency in all."""

    stages: tuple[str, ...]
    latency_us: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"stages": list(self.stages), "latency_us": self.latency_us}


def paths(made: Cut, placement: Mapping[str, Placement]) -> list[LatencyPath]:
    """The slowest way to each stage that ends, the slowest first."""
    slowest = dict[str, LatencyPath]()
    for name, stage in made.stages.items():
        own = max(_promise(made, daemon) for daemon in placement[stage.name])
        before = [
            LatencyPath(
                (*slowest[e.source].stages, name),
                slowest[e.source].latency_us + linger_us(e) + own,
            )
            for e in made.into(name)
        ]
        first = LatencyPath((name,), own)
        slowest[name] = max((first, *before), key=lambda path: path.latency_us)
    ends = [n for n, s in made.stages.items() if any(p in made.plan.whole.sinks for p in s.parts)]
    return sorted((slowest[n] for n in ends), key=lambda path: -path.latency_us)


def linger_us(exchange: Exchange) -> int:
    """How long a link may hold rows back, in addition to their beat."""
    linger = 0 if exchange.terms is None else exchange.terms.settings.get("linger", 0)
    try:
        return duration_us(f"links.{exchange.id}.linger", linger)
    except JobError:
        return 0  # the sink's own fault


def faults(made: Cut, placement: Mapping[str, Placement]) -> list[JobError]:
    """Whether the promises add up to more than `end_to_end`."""
    bound = made.plan.end_to_end_us
    longest = paths(made, placement)[0]
    if not bound or longest.latency_us <= bound:
        return []
    way = " → ".join(longest.stages)
    problem = f"is {show_duration(bound)}, but {way} adds up to {show_duration(longest.latency_us)}"
    return [JobError("promises.end_to_end", problem, "lower promises.latency, or a link's linger")]


def _promise(made: Cut, daemon: str) -> int:
    own = {**made.plan.document.get("promises", {}), **made.plan.daemons[daemon].promises}
    try:
        return duration_us("promises.latency", own.get("latency", LATENCY_DEFAULT))
    except JobError:
        return 0  # a fault of each job
