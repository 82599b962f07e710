"""The clock seam: one of the two things that tests may fake (the other is
`edged.platform.disk`)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks.  Order, retention and windows never use the wall clock; labels do."""

    def monotonic_us(self) -> int:
        """Microseconds on a clock that never steps."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC, as the machine believes."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        """CLOCK_MONOTONIC in microseconds."""
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """CLOCK_REALTIME in microseconds."""
        return time.time_ns() // 1000
