"""How long to wait for the centre's answer, from the times of the answers before."""

from __future__ import annotations

WAIT_S_MIN = 5.0
"""No wait is shorter: a collector may commit on a slow disk."""
_TIMES = 10
_DECAY = 0.9


class AnswerWait:
    """The wait is ten times the slowest recent answer, between WAIT_S_MIN and `most_s`.

    A request whose answer was lost on the way (damaged bytes, a connection that a middlebox forgot)
    is thus repeated within seconds, and a slow link still gets its time.  Before the first answer,
    and after a wait in vain, it is `most_s`: the link may have become slow.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._slowest_s: float | None = None

    @property
    def seconds(self) -> float:
        """The present wait."""
        if self._slowest_s is None:
            return self._most_s
        return min(self._most_s, max(WAIT_S_MIN, _TIMES * self._slowest_s))

    def answered(self, took_s: float) -> None:
        """An answer came after `took_s`, counted from the request's first byte."""
        self._slowest_s = max(took_s, _DECAY * (self._slowest_s or 0.0))

    def failed(self) -> None:
        """None came."""
        self._slowest_s = None
