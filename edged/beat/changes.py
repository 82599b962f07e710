"""Changes of the jobs between two beats: requested on any thread, made on the heart's.

    post ─► [no beat, no commit under way] ─► check ─► sources ─► jobs ─► record ─► durable ─►
    answer

1. A failed check changes nothing.  Checked are the version, the other jobs, the state that is
   carried over, and the sources (`_decide`).  A CheckRequest ends there.
2. A pause is preceded by a beat that seals the job's open pages, so that no row waits in them
   longer than promised.
3. The record goes through the commit thread like a beat's.  If the change decides whether inputs
   are logged at all (the first or last `exactly_once` job), a snapshot takes its place: rows staged
   without being logged could not be replayed.  So it does where operators' states came from
   another daemon, which no record holds.
4. Draining jobs are watched until they are drained (`settle`).
5. A shelved job can only be deleted.  A snapshot takes the record's place, so that no record names
   a job whose shelf file is gone.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypedDict

from edged.beat.inputs import Fed, Inputs
from edged.beat.jobs import JobRegistry, Precondition, carry_notes, carry_over, describe
from edged.beat.runtime import JobRuntime
from edged.beat.shelf import REMEDY, SHELVED, ShelvedJob
from edged.beat.stream_runtime import StreamRuntime
from edged.data.flow import State
from edged.errors import CommandError, EdgedError, StoreFailed
from edged.events.publisher import EventPublisher
from edged.job.changes import PAUSED, RUNNING, Change
from edged.job.plan import JobPlan, input_documents
from edged.platform.clock import Clock
from edged.store import StoreFull

REQUESTS_MAX = 16
"""Changes that may wait for a beat to end."""
RETRY_US = 5_000_000
"""Interval after which the delete of a drained job is retried, where the disk had no room."""


class JobAnswer(TypedDict):
    """The result of a change: the job as `describe` returns it, whether it is new, and notes on
    the state that was carried over."""

    job: dict[str, Any]
    created: bool
    notes: list[str]


@dataclass(frozen=True)
class ChangeRequest:
    """A requested change; for a put with the new job, built and empty.

    `answer` is resolved when the change is durable, or fails with an EdgedError; on any thread.
    """

    change: Change
    job: JobRuntime | None = None
    precondition: Precondition = field(default_factory=Precondition)
    answer: Future[JobAnswer] = field(default_factory=Future)
    moved: State | None = None
    """States of the new job's operators that come from other daemons."""


class CheckAnswer(TypedDict):
    """What a put would do: whether the job is new, and notes on its state."""

    created: bool
    notes: list[str]


@dataclass
class JobCandidate:
    """A job that is only checked: its plan, and streams without room.  No operator is built, so
    that no expression is compiled."""

    plan: JobPlan
    streams: dict[str, StreamRuntime]
    problem: str = ""

    @classmethod
    def of(cls, plan: JobPlan) -> JobCandidate:
        """The candidate of a plan."""
        return cls(plan, {name: StreamRuntime.of(s, 1) for name, s in plan.streams.items()})


@dataclass(frozen=True)
class CheckRequest:
    """A put that is decided and not made; `answer` as of a ChangeRequest."""

    change: Change
    job: JobCandidate
    precondition: Precondition = field(default_factory=Precondition)
    answer: Future[CheckAnswer] = field(default_factory=Future)


class Beats(Protocol):
    """What a change needs of the beat loop."""

    def await_commit(self) -> None:
        """Return when no commit is in flight."""

    def seal_job(self, job: JobRuntime) -> None:
        """Run a beat that leaves no page of the job open."""

    def on_jobs_changed(self) -> None:
        """Adopt the registry's jobs and their states."""

    def log_change(self, change: Change, on_durable: Callable[[], None]) -> None:
        """Write the change into the log; `on_durable` is called on the commit thread."""

    def snapshot(self) -> None:
        """Take a snapshot now.  Raises StoreFull."""


class JobHost(Protocol):
    """What a change needs of the daemon around the heart."""

    def check(self, plans: Sequence[JobPlan]) -> None:
        """Raise EdgedError where these jobs cannot run together here."""

    def on_jobs_changed(self) -> None:
        """The set of jobs or a job has changed; called before the next beat."""

    def pages_pending(self, streams: Sequence[str]) -> int:
        """Number of pages of these streams that the centre has not acknowledged."""

    def watch_acks(self, wanted: bool) -> None:
        """End the heart's waits whenever the centre acknowledges pages, or no longer."""


