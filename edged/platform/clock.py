"""The clock interface.  Tests may replace two parts of the machine: this and the disk
(`edged.platform.disk`)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks.  The wall clock is used for labels only, never for order, retention or
    windows."""

    def monotonic_us(self) -> int:
        """Microseconds on a clock that never steps, and that goes on while the machine is
        suspended: every deadline counts a suspend."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC, by the machine's setting."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        """CLOCK_BOOTTIME in microseconds: CLOCK_MONOTONIC and the time of all suspends."""
        return boot_us()

    def wall_us(self) -> int:
        """CLOCK_REALTIME in microseconds."""
        return time.time_ns() // 1000


def boot_us() -> int:
    """CLOCK_BOOTTIME in microseconds, for code without a Clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def suspended_us() -> int:
    """How long the machine has been suspended since its boot, to a few microseconds."""
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()) // 1000
