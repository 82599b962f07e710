"""The jobs of a daemon over time: their definitions, versions and states, and how these change.

A change is put into the log as a record of its own, between the beats before and after it, and a
replay applies it again; the snapshot holds what it has come to.  So definitions are exactly as
durable as the state that belongs to them, and the two can never disagree.

    {"op": "put", "name", "at_us", "document", "origin"}       a new job, or another document
    {"op": "state", "name", "at_us", "state", "ends"}          running, paused or draining
    {"op": "policy", "name", "at_us", "governor"}              {"policy", "settings"}, or null
    {"op": "delete", "name", "at_us"}

In a snapshot's facts: `{"jobs": {name: document}, "about": {name: {…}}, "retired": {stream: {…}}}`.

A policy that a command chose for a job counts before that of its document, and outlives a restart
and a new document, unless that says something else of its governor than the one before: the last
word holds.  Null: the document's counts again.

Pages of a stream are numbered without a gap for the life of a store.  Where a job ships a stream no
more its numbers are kept in `retired`, and the next job that ships it goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from edged.data.flow import State
from edged.errors import CommandError, JobError
from edged.job.changes import DRAINING, RUNNING, Change, JobMetadata
from edged.job.state_carryover import compare
from edged.pages.sealed import PageKey

if TYPE_CHECKING:
    from edged.beat.runtime import JobRuntime
    from edged.job.plan import JobPlan


@dataclass
class Retired:
    """A stream of pages that a job has ceased to ship: schemas that its pages may have, last
    numbers.  Both are kept where another job ships it: pages of before may wait still."""

    schemas: list[list[Any]] = field(default_factory=list)
    """[version, text] of each."""
    last: list[int] = field(default_factory=list)
    """Number of the last page of each partition; 0: none."""


class Jobs:
    """All jobs, in `list`, which stays the same object; and the retired streams."""

    def __init__(self, jobs: Iterable[JobRuntime] = ()) -> None:
        self.list: list[JobRuntime] = list(jobs)
        self.retired: dict[str, Retired] = {}

    def get(self, name: str) -> JobRuntime | None:
        """The job of this name."""
        return next((job for job in self.list if job.plan.name == name), None)

    def with_job(self, job: JobRuntime) -> list[JobRuntime]:
        """The jobs as they are with this one in place of the one of its name, or behind all."""
        if self.get(job.plan.name) is None:
            return [*self.list, job]
        return [job if old.plan.name == job.plan.name else old for old in self.list]

    def put(self, job: JobRuntime, change: Change) -> None:
        """`job`, with its state carried over, stands for its name from now on."""
        old = self.get(job.plan.name)
        version = 1 if old is None else old.about.version + 1
        state = RUNNING if old is None else old.about.state  # a pause outlives a new document
        created_us = change.at_us if old is None else old.about.created_us
        chosen = None
        if old is not None and old.plan.governor == job.plan.governor:
            chosen = old.about.governor
        job.about = JobMetadata(
            version, state, False, change.origin, change.at_us, created_us, chosen
        )
        shipped, before = set(job.shipped()), set() if old is None else set(old.shipped())
        if old is not None:
            self._retire(old, before - shipped)
        for stream in (shipped - before) & self.retired.keys():
            _number(job, stream, self.retired[stream])
        self.list[:] = self.with_job(job)

    def set_state(self, change: Change) -> None:
        """The job is `change.state` from now on."""
        job = self.get(change.name)
        assert job is not None
        job.about.state, job.about.ends = change.state, change.ends
        job.about.since_us = change.at_us

    def set_policy(self, change: Change) -> None:
        """The job's policy is the one that a command chose, or its document's again."""
        job = self.get(change.name)
        assert job is not None
        job.about.governor = change.governor

    def delete(self, name: str) -> None:
        """The job is gone, and its state with it."""
        job = self.get(name)
        assert job is not None
        self._retire(job, job.shipped())
        self.list.remove(job)

    def apply(self, change: Change, job: JobRuntime | None) -> None:
        """Any of these; `job` is built from the change's document and carries nothing yet."""
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

    def schemas(self) -> list[tuple[str, int, str]]:
        """Streams, versions and schemas of all pages that there are or may be."""
        found = [
            (stream, int(version), str(text))
            for stream, retired in self.retired.items()
            for version, text in retired.schemas
        ]
        shipped = [
            s for job in self.list for sink in job.plan.sinks.values() for s in sink.schemas()
        ]
        return [s for s in found if s not in shipped] + shipped

    def check(self, plan: JobPlan) -> None:
        """Raise JobError where the job would ship pages under a name that others have had."""
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
        """For a snapshot."""
        return {
            "jobs": {job.plan.name: job.plan.document for job in self.list},
            "about": {job.plan.name: asdict(job.about) for job in self.list},
            "retired": {stream: asdict(retired) for stream, retired in self.retired.items()},
        }

    def load(self, facts: dict[str, Any]) -> None:
        """Take over what a snapshot's facts say of the jobs in `list` (nothing, where an older
        edged wrote it), and of retired streams."""
        for job in self.list:
            if about := facts.get("about", {}).get(job.plan.name):
                job.about = JobMetadata(**about)
        self.retired = {s: Retired(**r) for s, r in facts.get("retired", {}).items()}

    def _retire(self, job: JobRuntime, streams: Iterable[str]) -> None:
        for sink in job.sinks.values():
            for stream, last in sink.numbers().items():
                if stream in streams:
                    known = self.retired.setdefault(stream, Retired())
                    # a job of more partitions may have been there before
                    known.last = [max(pair) for pair in zip_longest(known.last, last, fillvalue=0)]
        for plan in job.plan.sinks.values():
            for stream, version, text in plan.schemas():
                if stream in self.retired and stream in streams:
                    known = self.retired[stream]
                    known.schemas += [] if [version, text] in known.schemas else [[version, text]]


