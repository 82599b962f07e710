"""Hysteresis: a condition of single beats becomes a state that does not flap.  Pure; times are
arguments.

A level between 0 and TOP rises by RISE with a beat that has the condition, and falls by 1 with a
beat without it.  The state begins at TOP and ends at 0:

    begins   at TOP, and ENTER_US after the level left 0: 15 beats in a row have the condition, or
             more than one beat in four for longer
    ends     at 0, and CALM_US after the last beat with the condition; or after `idle_us` without
             any beat

Fewer than one beat in four let the level fall.  At a share of 14 % of independent beats the level
reaches TOP once in millions of beats.
"""

from __future__ import annotations

RISE = 3
TOP = 15 * RISE
ENTER_US = 2_000_000
CALM_US = 10_000_000


class Hysteresis:
    """The state of one condition."""

    def __init__(self, idle_us: int) -> None:
        self.active = False
        self._idle_us = idle_us
        self._level = 0
        self._since_us = self._seen_us = self._last_us = 0
        """When the level left 0; the last beat with the condition; the last beat."""

    def observe(self, now_us: int, present: bool) -> bool:
        """Count a beat with or without the condition; returns whether the state has changed."""
        was = self.active
        self.settle(now_us)
        self._last_us = now_us
        if not self._level:
            self._since_us = now_us
        if present:
            self._level, self._seen_us = min(TOP, self._level + RISE), now_us
        else:
            self._level = max(0, self._level - 1)
        if not self.active:
            self.active = self._level == TOP and now_us - self._since_us >= ENTER_US
        elif self._level == 0 and now_us - self._seen_us >= CALM_US:
            self.active = False
        return self.active != was

    def settle(self, now_us: int) -> bool:
        """End the state where no beat has come for `idle_us`; returns whether it has changed."""
        if now_us - self._last_us < self._idle_us:
            return False
        was, self.active, self._level = self.active, False, 0
        return was
