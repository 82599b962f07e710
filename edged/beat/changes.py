"""Changes of the jobs between two beats: asked for on any thread, made on the heart's.

    post ─► [no beat, no commit under way] ─► check ─► sources ─► jobs ─► record ─► durable ─► done

1. Nothing is changed where a check fails: the version, the state that is carried over, the sources.
2. A pause is preceded by a beat that seals what the job has open, so that nothing waits in it for
   longer than was promised.
3. The record goes through the commit thread like a beat's.  Only where a change decides whether
   inputs are logged at all (the first or last `exactly_once` job) a snapshot takes its place: rows
   that were staged without being in the log could not be replayed.
4. What was asked to drain is watched here until it has, see `settle`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edged.beat.inputs import Inputs
from edged.beat.jobs import Jobs, Meant, carry_over, describe
from edged.beat.runtime import JobRuntime
from edged.errors import CommandError, EdgedError, StoreFailed
from edged.job.changes import PAUSED, RUNNING, Change
from edged.job.plan import JobPlan
from edged.platform.clock import Clock
from edged.store import StoreFull

if TYPE_CHECKING:
    from edged.beat.heart import Heart

WAITING_MAX = 16
"""Changes that may wait for a beat to end."""
AGAIN_US = 5_000_000
"""After so long what drained is deleted again, where the disk had no room for that."""

Done = Callable[[Any], None]
"""Told the answer, `{"job", "created", "notes"}`, or the EdgedError; on any thread."""


@dataclass(frozen=True)
class Posted:
    """A change that is asked for, with what it needs: a put's job, built and empty."""

    change: Change
    job: JobRuntime | None = None
    meant: Meant = field(default_factory=Meant)
    done: Done = lambda _: None