def carry_over(old: JobRuntime | None, job: JobRuntime) -> list[str]:
    """Give `job`, which is new, all the state of `old` that it can carry; what that is, for people.

    Raises JobError where a state cannot be carried over; `old` is untouched.
    """
    if old is None:
        return [f"job {job.plan.name} is new"]
    carry = compare(old.plan, job.plan)
    carry.check()
    kept = {path.replace(".", "/", 1) for path in carry.kept}
    state: State = {k: v for k, v in old.save().items() if "/".join(k.split("/", 2)[:2]) in kept}
    job.load(state)
    return [f"job {job.plan.name} {line}" for line in carry.lines()]


def describe(job: JobRuntime) -> dict[str, Any]:
    """A job as the door tells of it (JOB of docs/control.md)."""
    about = job.about
    return {
        "name": job.plan.name,
        "version": about.version,
        "state": state_of(job),
        "document": job.plan.document,
        "origin": about.origin,
        "created_us": about.created_us,
        "since_us": about.since_us,
        "problem": job.problem,
    }


def state_of(job: JobRuntime) -> str:
    """`failed`, `drained`, or what it was told to be."""
    if job.problem and job.about.state == RUNNING:
        return "failed"
    return "drained" if job.drained and job.about.state == DRAINING else job.about.state


@dataclass(frozen=True)
class Meant:
    """The definition that a change is meant for; None: any."""

    version: int | None = None
    """0: the job must not be there."""
    created_us: int | None = None
    """Of the job: one that was deleted and made again has begun anew at version 1."""

    def check(self, name: str, job: JobRuntime | None) -> None:
        """Raise CommandError where the job is another one, or of another version."""
        found, created_us = (0, 0) if job is None else (job.about.version, job.about.created_us)
        have = f"is of version {found}" if found else "does not exist"
        if self.version not in (None, found):
            what = f"job {name} {have}, not {self.version}"
        elif self.created_us not in (None, created_us):
            what = f"job {name} {have}, but the job that was meant has been deleted"
        else:
            return
        do = "read it again, and decide anew"
        raise CommandError("conflict", what, where="if_version", do=do)


def _number(job: JobRuntime, stream: str, known: Retired) -> None:
    """Let the job's sink go on behind the pages that an earlier job has shipped."""
    for name, plan in job.plan.sinks.items():
        if stream in [s for s, _, _ in plan.schemas()]:
            lasts = job.sinks[name].numbers()[stream]
            keys = [PageKey(stream, p, seq) for p, seq in enumerate(known.last[: len(lasts)])]
            job.sinks[name].skip(0, [key for key in keys if key.seq])
