"""The hooks between the heart and its governor: calls before and after each beat, and the
governor's settings for the batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from edged.beat.batcher import Batcher
from edged.beat.pending_work import PendingWork
from edged.beat.runtime import JobRuntime
from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from governors.base import Done, Forecast, Governor, Steer


class GovernorHooks:
    """The hooks of one heart; its thread only."""

    def __init__(
        self,
        governor: Governor,
        batcher: Batcher,
        pending: PendingWork,
        event_loop: EventLoop,
        clock: Clock,
    ) -> None:
        self._governor, self._batcher, self._pending = governor, batcher, pending
        self._event_loop, self._clock = event_loop, clock

    def admitted(
        self, oldest_us: int, jobs: Callable[[], Sequence[JobRuntime]], stop: Callable[[], bool]
    ) -> int | None:
        """Announce a race over input since `oldest_us`; returns the rows that the governor admits,
        None for all.

        While it admits none, wait with the sources muted, so that input stays in the senders'
        buffers.  The wait ends at the time that the governor set, when a new policy clears that
        time, or at `stop()`.
        """
        while not stop():
            steer = self._governor.race(self._forecast(oldest_us, jobs()))
            self._apply(steer)
            if steer.units_max != 0:
                return steer.units_max
            self._event_loop.until(steer.not_before_us, partial(_released, steer, stop))
        return None

    def before_commit(self, oldest_us: int, jobs: Sequence[JobRuntime]) -> None:
        """Announce a beat that only commits input since `oldest_us`."""
        self._governor.commit(self._forecast(oldest_us, jobs))

    def after_ingest(self) -> None:
        """The beat has ingested."""
        self._governor.ingested()

    def after_race(self, arrived: int, taken: int) -> None:
        """The race is over."""
        self._apply(self._governor.idle(Done(arrived, taken)))

    def _apply(self, steer: Steer) -> None:
        self._batcher.steer(steer.wait_share, steer.race_us, steer.not_before_us)

    def _forecast(self, oldest_us: int, jobs: Sequence[JobRuntime]) -> Forecast:
        batcher = self._batcher
        return Forecast(
            at_us=self._clock.monotonic_us(),
            staged=sum(job.staged() for job in jobs),
            deadline_us=self._pending.oldest_us(oldest_us) + batcher.latency_us,
            latency_us=batcher.latency_us,
            commit_us=int(batcher.commit_us) + batcher.margin_us,
            period_us_max=batcher.period_us_max(),
            commit_every_us=batcher.commit_every_us(),
        )


def _released(steer: Steer, stop: Callable[[], bool]) -> bool:
    return stop() or not steer.not_before_us
