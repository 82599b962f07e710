"""The clock interface.  Tests may replace two parts of the machine: this and the disk
(`edged.platform.disk`)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks.  The wall clock is used for labels only, never for order, retention or
    windows."""

    def monotonic_us(self) -> int:
        """Microseconds on a clock that never steps."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC, by the machine's setting."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        """CLOCK_MONOTONIC in microseconds."""
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """CLOCK_REALTIME in microseconds."""
        return time.time_ns() // 1000
