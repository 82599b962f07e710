"""Rollout: brings the jobs of a graph to its daemons, and takes them away again.

    observe ─► choose the version ─► claim it everywhere ─► put, downstream first ─► remove what is
    left over, upstream first ─► note that it is deployed

1. The claims are made in the order of the daemons' names, each a compare-and-set of what was
   observed.  A deployment that loses one stops before it has changed a job.
2. A daemon takes a job of the graph at the claimed version only.  Where a later deployment has
   claimed a daemon, this one's jobs are refused there, and it stops.
3. A job whose document is unchanged is left alone.  So a second deployment changes nothing, and one
   that was killed goes on where it stood: with the version that it had claimed, since the digest of
   its jobs is in the claim.
4. A daemon that the version before used must be in the document, so that nothing is forgotten.
5. Instances of a stage with state stay where they are: a version that would move them is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edged.errors import EdgedError
from edged.graph.check import PlacedGraph
from edged.graph.daemons import DaemonView, client, record_of
from edged.graph.document import DaemonTerms, GraphPlan
from edged.graph.jobs import JobInstance
from edged.graph.state import moved, stateful
from edged.job.graph_tag import KEY
from edged.rest import ApiError, Client

PATIENCE_S = 60.0
"""How long a daemon that is busy or away is asked again."""
State = Literal["deploying", "rescaling", "deployed", "stopped"]
DEPLOYING: State = "deploying"
RESCALING: State = "rescaling"
DEPLOYED: State = "deployed"
STOPPED: State = "stopped"
STATE_PART_BYTES = 40 << 10
"""With base64 and JSON around it less than a request may have."""
_DIGEST_BITS = 56
_JSON = "application/json"
Progress = Callable[[str], None]


class RolloutError(EdgedError):
    """A deployment cannot go on: a daemon refuses, does not answer, or another one was faster."""

    exit_code = 75


@dataclass
class RolloutOutcome:
    """What a deployment did."""

    version: int
    digest: int
    steps: list[dict[str, str]] = field(default_factory=list)
    """`{"daemon", "job", "did"}` in order; `did` is created, replaced, unchanged, resumed,
    removed."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"version": self.version, "digest": self.digest, "steps": self.steps}


