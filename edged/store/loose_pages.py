"""Loose pages: sealed pages of jobs without a log, in memory until they are acknowledged.

They are in segments: anonymous files in memory, which the sending process opens by their path below
`/proc`.  A segment whose pages are all acknowledged is written again from its begin; it is never
closed, so that a path always means the same memory.  With the process, all of it is gone.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Collection, Iterable

from edged.pages.sealed import SealedPage
from edged.store.page_index import PageRef, Route

SEGMENT_BYTES = 4 << 20
"""Least size of a segment."""


class _Segment:
    """Memory with a path; `used` bytes are taken, by `pages` pages that are not acknowledged."""

    def __init__(self, size: int) -> None:
        self._fd = os.memfd_create("edged-pages")
        os.ftruncate(self._fd, size)
        self._memory = mmap.mmap(self._fd, size)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.size, self.used, self.pages = size, 0, 0

    def room(self) -> int:
        """Bytes that are free at its end: all of them where no page is left."""
        if not self.pages:
            self.used = 0
        return self.size - self.used

    def add(self, page: SealedPage) -> PageRef:
        """Copy a page in."""
        at, length = self.used, len(page.data)
        self._memory[at : at + length] = page.data
        self.used, self.pages = at + length, self.pages + 1
        return PageRef(page.key, self.path, at, length)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self._fd)


class LoosePages:
    """See the module's docstring.  Belongs to the commit thread."""

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self._pages: dict[Route, deque[tuple[PageRef, _Segment]]] = {}
        self._last: dict[Route, int] = {}

    def add(self, pages: Iterable[SealedPage]) -> list[PageRef]:
        """Keep pages; returns their places."""
        refs = []
        for page in pages:
            segment = self._with_room(len(page.data))
            ref = segment.add(page)
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
            queue.popleft()[1].pages -= 1
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
                segment.pages -= 1
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
        return sum(segment.size for segment in self._segments)

    def close(self) -> None:
        """Give the memory back."""
        for segment in self._segments:
            segment.close()

    def _with_room(self, size: int) -> _Segment:
        for segment in reversed(self._segments):
            if segment.room() >= size:
                return segment
        segment = _Segment(max(SEGMENT_BYTES, size))
        self._segments.append(segment)
        return segment
