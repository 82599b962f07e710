"""A sliding quantile: the 99.9th percentile of the last values, kept sorted in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort

VALUES = 1000


class SlidingQuantile:
    """The 99.9th percentile of the last VALUES values; integers.

    That is the largest but one: one outlier has no influence, however few values there are.
    `value` is 0 until two values are known.  An addition costs two binary searches and moves at
    most VALUES references.
    """

    def __init__(self) -> None:
        self._ring = array("q", bytes(8 * VALUES))
        self._next = 0
        self._sorted: list[int] = []
        self.value = 0

    def add(self, value: int) -> None:
        """Add a value; the oldest of more than VALUES is forgotten."""
        if len(self._sorted) == VALUES:
            del self._sorted[bisect_left(self._sorted, self._ring[self._next])]
        insort(self._sorted, value)
        self._ring[self._next] = value
        self._next = (self._next + 1) % VALUES
        if len(self._sorted) > 1:
            self.value = self._sorted[-2]
