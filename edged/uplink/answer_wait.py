"""How long to wait for the centre's answer, from the times of the answers before."""

from __future__ import annotations

WAIT_S_MIN = 5.0
"""No wait is shorter: a collector may commit on a slow disk."""
_TIMES = 10
_DECAY = 0.9


class AnswerWait:
    """The wait is ten times the slowest recent answer, between WAIT_S_MIN and `most_s`.

    A request whose answer was lost on the way (damaged bytes, a connection that a middlebox forgot)
    is thus repeated within seconds, and a slow link still gets its time: each wait in vain doubles
    the next, up to `most_s`, until an answer comes.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._slowest_s = 0.0
        self._factor = 1

    @property
    def seconds(self) -> float:
        """The present wait."""
        return min(self._most_s, self._factor * max(WAIT_S_MIN, _TIMES * self._slowest_s))

    def answered(self, took_s: float) -> None:
        """An answer came after `took_s`, counted from the request's first byte."""
        self._slowest_s = max(took_s, _DECAY * self._slowest_s)
        self._factor = 1

    def in_vain(self) -> None:
        """None came within the wait."""
        if self.seconds < self._most_s:
            self._factor *= 2
