"""A graph document, checked whole: every independent fault, with the path to it.

    read ─► cut into stages ─► state and keys ─► placement ─► jobs, each checked ─► promises

A fault of a job that was made from the graph is shown at the part, the link or the daemon that it
comes from, once, whatever the number of instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from edged.documents.reader import ID
from edged.errors import JobError, JobFaults
from edged.graph import document as graph
from edged.graph import keys, latency
from edged.graph.circles import circle_faults
from edged.graph.jobs import JobInstance, jobs
from edged.graph.placement import DaemonLoad, place
from edged.graph.stages import Cut, Placement, cut
from edged.job import plan as job
from edged.job.plan_warnings import warnings


@dataclass(frozen=True)
class PlacedGraph:
    """A checked graph with a daemon for every instance, and its jobs, upstream first."""

    cut: Cut
    placement: dict[str, Placement]
    jobs: list[JobInstance]
    warnings: list[str] = field(default_factory=list)

    @property
    def plan(self) -> graph.GraphPlan:
        """The graph."""
        return self.cut.plan

    def paths(self) -> list[latency.LatencyPath]:
        """Its latency promises, added up."""
        return latency.paths(self.cut, self.placement)


def check(
    document: Mapping[str, Any], loads: Mapping[str, DaemonLoad] | None = None
) -> tuple[PlacedGraph | None, list[JobError]]:
    """The placed graph, or all faults.  Without `loads`, all daemons count as idle."""
    plan, wrong = graph.read(document)
    if plan is None:
        return None, wrong
    made = cut(plan)
    wrong = _names(made) + keys.faults(made)
    memory = plan.whole.promises.memory_bytes
    placement, unplaced = place(made, memory, loads or {})
    wrong += unplaced
    if any(len(placement[s.name]) < s.instances for s in made.stages.values()):
        return None, wrong
    found, badly_addressed = jobs(made, placement)
    wrong += badly_addressed
    wrong += _job_faults(made, found)
    wrong += latency.faults(made, placement)
    if not wrong:
        wrong = circle_faults(found, plan.daemons, partial(_origin, made))
    if wrong:
        return None, _once(wrong)
    notes = warnings(plan.whole)
    return PlacedGraph(made, placement, found, notes), []


def load(document: Mapping[str, Any], loads: Mapping[str, DaemonLoad] | None = None) -> PlacedGraph:
    """The placed graph.  Raises JobError."""
    placed, wrong = check(document, loads)
    if placed is None:
        raise wrong[0] if len(wrong) == 1 else JobFaults(wrong)
    return placed


def _names(made: Cut) -> list[JobError]:
    """Names of jobs, streams and sinks that the cut makes must be new and not too long."""
    wrong = []
    for stage in made.stages.values():
        job_name = f"{made.plan.name}-{stage.name}-{stage.instances - 1}"
        if not ID.fullmatch(job_name):
            path = made.plan.parts[stage.name].path
            wrong.append(JobError(path, f"{job_name} is no name of a job", "shorten a name"))
    for exchange in made.exchanges:
        if exchange.terms is None and exchange.id in made.plan.parts:
            problem = f"a part is called {exchange.id}, as the link would be"
            wrong.append(JobError(exchange.path, problem, "declare the link, with another name"))
    return wrong


def _job_faults(made: Cut, found: list[JobInstance]) -> list[JobError]:
    wrong = []
    for one in found:
        for fault in job.faults(one.document):
            path = _origin(made, one, fault.path)
            wrong.append(JobError(path, fault.problem, fault.advice))
    return wrong


def _origin(made: Cut, one: JobInstance, path: str) -> str:
    """The path in the graph's document of a path in a job's."""
    section, _, rest = path.partition(".")
    id, dot, key = rest.partition(".")
    for exchange in made.exchanges:
        if section == "sinks" and exchange.source == one.stage and exchange.id == id:
            return f"{exchange.path}{dot}{key}" if exchange.terms else exchange.path
        if section == "streams" and exchange.target == one.stage and exchange.stream == id:
            return f"{exchange.path}{dot}{key.removeprefix('source.')}"
    if section == "promises" and rest in made.plan.daemons[one.daemon].promises:
        return f"daemons.{one.daemon}.promises.{rest}"
    return path


def _once(wrong: list[JobError]) -> list[JobError]:
    found = dict[tuple[str, str], JobError]()
    for fault in wrong:
        found.setdefault((fault.path, fault.problem), fault)
    return list(found.values())
