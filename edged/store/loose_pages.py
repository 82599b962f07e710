"""Loose pages: sealed pages of jobs without a log, in memory until they are acknowledged
(`edged.links.segments`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

import numpy as np

from edged.links.segments import PageSegment, PageSegments
from edged.pages.sealed import SealedPage
from edged.store.page_index import PageRef, Route


class LoosePages:
    """See the module's docstring.  Belongs to the commit thread."""

    def __init__(self, segments: PageSegments | None = None) -> None:
        self._segments = PageSegments() if segments is None else segments
        self._pages: dict[Route, deque[tuple[PageRef, PageSegment]]] = {}
        self._last: dict[Route, int] = {}

    def add(self, pages: Iterable[SealedPage]) -> list[PageRef]:
        """Keep pages, copied unless a link has written them into a segment; returns their
        places."""
        refs = []
        for page in pages:
            segment, at = self._segments.place_of(page.data) or self._copied(page)
            ref = PageRef(page.key, segment.path, at, len(page.data))
            route = (page.key.stream, page.key.partition)
            self._pages.setdefault(route, deque()).append((ref, segment))
            self._last[route] = page.key.seq
            refs.append(ref)
        return refs

    def acked(self, stream: str, partition: int, seq: int) -> bool:
        """Forget the pages up to `seq`; False: that is no page of a job without a log."""
        if seq > self._last.get((stream, partition), 0):
            return False
        queue = self._pages[stream, partition]
        while queue and queue[0][0].key.seq <= seq:
            self._segments.release(queue.popleft()[1])
        return True

    def give_up(self, served: Collection[str]) -> list[tuple[str, int, int, int]]:
        """Forget the pages of streams that are not served: their job is gone, or another version
        of it has other links.  Returns their streams, partitions, first and last numbers."""
        found = []
        for stream, partition in [route for route in self._pages if route[0] not in served]:
            queue = self._pages.pop((stream, partition))
            if queue:
                found.append((stream, partition, queue[0][0].key.seq, queue[-1][0].key.seq))
            for _, segment in queue:
                self._segments.release(segment)
            self._last.pop((stream, partition))
        return found

    def pending(self) -> list[PageRef]:
        """All pages that are not acknowledged."""
        return [ref for queue in self._pages.values() for ref, _ in queue]

    def pending_of(self, streams: Iterable[str]) -> int:
        """How many of these streams are not acknowledged."""
        wanted = set(streams)
        found = ((stream, len(queue)) for (stream, _), queue in list(self._pages.items()))
        return sum(n for stream, n in found if {stream, stream.rpartition("/")[0]} & wanted)

    def bytes(self) -> int:
        """Memory that the segments take."""
        return self._segments.nbytes()

    def close(self) -> None:
        """Give the memory back."""
        self._segments.close()

    def _copied(self, page: SealedPage) -> tuple[PageSegment, int]:
        size = len(page.data)
        segment, at = self._segments.reserve(size)
        segment.bytes[at : at + size] = np.frombuffer(page.data, np.uint8)
        return segment, at
