"""Between the heart and its governor: what it is told before and after a race, and what it wants
of the batcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from edged.beat.batcher import Batcher
from edged.beat.pending_work import Left
from edged.beat.runtime import JobRuntime
from edged.platform.clock import Clock
from edged.platform.event_loop import Waiter
from governors.base import Done, Forecast, Governor, Steer


class Steering:
    """The heart's thread only."""

    def __init__(
        self, governor: Governor, batcher: Batcher, left: Left, waiter: Waiter, clock: Clock
    ) -> None:
        self._governor, self._batcher, self._left = governor, batcher, left
        self._waiter, self._clock = waiter, clock

    def admitted(
        self, oldest_us: int, jobs: Callable[[], Sequence[JobRuntime]], stop: Callable[[], bool]
    ) -> int | None:
        """Tell the governor of the race over what has arrived since `oldest_us`; the rows that it
        admits, None for all.

        Where it admits none, wait until it may admit some, with the sources muted: what arrives
        waits in their senders' buffers.  Another policy takes the time back, and is asked at once.
        `stop` ends that too.
        """
        while not stop():
            steer = self._governor.race(self._forecast(oldest_us, jobs()))
            self._steer(steer)
            if steer.units_max != 0:
                return steer.units_max
            self._waiter.until(steer.not_before_us, partial(_freed, steer, stop))
        return None

    def ingested(self) -> None:
        """What had arrived is taken in."""
        self._governor.ingested()

    def idle(self, arrived: int, taken: int) -> None:
        """The race is over."""
        self._steer(self._governor.idle(Done(arrived, taken)))

    def _steer(self, steer: Steer) -> None:
        self._batcher.steer(steer.wait_share, steer.race_us, steer.not_before_us)

    def _forecast(self, oldest_us: int, jobs: Sequence[JobRuntime]) -> Forecast:
        batcher = self._batcher
        return Forecast(
            at_us=self._clock.monotonic_us(),
            staged=sum(job.staged() for job in jobs),
            deadline_us=self._left.oldest_us(oldest_us) + batcher.latency_us,
            latency_us=batcher.latency_us,
            commit_us=int(batcher.commit_us) + batcher.margin_us,
            period_us_max=batcher.period_us_max(),
            commit_every_us=batcher.commit_every_us(),
        )


def _freed(steer: Steer, stop: Callable[[], bool]) -> bool:
    return stop() or not steer.not_before_us
