"""What beats leave to later ones: rows that are committed but not raced, rows in open pages, work
that needs no new input; and when somebody has to come back for it.  Clocks are told; no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from edged.beat.batcher import Batcher
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.sources.base import Source


class Left:
    """Times are monotonic microseconds."""

    def __init__(self, now_us: int) -> None:
        self.heard_us = now_us
        """When the sources were last listened to: whoever has been silent was so until then."""
        self.new_us = now_us
        """Arrival of what stands ready now, at the earliest: when that listening ended."""
        self.open_us: int | None = None
        """Arrival of the oldest rows in open pages."""
        self.unraced_us: int | None = None
        """Arrival of the oldest rows that are staged and wait for a race, though nothing holds
        them: they were only committed, or a race has left them."""
        self.cut = False
        """Whether the last beat left rows only because it took no more."""
        self.took = False
        """Whether it took rows, so that there is room for what waits with its senders."""

    def found(self, jobs: Sequence[JobRuntime], now_us: int) -> None:
        """These jobs go on, and others do not: what they hold from an earlier run, or from before
        a pause, waits as if it had arrived now, since nothing new may come after it."""
        if self.unraced_us is None and any(job.staged() for job in jobs):
            self.unraced_us = now_us
        self.raced(jobs, now_us)

    def since_us(self) -> int | None:
        """Arrival of the oldest rows that are not raced, or in open pages."""
        waiting = (self.open_us, self.unraced_us)
        return min((since for since in waiting if since is not None), default=None)

    def oldest_us(self, arrived_us: int) -> int:
        """Of rows that a race takes now, with those that arrived at `arrived_us`."""
        return arrived_us if self.unraced_us is None else min(arrived_us, self.unraced_us)

    def can_go_on(self, sources: Sequence[Source]) -> bool:
        """Whether the last beat left work that needs no new input: it was cut, not held back."""
        return (
            self.cut
            or any(s.unread() for s in sources)
            or (self.took and any(s.more() for s in sources))
        )

    def listened(self, from_us: int, until_us: int) -> None:
        """The sources were listened to."""
        self.heard_us, self.new_us = from_us, until_us

    def decided(
        self,
        jobs: Sequence[JobRuntime],
        facts: BeatFacts,
        race: bool,
        oldest_us: int,
        held_us: int | None,
    ) -> None:
        """A beat will do this to the jobs; the oldest of its rows have arrived at `oldest_us`.

        `held_us`: it may not take all because the governor admits fewer, and what it leaves counts
        as having arrived now; None: the governor does not hold it.
        """
        streams = [s for job in facts.jobs.values() for s in job.streams.values()]
        self.took = any(s.take_rows for s in streams)
        self.cut = race and any(job.cut for job in jobs)
        if self.cut and held_us is not None:
            self.unraced_us, self.new_us = None, held_us
        elif race and not self.cut:
            self.unraced_us = None
        elif self.unraced_us is None:
            self.unraced_us = oldest_us

    def raced(self, jobs: Sequence[JobRuntime], oldest_us: int) -> None:
        """It has done so: are there open pages now?"""
        if not any(j.open_rows() for j in jobs):
            self.open_us = None
        elif self.open_us is None:
            self.open_us = oldest_us

    def due_us(
        self, now_us: int, wall_us: int, jobs: Sequence[JobRuntime], batcher: Batcher
    ) -> list[int]:
        """When to beat though nothing arrives: rows to race or to seal, producers idle.

        Who is silent shows when the sources are listened to, which a race may have put off: what
        has come due since they last were is due now.
        """
        due = [] if self.unraced_us is None else [batcher.race_by(self.unraced_us)]
        if self.open_us is not None:  # a beat before it has to would seal nothing
            due.append(max(batcher.race_by(self.open_us), batcher.flush_from(self.open_us)))
        for job in jobs:
            if (left := job.due_in_us(wall_us)) is not None:
                due.append(now_us + left)
            for s in job.streams.values():
                idle = s.time.idle_at(s.staging.producers, self.heard_us)
                if idle is not None and (job.staged() or job.waits_for_time()):
                    due.append(idle)
        return due


def is_empty(facts: BeatFacts, jobs: Sequence[JobRuntime]) -> bool:
    """Whether the beat would change nothing: no rows, no news of producers, no new watermark."""
    for job in jobs:
        j = facts.jobs[job.plan.name]
        for name, f in j.streams.items():
            if f.logged_rows or f.take_rows or f.producers:
                return False
            if j.race and f.watermark_us != job.streams[name].time.watermark_us:
                return False
        if j.race and job.seals(j.flush, facts.wall_us):
            return False
    return True
