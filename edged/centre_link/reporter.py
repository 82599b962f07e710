"""The telemetry reporter: sends a report of the daemon every `[telemetry] interval_s`.

    snapshot ─► row (edged/uplink/telemetry.py) ─► uplink process, which makes and sends the page

A report that is due is sent with the next beat, just before its commit, so that device and radio
wake once for both.  If no beat comes within a quarter of the interval, a timer fires: an idle
device wakes once in 1.25 intervals for it, a busy one never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.config.sections import TelemetrySection
from edged.platform.clock import Clock
from edged.platform.event_loop import EventLoop
from edged.platform.timers import TimerFd

INTERVAL_S_MIN = 1.0
FIRST_US = 1_000_000
"""Delay of the first report after the start."""

Row = Callable[[float], list[Any]]
"""The values of a report, given the interval in seconds."""
Send = Callable[[list[Any], int, bool], None]
"""Sends a report: its values, its largest size in bytes, whether before any page.  Never waits."""
AfterAcks = Callable[[Callable[[], object]], None]
"""Calls its argument once all acks that have arrived are processed."""


class Reporter:
    """Telemetry schedule of one daemon with an uplink; the heart's thread only."""

    def __init__(
        self,
        settings: TelemetrySection,
        row: Row,
        send: Send,
        after_acks: AfterAcks,
        event_loop: EventLoop,
        clock: Clock,
    ) -> None:
        self._row, self._send, self._after_acks, self._clock = row, send, after_acks, clock
        self._timer = TimerFd()
        self._due_us: int | None = None
        """From this time on a beat sends the report; None: reports are off."""
        event_loop.add_control(self._timer.fileno(), self._on_timer)
        self.set(settings)

    def set(self, settings: TelemetrySection) -> None:
        """Report by `settings` from now on."""
        self._settings = settings
        self._interval_s = max(INTERVAL_S_MIN, settings.interval_s) if settings.interval_s else 0.0
        self._schedule(FIRST_US)

    def report_soon(self) -> None:
        """Send the next report with the next beat, or at once where the device is idle."""
        self._schedule(0)

    def on_beat(self) -> None:
        """Send a report that is due.  Called before each commit, with no commit under way."""
        if self._due_us is not None and self._clock.monotonic_us() >= self._due_us:
            self._report()

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()

    def _on_timer(self) -> None:
        self._timer.disarm()
        self._after_acks(self._report)

    def _report(self) -> None:
        if self._due_us is None:
            return
        values = self._row(self._interval_s)
        self._send(values, self._settings.bytes_max, self._settings.first)
        self._schedule(int(self._interval_s * 1e6))

    def _schedule(self, in_us: int) -> None:
        if not self._interval_s:
            self._due_us = None
            self._timer.disarm()
            return
        self._due_us = self._clock.monotonic_us() + in_us
        self._timer.arm(self._due_us + in_us // 4)
