"""Silence of a stream: how long it has had no rows, and how long is too long.  Pure; times are
arguments.

The limit is the stream's `silent_after`.  Without that setting it is learned: LEARN times the
longest pause between two arrivals, at least LEAST_US.  Nothing is learned before rows have arrived
over LEAST_US, so that a single delivery has no limit.
"""

from __future__ import annotations

LEARN = 3
LEAST_US = 15 * 60_000_000


class Silence:
    """The silence of one stream, from its first row on."""

    def __init__(self, silent_after_us: int) -> None:
        """`silent_after_us`: the limit; 0: it is learned."""
        self._given_us = silent_after_us
        self._first_us: int | None = None
        self._last_us: int | None = None
        self._longest_us = 0
        self._paused = False
        """Whether reading has begun again since the last row."""

    def arrived(self, now_us: int) -> None:
        """Rows have arrived."""
        if self._first_us is None:
            self._first_us = now_us
        if self._last_us is not None and not self._paused:
            self._longest_us = max(self._longest_us, now_us - self._last_us)
        self._last_us, self._paused = now_us, False

    def resumed(self, now_us: int) -> None:
        """The stream, which has had rows, is read again: its silence begins now."""
        self._last_us, self._paused = now_us, True

    @property
    def begun(self) -> bool:
        """Whether there is a last row or a resumption."""
        return self._last_us is not None

    def silent_us(self, now_us: int) -> int | None:
        """Time since the last row; None before the first."""
        return None if self._last_us is None else max(0, now_us - self._last_us)

    def limit_us(self) -> int | None:
        """The longest silence that is expected; None: not known yet."""
        if self._given_us:
            return self._given_us
        if self._first_us is None or self._last_us is None:
            return None
        if self._last_us - self._first_us < LEAST_US:
            return None
        return max(LEAST_US, LEARN * self._longest_us)
