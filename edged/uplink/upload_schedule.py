"""Upload windows: the times of the day, UTC, at which pages may be sent.

A window is `[from, until]` in seconds since midnight; one whose end is not behind its beginning
goes over midnight.  Without windows pages go at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

DAY_S = 86_400
LOOK_S = 900.0
"""The longest wait before the clock is looked at again: somebody may have set it."""

Windows = Sequence[Sequence[int]]


def opens_in_s(windows: Windows, wall_s: float) -> float | None:
    """Seconds until the next window opens, at most LOOK_S; None where pages may go now."""
    if not windows:
        return None
    now = wall_s % DAY_S
    if any((now - start) % DAY_S < ((until - start) % DAY_S or DAY_S) for start, until in windows):
        return None
    return min(LOOK_S, min((start - now) % DAY_S for start, _ in windows))
