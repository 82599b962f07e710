"""The index of sealed pages that are not acked yet, and the location of each one's bytes.

Invariants:

1. A page is pending from the commit that made it durable until an ack covers its sequence number.
2. An ack is cumulative for a (stream, partition); the high-water mark never falls.
3. Every pending page has exactly one location, in exactly one holder (a log segment or spool file);
   a holder without pages may be deleted.

All methods are thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edged.pages.sealed import PageKey
from edged.store.records import PageEntry

Route = tuple[str, int]
"""(stream, partition): the unit of order and acks."""


@dataclass(frozen=True, slots=True)
class PageRef:
    """Location of a sealed page: `length` bytes at `offset` of `file` (absolute path).

    The page may move before it is read.  If the file is gone or the bytes are not this page, wait
    for the new location.
    """

    key: PageKey
    file: str
    offset: int
    length: int


class Holder:
    """A file that contains pages."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.places: dict[PageKey, PendingPage] = {}
        self.since_us = 0
        """Wall clock when its oldest page was sealed, if a restart found it; else 0."""


@dataclass
class PendingPage:
    """A pending page and its current location."""

    key: PageKey
    holder: Holder
    offset: int
    length: int
    crc: int
    at_us: int
    """Wall clock when it became durable; for a page found by a restart, when the oldest page of its
    file was sealed; 0: unknown."""

    def ref(self) -> PageRef:
        """The reference that is handed out."""
        return PageRef(self.key, self.holder.path, self.offset, self.length)


class PageIndex:
    """The pending pages; see the module's invariants."""

    def __init__(self, acked: dict[Route, int]) -> None:
        self._lock = threading.Lock()
        self._acked = dict(acked)
        self._queues: dict[Route, deque[PendingPage]] = {}
        self._newest = dict(acked)
        self.bytes = 0
        self.pages = 0

    def add(self, holder: Holder, entries: Iterable[PageEntry], at_us: int = 0) -> list[PageRef]:
        """Add pages that became durable in `holder`, at `at_us` on the wall clock (0: before this
        process).

        Acked or known pages are left out.  A page may come after later ones of its partition.
        """
        refs = []
        with self._lock:
            for e in entries:
                route = (e.key.stream, e.key.partition)
                self._newest[route] = max(e.key.seq, self._newest.get(route, 0))
                queue = self._queues.setdefault(route, deque())
                behind = len(queue)
                while behind and queue[behind - 1].key.seq > e.key.seq:
                    behind -= 1
                newest = queue[behind - 1].key.seq if behind else self._acked.get(route, 0)
                if e.key.seq <= newest:
                    continue
                at = at_us or holder.since_us
                place = PendingPage(e.key, holder, e.offset, e.length, e.crc, at)
                queue.insert(behind, place)
                holder.places[e.key] = place
                self.bytes += e.length
                self.pages += 1
                refs.append(place.ref())
        return refs

    def seen(self, keys: Iterable[PageKey]) -> None:
        """Note numbers of pages that are lost."""
        with self._lock:
            for key in keys:
                route = (key.stream, key.partition)
                self._newest[route] = max(key.seq, self._newest.get(route, 0))

    def drop(self, place: PendingPage) -> bool:
        """Drop one page, which is lost; False: it is no longer pending."""
        with self._lock:
            queue = self._queues.get((place.key.stream, place.key.partition), deque())
            if place.holder.places.get(place.key) is not place:
                return False
            queue.remove(place)
            del place.holder.places[place.key]
            self.bytes -= place.length
            self.pages -= 1
        return True

    def has(self, key: PageKey) -> bool:
        """Whether a page is pending."""
        with self._lock:
            queue = self._queues.get((key.stream, key.partition), ())
            return any(place.key == key for place in queue)

    def first(self, stream: str, partition: int) -> PendingPage | None:
        """The first pending page of a partition."""
        with self._lock:
            queue = self._queues.get((stream, partition))
            return queue[0] if queue else None

    def missing(self, stream: str, partition: int, last: int) -> list[tuple[int, int]]:
        """The ranges of numbers up to `last` that are neither acked nor pending."""
        with self._lock:
            route = (stream, partition)
            at, found = self._acked.get(route, 0) + 1, []
            for place in self._queues.get(route, ()):
                if place.key.seq > at:
                    found.append((at, place.key.seq - 1))
                at = place.key.seq + 1
            return [*found, (at, last)] if at <= last else found

    def ack(self, stream: str, partition: int, seq: int) -> tuple[list[Holder], list[int]]:
        """Drop everything up to `seq`: the centre has it, or it is given up.  Returns the holders
        without pages now, and since when each page dropped had been durable."""
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
        """Since when the oldest pending page has been durable; None without one."""
        with self._lock:
            heads = (q[0].at_us for q in self._queues.values() if q)
            return min((at_us for at_us in heads if at_us), default=None)

    def pending_of(self, streams: Iterable[str]) -> int:
        """Number of pending pages of these streams."""
        wanted = set(streams)
        with self._lock:
            return sum(len(q) for (stream, _), q in self._queues.items() if stream in wanted)

    def move(self, holder: Holder, moved: Sequence[PageEntry], old: Sequence[Holder]) -> None:
        """Record that the pages `moved` now are in `holder`; pages acked meanwhile are ignored."""
        with self._lock:
            for entry in moved:
                for before in old:
                    place = before.places.pop(entry.key, None)
                    if place is not None:
                        place.holder, place.offset = holder, entry.offset
                        holder.places[entry.key] = place

    def before(self, places: Iterable[PendingPage]) -> list[PendingPage]:
        """These pages, and all pending ones of their partitions before them, in order of seq."""
        last: dict[Route, int] = {}
        for p in places:
            route = (p.key.stream, p.key.partition)
            last[route] = max(p.key.seq, last.get(route, 0))
        with self._lock:
            return [
                p for route, seq in last.items() for p in self._queues[route] if p.key.seq <= seq
            ]

    def places(self, holders: Sequence[Holder]) -> list[PendingPage]:
        """The pending pages of these holders, in the order in which they were added."""
        with self._lock:
            return [place for holder in holders for place in holder.places.values()]

    def pending(self) -> list[PageRef]:
        """All pending pages in (stream, partition, seq) order."""
        with self._lock:
            return [p.ref() for route in sorted(self._queues) for p in self._queues[route]]

    def newest(self) -> dict[Route, int]:
        """The highest number of each (stream, partition) that was seen."""
        with self._lock:
            return dict(self._newest)

    def high_water(self) -> dict[Route, int]:
        """The highest acked sequence number of each (stream, partition)."""
        with self._lock:
            return dict(self._acked)
