"""The memory of the bucket join's hash tables, in the layout of `kernels.cpu.bucket_table`.

Chunks come from blocks that never move and are never released.  A table that is full on average is
rebuilt with more buckets, or without its invalid entries.
"""

from __future__ import annotations

import numpy as np

from edged.data.columns import Array, address, apart
from edged.joins.base import Int64s
from kernels.cpu.bucket_table import CHUNK_BYTES, SLOTS, TABLE, TABLE_FIELDS
from kernels.cpu.partition import PARTITIONS

FULL = 40
"""Average entries a bucket at which a table is rebuilt."""
NEW = 20
"""Average entries a bucket of a new table, at most."""
ALIGNED = 64


class Table:
    """One side's table; `row` (`BucketTable`) is the argument of the kernels."""

    def __init__(self, entries: int, lanes: int) -> None:
        """An empty table for about `entries`, with spare chunks for `lanes` builders."""
        self.row: Int64s = apart(TABLE_FIELDS)
        bits = 0
        while PARTITIONS << bits < entries // NEW:
            bits += 1
        self.buckets, self.entries = PARTITIONS << bits, 0
        self._heads = np.zeros(self.buckets, np.int64)
        self._marks = np.zeros(self.buckets // 64, np.uint64)
        self._blocks: list[Array] = []
        self._free = np.zeros(0, np.int64)
        self._chunks = self._untouched = 0
        self._spares = np.zeros(0, np.int64)
        self.row[TABLE.bits] = bits
        self.row[TABLE.heads] = address(self._heads)
        self.row[TABLE.marks] = address(self._marks)
        self.reserve(entries, lanes)

    def full(self, rows: int) -> bool:
        """Whether `rows` more would crowd the buckets."""
        return self.entries + rows > FULL * self.buckets

    def reserve(self, rows: int, lanes: int) -> None:
        """Provide chunks for `rows` more entries, whatever their buckets, built by `lanes`."""
        if self._spares.size < lanes:
            spares = np.zeros(lanes, np.int64)
            spares[: self._spares.size] = self._spares
            self._spares = spares
            self.row[TABLE.spares] = address(spares)
        free = int(self.row[TABLE.free_count])
        self._untouched = min(self._untouched, free)
        need = min(rows, self.buckets + rows // SLOTS) + lanes
        if need > free:
            self._add(max(need - free, self._chunks // 4, 64))

    def marked(self) -> int:
        """Words of the bitmap."""
        return self._marks.size

    def nbytes(self) -> int:
        """Bytes of heads, bitmap, and chunks that were ever used."""
        untouched = min(self._untouched, int(self.row[TABLE.free_count]))
        used = (self._chunks - untouched) * CHUNK_BYTES
        return self._heads.nbytes + self._marks.nbytes + self._free.nbytes + used

    def _add(self, chunks: int) -> None:
        """Add a block at the bottom of the stack: chunks used before are used again first."""
        block = aligned(chunks * CHUNK_BYTES)
        free = int(self.row[TABLE.free_count])
        stack = np.zeros(self._chunks + chunks, np.int64)
        stack[:chunks] = address(block) + CHUNK_BYTES * np.arange(chunks)[::-1]
        stack[chunks : chunks + free] = self._free[:free]
        self._blocks.append(block)
        self._free, self._chunks = stack, self._chunks + chunks
        self._untouched += chunks
        self.row[TABLE.free] = address(stack)
        self.row[TABLE.free_count] = free + chunks


def aligned(size: int) -> Array:
    """Uninitialised bytes that begin at a cache line."""
    raw = np.empty(size + ALIGNED, np.uint8)
    skip = -address(raw) % ALIGNED
    return raw[skip : skip + size]