def digest(jobs: Iterable[JobInstance]) -> int:
    """A digest of the jobs and their daemons, as graph records have it."""
    text = json.dumps([[job.daemon, job.document] for job in jobs], sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: _DIGEST_BITS // 8], "big")


def deploy(
    graph: PlacedGraph, views: Mapping[str, DaemonView], progress: Progress = lambda _: None
) -> RolloutOutcome:
    """Deploy the graph on what was observed.  Raises RolloutError, ApiError."""
    plan = graph.plan
    state_stays(graph, views)
    outcome = claimed(graph, views, DEPLOYING, progress)
    for job in sorted(graph.jobs, key=lambda job: (-job.level, job.name)):
        did = put(plan, job, views[job.daemon], outcome.version)
        outcome.steps.append({"daemon": job.daemon, "job": job.name, "did": did})
        progress(f"{job.daemon}: {job.name} {did}")
    drop_left_over(graph, views, outcome, progress)
    settle(plan, outcome, DEPLOYED)
    return outcome


def claimed(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    state: State,
    progress: Progress,
    fresh: bool = False,
) -> RolloutOutcome:
    """An outcome whose version is claimed at every daemon; with `fresh` by this process alone.

    Raises RolloutError, ApiError.
    """
    plan = graph.plan
    _all_answer(views)
    _none_is_left_out(plan, views)
    _names_are_free(graph, views)
    made = digest(graph.jobs)
    outcome = RolloutOutcome(next_version(views, None if fresh else made), made)
    for name in sorted(plan.daemons):
        _claim(plan, plan.daemons[name], views[name].record, outcome, state, fresh)
    progress(f"{plan.name}: version {outcome.version} is claimed at {len(plan.daemons)} daemons")
    return outcome


def drop_left_over(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    outcome: RolloutOutcome,
    progress: Progress,
) -> None:
    """Remove the jobs that are not in this version; one that sends to another one has sent all it
    has before that one ends."""
    for view, name, feeds in _upstream_first(_left_over(graph, views)):
        _delete(graph.plan.daemons[view.name], view.jobs[name], feeds)
        outcome.steps.append({"daemon": view.name, "job": name, "did": "removed"})
        progress(f"{view.name}: {name} removed")


def settle(plan: GraphPlan, outcome: RolloutOutcome, state: State) -> None:
    """Note how far the version is at every daemon.  Raises RolloutError, ApiError."""
    for name in sorted(plan.daemons):
        with client(plan.daemons[name], PATIENCE_S) as api:
            record = record_of(api, plan.name)
        _claim(plan, plan.daemons[name], record, outcome, state)


def _all_answer(views: Mapping[str, DaemonView]) -> None:
    silent = [view for view in views.values() if view.problem]
    if silent:
        problem = {"detail": f"{silent[0].name}: {silent[0].problem}"}
        raise ApiError(problem)  # exit code 69


def _none_is_left_out(plan: GraphPlan, views: Mapping[str, DaemonView]) -> None:
    known = {name for view in views.values() for name in (view.record or {}).get("daemons", ())}
    if gone := sorted(known - plan.daemons.keys()):
        what = f"{', '.join(gone)} may run jobs of {plan.name} and is not in the document"
        raise RolloutError(f"daemons: {what} (keep it there, without a part on it, once more)")


def _names_are_free(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> None:
    taken = [job for job in graph.jobs if job.name in views[job.daemon].others]
    if taken:
        what = f"{taken[0].daemon}: a job that is not of {graph.plan.name} is called"
        raise RolloutError(f"{what} {taken[0].name} (rename the graph or that job)")


def state_stays(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> None:
    """Raise RolloutError where a deployment would leave state behind."""
    _no_rescaling(views)
    for stage in moved(graph, views):
        parts = ", ".join(stateful(graph.cut, stage))
        what = f"{stage}: its instances change, and {parts} would leave state behind"
        raise RolloutError(f"{what} (use `edged graph scale`, which carries it over)")


def _no_rescaling(views: Mapping[str, DaemonView]) -> None:
    if any(view.record and view.record["state"] == RESCALING for view in views.values()):
        raise RolloutError("a rescaling was interrupted: finish it with `edged graph scale`")


def next_version(views: Mapping[str, DaemonView], made: int | None) -> int:
    """The version to claim: the newest if every record of it has this digest, else the next."""
    records = [view.record for view in views.values() if view.record is not None]
    newest = max((int(record["version"]) for record in records), default=0)
    digests = {record["digest"] for record in records if record["version"] == newest}
    return newest if digests == {made} else newest + 1


def _claim(
    plan: GraphPlan,
    daemon: DaemonTerms,
    record: Mapping[str, Any] | None,
    outcome: RolloutOutcome,
    state: State,
    fresh: bool = False,
) -> None:
    """Claim the version at a daemon, or say how far it is.  Raises RolloutError, ApiError."""
    have = None if record is None else (record["version"], record["digest"])
    wanted = (outcome.version, outcome.digest)
    if record is not None and have == wanted and record["state"] == state:
        return
    match = None if record is None else record["etag"]
    with client(daemon, PATIENCE_S) as api:
        try:
            api.claim_graph(
                plan.name, sorted(plan.daemons), outcome.digest, state, outcome.version,
                if_match=match, if_none_match="*" if match is None else None,
            )  # fmt: skip
        except ApiError as problem:
            if problem.status != 412 and problem.kind != "conflict":
                raise
            now = record_of(api, plan.name)
            if now is not None and (now["version"], now["digest"]) == wanted and not fresh:
                return  # another deployment of the same jobs
            raise RolloutError(
                f"{daemon.name}: another deployment of {plan.name} was faster: {problem}"
            ) from problem


def put(
    plan: GraphPlan, job: JobInstance, view: DaemonView, version: int, state: bytes | None = None
) -> str:
    """Put a job, if it differs from the one that runs or has a new state; it runs then.  Raises
    RolloutError, ApiError."""
    running = view.jobs.get(job.name)
    with client(plan.daemons[job.daemon], PATIENCE_S) as api:
        if state is not None:
            send_state(api, job.name, state)
        elif running is not None and without_tag(running["document"]) == job.document:
            if running["state"] == "running":
                return "unchanged"
            api.resume_job(job.name)
            return "resumed"
        body = json.dumps({**job.document, KEY: {"name": plan.name, "version": version}})
        try:
            now = api.put_job(job.name, body.encode(), _JSON, state=state is not None)
        except ApiError as problem:
            if problem.status == 409:
                raise RolloutError(f"{job.daemon}: {problem}") from problem
            raise
        if now["state"] != "running":
            api.resume_job(job.name)
    return "created" if running is None else "replaced"


def send_state(api: Client, job: str, state: bytes) -> None:
    """Send the state that a job is to be put with, in parts."""
    for offset in range(0, len(state), STATE_PART_BYTES):
        part = state[offset : offset + STATE_PART_BYTES]
        api.send_job_state(job, base64.b64encode(part).decode(), offset)


def without_tag(document: Mapping[str, Any]) -> dict[str, Any]:
    """A job's document without the mark of its graph."""
    return {key: value for key, value in document.items() if key != KEY}


def _left_over(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> list[tuple[DaemonView, str]]:
    """Jobs of the graph that are not in this version."""
    wanted = {(job.daemon, job.name) for job in graph.jobs}
    return [
        (view, name)
        for view in views.values()
        for name in view.jobs
        if (view.name, name) not in wanted
    ]


def _upstream_first(
    jobs: Iterable[tuple[DaemonView, str]],
) -> Iterator[tuple[DaemonView, str, bool]]:
    """Each job before those that it sends to, and whether it sends to any of them."""
    left = {(view.name, name): view for view, name in jobs}
    ends = {key: _ends(view.jobs[key[1]]["document"]) for key, view in left.items()}
    feeds = {
        key: {other for other, (listens, _) in ends.items() if other != key and sends & listens}
        for key, (_, sends) in ends.items()
    }
    while left:
        fed = set().union(*(feeds[key] for key in left))
        for key in [key for key in left if key not in fed] or [*left]:
            yield left.pop(key), key[1], bool(feeds[key])


def _ends(document: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """The addresses at which a job listens, and those that it sends to."""
    sources = [stream.get("source", {}) for stream in document.get("streams", {}).values()]
    sinks = [sink for sink in document.get("sinks", {}).values() if sink["type"] == "edge"]
    listens = {source["listen"] for source in sources if "listen" in source}
    return listens, {address for sink in sinks for address in sink["to"]}


def _delete(daemon: DaemonTerms, job: Mapping[str, Any], wait: bool) -> None:
    """Remove a job with what it has taken: its windows close, its pages are sent."""
    with client(daemon, PATIENCE_S) as api:
        try:
            prefer = "wait=60" if wait else None
            api.delete_job(job["name"], drain=True, if_match=job["etag"], prefer=prefer)
        except ApiError as problem:
            if problem.status != 404:
                raise


def stop(
    graph: PlacedGraph, views: Mapping[str, DaemonView], progress: Progress = lambda _: None
) -> RolloutOutcome:
    """Drain all jobs, upstream first: what was taken reaches the sinks.  Raises RolloutError."""
    _no_rescaling(views)
    outcome = _recorded(graph, views)
    for job in _running(graph.plan, graph.jobs, views):
        with client(graph.plan.daemons[job.daemon], PATIENCE_S) as api:
            api.drain_job(job.name, prefer="wait=60")
        outcome.steps.append({"daemon": job.daemon, "job": job.name, "did": "drained"})
        progress(f"{job.daemon}: {job.name} drained")
    settle(graph.plan, outcome, STOPPED)
    return outcome


def remove(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    now: bool = False,
    progress: Progress = lambda _: None,
) -> RolloutOutcome:
    """Delete all jobs of the graph, upstream first, and forget it.  Raises RolloutError.

    Unless `now`, each ends as if its producers had ended: windows close, pages are sent.
    """
    if not now:
        _no_rescaling(views)
    outcome = _recorded(graph, views)
    expected = [job for job in graph.jobs if job.name in views[job.daemon].jobs]
    for daemon, name in [
        *((job.daemon, job.name) for job in expected),
        *((view.name, name) for view, name in _left_over(graph, views)),
    ]:
        with client(graph.plan.daemons[daemon], PATIENCE_S) as api:
            _gone(api, name, now)
        outcome.steps.append({"daemon": daemon, "job": name, "did": "removed"})
        progress(f"{daemon}: {name} removed")
    for name in sorted(graph.plan.daemons):
        with client(graph.plan.daemons[name], PATIENCE_S) as api:
            if record_of(api, graph.plan.name) is not None:
                api.forget_graph(graph.plan.name)
    return outcome


def _gone(api: Client, name: str, now: bool) -> None:
    try:
        api.delete_job(name, drain=not now, prefer=None if now else "wait=60")
    except ApiError as problem:
        if problem.status != 404:
            raise


def _recorded(graph: PlacedGraph, views: Mapping[str, DaemonView]) -> RolloutOutcome:
    """The newest version that the daemons know."""
    _all_answer(views)
    records = [view.record for view in views.values() if view.record is not None]
    if not records:
        raise RolloutError(f"{graph.plan.name} is not deployed")
    newest = max(records, key=lambda record: int(record["version"]))
    return RolloutOutcome(int(newest["version"]), int(newest["digest"]))


def _running(
    plan: GraphPlan, jobs: Iterable[JobInstance], views: Mapping[str, DaemonView]
) -> list[JobInstance]:
    states = {(v.name, name): job["state"] for v in views.values() for name, job in v.jobs.items()}
    return [job for job in jobs if states.get((job.daemon, job.name)) == "running"]
