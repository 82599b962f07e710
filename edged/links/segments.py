"""Segments: anonymous files in memory for pages of jobs without a log.

The sending process opens a segment by its path below `/proc`, and the kernel sends from it.  A link
writes its messages there at once (`edged.links.page_memory`), so that no page is copied.  A segment
whose pages are all released is written again from its begin; it is never closed, so that a path
always means the same memory.  With the process, all of it is gone.
"""

from __future__ import annotations

import mmap
import os
import threading

import numpy as np
import numpy.typing as npt

from edged.data.columns import address

SEGMENT_BYTES = 4 << 20
"""Least size of a segment."""


class PageSegment:
    """Memory with a path; `used` bytes are taken, by `pages` pages."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("edged-pages")
        os.ftruncate(self.fd, size)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self.first, self.size = address(self.bytes), size
        self.used = self.pages = 0

    def room(self) -> int:
        """Bytes that are free at its end: all of them where no page is left."""
        if not self.pages:
            self.used = 0
        return self.size - self.used


class PageSegments:
    """All segments of a daemon.  Thread-safe: the heart's thread writes pages, the commit thread
    releases them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[PageSegment] = []

    def reserve(self, size: int) -> tuple[PageSegment, int]:
        """A segment and the place in it for a page of `size` bytes, until it is released."""
        with self._lock:
            found = next((s for s in reversed(self._all) if s.room() >= size), None)
            if found is None:
                found = PageSegment(max(SEGMENT_BYTES, size))
                self._all.append(found)
            at, found.used = found.used, found.used + size
            found.pages += 1
            return found, at

    def shorten(self, segment: PageSegment, at: int, reserved: int, size: int) -> None:
        """The page at `at` takes only `size` of its bytes."""
        with self._lock:
            if segment.used == at + reserved:
                segment.used = at + (size + 7 & ~7)

    def place_of(self, page: bytes | memoryview) -> tuple[PageSegment, int] | None:
        """Where a page lies; None: elsewhere."""
        start = address(np.frombuffer(page, np.uint8))
        with self._lock:
            for segment in self._all:
                if 0 <= start - segment.first < segment.size:
                    return segment, start - segment.first
        return None

    def release(self, segment: PageSegment) -> None:
        """A page of a segment is no longer needed."""
        with self._lock:
            segment.pages -= 1

    def nbytes(self) -> int:
        """Memory that the segments take."""
        with self._lock:
            return sum(segment.size for segment in self._all)

    def close(self) -> None:
        """Close the files."""
        for segment in self._all:
            os.close(segment.fd)
        self._all.clear()
