"""Watermarks: the event time of a stream, with idle and ended producers.  No I/O.

A stream's watermark is the minimum over its active producers of (latest time − lateness).  Of a
producer that promises a watermark itself, as the link of another daemon does, it is that promise,
or the earliest time of its rows that are still staged where that is less.  It never decreases.  A
producer is active from its first contact.  It ceases to be active when it has been silent for
`idle_after` or has sent end-of-stream, and no rows of it are staged.  One that is too far behind
(`edged.beat.laggards`) is not active either.  If no producer is active, the watermark is that of
the most advanced one.  If all that ever sent a row have ended and nothing is staged, it is
`WATERMARK_MAX_US`; `reopen` alone takes it back from there.  The beat's record holds the watermark;
a replay reads it there.

`latest` is the latest time of a producer's *taken* rows: a watermark must not pass rows that are
still staged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, State
from edged.data.staging import Chunks, Producers

Times = npt.NDArray[np.int64]


class WatermarkTracker:
    """The watermark of one stream."""

    def __init__(self, lateness_us: int, idle_after_us: int) -> None:
        self.lateness_us = lateness_us
        self.idle_after_us = idle_after_us
        self.watermark_us = WATERMARK_MIN_US
        self.latest_us: Times = np.empty(0, np.int64)
        self.fresh = True
        """Whether no row has been taken yet, or none since the stream was opened again."""
        self._since_us: int | None = None

    def take(self, chunks: Chunks, count: int) -> None:
        """Advance the producers of the first `count` chunks, which are taken, to their latest
        times."""
        if count:
            producers = chunks.producer[:count]
            self._grow(int(producers.max()) + 1)
            self.fresh = False
            np.maximum.at(self.latest_us, producers, chunks.time_max[:count])

    def forget(self, numbers: Sequence[int]) -> None:
        """Reset producer numbers that were released and may be reused."""
        if numbers:
            self._grow(max(numbers) + 1)
            self.latest_us[list(numbers)] = WATERMARK_MIN_US

    def reopened_us(self) -> int:
        """The watermark with which an ended stream opens again: that of its latest row."""
        best = int(self.latest_us.max()) if self.latest_us.size else WATERMARK_MIN_US
        return behind(best, self.lateness_us)

    def reopen(self, watermark_us: int) -> None:
        """Open an ended stream again."""
        self.watermark_us, self.fresh, self._since_us = watermark_us, True, None

    def skip(self, producers: Producers) -> None:
        """Advance all producers to their latest staged times; the staged rows are dropped."""
        n = len(producers.ids)
        self._grow(n)
        self.fresh = self.fresh and not (producers.latest_us[:n] > WATERMARK_MIN_US).any()
        np.maximum(self.latest_us[:n], producers.latest_us[:n], out=self.latest_us[:n])

    def propose(self, producers: Producers, left: Chunks, monotonic_us: int) -> int:
        """The watermark that the producers allow now; it is not applied.

        `left` are the chunks that stay in staging.
        """
        n = len(producers.ids)
        self._grow(n)
        latest = self.latest_us[:n]
        ended = producers.ended[:n] != 0
        known = (producers.seen_us[:n] > 0) & ~ended
        active = known & (monotonic_us - producers.seen_us[:n] < self.idle_after_us)
        active[left.producer] = True
        active &= producers.behind[:n] == 0
        promised = producers.promised_us[:n]
        promises = promised > WATERMARK_MIN_US
        if active.any():
            guessed = latest[active & ~promises]
            lowest = behind(int(guessed.min(initial=WATERMARK_MAX_US)), self.lateness_us)
            if promises.any():
                floor = promised.copy()
                np.minimum.at(floor, left.producer, left.time_min)
                lowest = min(lowest, int(floor[active & promises].min(initial=lowest)))
            return max(self.watermark_us, lowest)
        sending = known & (producers.latest_us[:n] > WATERMARK_MIN_US)
        if ended.any() and not len(left) and not sending.any():
            return WATERMARK_MAX_US
        best = behind(int(latest.max(initial=WATERMARK_MIN_US)), self.lateness_us)
        return max(self.watermark_us, best, int(promised.max(initial=WATERMARK_MIN_US)))

    def horizon(self, producers: Producers, monotonic_us: int) -> int | None:
        """The slowest active producer's latest *staged* time; None: no producer is active.

        It bounds how far another stream may run ahead of this one.
        """
        if self._awaited_until(producers, monotonic_us) > monotonic_us:
            return WATERMARK_MIN_US
        latest = producers.latest_us[self.active(producers, monotonic_us)]
        return int(latest.min()) if latest.size else None

    def active(self, producers: Producers, monotonic_us: int) -> npt.NDArray[np.bool_]:
        """The active producers, by number, whatever is staged."""
        n = len(producers.ids)
        active: npt.NDArray[np.bool_]
        active = (producers.seen_us[:n] > 0) & (producers.ended[:n] == 0)
        active &= monotonic_us - producers.seen_us[:n] < self.idle_after_us
        active &= producers.behind[:n] == 0
        return active

    def idle_at(self, producers: Producers, monotonic_us: int) -> int | None:
        """When the next active producer becomes idle, or when the wait for the first producer
        ends."""
        if (until := self._awaited_until(producers, monotonic_us)) > monotonic_us:
            return until
        n = len(producers.ids)
        known = (producers.seen_us[:n] > 0) & (producers.ended[:n] == 0)
        known &= producers.behind[:n] == 0
        due = producers.seen_us[:n][known] + self.idle_after_us
        due = due[due > monotonic_us]
        return int(due.min()) if due.size else None

    def save(self) -> State:
        """The watermark and the latest times."""
        known = np.flatnonzero(self.latest_us != WATERMARK_MIN_US)
        return {
            "watermark_us": np.array([self.watermark_us], np.int64),
            "latest_us": self.latest_us[: known[-1] + 1 if known.size else 0].copy(),
            "fresh": np.array([self.fresh], np.uint8),
        }

    def load(self, state: State) -> None:
        """Load a saved state."""
        self.watermark_us = int(state["watermark_us"][0])
        self.latest_us = np.array(state["latest_us"], np.int64)
        fresh = state.get("fresh")
        self.fresh = not self.latest_us.size if fresh is None else bool(fresh[0])

    def _awaited_until(self, producers: Producers, monotonic_us: int) -> int:
        """When the wait for a first producer ends; 0: there has been one."""
        if producers.seen_us[: len(producers.ids)].any():
            return 0
        if self._since_us is None:
            self._since_us = monotonic_us
        return self._since_us + self.idle_after_us

    def _grow(self, n: int) -> None:
        if self.latest_us.size < n:
            grown = np.full(max(n, 2 * self.latest_us.size), WATERMARK_MIN_US, np.int64)
            grown[: self.latest_us.size] = self.latest_us
            self.latest_us = grown


def behind(time_us: int, distance_us: int) -> int:
    """`time_us − distance_us`, clamped to the ends of time."""
    if time_us in (WATERMARK_MIN_US, WATERMARK_MAX_US):
        return time_us
    return max(WATERMARK_MIN_US, min(WATERMARK_MAX_US, time_us - distance_us))
