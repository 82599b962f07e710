"""Exponential backoff with full jitter, independent of any clock or random source."""

from __future__ import annotations

import random
from collections.abc import Callable

BACKOFF_BASE_S = 0.25
BACKOFF_CAP_S = 30.0
EARLY_CAP_S = 5.0
"""The cap at the beginning: a peer that restarts, or restarts several times, is found soon."""
EARLY_S = 120.0
"""The beginning lasts until the waits since the last success sum up to this."""
RETRY_AFTER_S_MAX = 3600.0
"""Longest wait that a peer may ask for; a faulty proxy might ask for years."""
_SYSTEM = random.SystemRandom()


class Backoff:
    """The wait after the n-th consecutive failure is between 0 and min(cap, base * 2**(n-1))
    seconds.

    The cap is `early_cap_s` until all waits since the last success sum up to EARLY_S, then `cap_s`.
    `random` returns numbers in [0, 1).
    """

    def __init__(
        self,
        random: Callable[[], float],
        base_s: float = BACKOFF_BASE_S,
        cap_s: float = BACKOFF_CAP_S,
        early_cap_s: float = EARLY_CAP_S,
    ) -> None:
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._early_cap_s = early_cap_s
        self._ceiling_s = base_s
        self._waited_s = 0.0

    def failed(self, retry_after_s: float | None = None) -> float:
        """Count a failure; returns the seconds to wait before the next try.

        A peer that asks for a pause (`retry_after_s`) gets it, up to RETRY_AFTER_S_MAX, and at most
        as much again by chance, so that not all its clients come back in the same second.
        """
        delay_s = self._random() * self._ceiling_s
        self._waited_s += delay_s
        early = self._waited_s < EARLY_S
        cap_s = min(self._cap_s, self._early_cap_s) if early else self._cap_s
        self._ceiling_s = min(cap_s, 2 * self._ceiling_s)
        if retry_after_s is None:
            return delay_s
        return max(delay_s, after(retry_after_s, self._random))

    def succeeded(self) -> None:
        """Reset after a success."""
        self._ceiling_s, self._waited_s = self._base_s, 0.0


def after(retry_after_s: float, random: Callable[[], float]) -> float:
    """The pause that a peer asks for, and up to as much again by chance."""
    return min(RETRY_AFTER_S_MAX, max(0.0, retry_after_s)) * (1 + random())


def jitter() -> float:
    """A number in [0, 1) from the system: neither a fork nor a seed makes two devices alike."""
    return _SYSTEM.random()
