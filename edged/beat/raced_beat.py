"""A raced beat: what of it goes into the log, and what does not.

Jobs without a log (`edged.job.durability`) leave no facts, no inputs and no pages in the record.
Where no other job has anything to record, there is no record at all: nothing is written, and the
senders are acknowledged at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edged.beat.committer import Commit
from edged.beat.jobs import JobRegistry
from edged.beat.pending_work import is_empty
from edged.beat.record import BeatFacts, buffers
from edged.beat.runtime import JobRuntime, logged_inputs
from edged.pages.sealed import SealedPage
from edged.sources.base import Source
from edged.store import BeatRecord


@dataclass
class RacedBeat:
    """Facts, inputs and pages of one beat."""

    facts: BeatFacts
    """Of all jobs."""
    recorded: Mapping[str, JobRuntime]
    """The jobs whose parts are recorded; none: there is no record."""
    inputs: list[Any] = field(default_factory=list)
    pages: list[SealedPage] = field(default_factory=list)
    loose: list[SealedPage] = field(default_factory=list)
    """Pages of jobs without a log."""

    @classmethod
    def of(
        cls, jobs: Sequence[JobRuntime], facts: BeatFacts, with_inputs: bool
    ) -> RacedBeat | None:
        """A decided beat, before its race; None where it changes nothing."""
        logging = [job for job in jobs if job.plan.promises.logs]
        recorded = {} if is_empty(facts, logging) else {job.plan.name: job for job in logging}
        if not recorded and is_empty(facts, jobs):
            return None
        beat = cls(facts, recorded)
        if with_inputs:
            beat.inputs = buffers(
                {name: logged_inputs(job, facts.jobs[name]) for name, job in recorded.items()}
            )
        return beat

    def add(self, job: JobRuntime, pages: Sequence[SealedPage]) -> None:
        """Take a job's pages."""
        (self.pages if job.plan.promises.logs else self.loose).extend(pages)

    def logged_bytes(self) -> int:
        """About how much of it the log takes."""
        inputs = sum(int(buffer.nbytes) for buffer in self.inputs)
        return inputs + sum(len(page.data) for page in self.pages)

    def commit(
        self, number: int, tickets: Sequence[tuple[Source, Any]], sync: bool, registry: JobRegistry
    ) -> Commit:
        """What makes it durable, and acknowledges it."""
        record = None
        if self.recorded:
            jobs = {n: j for n, j in self.facts.jobs.items() if n in self.recorded}
            facts = BeatFacts(self.facts.wall_us, jobs).encode()
            record = BeatRecord(number, facts, self.inputs, self.pages)
        loose = {job.plan.name for job in registry.list if not job.plan.promises.logs}
        early = [t for t in tickets if all(job in loose for job, _ in t[0].feeds)] if loose else []
        rest = [t for t in tickets if t not in early]
        gaps = registry.take_jumps()
        return Commit(
            number, record, rest, sync, gaps=gaps if record else [], loose=self.loose, early=early
        )
