"""How long a producer waits for edged's next answer before it takes the connection for dead.

A connection can be dead and look well: damaged bytes have made the peer wait for the rest of a
message or of a TLS record that never comes, or a middlebox has forgotten the connection.  TCP
notices the latter after a quarter of an hour, the former never.  Silence may also be right: edged
acknowledges what is durable, and rows wait while a store is full.
"""

from __future__ import annotations

from collections.abc import Callable

SILENCE_S_MIN = 5.0
SILENCE_S_MAX = 60.0
"""Bounds of ten times the slowest recent answer; twice that answer is waited for in any case."""
SILENCE_S_FIRST = 30.0
"""The wait before the first answer."""
_SILENCE_FACTOR = 10
_SLOWEST_FADES = 0.9


class AckWait:
    """The wait for an answer, from the times between answers before.

    Each wait in vain doubles the next until an answer brings something new, so that connections to
    an edged that may not acknowledge become ever rarer.  Up to half is added by chance: producers
    of a device do not reconnect together.  Times are monotonic seconds; `random` returns numbers
    in [0, 1).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._slowest_s: float | None = None
        self._factor = 1
        self._since_s: float | None = None
        self._wait_s = 0.0

    def expect(self, now_s: float) -> None:
        """An answer is due; called again while it is, this changes nothing."""
        if self._since_s is None:
            self._since_s = now_s
            self._wait_s = self._factor * self._base_s() * (1 + self._random() / 2)

    def stop(self) -> None:
        """No answer is due."""
        self._since_s = None

    def answered(self, silent_until_s: float) -> None:
        """An answer brought something new; up to `silent_until_s` none had come."""
        if self._since_s is not None:
            took_s = max(0.0, silent_until_s - self._since_s)
            self._slowest_s = max(took_s, _SLOWEST_FADES * (self._slowest_s or 0.0))
        self._factor, self._since_s = 1, None

    def in_vain(self) -> None:
        """None came within the wait."""
        self._factor *= 2
        self._since_s = None

    def left_s(self, now_s: float) -> float | None:
        """The rest of the wait, 0 or less when it is over; None: no answer is due."""
        return None if self._since_s is None else self._since_s + self._wait_s - now_s

    def _base_s(self) -> float:
        if self._slowest_s is None:
            return SILENCE_S_FIRST
        tenfold_s = min(SILENCE_S_MAX, _SILENCE_FACTOR * self._slowest_s)
        return max(SILENCE_S_MIN, tenfold_s, 2 * self._slowest_s)
