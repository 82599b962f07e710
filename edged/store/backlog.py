"""Which sealed pages are not acked yet, and where each one's bytes stand.

Invariants:

1. A page is pending from the commit that made it durable until an ack covers its sequence number.
2. An ack is cumulative for a (stream, partition); the high water never falls.
3. Every pending page has exactly one place, in exactly one holder (a log segment or spool file);
   a holder without places may be deleted.

All methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edged.pages.sealed import PageKey
from edged.store.records import PageEntry

Route = tuple[str, int]
"""(stream, partition): what is in order and acked together."""


@dataclass(frozen=True, slots=True)
class PageRef:
    """Where a sealed page's bytes are: `length` bytes at `offset` of `file` (absolute path).

    Between getting a reference and reading it the page may have moved: where the file is gone or
    the bytes are not this page, wait for the new place.
    """

    key: PageKey
    file: str
    offset: int
    length: int


class Holder:
    """A file that pages stand in."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.places: dict[PageKey, Place] = {}
        self.since_us = 0
        """Wall clock when the oldest page that was found in it was sealed; 0: none was found."""


@dataclass
class Place:
    """A pending page's current place."""

    key: PageKey
    holder: Holder
    offset: int
    length: int
    crc: int
    at_us: int
    """Wall clock when it became durable; of a page that a restart found, when the oldest one in
    its file was sealed; 0: not known."""

    def ref(self) -> PageRef:
        """The reference that is handed out."""
        return PageRef(self.key, self.holder.path, self.offset, self.length)


class Backlog:
    """The pending pages; see the module's invariants."""

    def __init__(self, acked: dict[Route, int]) -> None:
        self._lock = threading.Lock()
        self._acked = dict(acked)
        self._queues: dict[Route, deque[Place]] = {}
        self.bytes = 0
        self.pages = 0

    def add(self, holder: Holder, entries: Iterable[PageEntry], at_us: int = 0) -> list[PageRef]:
        """Pages that became durable in `holder`, at `at_us` on the wall clock or some time ago.

        Those that are acked or known are left out.
        """
        refs = []
        with self._lock:
            for e in entries:
                route = (e.key.stream, e.key.partition)
                queue = self._queues.setdefault(route, deque())
                newest = queue[-1].key.seq if queue else self._acked.get(route, 0)
                if e.key.seq <= newest:
                    continue
                at = at_us or holder.since_us
                place = Place(e.key, holder, e.offset, e.length, e.crc, at)
                queue.append(place)
                holder.places[e.key] = place
                self.bytes += e.length
                self.pages += 1
                refs.append(place.ref())
        return refs

    def ack(self, stream: str, partition: int, seq: int) -> tuple[list[Holder], list[int]]:
        """Everything up to `seq` has arrived.  Returns the holders that this emptied, and since
        when each of the pages had been durable."""
        emptied, since = [], []
        with self._lock:
            route = (stream, partition)
            self._acked[route] = max(seq, self._acked.get(route, 0))
            queue = self._queues.get(route, deque())
            while queue and queue[0].key.seq <= seq:
                place = queue.popleft()
                del place.holder.places[place.key]
                self.bytes -= place.length
                self.pages -= 1
                since.append(place.at_us)
                if not place.holder.places:
                    emptied.append(place.holder)
        return emptied, since

    def oldest_us(self) -> int | None:
        """Since when the oldest pending page has been durable; None where there is none."""
        with self._lock:
            heads = (q[0].at_us for q in self._queues.values() if q)
            return min((at_us for at_us in heads if at_us), default=None)

    def pending_of(self, streams: Iterable[str]) -> int:
        """How many pages of these streams are pending."""
        wanted = set(streams)
        with self._lock:
            return sum(len(q) for (stream, _), q in self._queues.items() if stream in wanted)

    def move(self, holder: Holder, moved: Sequence[PageEntry], old: Sequence[Holder]) -> None:
        """The pages `moved` now stand in `holder`; what was acked meanwhile does not count."""
        with self._lock:
            for entry in moved:
                for before in old:
                    place = before.places.pop(entry.key, None)
                    if place is not None:
                        place.holder, place.offset = holder, entry.offset
                        holder.places[entry.key] = place

    def places(self, holders: Sequence[Holder]) -> list[Place]:
        """The pending pages of some holders, in the order in which they were added."""
        with self._lock:
            return [place for holder in holders for place in holder.places.values()]

    def pending(self) -> list[PageRef]:
        """All pending pages in (stream, partition, seq) order."""
        with self._lock:
            return [p.ref() for route in sorted(self._queues) for p in self._queues[route]]

    def high_water(self) -> dict[Route, int]:
        """The highest acked sequence number of each (stream, partition)."""
        with self._lock:
            return dict(self._acked)
