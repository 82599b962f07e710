"""Coalesces the wakes of a server's event loop while many clients are active.

A request that arrives alone costs a wake of the loop, cold caches and a commit of its own: five
times what it costs among others (docs/measurements/fleet.md).  While CLIENTS_MIN connections or
more have been active within WINDOW_S, the loop therefore polls at most once in `pause_s`, and
handles together what came meanwhile, like interrupt coalescing of a network card.  A request waits
at most one pause until it is read, and its answer at most another until it is sent.

Few clients, clients in turn (fewer than CLIENTS_MIN a window) and a loop that is busy for longer
than the pause never wait.  `hurry` skips the next pause, for a client that sends faster than one
read a pause.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable

CLIENTS_MIN = 8
WINDOW_S = 0.25
_Found = list[tuple[selectors.SelectorKey, int]]


class CoalescingSelector(selectors.DefaultSelector):
    """A selector for `asyncio.SelectorEventLoop`.  With a pause of 0 it is the default one."""

    def __init__(
        self,
        pause_s: float,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._pause_s, self._clock_s, self._sleep = pause_s, clock_s, sleep
        self._polled_s = self._began_s = clock_s()
        self._active: set[int] = set()
        """Descriptors that were ready in the window that began at `_began_s`."""
        self._before = 0
        """How many were in the window before."""

    def hurry(self) -> None:
        """Skip the next pause."""
        self._polled_s = 0.0

    def select(self, timeout: float | None = None) -> _Found:
        """See `selectors.BaseSelector`.  A `timeout` is exceeded by one pause at most."""
        if timeout == 0 or not self._pause_s:
            return self._count(super().select(timeout))
        if len(self._active) >= CLIENTS_MIN or self._before >= CLIENTS_MIN:
            left_s = self._polled_s + self._pause_s - self._clock_s()
            if left_s > 0:
                self._sleep(left_s)
        found = super().select(timeout)
        self._polled_s = self._clock_s()
        return self._count(found)

    def _count(self, found: _Found) -> _Found:
        """Note which descriptors are ready."""
        self._active.update([key.fd for key, _ in found])
        now_s = self._clock_s()
        if now_s - self._began_s >= WINDOW_S:
            late = now_s - self._began_s >= 2 * WINDOW_S
            self._before = 0 if late else len(self._active)
            self._active.clear()
            self._began_s = now_s
        return found
