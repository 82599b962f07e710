"""Producers too far behind: they no longer count for their stream's watermark.  No I/O.

A producer falls behind

- with rows that all are late by more than `max_behind`, at once: nothing that it has sent is used,
  and holding the watermark would not change that;
- when its latest row is more than `max_behind` behind the front and it will not catch up: for
  `idle_after` its event time has advanced so slowly that the distance would take longer than
  `max_behind` to close.

It counts again with its first row within `max_behind` of the watermark and of the front.  The front
is the latest time that an active producer has sent, of this stream or of one that it is joined
with, but at most the wall clock: a producer whose clock is ahead makes no other one a laggard.

The verdicts are in `Producers.behind`, which the beat's record holds.  A restart ends
the measurement of the pace, which begins again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US
from edged.data.staging import Chunks, Producers

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Laggards:
    """The laggards of one stream."""

    def __init__(self, max_behind_us: int, idle_after_us: int) -> None:
        self._max_behind_us, self._idle_after_us = max_behind_us, idle_after_us
        self._since_us: Int64s = np.zeros(0, np.int64)
        """Since when a producer's pace is measured; 0: it is not."""
        self._from_us: Int64s = np.zeros(0, np.int64)
        """Its latest time at that moment."""
        self._measures = False
        """Whether the pace of a producer is measured."""

    def forget(self, numbers: Sequence[int]) -> None:
        """Reset producer numbers that were released and may be reused."""
        if numbers:
            self._since_us[[n for n in numbers if n < self._since_us.size]] = 0

    def judge(
        self,
        producers: Producers,
        arrived: Chunks,
        watermark_us: int,
        front_us: int,
        active: Mask,
        now_us: int,
    ) -> list[int]:
        """Set `producers.behind`; returns the numbers for which it has changed.

        `arrived` are the chunks of this beat's record.  `active` are the producers whose pace
        counts: none while the stream is not read.
        """
        late_us, far_us = self._limit(watermark_us), self._limit(front_us)
        if self._all_near(producers, arrived, active, late_us, far_us):
            return []
        n = len(producers)
        newest = np.full(n, WATERMARK_MIN_US, np.int64)
        np.maximum.at(newest, arrived.producer, arrived.time_max)
        came = newest > WATERMARK_MIN_US
        was = producers.behind[:n] != 0
        late = came & (newest < late_us)
        near = came & (newest >= max(late_us, far_us))
        stuck = self._stuck(producers, active & ~was, far_us, front_us, now_us)
        behind = (was & ~near) | late | stuck
        changed = np.flatnonzero(behind != was)
        producers.behind[changed] = behind[changed]
        self._measures = bool(self._since_us.any())
        return [int(n) for n in changed]

    def _all_near(
        self, producers: Producers, arrived: Chunks, active: Mask, late_us: int, far_us: int
    ) -> bool:
        """Whether no verdict can change: none is behind or measured, no chunk is late, and no
        active producer is beyond `far_us`."""
        if self._measures or producers.behind.any():
            return False
        if len(arrived) and int(arrived.time_max.min()) < late_us:
            return False
        latest = producers.latest_us[active]
        return not ((latest < far_us) & (latest > WATERMARK_MIN_US)).any()

    def _stuck(
        self, producers: Producers, active: Mask, far_us: int, front_us: int, now_us: int
    ) -> Mask:
        """The producers beyond `far_us` that will not catch up; measures the pace of the others."""
        n = len(producers)
        if self._since_us.size < n:
            more = np.zeros(2 * n - self._since_us.size, np.int64)
            self._since_us = np.concatenate([self._since_us, more])
            self._from_us = np.concatenate([self._from_us, more])
        latest = producers.latest_us[:n]
        far = active & (latest > WATERMARK_MIN_US) & (latest < far_us)
        since = self._since_us[:n]
        since[~far] = 0
        due = far & (since > 0) & (now_us - since >= self._idle_after_us)
        stuck = np.zeros(n, np.bool_)
        if due.any():
            took = (now_us - since[due]).astype(np.float64)
            gained = (latest[due] - self._from_us[:n][due]) - took
            distance = front_us - latest[due].astype(np.float64)
            stuck[due] = distance * took > gained * self._max_behind_us
        begins = far & ((since == 0) | due)
        self._from_us[:n][begins] = latest[begins]
        since[begins] = now_us
        since[stuck] = 0
        return stuck

    def _limit(self, time_us: int) -> int:
        if time_us in (WATERMARK_MIN_US, WATERMARK_MAX_US):
            return WATERMARK_MIN_US
        return max(WATERMARK_MIN_US, time_us - self._max_behind_us)
