"""Upload windows: the times of day (UTC) at which pages may be sent.

A window is `[from, until]` in seconds since midnight; if `until` is not after `from`, the window
spans midnight.  Without windows pages may be sent at any time.
"""

from __future__ import annotations

from collections.abc import Sequence

DAY_S = 86_400
RECHECK_S = 900.0
"""The longest wait before the wall clock is read again: it may have been set."""

Windows = Sequence[Sequence[int]]


def opens_in_s(windows: Windows, wall_s: float) -> float | None:
    """Seconds until the next window opens, at most RECHECK_S; None: pages may be sent now."""
    if not windows:
        return None
    now = wall_s % DAY_S
    if any((now - start) % DAY_S < ((until - start) % DAY_S or DAY_S) for start, until in windows):
        return None
    return min(RECHECK_S, min((start - now) % DAY_S for start, _ in windows))
