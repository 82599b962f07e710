"""The daemons of a graph, over their REST APIs: what they run, and how loaded they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from edged.documents.units import size_bytes
from edged.errors import ConfigError
from edged.graph.document import DaemonTerms, GraphPlan
from edged.graph.placement import DaemonLoad
from edged.job.graph_tag import KEY
from edged.job.promises import Promises
from edged.rest import ApiError, Client, all_of

SAMPLE_S = 0.5
"""Time between two readings of a daemon's CPU time."""
AT_ONCE = 16
"""Daemons that are asked at the same time."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class DaemonView:
    """What a daemon says of a graph; `problem` if it does not answer."""

    name: str
    problem: str = ""
    record: dict[str, Any] | None = None
    """The graph's record there (`GET /v1/graphs/{name}`)."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The graph's jobs there."""
    others: dict[str, dict[str, Any]] = field(default_factory=dict)
    """All other jobs."""
    busy: float = 0.0
    """Share of its kernel threads' cores that it used while it was watched."""


@contextmanager
def client(daemon: DaemonTerms, patience_s: float = 0.0) -> Iterator[Client]:
    """A client of a daemon's API.  Raises ConfigError."""
    token = None
    if daemon.token_file is not None:
        try:
            token = Path(daemon.token_file).read_text().strip()
        except OSError as problem:
            text = f"daemons.{daemon.name}.token_file: {problem}"
            raise ConfigError(text) from problem
    with Client(
        daemon.api, token, ca=daemon.ca, cert=daemon.cert, patience_s=patience_s,
        plain_token=daemon.plain_token,
    ) as found:  # fmt: skip
        yield found


def observe(plan: GraphPlan, watch: bool = False) -> dict[str, DaemonView]:
    """All daemons of the graph, asked at once.  `watch` also measures how busy they are."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        views = pool.map(lambda d: view(d, plan.name, watch), plan.daemons.values())
        return {found.name: found for found in views}


def view(daemon: DaemonTerms, graph: str, watch: bool = False) -> DaemonView:
    """One daemon."""
    try:
        with client(daemon) as api:
            record, jobs = record_of(api, graph), list(all_of(api.jobs))
            busy = _busy(api) if watch else 0.0
    except ApiError as problem:
        return DaemonView(daemon.name, str(problem))
    own = {job["name"]: job for job in jobs if graph_of(job) == graph}
    others = {job["name"]: job for job in jobs if job["name"] not in own}
    return DaemonView(daemon.name, "", record, own, others, busy)


def record_of(api: Client, graph: str) -> dict[str, Any] | None:
    """The graph's record at a daemon; None without one.  Raises ApiError."""
    try:
        return {**api.graph(graph)}
    except ApiError as problem:
        if problem.status != 404:
            raise
        return None


def graph_of(job: Mapping[str, Any]) -> str:
    """The graph that a job belongs to; empty: none."""
    tag = job["document"].get(KEY)
    return str(tag.get("name", "")) if isinstance(tag, dict) else ""


def loads(plan: GraphPlan, views: Mapping[str, DaemonView]) -> dict[str, DaemonLoad]:
    """The daemons' loads, for `edged.graph.placement`."""
    found = {}
    for name, seen in views.items():
        instances = frozenset(
            (stage, index)
            for job in seen.jobs
            for stage, _, index in [job.removeprefix(f"{plan.name}-").rpartition("-")]
            if index.isdecimal()
        )
        promised = sum(_memory(job["document"]) for job in seen.others.values())
        where = frozenset((stage, int(index)) for stage, index in instances)
        found[name] = DaemonLoad(not seen.problem, seen.busy, promised, where)
    return found


def _memory(document: Mapping[str, Any]) -> int:
    given = document.get("promises", {}).get("memory", Promises.memory_bytes)
    return size_bytes("promises.memory", given)


def _busy(api: Client) -> float:
    before, start_s = api.device(), time.monotonic()
    time.sleep(SAMPLE_S)
    after = api.device()
    used = (after["process"]["cpu_s"] or 0.0) - (before["process"]["cpu_s"] or 0.0)
    return used / (time.monotonic() - start_s) / max(1, after["workers"])