class JobChanges:
    """Queue of requested changes, and the draining jobs."""

    def __init__(
        self,
        registry: JobRegistry,
        inputs: Inputs,
        clock: Clock,
        publisher: EventPublisher,
        host: JobHost,
    ) -> None:
        self.registry, self.inputs, self.host = registry, inputs, host
        self._clock, self._publisher = clock, publisher
        self.retry_us = 0
        """When a refused delete is tried again (monotonic)."""
        self._requests: deque[ChangeRequest | CheckRequest] = deque()
        self._watches_acks = False

    def __bool__(self) -> bool:
        return bool(self._requests)

    def post(self, request: ChangeRequest | CheckRequest) -> None:
        """Queue a change or a check; any thread.  Raises CommandError where the queue is full."""
        if len(self._requests) >= REQUESTS_MAX:
            raise CommandError("busy", f"{REQUESTS_MAX} changes wait already", retry_s=1.0)
        self._requests.append(request)

    def serve(self, beats: Beats) -> None:
        """Make the queued changes."""
        while self._requests:
            request = self._requests.popleft()
            try:
                if isinstance(request, CheckRequest):
                    request.answer.set_result(self._check_put(request))
                else:
                    self._make(beats, request)
            except (StoreFailed, StoreFull):  # a beat within was given up: the heart must end
                raise
            except EdgedError as problem:
                request.answer.set_exception(problem)

    def settle(self, beats: Beats) -> bool:
        """Advance the draining jobs.  True where none of them has work left, the centre has all
        their pages and no change is queued."""
        waits = False
        for job in list(self.registry.list):
            if not job.draining or (job.drained and not job.meta.ends):
                continue
            if not job.dormant or (job.meta.ends and self._clock.monotonic_us() < self.retry_us):
                waits = True
                continue
            beats.await_commit()
            if job.meta.ends:
                self._delete(job)
            elif self.host.pages_pending(job.shipped()) == 0:
                job.drained = True
                if job.meta.state != RUNNING:
                    self._publish("drained", job)
            else:
                waits = True
        if waits != self._watches_acks:
            self._watches_acks = waits
            self.host.watch_acks(waits)
        return not waits and not self._requests

    def _delete(self, job: JobRuntime) -> None:
        """Request the delete of a drained job.  A full disk may refuse it; other processes may
        have filled the disk, so that only a retry finds out about space."""

        def on_answer(answer: Future[JobAnswer]) -> None:
            if answer.exception() is not None:
                self.retry_us = self._clock.monotonic_us() + RETRY_US

        request = ChangeRequest(Change("delete", job.plan.name, self._clock.wall_us()))
        request.answer.add_done_callback(on_answer)
        self._requests.append(request)

    def stop_job(self, job: JobRuntime, problem: str) -> None:
        """Request a pause of a job whose operator cannot go on."""

        def on_answer(answer: Future[JobAnswer]) -> None:
            if answer.exception() is None:
                job.problem = problem

        change = Change("state", job.plan.name, self._clock.wall_us(), state=PAUSED)
        request = ChangeRequest(change)
        request.answer.add_done_callback(on_answer)
        self._requests.append(request)

    def _make(self, beats: Beats, request: ChangeRequest) -> None:
        change = request.change
        if change.op == "delete" and (shelved := self.registry.shelved.get(change.name)):
            self._delete_shelved(beats, request, shelved)
            return
        old, after = self._decide(change, request.precondition, request.job, request.moved)
        if after is None:
            assert old is not None
            request.answer.set_result({"job": describe(old), "created": False, "notes": []})
            return
        beats.await_commit()
        pauses = change.op == "state" and change.state == PAUSED
        if old is not None and (pauses or (change.op == "put" and old.schedules.waiting())):
            beats.seal_job(old)
        notes = self._carry(old, request) if request.job is not None else []
        if change.op != "policy":
            self._fit_inputs(beats, request, old, after)
        before = (list(self.registry.list), copy.deepcopy(self.registry.retired))
        inputs_logged = self.registry.logs_inputs()
        self._swap(change, request.job)
        beats.on_jobs_changed()
        self.host.on_jobs_changed()
        job = self.registry.get(change.name) or old
        assert job is not None
        answer: JobAnswer = {"job": describe(job), "created": old is None, "notes": notes}
        on_durable = partial(self._on_durable, request, old, job, answer)
        if inputs_logged == self.registry.logs_inputs() and request.moved is None:
            if request.job is not None:
                change = replace(change, footprint=request.job.footprint.to_json())
            beats.log_change(change, on_durable)
        else:
            self._snapshot(beats, before)
            on_durable()

    def _decide(
        self,
        change: Change,
        precondition: Precondition,
        job: Fed | None,
        moved: State | None = None,
    ) -> tuple[JobRuntime | None, list[Fed] | None]:
        """The job so far, and the jobs after the change; None where it is in effect already.

        Raises EdgedError where the change is refused; nothing has changed then.
        """
        old = self.registry.get(change.name)
        self._check(change, precondition, old)
        if old is not None and moved is None and _is_in_effect(change, old):
            return old, None
        after = self._after(change, job)
        self.host.check([each.plan for each in after])
        if job is not None:
            self.registry.check(job.plan)
            carry_notes(old, job.plan)
            self.inputs.check(after)
        return old, after

    def _check_put(self, request: CheckRequest) -> CheckAnswer:
        plan = request.job.plan
        old, after = self._decide(request.change, request.precondition, request.job)
        notes = [] if after is None else carry_notes(old, plan)
        return {"created": old is None, "notes": notes}

    def _delete_shelved(self, beats: Beats, request: ChangeRequest, job: ShelvedJob) -> None:
        """Delete a shelved job."""
        request.precondition.check(job.name, job)
        beats.await_commit()
        answer: JobAnswer = {"job": describe(job), "created": False, "notes": []}
        retired = copy.deepcopy(self.registry.retired)
        self.registry.delete(job.name)
        beats.on_jobs_changed()
        try:
            beats.snapshot()
        except StoreFull as problem:
            self.registry.retired = retired
            self.registry.shelve(job)
            beats.on_jobs_changed()
            raise CommandError("busy", str(problem), retry_s=5.0) from problem
        self.host.on_jobs_changed()
        self._publish("deleted", job)
        request.answer.set_result(answer)

    def _check(self, change: Change, precondition: Precondition, old: JobRuntime | None) -> None:
        """Raise CommandError where the job is shelved, is not there, goes, or fails the
        precondition."""
        shelved = self.registry.shelved.get(change.name)
        precondition.check(change.name, shelved or old)
        if shelved is not None:
            what = f"job {shelved.name} is {SHELVED}: {shelved.reason}"
            raise CommandError("conflict", what, where="name", do=REMEDY)
        if old is None and change.op != "put":
            raise CommandError("missing", f"no job {change.name} is running", where="name")
        if old is not None and old.meta.ends and change.op == "put":
            raise CommandError("busy", f"job {change.name} is being deleted", retry_s=1.0)

    def _on_durable(
        self,
        request: ChangeRequest,
        old: JobRuntime | None,
        job: JobRuntime,
        answer: JobAnswer,
    ) -> None:
        if request.change.op != "policy":
            notes = answer["notes"]
            self._publish(_event(request.change, old), job, {"notes": notes} if notes else {})
        request.answer.set_result(answer)

    def _fit_inputs(
        self, beats: Beats, request: ChangeRequest, old: JobRuntime | None, after: list[Fed]
    ) -> None:
        """Run the sources that the changed jobs need.  A change of state tries a source again that
        could not be started."""
        problem = "" if old is None else old.problem
        if old is not None and request.change.op == "state":
            old.problem = ""
        try:
            self.inputs.fit(after)
        except EdgedError:
            if old is not None:
                old.problem = problem
            self._restore_inputs(beats)
            raise

    def _restore_inputs(self, beats: Beats) -> None:
        """Run the sources of the unchanged jobs; a job whose source is lost by that has failed."""
        failed = self.inputs.restore(self.registry.list)
        beats.on_jobs_changed()
        for job in failed:
            self._publish("failed", job, {"problem": job.problem})

    def _publish(
        self, event: str, job: JobRuntime | ShelvedJob, facts: dict[str, Any] | None = None
    ) -> None:
        name = job.name if isinstance(job, ShelvedJob) else job.plan.name
        meta = job.meta
        self._publisher.job_changed(event, name, meta.version, meta.origin, facts or {})

    def _carry(self, old: JobRuntime | None, request: ChangeRequest) -> list[str]:
        """Carry state over to the new job; unchanged streams keep their staging and source."""
        job = request.job
        assert job is not None
        notes = carry_over(old, job, request.moved)
        if old is not None:
            before, after = input_documents(old.plan.document), input_documents(job.plan.document)
            same_memory = old.plan.promises.memory_bytes == job.plan.promises.memory_bytes
            for name in job.streams.keys() & old.streams.keys():
                if before[name] == after[name] and same_memory:
                    job.streams[name] = old.streams[name]
        return notes

    def _after(self, change: Change, job: Fed | None) -> list[Fed]:
        jobs, name = list[Fed](self.registry.list), change.name
        if job is not None:
            new = [] if self.registry.get(name) is not None else [job]
            return [*(job if each.plan.name == name else each for each in jobs), *new]
        gone = name if change.op == "delete" else None
        return [each for each in jobs if each.plan.name != gone]

    def _swap(self, change: Change, job: JobRuntime | None) -> None:
        if job is not None:
            self.registry.put(job, change)
        elif change.op == "delete":
            self.registry.delete(change.name)
        elif change.op == "policy":
            self.registry.set_policy(change)
        else:
            self.registry.set_state(change)

    def _snapshot(self, beats: Beats, before: tuple[list[JobRuntime], Any]) -> None:
        try:
            beats.snapshot()
        except StoreFull as problem:
            self.registry.list[:], self.registry.retired = before
            self._restore_inputs(beats)
            self.host.on_jobs_changed()
            raise CommandError("busy", str(problem), retry_s=5.0) from problem


def _is_in_effect(change: Change, job: JobRuntime) -> bool:
    """Whether the change would leave the job as it is."""
    meta = job.meta
    if change.op == "put":
        return change.document == job.plan.document and change.origin == meta.origin
    if change.op == "policy":
        return change.governor == meta.governor
    same_state = (change.state, change.ends) == (meta.state, meta.ends)
    return change.op == "state" and same_state and not job.problem


def _event(change: Change, old: JobRuntime | None) -> str:
    if change.op == "put":
        return "created" if old is None else "replaced"
    if change.op == "delete":
        return "deleted"
    return {"running": "resumed", "paused": "paused"}.get(change.state, "draining")
