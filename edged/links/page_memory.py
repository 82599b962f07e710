"""Memory of a link's pages, reused from beat to beat.

A page's bytes are valid until the second `turn` after they were taken.  One commit is in flight at
most: when a beat begins, the pages of the beat before the last one are in the log, or in the
memory that the sending process reads (`edged.store.loose_pages`).  With segments they are written
into that memory at once, and valid until their receiver has acknowledged them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edged.links.segments import PageSegment, PageSegments

BLOCK_BYTES_MIN = 1 << 20
KEPT_BYTES_MAX = 32 << 20
"""A beat's blocks beyond this are given back."""

Bytes = npt.NDArray[np.uint8]


class PageMemory:
    """Blocks for this beat's pages, and for those of the beat before."""

    reuse = True
    """Whether blocks are used again; an arm of benchmarks allocates each time."""

    def __init__(self, segments: PageSegments | None = None) -> None:
        self._segments = segments if self.reuse else None
        self._place: tuple[PageSegment, int, int] | None = None
        """Segment, place and size of the last room."""
        self._blocks: list[Bytes] = []
        self._before: list[Bytes] = []
        self._block = self._used = 0

    def turn(self) -> None:
        """Begin a beat."""
        if self._segments is not None:
            return
        kept, size = self._before if self.reuse else [], 0
        for i, block in enumerate(kept):
            size += block.size
            if i and size > KEPT_BYTES_MAX:
                del kept[i:]
                break
        self._blocks, self._before = kept, self._blocks
        self._block = self._used = 0

    def room(self, size: int) -> Bytes:
        """Memory for `size` bytes; `take` says how many of them are used."""
        if self._segments is not None:
            segment, at = self._segments.reserve(size)
            self._place = segment, at, size
            return segment.bytes[at : at + size]
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if block.size - self._used >= size:
                return block[self._used : self._used + size]
            self._block, self._used = self._block + 1, 0
        self._blocks.append(np.empty(max(BLOCK_BYTES_MIN, size + size // 4), np.uint8))
        return self._blocks[-1][:size]

    def take(self, size: int) -> None:
        """Keep the first `size` bytes of the last `room`."""
        if self._segments is not None and self._place is not None:
            self._segments.shorten(*self._place, size)
            return
        self._used += size + 7 & ~7
