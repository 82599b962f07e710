"""Events about the streams' rows and producers: loss by time, and producers too far behind.

Losses of a stream are an event when they begin, and at most one every EVERY_US while they go on.
Events tell of this run: what a recovery replays was told before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edged.beat.runtime import JobRuntime
from edged.events.publisher import EventPublisher

EVERY_US = 60_000_000
_FATES = {"drop": "dropped", "process": "processed", "dead_letter": "sent to the late link"}


@dataclass
class _Told:
    """A count up to which events have told, and when the last one did."""

    rows: int
    at_us: int | None = None

    def news(self, rows: int, now_us: int) -> int:
        """Rows that an event should tell of now."""
        if self.at_us is not None and now_us - self.at_us < EVERY_US:
            return 0
        more = rows - self.rows if rows >= self.rows else rows
        if more:
            self.rows, self.at_us = rows, now_us
        return more


class StreamEvents:
    """Publishes the events of all jobs' streams."""

    def __init__(self, publisher: EventPublisher) -> None:
        self._publisher = publisher
        self._told: dict[tuple[str, str], tuple[_Told, _Told]] = {}

    def watch(self, jobs: Iterable[JobRuntime]) -> None:
        """Take what the streams of new jobs have counted so far as told."""
        streams = {(job.plan.name, name): s for job in jobs for name, s in job.streams.items()}
        self._told = {
            key: self._told.get(key) or (_Told(s.late), _Told(s.staging.refused_ahead))
            for key, s in streams.items()
        }

    def report(self, jobs: Iterable[JobRuntime], now_us: int) -> None:
        """Publish what has happened since the last call; call it after a race."""
        for job in jobs:
            for name, s in job.streams.items():
                late, ahead = self._told[job.plan.name, name]
                if rows := late.news(s.late, now_us):
                    self._publisher.rows_late(job.plan.name, name, rows, _FATES[s.plan.late])
                if rows := ahead.news(s.staging.refused_ahead, now_us):
                    self._publisher.rows_ahead(job.plan.name, name, rows)
                for turn in s.turns:
                    self._publish(job.plan.name, name, *turn)
                s.turns.clear()

    def _publish(self, job: str, stream: str, producer: str, behind: bool, us: int) -> None:
        if behind:
            self._publisher.producer_behind(job, stream, producer, us)
        else:
            self._publisher.producer_in_time(job, stream, producer)
