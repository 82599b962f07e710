"""Account of the energy spent: cumulative joules of the whole input, and joules within a window.

Samples come at every wake and at the end of every race, so the power between two samples is
constant on a device without other load, and linear interpolation is exact.
"""

from __future__ import annotations

from bisect import bisect_right

KEEP_US = 600_000_000
"""Samples older than this are dropped."""
SAMPLES_MAX = 4096


class EnergyAccount:
    """Samples of (time, cumulative joules), ascending in both."""

    def __init__(self) -> None:
        self._at: list[int] = []
        self._joules: list[float] = []

    def add(self, at_us: int, joules: float) -> None:
        """Add a sample; one that goes back in time or joules is ignored."""
        if self._at and (at_us <= self._at[-1] or joules < self._joules[-1]):
            return
        self._at.append(at_us)
        self._joules.append(joules)
        if len(self._at) > 2 * SAMPLES_MAX:
            old = max(bisect_right(self._at, at_us - KEEP_US) - 1, 0)
            old = max(old, len(self._at) - SAMPLES_MAX)
            del self._at[:old], self._joules[:old]

    @property
    def joules(self) -> float:
        """Cumulative joules at the last sample."""
        return self._joules[-1] if self._joules else 0.0

    def within(self, window_us: int, unknown_watts: float) -> float:
        """Joules of the window that ends at the last sample.  Time before the first sample counts
        with `unknown_watts`."""
        if not self._at:
            return unknown_watts * window_us / 1e6
        return self._joules[-1] - self._then(self._at[-1] - window_us, unknown_watts)

    def falls_to(
        self, window_us: int, joules: float, idle_watts: float, unknown_watts: float
    ) -> int:
        """The time at which the window's joules fall to `joules` if the board idles from now on; at
        the latest when the window holds idling only."""
        if not self._at:
            return 0
        now_j, low, high = self._joules[-1], 0, window_us
        while low < high:
            middle = (low + high) // 2
            past = now_j - self._then(self._at[-1] + middle - window_us, unknown_watts)
            if past + idle_watts * middle / 1e6 <= joules:
                high = middle
            else:
                low = middle + 1
        return self._at[-1] + low

    def _then(self, at_us: int, unknown_watts: float) -> float:
        """Cumulative joules at a time up to the last sample."""
        i = bisect_right(self._at, at_us)
        if i == 0:
            return self._joules[0] - unknown_watts * (self._at[0] - at_us) / 1e6
        if i == len(self._at):
            return self._joules[-1]
        part = (at_us - self._at[i - 1]) / (self._at[i] - self._at[i - 1])
        return self._joules[i - 1] + part * (self._joules[i] - self._joules[i - 1])

    def watts(self, window_us: int) -> float | None:
        """Mean watts over the last `window_us`, or over all samples; None with fewer than two."""
        if len(self._at) < 2:
            return None
        span = min(window_us, self._at[-1] - self._at[0])
        return 1e6 * self.within(span, 0.0) / span if span else None
