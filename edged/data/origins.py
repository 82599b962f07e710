"""Origins: which message of which producer the rows of a batch come from.

Jobs that keep no log need that.  With the durability `through` each message that a beat takes
becomes one message for each receiver, under the same number.  With `volatile` messages are
acknowledged once a beat has taken them.  Rows alone do not say that: a message may be empty, and a
filter may take all rows of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edged.data.growing import at_least

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origins:
    """Messages in order: message i has the rows `stop[i-1]:stop[i]`, or none."""

    ids: Sequence[str]
    """Producers' ids by their numbers."""
    producer: Int64s
    seq: Int64s
    watermark_us: Int64s
    stop: Int64s

    def __len__(self) -> int:
        return self.stop.size

    def kept(self, rows: Int64s) -> Origins:
        """The origins of a batch that has only these rows, in ascending order."""
        return replace(self, stop=np.searchsorted(rows, self.stop).astype(np.int64))


class OriginLog:
    """The messages of staged rows that no beat has taken yet."""

    def __init__(self, forwards: bool = False) -> None:
        self._parts: list[npt.NDArray[np.int64]] = []
        self.forwards = forwards
        """Whether the receivers acknowledge the messages (`through`)."""
        self._taken = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return sum(part.shape[1] for part in self._parts)

    def add(self, producer: Int64s, seq: Int64s, watermark_us: Int64s, rows: Int64s) -> None:
        """Append messages, and the number of rows of each."""
        if seq.size:
            self._parts.append(np.stack([producer, seq, watermark_us, rows]))

    def take(self, rows: int, ids: Sequence[str]) -> Origins:
        """Remove the messages of the first `rows` rows, and those without rows right behind."""
        none = np.zeros((4, 0), np.int64)
        all = np.concatenate(self._parts, axis=1) if self._parts else none
        stop = np.cumsum(all[3])
        count = int(np.searchsorted(stop, rows, "right"))
        self._parts = [all[:, count:]] if count < stop.size else []
        self._taken = at_least(self._taken, len(ids))
        np.maximum.at(self._taken, all[0, :count], all[1, :count])
        return Origins(ids, all[0, :count], all[1, :count], all[2, :count], stop[:count])

    def taken(self, producers: int) -> Int64s:
        """The last number that a beat has taken, of so many producers; 0: none."""
        self._taken = at_least(self._taken, producers)
        return self._taken[:producers]

    def forget(self, producer: int) -> None:
        """Forget what was taken of a producer, whose place another one gets."""
        if producer < self._taken.size:
            self._taken[producer] = 0
