"""When the daemon reports of itself: from its snapshot, every `[telemetry] interval_s`.

    snapshot ─► row (edged/uplink/telemetry.py) ─► the uplink's process, which makes and sends the
    page

A report that is due goes with the next beat, just before its commit, so that the device and its
radio wake once for both.  Where no beat comes within a quarter of the interval a timer fires: a
device at rest is woken once in 1.25 intervals for it, a busy one never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.config.sections import TelemetrySection
from edged.platform.clock import Clock
from edged.platform.event_loop import Waiter
from edged.platform.timers import TimerFd

INTERVAL_S_MIN = 1.0
FIRST_US = 1_000_000
"""The first report follows so soon after the start."""

Row = Callable[[float], list[Any]]
"""The values of a report, given the interval in seconds."""
Send = Callable[[list[Any], int, bool], None]
"""Sends a report: its values, bytes that it may have, whether before any page.  Never waits."""


class Reporter:
    """Of one daemon with an uplink; the heart's thread only."""

    def __init__(
        self,
        settings: TelemetrySection,
        row: Row,
        send: Send,
        settled: Callable[[Callable[[], object]], None],
        waiter: Waiter,
        clock: Clock,
    ) -> None:
        """`settled` calls what it is given when all acks that have come are taken in."""
        self._row, self._send, self._settled, self._clock = row, send, settled, clock
        self._timer = TimerFd()
        self._due_us: int | None = None
        """From when on a beat takes a report along; None: there are none."""
        waiter.add_control(self._timer.fileno(), self._overdue)
        self.set(settings)

    def set(self, settings: TelemetrySection) -> None:
        """Report as `settings` say from now on."""
        self._settings = settings
        self._interval_s = max(INTERVAL_S_MIN, settings.interval_s) if settings.interval_s else 0.0
        self._plan(FIRST_US)

    def soon(self) -> None:
        """There is something that the centre waits for."""
        self._plan(0)

    def beaten(self) -> None:
        """A beat is about to be committed, and no commit is under way."""
        if self._due_us is not None and self._clock.monotonic_us() >= self._due_us:
            self._report()

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def _overdue(self) -> None:
        self._timer.disarm()
        self._settled(self._report)

    def _report(self) -> None:
        if self._due_us is None:
            return
        values = self._row(self._interval_s)
        self._send(values, self._settings.bytes_max, self._settings.first)
        self._plan(int(self._interval_s * 1e6))

    def _plan(self, in_us: int) -> None:
        if not self._interval_s:
            self._due_us = None
            self._timer.disarm()
            return
        self._due_us = self._clock.monotonic_us() + in_us
        self._timer.arm(self._due_us + in_us // 4)
