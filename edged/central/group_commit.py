"""Group commit: deliveries that wait while the disk works are committed together.

One thread takes the queued deliveries, at most `GROUP_BYTES_MAX` bytes and `GROUP_DEVICES_MAX`
devices at a time, and commits them to the landing; the event loop never waits for a disk.
Deliveries of one turn of the event loop are handed over together, so that they share a commit.
With a pause set, a group's first delivery waits that long for others.

After an error of the landing nothing is acknowledged: every waiting and later delivery gets the
error, and `on_failed` is called once.  Before each group, and while nothing waits, the landing does
a short step of its deferred work (`Landing.work_off`).
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from edged.central.admission import Delivery, DeliveryOutcome
from edged.central.landing import Landing
from edged.errors import CentralError

GROUP_BYTES_MAX = 32 << 20
GROUP_DEVICES_MAX = 64
_LOG = logging.getLogger(__name__)
OnOutcome = Callable[["DeliveryOutcome | CentralError"], None]
OnCommit = Callable[[float], None]
_Waiting = tuple[Delivery, OnOutcome]


class CommitterBusy(CentralError):
    """Pages are not durable yet; the device is to send them again after a pause."""

    retry_after_s = 5


class DeliveryCommitter(Protocol):
    """What makes deliveries durable."""

    failure: CentralError | None
    """Why no further one can be."""
    groups: int
    """Commits so far."""

    def submit(self, delivery: Delivery, on_outcome: OnOutcome) -> None:
        """Commit `delivery`; `on_outcome` is called on the event loop once it is durable, or with
        the reason why it is not."""

    async def commit(self, delivery: Delivery) -> DeliveryOutcome:
        """The result of `delivery`, which is durable on return.  Raises CentralError."""

    def close(self) -> None:
        """Commit what waits; no further calls are allowed."""


class GroupCommitter:
    """Runs the landing's commits; created and used on an event loop.

    `on_commit` is called with the seconds that a commit took, on the committer's thread.
    """

    def __init__(
        self,
        landing: Landing,
        on_failed: Callable[[], None],
        pause_us: int = 0,
        on_commit: OnCommit = lambda _: None,
    ) -> None:
        self.groups = 0
        self._on_commit = on_commit
        self._landing = landing
        self._on_failed = on_failed
        self._pause_us = pause_us
        self._loop = asyncio.get_running_loop()
        self._given: list[_Waiting] = []
        """Deliveries of this turn of the event loop."""
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self.failure: CentralError | None = None
        """Why the landing has failed."""
        self._thread = threading.Thread(target=self._run, name="committer")
        self._thread.start()

    def submit(self, delivery: Delivery, on_outcome: OnOutcome) -> None:
        """Commit `delivery`; `on_outcome` is called on the event loop once it is durable, or with
        the error of the landing."""
        if not self._given:
            self._loop.call_soon(self._hand_over)
        self._given.append((delivery, on_outcome))

    async def commit(self, delivery: Delivery) -> DeliveryOutcome:
        """The result of `delivery`, which is durable on return.  Raises CentralError."""
        future: asyncio.Future[DeliveryOutcome] = self._loop.create_future()

        def on_outcome(outcome: DeliveryOutcome | CentralError) -> None:
            if future.done():
                return
            if isinstance(outcome, CentralError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(delivery, on_outcome)
        return await future

    def close(self) -> None:
        """Commit what waits, then end the thread."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def _hand_over(self) -> None:
        for waiting in self._given:
            self._queue.put(waiting)
        self._given.clear()

    def _run(self) -> None:
        carry: _Waiting | None = None
        closing = False
        while not closing:
            first = self._next(carry)
            if first is None:
                return
            group, carry, closing = self._gather(first)
            self._commit(group)

    def _next(self, carry: _Waiting | None) -> _Waiting | None:
        """The next delivery, or None at the queue's end."""
        while True:
            more = self._work_off()
            try:
                return carry or self._queue.get(block=not more)
            except queue.Empty:
                continue

    def _work_off(self) -> bool:
        """Do a step of the landing's deferred work; whether there is more."""
        try:
            return self.failure is None and self._landing.work_off()
        except Exception as problem:
            self._fail(problem)
            return False

    def _fail(self, problem: Exception) -> None:
        _LOG.critical("the landing failed; the collector ends", exc_info=problem)
        kind = type(problem) if isinstance(problem, CentralError) else CentralError
        self.failure = kind(f"the landing failed: {problem}")
        self._loop.call_soon_threadsafe(self._on_failed)

    def _gather(self, first: _Waiting) -> tuple[list[_Waiting], _Waiting | None, bool]:
        """(group, a delivery that did not fit, whether the queue has ended)."""
        if self._pause_us:
            time.sleep(self._pause_us / 1e6)
        group, size, devices = [first], _bytes(first[0]), {first[0].device}
        while True:
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                return group, None, False
            if waiting is None:
                return group, None, True
            size += _bytes(waiting[0])
            devices.add(waiting[0].device)
            if size > GROUP_BYTES_MAX or len(devices) > GROUP_DEVICES_MAX:
                return group, waiting, False
            group.append(waiting)

    def _commit(self, group: list[_Waiting]) -> None:
        outcomes: list[DeliveryOutcome] = []
        if self.failure is None:
            try:
                started_s = time.monotonic()
                outcomes = self._landing.commit([delivery for delivery, _ in group])
                self._on_commit(time.monotonic() - started_s)
                self.groups += 1
            except Exception as problem:
                self._fail(problem)
        self._loop.call_soon_threadsafe(_deliver, group, outcomes, self.failure)


def _bytes(delivery: Delivery) -> int:
    return sum(len(page) for _, page in delivery.pages)


def _deliver(
    group: list[_Waiting], outcomes: list[DeliveryOutcome], failure: CentralError | None
) -> None:
    for i, (_, on_outcome) in enumerate(group):
        on_outcome(outcomes[i] if failure is None else failure)
