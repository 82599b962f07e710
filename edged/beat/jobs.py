"""The job registry: the jobs of a daemon over time, their definitions, versions and states.

A change is logged as a record of its own, between the beats before and after it, and a replay
applies it again.  A snapshot holds the registry as it stands.  So definitions are exactly as
durable as the state that belongs to them, and the two never disagree.

    {"op": "put", "name", "at_us", "document", "origin"}       a new job, or another document
    {"op": "state", "name", "at_us", "state", "ends"}          running, paused or draining
    {"op": "policy", "name", "at_us", "governor"}              {"policy", "settings"}, or null
    {"op": "delete", "name", "at_us"}

Facts of a snapshot: `{"jobs": {name: document}, "about": {name: {…}}, "retired": {stream: {…}},
"footprints": {name: {…}}, "last": {name: {stream: [numbers]}}, "shelved": {name: {…}}}`.  The last
three are for jobs whose plug-ins do not load (`edged.beat.shelf`).

A policy that a command chose for a job takes precedence over that of its document.  It survives a
restart and a new document, unless the new document's governor differs from the old one's: the most
recent choice applies.  A null policy returns to the document's.

Pages of a stream are numbered without a gap for the life of a store.  When a job ceases to ship a
stream, the stream's last numbers are kept in `retired`; the next job that ships it continues there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from edged.beat.runtime import JobRuntime
from edged.beat.schedules import SECTION
from edged.beat.shelf import SHELVED, ShelvedJob
from edged.beat.stream_runtime import StreamRuntime
from edged.data.flow import State
from edged.errors import CommandError, JobError
from edged.job.changes import DRAINING, RUNNING, Change, JobMetadata
from edged.job.footprint import Footprint
from edged.job.plan import JobPlan
from edged.job.promises import DROP_OLDEST
from edged.job.state_carryover import compare
from edged.pages.sealed import PageKey
from edged.store.gaps import DAMAGED, Gap


@dataclass
class Retired:
    """A stream of pages that a job has ceased to ship: its schemas and last page numbers.

    Both are kept when another job ships the stream, because older pages may still wait.
    """

    schemas: list[list[Any]] = field(default_factory=list)
    """[version, text] of each schema."""
    last: list[int] = field(default_factory=list)
    """Number of each partition's last page; 0: none."""


