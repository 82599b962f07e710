"""The footprint of a job: what it holds of the daemon, as values that outlive its plug-ins.

A plan cannot be made while a plug-in of its job does not load.  The footprint, which the store
keeps beside the document, then still says what the job ships, writes, listens on and needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from edged.expressions.functions import FUNCTIONS
from edged.job.plan import JobPlan
from edged.job.promises import Promises
from edged.operators.base import OPERATORS
from edged.sinks.base import SINKS
from edged.sources.base import SOURCES
from governors.registry import Origin

_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_OWN = ("edged", "-")
"""Distributions that are no plug-in."""


@dataclass(frozen=True)
class Footprint:
    """JSON values only; the name of a field is its key in the store."""

    schemas: list[list[Any]] = field(default_factory=list)
    """[stream, version, text] of the pages that it ships."""
    claims: list[str] = field(default_factory=list)
    """Targets that no sink of another job may write to."""
    listeners: list[list[str]] = field(default_factory=list)
    """[key of a shared source, stream] of its streams."""
    promises: dict[str, Any] = field(default_factory=dict)
    """The result of `promises_facts`."""
    packages: list[str] = field(default_factory=list)
    """Name and version of each package whose plug-ins it uses."""

    @property
    def logs_inputs(self) -> bool:
        """Whether a replay of the job needs its inputs in the log."""
        return bool(self.promises["durability"] == "exactly_once")

    def streams(self) -> list[str]:
        """The streams of its pages."""
        return list(dict.fromkeys(stream for stream, _, _ in self.schemas))

    def to_json(self) -> dict[str, Any]:
        """The JSON form in the store."""
        return asdict(self)


def footprint_of(plan: JobPlan) -> Footprint:
    """The footprint of a job whose plug-ins are loaded."""
    return Footprint(
        [list(schema) for sink in plan.sinks.values() for schema in sink.schemas()],
        [claim for sink in plan.sinks.values() for claim in sink.claims()],
        [[s.source.share_key(), n] for n, s in plan.streams.items() if s.source.listens],
        promises_facts(plan.promises),
        sorted({str(o) for o in _origins(plan) if o.distribution not in _OWN}),
    )


def promises_facts(promises: Promises) -> dict[str, Any]:
    """A job's promises, as footprint and status document have them."""
    return {
        "latency_us": promises.latency_us,
        "ack_within_us": promises.ack_within_us,
        "memory_bytes": promises.memory_bytes,
        "durability": promises.durability,
        "when_full": promises.when_full,
    }


def _origins(plan: JobPlan) -> Iterator[Origin]:
    """Where the kinds and functions of the plan come from; functions by the text of its parts."""
    yield from (SOURCES.origin(s.source.kind) for s in plan.streams.values())
    yield from (OPERATORS.origin(o.kind) for o in plan.operators.values())
    yield from (SINKS.origin(s.kind) for s in plan.sinks.values())
    parts = [plan.document.get("operators", {}), plan.document.get("sinks", {})]
    called = {name.lower() for text in _texts(parts) for name in _CALL.findall(text)}
    yield from (FUNCTIONS.origin(name) for name in FUNCTIONS if name.lower() in called)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)
