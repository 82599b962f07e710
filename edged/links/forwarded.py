"""Messages that a hop without a log sends on: one for each message that it took, to each instance.

Each producer of the hop is a producer of its own at the receivers, `ID>JOB/SINK/INSTANCE`, and its
messages keep their numbers.  So what the hop makes again after a crash is recognised as what it
made before.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.origins import Origins
from edged.links.in_flight import InFlight
from edged.links.messages import MessageWriter, Train
from edged.links.open_rows import PAGE_BYTES
from edged.links.partition import Shares
from edged.pages.sealed import PageKey, SealedPage

Int64s = npt.NDArray[np.int64]
_NUMBERS = itertools.count(1)


class Forwarding:
    """The producers of a link of such a hop, and what the receivers have of each."""

    def __init__(
        self, name: str, instances: int, writer: MessageWriter, in_flight: InFlight | None
    ) -> None:
        """`name` is the link's; `in_flight` is told of each new producer."""
        self._name, self._writer, self._in_flight = name, writer, in_flight
        self._instances = instances
        self.routes: dict[str, str] = {}
        """The name of each producer's pages."""
        self._acked: dict[str, list[int]] = {}
        self._of: dict[str, str] = {}

    def pages(
        self, batch: Batch, shares: Shares, origins: Origins
    ) -> list[tuple[SealedPage, Train]]:
        """The pages of a beat's messages."""
        found = []
        numbers = np.unique(origins.producer).tolist()
        for number in numbers:
            self._route(origins.ids[number])
        for number in numbers:
            name = self.routes[origins.ids[number]]
            mine = np.flatnonzero(origins.producer == number)
            for at in np.split(mine, 1 + np.flatnonzero(np.diff(origins.seq[mine]) != 1)):
                for k, rows in enumerate(shares.rows):
                    found += self._written(name, k, batch, rows, origins, at, len(numbers) == 1)
        return found

    def _route(self, id: str) -> None:
        if id not in self.routes:
            name = f"{self._name}/{next(_NUMBERS)}"
            self._acked[name], self._of[name] = [0] * self._instances, id
            self.routes[id] = name
            if self._in_flight is not None:
                self._in_flight.on_routes()

    def _written(
        self, name: str, k: int, batch: Batch, rows: Int64s | None, origins: Origins, at: Int64s,
        alone: bool,
    ) -> list[tuple[SealedPage, Train]]:  # fmt: skip
        """Pages of the messages `at`, with those of instance k's rows that are theirs."""
        if rows is None and alone and at.size == len(origins):
            ends, picked = origins.stop, None
        else:
            numbers = np.arange(batch.rows) if rows is None else rows
            entry = np.searchsorted(origins.stop, numbers, "right")
            picked = numbers[np.isin(entry, at)]
            ends = np.searchsorted(entry[np.isin(entry, at)], at, "right").astype(np.int64)
        table = self._writer.table(batch, picked)
        begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        found, first = [], 0
        while first < at.size:
            last = self._last_of_page(batch, begins, ends, first)
            part, seq = slice(first, last), int(origins.seq[at[first]])
            train = self._writer.write(
                table, int(begins[first]), np.ascontiguousarray(ends[part]),
                np.ascontiguousarray(origins.watermark_us[at[part]]), seq,
            )  # fmt: skip
            data = train.page(name, self._writer.version, k, seq)
            found.append((SealedPage(PageKey(name, k, seq + train.messages - 1), data), train))
            first = last
        return found

    def _last_of_page(self, batch: Batch, begins: Int64s, ends: Int64s, first: int) -> int:
        """Behind the last message of a page that begins with message `first`."""
        each = max(1, batch.nbytes() // max(1, batch.rows))
        size = (ends - begins[first]) * each
        size += self._writer.head_bytes * np.arange(1 - first, ends.size - first + 1)
        return max(first + 1, int(np.searchsorted(size, PAGE_BYTES)))

    def succeed(self, old: Forwarding) -> None:
        """Go on with the producers of a link that this one replaces; its pages are on their way."""
        self.routes, self._acked, self._of = old.routes, old._acked, old._of

    def acked(self, name: str, instance: int, seq: int) -> tuple[str, int] | None:
        """Note what an instance's receiver has; returns the producer and what all receivers have of
        it.  None: the name is none of this link's."""
        known = self._acked.get(name)
        if known is None:
            return None
        known[instance] = max(known[instance], seq)
        return self._of[name], min(known)