class JobRegistry:
    """All jobs, in `list`, which stays the same object, and the retired streams.

    `shelved`, which stays the same object too, has the jobs that are kept aside.  Names are unique
    over both.
    """

    def __init__(self, jobs: Iterable[JobRuntime] = ()) -> None:
        self.list: list[JobRuntime] = list(jobs)
        self.retired: dict[str, Retired] = {}
        self.shelved: dict[str, ShelvedJob] = {}

    def find(self, name: str) -> JobRuntime | ShelvedJob | None:
        """The job of this name, running or shelved."""
        return self.get(name) or self.shelved.get(name)

    def logs_inputs(self) -> bool:
        """Whether beats log their inputs: a replay of a job, running or shelved, needs them."""
        jobs: list[JobRuntime | ShelvedJob] = [*self.list, *self.shelved.values()]
        return any(job.footprint.logs_inputs for job in jobs)

    def get(self, name: str) -> JobRuntime | None:
        """The job of this name."""
        return next((job for job in self.list if job.plan.name == name), None)

    def take_jumps(self) -> list[Gap]:
        """Batches that producers found missing since the last call (`Producers.jump`)."""
        found = []
        for job in self.list:
            for name, s in job.streams.items():
                jumps, s.staging.producers.jumps = s.staging.producers.jumps, []
                if not job.plan.promises.logs:
                    continue  # it keeps no positions
                for producer, first, last in jumps:
                    detail = "acknowledged in beats that damage took; the producer goes on"
                    found.append(
                        Gap(DAMAGED, name, first, last, None, job.plan.name, producer,
                            detail=detail)
                    )  # fmt: skip
        return found

    def fed_by(self, feeds: Iterable[tuple[str, str]]) -> Iterator[StreamRuntime]:
        """The streams of these (job, stream) pairs."""
        for name, stream in feeds:
            job = self.get(name)
            if job is not None and stream in job.streams:
                yield job.streams[stream]

    def with_job(self, job: JobRuntime) -> list[JobRuntime]:
        """The list with this job in place of the one of its name, or appended."""
        if self.get(job.plan.name) is None:
            return [*self.list, job]
        return [job if old.plan.name == job.plan.name else old for old in self.list]

    def put(self, job: JobRuntime, change: Change) -> None:
        """Make `job`, with its state carried over, the job of its name."""
        old = self.get(job.plan.name)
        same = old is not None and old.plan.governor == job.plan.governor
        job.meta = _next_meta(None if old is None else old.meta, change, same)
        shipped, before = set(job.shipped()), set() if old is None else set(old.shipped())
        if old is not None:
            self._retire(old, before - shipped)
            old.schedules.close()
        for stream in (shipped - before) & self.retired.keys():
            _number(job, stream, self.retired[stream])
        self.list[:] = self.with_job(job)

    def shelve(self, job: ShelvedJob) -> None:
        """Keep a job aside, in place of the one of its name."""
        self.list[:] = [j for j in self.list if j.plan.name != job.name]
        self.shelved[job.name] = job

    def put_shelved(self, change: Change, reason: str) -> None:
        """Make a document that cannot be loaded the one of its job, as `put` would."""
        assert change.document is not None and change.footprint is not None
        footprint, old = Footprint(**change.footprint), self.shelved.get(change.name)
        same = old is not None and old.document.get("governor") == change.document.get("governor")
        meta = _next_meta(None if old is None else old.meta, change, same)
        shipped, last = set(footprint.streams()), dict[str, list[int]]()
        if old is not None:
            self._retire(old, set(old.shipped()) - shipped)
            last = {s: n for s, n in old.last.items() if s in shipped}
        for stream in (shipped - last.keys()) & self.retired.keys():
            last[stream] = list(self.retired[stream].last)
        last |= {stream: [] for stream in shipped - last.keys()}
        self.shelve(ShelvedJob(change.document, meta, footprint, last, reason))

    def set_state(self, change: Change) -> None:
        """Set the job's state to `change.state`."""
        job = self.find(change.name)
        assert job is not None
        job.meta.state, job.meta.ends = change.state, change.ends
        job.meta.since_us = change.at_us

    def set_policy(self, change: Change) -> None:
        """Set or clear the policy that a command chose."""
        job = self.find(change.name)
        assert job is not None
        job.meta.governor = change.governor

    def delete(self, name: str) -> None:
        """Remove the job and its state."""
        job = self.find(name)
        assert job is not None
        self._retire(job, job.shipped())
        if isinstance(job, ShelvedJob):
            del self.shelved[name]
        else:
            self.list.remove(job)
            job.schedules.close()

    def apply(self, change: Change, job: JobRuntime | None) -> None:
        """Apply any change; `job` is built from its document, with no state carried over yet."""
        if change.op == "put":
            assert job is not None
            carry_over(self.get(change.name), job)
            self.put(job, change)
        elif change.op == "state":
            self.set_state(change)
        elif change.op == "policy":
            self.set_policy(change)
        else:
            self.delete(change.name)

    def drops(self) -> dict[str, str]:
        """The streams whose oldest pages a full store gives up, and their jobs."""
        jobs: list[tuple[str, Footprint]] = [(job.plan.name, job.footprint) for job in self.list]
        jobs += [(name, shelved.footprint) for name, shelved in self.shelved.items()]
        return {
            stream: name
            for name, footprint in jobs
            if footprint.promises.get("when_full") == DROP_OLDEST
            for stream in footprint.streams()
        }

    def schemas(self) -> list[tuple[str, int, str]]:
        """Stream, version and schema of all pages that exist or may be made."""
        found = [
            (stream, int(version), str(text))
            for stream, retired in self.retired.items()
            for version, text in retired.schemas
        ]
        jobs: list[JobRuntime | ShelvedJob] = [*self.list, *self.shelved.values()]
        shipped = [(s, v, text) for job in jobs for s, v, text in job.footprint.schemas]
        return [s for s in found if s not in shipped] + shipped

    def check(self, plan: JobPlan) -> None:
        """Raise JobError where the job would ship pages with other columns under a known
        version, or take what a shelved job needs."""
        for shelved in self.shelved.values():
            shelved.check_beside(plan)
        for id, sink in plan.sinks.items():
            for stream, version, text in sink.schemas():
                known = self.retired.get(stream, Retired()).schemas
                if any(int(v) == version and t != text for v, t in known):
                    raise JobError(
                        f"sinks.{id}.version",
                        f"pages of {stream}@{version} had other columns in an earlier job",
                        "raise the version",
                    )

    def facts(self) -> dict[str, Any]:
        """The registry as JSON values, for a snapshot."""
        return {
            "jobs": {job.plan.name: job.plan.document for job in self.list},
            "about": {job.plan.name: asdict(job.meta) for job in self.list},
            "retired": self.retired_facts(),
            "footprints": {job.plan.name: job.footprint.to_json() for job in self.list},
            "last": {job.plan.name: job.last_pages() for job in self.list},
            "shelved": {name: job.to_json() for name, job in self.shelved.items()},
        }

    def retired_facts(self) -> dict[str, Any]:
        """The retired streams as JSON values."""
        return {stream: asdict(retired) for stream, retired in self.retired.items()}

    def load_retired(self, facts: dict[str, Any]) -> None:
        """The inverse of `retired_facts`."""
        self.retired = {s: Retired(**r) for s, r in facts.items()}

    def load(self, facts: dict[str, Any]) -> None:
        """Restore metadata of the jobs in `list`, and the retired streams, from a snapshot's facts.

        Facts of older versions have neither.
        """
        for job in self.list:
            if meta := facts.get("about", {}).get(job.plan.name):
                job.meta = JobMetadata(**meta)
        self.load_retired(facts.get("retired", {}))

    def _retire(self, job: JobRuntime | ShelvedJob, streams: Iterable[str]) -> None:
        for stream, last in job.last_pages().items():
            if stream in streams:
                known = self.retired.setdefault(stream, Retired())
                # an earlier job may have had more partitions
                known.last = [max(pair) for pair in zip_longest(known.last, last, fillvalue=0)]
        for stream, version, text in job.footprint.schemas:
            if stream in self.retired and stream in streams:
                known = self.retired[stream]
                known.schemas += [] if [version, text] in known.schemas else [[version, text]]


