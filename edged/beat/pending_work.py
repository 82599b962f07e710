"""Pending work: what a beat leaves to later ones, and when it is due.

Pending are rows that are committed but not raced, rows in open pages, and work that needs no new
input.  Times are arguments; there is no I/O here.
"""

from __future__ import annotations

from collections.abc import Sequence

from edged.beat.batcher import Batcher
from edged.beat.record import BeatFacts
from edged.beat.runtime import JobRuntime
from edged.sources.base import Source


class PendingWork:
    """The pending work of one heart; times are monotonic microseconds."""

    def __init__(self, now_us: int) -> None:
        self.read_us = now_us
        """Begin of the last ingest.  A producer's silence counts up to this time."""
        self.new_us = now_us
        """The earliest arrival of input that is ready now: the end of the last ingest, or a later
        time at which no input was ready."""
        self.open_us: int | None = None
        """Arrival of the oldest rows in open pages."""
        self.unraced_us: int | None = None
        """Arrival of the oldest staged rows that wait for a race and that nothing holds back: they
        were only committed, or a race has left them."""
        self.cut = False
        """Whether the last beat left rows only because of its row limit."""
        self.deferred = False
        """Whether an operator has rows that wait, because the last beat's output was bounded."""
        self.took = False
        """Whether the last beat took rows, which makes room for input that senders hold back."""

    def jobs_changed(self, jobs: Sequence[JobRuntime], now_us: int) -> None:
        """Only `jobs` take part from now on.

        Rows that they hold from an earlier run, or from before a pause, count as arrived now: there
        may be no new input after them.
        """
        if self.unraced_us is None and any(job.staged() for job in jobs):
            self.unraced_us = now_us
        self.raced(jobs, now_us)

    def since_us(self) -> int | None:
        """Arrival of the oldest rows that are not raced, or in open pages."""
        waiting = (self.open_us, self.unraced_us)
        return min((since for since in waiting if since is not None), default=None)

    def oldest_us(self, arrived_us: int) -> int:
        """Arrival of the oldest rows of a race that also takes rows of `arrived_us`."""
        return arrived_us if self.unraced_us is None else min(arrived_us, self.unraced_us)

    def can_go_on(self, sources: Sequence[Source]) -> bool:
        """Whether there is work that needs no new input: the last beat hit its row limit, an
        operator has rows that wait, or a source has unread input."""
        return (
            self.cut
            or self.deferred
            or any(s.unread() for s in sources)
            or (self.took and any(s.more() for s in sources))
        )

    def ingested(self, from_us: int, until_us: int) -> None:
        """Note the begin and the end of an ingest."""
        self.read_us, self.new_us = from_us, until_us

    def unready(self, at_us: int) -> None:
        """Note that no source was ready at this time."""
        self.new_us = max(self.new_us, at_us)

    def decided(
        self,
        jobs: Sequence[JobRuntime],
        facts: BeatFacts,
        race: bool,
        oldest_us: int,
        held_us: int | None,
    ) -> None:
        """Note what a beat takes; the oldest of its rows arrived at `oldest_us`.

        `held_us`: the governor admits only some of the rows, and the others count as arrived at
        this time.  None: the governor admits all.
        """
        streams = [s for job in facts.jobs.values() for s in job.streams.values()]
        self.took = any(s.rows for s in streams)
        self.cut = race and any(job.cut for job in jobs)
        if self.cut and held_us is not None:
            self.unraced_us, self.new_us = None, held_us
        elif race and not self.cut:
            self.unraced_us = None
        elif self.unraced_us is None:
            self.unraced_us = oldest_us

    def raced(self, jobs: Sequence[JobRuntime], oldest_us: int) -> None:
        """Note whether pages are open, and rows wait, after a race over rows since `oldest_us`."""
        self.deferred = any(j.waiting() for j in jobs)
        if not any(j.open_rows() for j in jobs):
            self.open_us = None
        elif self.open_us is None:
            self.open_us = oldest_us

    def due_us(
        self, now_us: int, wall_us: int, jobs: Sequence[JobRuntime], batcher: Batcher
    ) -> list[int]:
        """Times at which to beat without new input: to race, to seal, or because a producer
        becomes idle.

        An idle producer is found at an ingest, which a race may have delayed.  What has come due
        since the last ingest is due now.
        """
        due = [] if self.unraced_us is None else [batcher.race_by(self.unraced_us)]
        if self.open_us is not None:  # an earlier beat would seal nothing
            due.append(max(batcher.race_by(self.open_us), batcher.flush_from(self.open_us)))
        for job in jobs:
            if (left_us := job.due_in_us(wall_us)) is not None:
                due.append(now_us + left_us)
            due += job.schedules.due_us()
            for s in job.streams.values():
                idle_us = s.time.idle_at(s.staging.producers, self.read_us)
                if idle_us is not None and (job.staged() or job.waits_for_time()):
                    due.append(idle_us)
        return due


def is_empty(facts: BeatFacts, jobs: Sequence[JobRuntime]) -> bool:
    """Whether the beat changes nothing: no rows, no changed producers, no new watermark."""
    for job in jobs:
        j = facts.jobs[job.plan.name]
        for name, f in j.streams.items():
            if f.logged_rows or f.rows or f.producers or job.streams[name].staging.origins:
                return False
            if j.race and f.watermark_us != job.streams[name].time.watermark_us:
                return False
            if f.populated:
                return False
        if j.race and (job.waiting() or job.schedules.wanted or job.seals(j.flush, facts.wall_us)):
            return False
    return True
