"""Exponential backoff with full jitter, independent of any clock or random source."""

from __future__ import annotations

from collections.abc import Callable

BASE_S = 0.25
CAP_S = 30.0


class Backoff:
    """The wait after the n-th consecutive failure is between 0 and min(cap, base * 2**(n-1))
    seconds.

    `random` returns numbers in [0, 1).
    """

    def __init__(
        self, random: Callable[[], float], base_s: float = BASE_S, cap_s: float = CAP_S
    ) -> None:
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._ceiling_s = base_s

    def failed(self) -> float:
        """Count a failure; returns the seconds to wait before the next try."""
        delay_s = self._random() * self._ceiling_s
        self._ceiling_s = min(self._cap_s, 2 * self._ceiling_s)
        return delay_s

    def succeeded(self) -> None:
        """Reset after a success."""
        self._ceiling_s = self._base_s