def carry_over(old: JobRuntime | None, job: JobRuntime, moved: State | None = None) -> list[str]:
    """Copy the state of `old` that `job`, which is new, can carry; returns notes for users.

    `moved` takes the place of the operators' states.  Raises JobError where a state cannot be
    carried over; `old` is unchanged.
    """
    notes, state = carry_notes(old, job.plan), State()
    if old is not None and not job.plan.promises.forwards:
        kept = {path.replace(".", "/", 1) for path in compare(old.plan, job.plan).kept}
        kept |= {f"{SECTION}/{id}" for id in job.plan.order if _same_inputs(old.plan, job.plan, id)}
        saved = old.save().items()
        for operator in old.operators.values():
            operator.sync()  # the new job's states name these files as durable ones
        if not job.plan.promises.logs:  # producers send again what no beat has taken
            kept -= {f"streams/{name}" for name in job.streams}
        state = {k: v for k, v in saved if "/".join(k.split("/", 2)[:2]) in kept}
    for id, sink in old.sinks.items() if old is not None else ():
        if id in job.sinks:
            job.sinks[id].succeed(sink)
    if moved is None:
        job.load(state)
        return notes
    state = {k: v for k, v in state.items() if not k.startswith("operators/")} | moved
    try:
        job.load(state)
    except (LookupError, TypeError, ValueError, ArithmeticError) as problem:
        what = f"does not fit the operators of {job.plan.name}: {problem!r}"
        raise JobError("state", what, "export it from a job with the same operators") from problem
    return notes


