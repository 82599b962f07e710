"""The state of a deployed graph, from all of its daemons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.graph.check import PlacedGraph
from edged.graph.daemons import DaemonView, client
from edged.graph.document import DaemonTerms
from edged.graph.rollout import DEPLOYED, STOPPED, digest, without_tag
from edged.rest import ApiError

CURRENT, CHANGED, MISSING, UNKNOWN = "current", "changed", "missing", "unknown"
"""Of a job: as the document says; with another document; not there; its daemon does not answer."""


def status(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> dict[str, Any]:
    """`{"graph", "version", "state", "healthy", "daemons": [...], "jobs": [...]}`.

    `state` is deployed or stopped if all daemons agree on one version, deploying while they do not,
    absent if none knows the graph.  `healthy`: every job runs as the document says.
    """
    plan = graph.plan
    records = {name: view.record for name, view in views.items() if view.record is not None}
    versions = {(r["version"], r["digest"]) for r in records.values()}
    states = {r["state"] for r in records.values()}
    agreed = len(versions) == 1 and len(states) == 1 and len(records) == len(views)
    state = states.pop() if agreed else ("deploying" if records else "absent")
    live = {n: _live(plan.daemons[n]) for n, view in views.items() if view.jobs}
    rows = [
        _job(job.name, job.daemon, job.document, views[job.daemon], live.get(job.daemon, {}))
        for job in graph.jobs
    ]
    wanted = {job.name for job in graph.jobs}
    extra = [f"{v.name}: {n}" for v in views.values() for n in v.jobs if n not in wanted]
    healthy = (
        agreed and state == DEPLOYED and not extra
        and all(r["document"] == CURRENT and r["state"] == "running" and not r["problem"]
                for r in rows)
    )  # fmt: skip
    return {
        "graph": plan.name,
        "version": max((r["version"] for r in records.values()), default=None),
        "as_written": versions == {(max(v for v, _ in versions), digest(graph.jobs))}
        if versions
        else False,
        "state": state,
        "healthy": healthy,
        "daemons": [_daemon(view) for view in views.values()],
        "jobs": rows,
        "left_over": extra,
    }


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether nothing is left to do: the graph runs as written, or is stopped."""
    return bool(found["healthy"]) or found["state"] == STOPPED


def _daemon(view: DaemonView) -> dict[str, Any]:
    record = view.record or {}
    return {
        "name": view.name,
        "problem": view.problem,
        "version": record.get("version"),
        "state": record.get("state"),
    }


def _job(
    name: str, daemon: str, document: Any, view: DaemonView, live: Mapping[str, Any]
) -> dict[str, Any]:
    running, figures = view.jobs.get(name), live.get(name, {})
    row = {"name": name, "daemon": daemon, "state": "", "problem": view.problem, "version": None}
    row["document"] = UNKNOWN if view.problem else MISSING
    if running is not None:
        same = without_tag(running["document"]) == document
        row |= {
            "state": running["state"], "problem": running["problem"],
            "version": running["document"]["graph"]["version"],
            "document": CURRENT if same else CHANGED,
        }  # fmt: skip
    return {**row, "streams": figures.get("streams", {}), "sinks": figures.get("sinks", {})}


def _live(daemon: DaemonTerms) -> dict[str, Any]:
    """The jobs of the daemon's status document; empty where it does not come."""
    try:
        with client(daemon) as api:
            for message in api.live():
                if message.kind == "snapshot":
                    found: dict[str, Any] = message.data["jobs"]
                    return found
    except ApiError:
        pass
    return {}
