"""The durabilities of a job, and what a job without a log may consist of.

exactly_once   a crash loses nothing that was acknowledged
results        sealed results are durable
none           as results, without waiting for the disk
volatile       no log at all: acknowledged after the race, and a crash loses what is in memory
through        no log: acknowledged when all receivers have acknowledged what was made of a batch; a
               crash loses nothing that was acknowledged
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edged.errors import JobError
from edged.operators.base import OperatorPlan
from edged.sinks.base import SinkPlan
from edged.sources.base import SourcePlan

EXACTLY_ONCE, RESULTS, NONE = "exactly_once", "results", "none"
VOLATILE, THROUGH = "volatile", "through"
LOGGED = (EXACTLY_ONCE, RESULTS, NONE)
DURABILITIES = (*LOGGED, VOLATILE, THROUGH)
_ADVICE = f"another durability; {VOLATILE} writes no log either"
SYNCED = frozenset({EXACTLY_ONCE, RESULTS})
"""Those whose beats wait for the disk."""


def logs(durability: str) -> bool:
    """Whether beats of the job leave records."""
    return durability in LOGGED


def faults_without_log(
    durability: str,
    sources: Mapping[str, SourcePlan],
    operators: Mapping[str, OperatorPlan],
    sinks: Mapping[str, SinkPlan],
) -> Iterator[JobError]:
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
    if durability != THROUGH:
        return
    for id, source in sources.items():
        if not source.numbers_batches:
            problem = f"{source.kind} keeps its position in the log, which through does not write"
            yield JobError(f"streams.{id}.source.type", problem, "tcp, which links send to")
    for id, operator in operators.items():
        if problem := operator.through_problem():
            yield JobError(f"operators.{id}", f"{problem}: not with durability {THROUGH}", _ADVICE)
    for id, sink in sinks.items():
        if sink.without_log and (problem := sink.through_problem()):
            yield JobError(f"sinks.{id}", f"{problem}: not with durability {THROUGH}", _ADVICE)