def _same_inputs(old: JobPlan, new: JobPlan, id: str) -> bool:
    """Whether rows that wait for an operator of `old` can wait for the one of its id in `new`."""
    if id not in old.operators:
        return False
    before, after = ([p.links[link].schema for link in p.inputs[id]] for p in (old, new))
    return before == after


def carry_notes(old: JobRuntime | None, plan: JobPlan) -> list[str]:
    """What a job of this plan keeps of `old`, starts and forgets, as notes for users.  Raises
    JobError where a state cannot be carried over."""
    if old is None:
        return [f"job {plan.name} is new"]
    carry = compare(old.plan, plan)
    carry.check()
    return [f"job {plan.name} {line}" for line in carry.lines()]


def describe(job: JobRuntime | ShelvedJob) -> dict[str, Any]:
    """A job as the control door describes it (JOB of docs/control.md)."""
    meta = job.meta
    state, document = (
        (SHELVED, job.document)
        if isinstance(job, ShelvedJob)
        else (state_of(job), job.plan.document)
    )
    return {
        "name": document["name"],
        "version": meta.version,
        "state": state,
        "document": document,
        "origin": meta.origin,
        "created_us": meta.created_us,
        "since_us": meta.since_us,
        "problem": job.problem,
    }


def state_of(job: JobRuntime) -> str:
    """`failed`, `drained`, or the state that was set."""
    if job.problem and job.meta.state == RUNNING:
        return "failed"
    return "drained" if job.drained and job.meta.state == DRAINING else job.meta.state


@dataclass(frozen=True)
class Precondition:
    """The definition that a change applies to; None: any."""

    version: int | None = None
    """0: the job must not exist."""
    created_us: int | None = None
    """Creation time of the job.  A job that was deleted and created again starts at version 1."""

    def check(self, name: str, job: JobRuntime | ShelvedJob | None) -> None:
        """Raise CommandError where the job is another one, or has another version."""
        found, created_us = (0, 0) if job is None else (job.meta.version, job.meta.created_us)
        have = f"is of version {found}" if found else "does not exist"
        if self.version not in (None, found):
            what = f"job {name} {have}, not {self.version}"
        elif self.created_us not in (None, created_us):
            what = f"job {name} {have}, but the job that the request names was deleted"
        else:
            return
        do = "read the job again and repeat the request if it still applies"
        raise CommandError("conflict", what, where="if_version", do=do)


def _next_meta(old: JobMetadata | None, change: Change, keeps_policy: bool) -> JobMetadata:
    """The metadata of a job with a new document; a pause outlives it."""
    if old is None:
        return JobMetadata(1, RUNNING, False, change.origin, change.at_us, change.at_us)
    chosen = old.governor if keeps_policy else None
    return JobMetadata(
        old.version + 1, old.state, False, change.origin, change.at_us, old.created_us, chosen
    )


def _number(job: JobRuntime, stream: str, known: Retired) -> None:
    """Continue the page numbers of an earlier job in this job's sink."""
    for name, plan in job.plan.sinks.items():
        if stream in [s for s, _, _ in plan.schemas()]:
            lasts = job.sinks[name].numbers()[stream]
            keys = [PageKey(stream, p, seq) for p, seq in enumerate(known.last[: len(lasts)])]
            job.sinks[name].skip(0, [key for key in keys if key.seq])
