"""Deployment of a graph as the desired state of its daemons' devices, through the centre.

The jobs of the graph take the place of its earlier ones in each device's document; whatever else
the document wants stays.  All devices are changed under the lock that assigns versions, so that two
deployments do not mix, and one that was killed is completed by the next.  A device gets its
document with the collector's next answer; links wait for receivers that are not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edged.central.cli_desired import change_documents
from edged.errors import JobError
from edged.graph.check import PlacedGraph
from edged.graph.daemons import DaemonView
from edged.graph.rollout import RolloutError, RolloutOutcome, digest, state_stays, without_tag
from edged.job.graph_tag import KEY


def deploy(graph: PlacedGraph, landing: Path) -> RolloutOutcome:
    """Write the desired states.  Raises JobError, RolloutError."""
    plan = graph.plan
    devices = {name: daemon.device for name, daemon in plan.daemons.items()}
    if len({*devices.values()}) < len(devices):
        raise JobError("daemons", "two are one device", "give each its own `device`")
    outcome = RolloutOutcome(0, digest(graph.jobs))

    def change(documents: Mapping[str, Any]) -> dict[str, Any]:
        _fits(graph, {name: documents[device] or {} for name, device in devices.items()})
        tags = [t["version"] for d in documents.values() for t in _tags(d, plan.name)]
        outcome.version = max(tags, default=0) + 1
        changed = {}
        for name, device in devices.items():
            own = {j.name: j.document for j in graph.jobs if j.daemon == name}
            before = documents[device] or {}
            if _own(before, plan.name) == own:
                continue
            tagged = {KEY: {"name": plan.name, "version": outcome.version}}
            others = [j for j in before.get("jobs", []) if not _is_own(j, plan.name)]
            jobs = [*others, *({**document, **tagged} for document in own.values())]
            changed[device] = {**before, "jobs": jobs}
            did = "created" if not _own(before, plan.name) else "replaced"
            outcome.steps += [{"daemon": name, "job": job, "did": did} for job in own]
        if not changed:
            outcome.version = max(tags, default=1)
        return changed

    change_documents(landing, list(devices.values()), change)
    return outcome


def _fits(graph: PlacedGraph, before: Mapping[str, Any]) -> None:
    """Raise RolloutError where state would be left behind, or another job has a job's name."""
    views = {
        name: DaemonView(name, jobs=_own(document, graph.plan.name))
        for name, document in before.items()
    }
    state_stays(graph, views)
    for name, document in before.items():
        jobs = document.get("jobs", [])
        others = {j.get("name") for j in jobs if not _is_own(j, graph.plan.name)}
        for job in graph.jobs:
            if job.daemon == name and job.name in others:
                raise RolloutError(f"{name}: another job is called {job.name}")


def _is_own(job: Any, graph: str) -> bool:
    tag = job.get(KEY) if isinstance(job, dict) else None
    return isinstance(tag, dict) and tag.get("name") == graph


def _tags(document: Mapping[str, Any] | None, graph: str) -> list[dict[str, Any]]:
    return [job[KEY] for job in (document or {}).get("jobs", []) if _is_own(job, graph)]


def _own(document: Mapping[str, Any], graph: str) -> dict[str, Any]:
    """The graph's jobs of a device's document, without their tags."""
    jobs = [job for job in document.get("jobs", []) if _is_own(job, graph)]
    return {job["name"]: without_tag(job) for job in jobs}
