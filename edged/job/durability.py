"""The durabilities of a job, and what a job without a log may consist of.

exactly_once   a crash loses nothing that was acknowledged
results        sealed results are durable
none           as results, without waiting for the disk
volatile       no log at all: acknowledged after the race, and a crash loses what is in memory
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edged.errors import JobError
from edged.sinks.base import SinkPlan

EXACTLY_ONCE, RESULTS, NONE, VOLATILE = "exactly_once", "results", "none", "volatile"
LOGGED = (EXACTLY_ONCE, RESULTS, NONE)
DURABILITIES = (*LOGGED, VOLATILE)
SYNCED = frozenset({EXACTLY_ONCE, RESULTS})
"""Those whose beats wait for the disk."""


def logs(durability: str) -> bool:
    """Whether beats of the job leave records."""
    return durability in LOGGED


def faults_without_log(durability: str, sinks: Mapping[str, SinkPlan]) -> Iterator[JobError]:
    """What in a job without a log needs one."""
    if logs(durability):
        return
    for id, sink in sinks.items():
        if not sink.without_log:
            yield JobError(
                f"sinks.{id}.type",
                f"{sink.kind} needs the log, which durability {durability} does not write",
                f"a sink without one (edge, file), or durability {NONE}",
            )
