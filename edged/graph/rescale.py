"""Rescaling: another number of instances of a stage, or other daemons, with its state.

    claim ─► drain what sends to the stage ─► race what it has ─► export ─► deal out by key
    ─► journal ─► put its new instances with their parts ─► put all others with the new addresses
    ─► end what is left over

1. The cut: when the senders are drained, every message of theirs is acknowledged and raced, so the
   states of the old instances together are the state of the stage at one point of its input.
2. The parts are dealt out by the hash by which the stage's links deal rows out from then on.
   Where several stages move, or feed each other, they are drained upstream first.
3. The journal beside the document holds all parts before the first job is changed.  A rescaling
   that was killed goes on from it, with the same document.  It is removed before any other job goes
   on: until then each part can be put again, from then on none needs to.  A rescaling that fails
   before the journal is written lets what it has drained go on.
4. An old instance that is not needed any more is put with an empty state before it ends, so that
   its end says nothing but that.
5. Rescalings exclude each other: by a lock here, and by a version that each claims for itself.
6. `pause_s` of the outcome is the time in which the senders took no rows.
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.flow import State
from edged.errors import EdgedError
from edged.graph import rollout, state
from edged.graph.check import PlacedGraph
from edged.graph.daemons import DaemonView, client, observe
from edged.graph.jobs import JobInstance, job_name
from edged.graph.rollout import PATIENCE_S, RESCALING, Progress, RolloutError, RolloutOutcome
from edged.job.graph_tag import KEY
from edged.job.plan import parse_job
from edged.job.state_transfer import STATE_BYTES_MAX, pack, redistributed, unpack
from edged.links.partition import HASH
from edged.operators.base import OperatorPlan
from edged.platform.disk import SystemDisk, replace_file
from edged.rest import ApiError, Client
from kernels.cpu import link_partition

DRAIN_S = 60.0
"""Longest wait for a stage to race what it has taken."""
_POLL_S = 0.02
_ABOUT = "about"


@dataclass
class RescaleOutcome(RolloutOutcome):
    """What a rescaling did, and for how long the senders took no rows."""

    stages: list[str] = field(default_factory=list)
    pause_s: float = 0.0
    state_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        more = {"stages": self.stages, "pause_s": round(self.pause_s, 3)}
        return {**super().to_json(), **more, "state_bytes": self.state_bytes}


def rescale(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    journal: Path,
    progress: Progress = lambda _: None,
) -> RescaleOutcome:
    """Bring the daemons to the graph, with the state of stages whose instances change.

    `journal` is a file that outlives this process.  Raises RolloutError, JobError, ApiError.
    """
    with _alone(journal):
        moving = [*state.moved(graph, views)]
        _can_move(graph, moving)
        parts = _read(journal, graph, views)
        if parts is None:
            _not_begun_elsewhere(graph, views, moving, journal)
        fresh = parts is None and bool(moving)
        claim = rollout.claimed(graph, views, RESCALING, progress, fresh)
        outcome = RescaleOutcome(claim.version, claim.digest)
        began_s = time.monotonic()
        if parts is None:
            parts = _exported_parts(graph, views, moving, progress)
            _write(journal, outcome, parts)
        outcome.stages = sorted({job.stage for job in graph.jobs if job.name in parts})
        outcome.state_bytes = sum(len(part) for part in parts.values())
        _empty_what_goes(graph, views, parts, outcome)
        _put(graph, views, parts, outcome, progress, [j for j in graph.jobs if j.name in parts])
        journal.unlink(missing_ok=True)
        _put(graph, views, {}, outcome, progress, [j for j in graph.jobs if j.name not in parts])
        outcome.pause_s = time.monotonic() - began_s
        rollout.drop_left_over(graph, observe(graph.plan), outcome, progress)
        rollout.settle(graph.plan, outcome, rollout.DEPLOYED)
    return outcome


@contextmanager
def _alone(journal: Path) -> Iterator[None]:
    """Hold the lock of the journal's folder.  Raises RolloutError where it is held."""
    held = os.open(journal.parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RolloutError(f"another rescaling goes on in {journal.parent.absolute()}") from None
    finally:
        os.close(held)


def _can_move(graph: PlacedGraph, stages: list[str]) -> None:
    """Raise RolloutError where a stage's state cannot be dealt out."""
    for stage in stages:
        for id in state.stateful(graph.cut, stage):
            operator = graph.plan.whole.operators[id]
            if operator.table_states():
                raise RolloutError(f"{stage}: {id} keeps tables in files, which do not move")
            if type(operator).redistribute is OperatorPlan.redistribute:
                raise RolloutError(f"{stage}: the state of {id}, a {operator.kind}, does not move")
        if graph.cut.stages[stage].instances == 1:
            continue
        for exchange in graph.cut.into(stage):
            if exchange.terms is None or exchange.terms.partition != HASH:
                what = f"{stage}: {exchange.rows} does not come over a hash link"
                raise RolloutError(f"{what}, so that its state cannot be dealt out")
        if not graph.cut.into(stage):
            raise RolloutError(f"{stage} reads its own sources: its state cannot be dealt out")


def _not_begun_elsewhere(
    graph: PlacedGraph, views: Mapping[str, DaemonView], moving: list[str], journal: Path
) -> None:
    """Raise RolloutError where a rescaling has put some instances and its journal is not here."""
    rescaling = {
        view.record["version"]
        for view in views.values()
        if view.record is not None and view.record["state"] == RESCALING
    }
    for stage in moving:
        wanted = {job.name for job in graph.jobs if job.stage == stage}
        have = {
            job_name(graph.plan.name, stage, index): views[daemon]
            for daemon, index in state.running(graph, views, stage)
        }
        put = {
            name
            for name, view in have.items()
            if view.jobs[name]["document"][KEY]["version"] in rescaling
        }
        if put and not wanted <= put:
            raise RolloutError(
                f"{stage}: a rescaling was interrupted, and {journal} is not here: go on where it"
                " was begun"
            )


def _exported_parts(
    graph: PlacedGraph, views: Mapping[str, DaemonView], moving: list[str], progress: Progress
) -> dict[str, bytes]:
    """The parts of all stages that move.  Where that fails, what was drained goes on."""
    senders = {e.source for name in moving for e in graph.cut.into(name)}
    drained = sorted({*senders, *moving}, key=lambda name: graph.cut.stages[name].level)
    parts = dict[str, bytes]()
    try:
        for stage in drained:
            _drain(graph, views, stage, {*drained}, progress)
        for stage in moving:
            parts |= _parts(graph, views, stage, progress)
        for name, part in parts.items():
            if len(part) > STATE_BYTES_MAX:
                raise RolloutError(f"{name}: its state has more than {STATE_BYTES_MAX} bytes")
    except EdgedError:
        for stage in reversed(drained):
            _resume(graph, views, stage)
        raise
    return parts


def _drain(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    stage: str,
    drained: set[str],
    progress: Progress,
) -> None:
    """Drain the running jobs of a stage.  If it sends to one that is drained next, what it sent is
    acknowledged then."""
    sends = any(exchange.target in drained for exchange in graph.cut.out_of(stage))
    for daemon, index in sorted(state.running(graph, views, stage)):
        name = job_name(graph.plan.name, stage, index)
        if views[daemon].jobs[name]["state"] == "paused" and not sends:
            continue
        with client(graph.plan.daemons[daemon], PATIENCE_S) as api:
            api.drain_job(name, prefer="wait=60" if sends else None)
        if sends:
            progress(f"{daemon}: {name} drained")


def _resume(graph: PlacedGraph, views: Mapping[str, DaemonView], stage: str) -> None:
    """Let the jobs of a stage go on that were not paused, as far as their daemons answer."""
    for daemon, index in state.running(graph, views, stage):
        name = job_name(graph.plan.name, stage, index)
        if views[daemon].jobs[name]["state"] != "paused":
            with suppress(ApiError), client(graph.plan.daemons[daemon], PATIENCE_S) as api:
                api.resume_job(name)


def _parts(
    graph: PlacedGraph, views: Mapping[str, DaemonView], stage: str, progress: Progress
) -> dict[str, bytes]:
    """The packed state of each new instance, by its job, and an empty one of each that goes."""
    old = sorted(state.running(graph, views, stage), key=lambda one: one[1])
    found = []
    for daemon, index in old:
        name = job_name(graph.plan.name, stage, index)
        with client(graph.plan.daemons[daemon], PATIENCE_S) as api:
            data = _exported(api, name)
        try:
            found.append(unpack(data))
        except ValueError as problem:
            raise RolloutError(f"{daemon}: {name}: {problem}") from problem
        progress(f"{daemon}: {name} exported")
    jobs = [job for job in graph.jobs if job.stage == stage]
    by = {e.stream: e.terms.by for e in graph.cut.into(stage) if e.terms is not None}
    states = redistributed(parse_job(jobs[0].document), by, found, len(jobs), _instances(len(jobs)))
    parts = {job.name: pack(part) for job, part in zip(jobs, states, strict=True)}
    gone = {job_name(graph.plan.name, stage, index) for _, index in old} - parts.keys()
    return parts | dict.fromkeys(gone, pack(State()))


def _instances(count: int) -> Any:
    def instance_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        found = np.empty(hashes.size, np.int64)
        link_partition.by_hash(hashes, count, found)
        return found

    return instance_of


def _exported(api: Client, name: str) -> bytes:
    """The exported state of a job, once it has raced all it has.  Raises ApiError."""
    until_s = time.monotonic() + DRAIN_S
    while True:
        try:
            size = api.export_job(name)["bytes"]
            break
        except ApiError as problem:
            if problem.status != 503 or time.monotonic() > until_s:
                raise
        time.sleep(_POLL_S)
    data = bytearray()
    while len(data) < size:
        data += base64.b64decode(api.job_state(name, offset=len(data))["data"])
    return bytes(data)


def _empty_what_goes(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    parts: Mapping[str, bytes],
    outcome: RescaleOutcome,
) -> None:
    """Put an empty state into the old instances that are not needed any more."""
    wanted = {job.name for job in graph.jobs}
    for view in views.values():
        for name in view.jobs.keys() & parts.keys() - wanted:
            document = rollout.without_tag(view.jobs[name]["document"])
            ended = JobInstance(name, "", 0, view.name, 0, document)
            rollout.put(graph.plan, ended, view, outcome.version, parts[name])


def _put(
    graph: PlacedGraph,
    views: Mapping[str, DaemonView],
    parts: Mapping[str, bytes],
    outcome: RescaleOutcome,
    progress: Progress,
    jobs: Sequence[JobInstance],
) -> None:
    """Put jobs, downstream first, with their parts."""
    for job in sorted(jobs, key=lambda job: (-job.level, job.name)):
        did = rollout.put(graph.plan, job, views[job.daemon], outcome.version, parts.get(job.name))
        outcome.steps.append({"daemon": job.daemon, "job": job.name, "did": did})
        progress(f"{job.daemon}: {job.name} {did}")


def _read(
    journal: Path, graph: PlacedGraph, views: Mapping[str, DaemonView]
) -> dict[str, bytes] | None:
    """The parts of an interrupted rescaling to the same version.  Raises RolloutError."""
    if not journal.exists():
        return None
    archive = np.load(io.BytesIO(journal.read_bytes()), allow_pickle=False)
    about = json.loads(archive[_ABOUT].tobytes())
    digest = rollout.digest(graph.jobs)
    if about != {"version": rollout.next_version(views, digest), "digest": digest}:
        raise RolloutError(
            f"{journal} is of an interrupted rescaling to version {about['version']}: finish that"
            " one first, with its document"
        )
    return {name: archive[name].tobytes() for name in archive.files if name != _ABOUT}


def _write(journal: Path, outcome: RescaleOutcome, parts: Mapping[str, bytes]) -> None:
    """Write the journal durably."""
    about = json.dumps({"version": outcome.version, "digest": outcome.digest}).encode()
    named: dict[str, Any] = {
        name: np.frombuffer(data, np.uint8) for name, data in {**parts, _ABOUT: about}.items()
    }
    out = io.BytesIO()
    np.savez(out, **named)
    replace_file(SystemDisk(), str(journal), [out.getvalue()])


def scaled(document: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """The document with other numbers of instances.  Raises RolloutError."""
    changed = json.loads(json.dumps(document))
    for part, count in counts.items():
        section = next(
            (s for s in ("streams", "operators", "sinks") if part in changed.get(s, {})), ""
        )
        if not section:
            raise RolloutError(f"no part is called {part}")
        table = changed[section][part]
        place = table.get("place")
        if isinstance(place, list):
            table["place"] = place[:count]
        elif place is None:
            raise RolloutError(
                f"{section}.{part} runs where its input does: scale that, or place it"
            )
        table["instances"] = count
    return dict(changed)