class Changes:
    """See the module's docstring."""

    def __init__(self, book: Jobs, inputs: Inputs, clock: Clock) -> None:
        self.book, self.inputs = book, inputs
        self._clock = clock
        self.changed: Callable[[], None] = lambda: None
        """Called when the jobs are others, before the next beat."""
        self.check: Callable[[Sequence[JobPlan]], None] = lambda _: None
        """Raises EdgedError where these jobs cannot run together here."""
        self.told: Callable[[str, JobRuntime, dict[str, Any]], None] = lambda *_: None
        """Told of the event when it is durable; from any thread."""
        self.pending: Callable[[Sequence[str]], int] = lambda _: 0
        """Pages of these streams that the centre does not have yet."""
        self.hear_acks: Callable[[bool], None] = lambda _: None
        """Asked to end the heart's waits when the centre acknowledges pages, or no longer."""
        self.again_us = 0
        """When a delete that was refused is tried again (monotonic); the past: none was."""
        self._posted: deque[Posted] = deque()
        self._hears = False

    def __bool__(self) -> bool:
        return bool(self._posted)

    def post(self, posted: Posted) -> None:
        """Ask for a change; any thread.  Raises CommandError where too many wait."""
        if len(self._posted) >= WAITING_MAX:
            raise CommandError("busy", f"{WAITING_MAX} changes wait already", retry_s=1.0)
        self._posted.append(posted)

    def serve(self, heart: Heart) -> None:
        """Make what was asked for."""
        while self._posted:
            posted = self._posted.popleft()
            try:
                self._make(heart, posted)
            except (StoreFailed, StoreFull):  # a beat within was given up: nothing goes on from it
                raise
            except EdgedError as problem:
                posted.done(problem)

    def settle(self, heart: Heart) -> bool:
        """Look after what drains; whether nothing does any more, and the centre has it all."""
        waits = False
        for job in list(self.book.list):
            if not job.drains or (job.drained and not job.about.ends):
                continue
            if not job.rests or (job.about.ends and self._clock.monotonic_us() < self.again_us):
                waits = True
                continue
            heart.rest()
            if job.about.ends:
                self._delete(job)
            elif self.pending(job.shipped()) == 0:
                job.drained = True
                if job.about.state != RUNNING:
                    self.told("drained", job, {})
            else:
                waits = True
        if waits != self._hears:
            self._hears = waits
            self.hear_acks(waits)
        return not waits and not self._posted

    def _delete(self, job: JobRuntime) -> None:
        """The job has drained and goes.  A full disk may refuse that, and nobody tells when it has
        room again: other processes may have filled it."""

        def done(answer: Any) -> None:
            if isinstance(answer, EdgedError):
                self.again_us = self._clock.monotonic_us() + AGAIN_US

        self._posted.append(
            Posted(Change("delete", job.plan.name, self._clock.wall_us()), done=done)
        )

    def _make(self, heart: Heart, posted: Posted) -> None:
        change, old = posted.change, self.book.get(posted.change.name)
        posted.meant.check(change.name, old)
        if old is None and change.op != "put":
            raise CommandError("missing", f"no job {change.name} is running", where="name")
        if old is not None and old.about.ends and change.op == "put":
            raise CommandError("busy", f"job {change.name} is being deleted", retry_s=1.0)
        if old is not None and _is_so(change, old):
            posted.done({"job": describe(old), "created": False, "notes": []})
            return
        after = self._after(posted)
        self.check([job.plan for job in after])
        if posted.job is not None:
            self.book.check(posted.job.plan)
        heart.rest()
        if old is not None and change.op == "state" and change.state == PAUSED:
            heart.seal(old)
        notes = self._carry(old, posted.job) if posted.job is not None else []
        if change.op != "policy":
            self._fit(heart, posted, old, after)
        before = (list(self.book.list), copy.deepcopy(self.book.retired))
        logged = self._logs_inputs()
        self._swap(change, posted.job)
        heart.take_jobs()
        self.changed()
        job = self.book.get(change.name) or old
        assert job is not None
        answer = {"job": describe(job), "created": old is None, "notes": notes}

        def durable() -> None:
            if change.op != "policy":
                self.told(_event(change, old), job, {"notes": notes} if notes else {})
            posted.done(answer)

        if logged == self._logs_inputs():
            heart.log_change(change, durable)
        else:
            self._snapshot(heart, before)
            durable()

    def _fit(
        self, heart: Heart, posted: Posted, old: JobRuntime | None, after: list[JobRuntime]
    ) -> None:
        """The sources as they will be wanted; one that could not be started is tried again."""
        problem = "" if old is None else old.problem
        if old is not None and posted.change.op == "state":
            old.problem = ""
        try:
            self.inputs.fit(after)
        except EdgedError:
            if old is not None:
                old.problem = problem
            self._restore(heart)
            raise

    def _restore(self, heart: Heart) -> None:
        """The sources of the jobs as they are; a job whose own is lost by that has failed."""
        failed = self.inputs.restore(self.book.list)
        heart.take_jobs()
        for job in failed:
            self.told("failed", job, {"problem": job.problem})

    def _carry(self, old: JobRuntime | None, job: JobRuntime) -> list[str]:
        """State to the new job; streams whose document is the same stay, with their sources."""
        notes = carry_over(old, job)
        if old is not None:
            was, now = old.plan.document["streams"], job.plan.document["streams"]
            same = old.plan.promises.memory_bytes == job.plan.promises.memory_bytes
            for name in job.streams.keys() & old.streams.keys():
                if was[name] == now[name] and same:
                    job.streams[name] = old.streams[name]
        return notes

    def _after(self, posted: Posted) -> list[JobRuntime]:
        if posted.job is not None:
            return self.book.with_job(posted.job)
        gone = posted.change.name if posted.change.op == "delete" else None
        return [job for job in self.book.list if job.plan.name != gone]

    def _swap(self, change: Change, job: JobRuntime | None) -> None:
        if job is not None:
            self.book.put(job, change)
        elif change.op == "delete":
            self.book.delete(change.name)
        elif change.op == "policy":
            self.book.set_policy(change)
        else:
            self.book.set_state(change)

    def _logs_inputs(self) -> bool:
        return any(j.plan.promises.durability == "exactly_once" for j in self.book.list)

    def _snapshot(self, heart: Heart, before: tuple[list[JobRuntime], Any]) -> None:
        try:
            heart.snapshot()
        except StoreFull as problem:
            self.book.list[:], self.book.retired = before
            self._restore(heart)
            self.changed()
            raise CommandError("busy", str(problem), retry_s=5.0) from problem


def _is_so(change: Change, job: JobRuntime) -> bool:
    """Whether the job is already what the change would make of it."""
    about = job.about
    if change.op == "put":
        return change.document == job.plan.document and change.origin == about.origin
    if change.op == "policy":
        return change.governor == about.governor
    as_told = (change.state, change.ends) == (about.state, about.ends)
    return change.op == "state" and as_told and not job.problem


def _event(change: Change, old: JobRuntime | None) -> str:
    if change.op == "put":
        return "created" if old is None else "replaced"
    if change.op == "delete":
        return "deleted"
    return {"running": "resumed", "paused": "paused"}.get(change.state, "draining")
