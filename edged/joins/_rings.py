"""The memory of the chain join's rings and chain heads, as `kernels.cpu.chain` lays it out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.columns import address
from edged.joins.base import PARTITIONS
from kernels.cpu import chain, rings

RING_MIN = 64
"""Entries that a partition's ring has room for at first."""
CHAINS_PER_ENTRY = 4
"""Chains for each slot of the larger of a partition's two rings.  With rings two fifths to wholly
full, that is four to ten a live row."""
FULL = 0.7
"""Where one ring must grow, those fuller than this grow too: their turn would come in the next
beats, and each growth moves everything."""

Int64s = npt.NDArray[np.int64]


class Rings:
    """Both sides' rings; `tables` (left, right) are what the chain kernels take."""

    def __init__(self, start: int = 0) -> None:
        """Empty rings whose first entry gets the position `start` + 1."""
        self.tables = tuple(np.zeros((PARTITIONS, rings.FIELDS), np.int64) for _ in range(2))
        smallest = np.full(PARTITIONS, RING_MIN, np.int64)
        self._allocate([smallest, smallest], (start + 1) % 2**32 or 1)

    def reserve(self, counts: Sequence[Int64s]) -> None:
        """Make room for `counts` (each side's int64[64]) more entries; nothing live is lost."""
        capacity = [table[:, rings.RING_MASK] + 1 for table in self.tables]
        need = [
            table[:, rings.HEAD] - table[:, rings.TAIL] + count
            for table, count in zip(self.tables, counts, strict=True)
        ]
        full = any((n > c).any() for n, c in zip(need, capacity, strict=True))
        last = [t[:, rings.HEAD] + c for t, c in zip(self.tables, counts, strict=True)]
        if not full and max(int(x.max()) for x in last) <= rings.POSITION_MAX:
            return
        old = [table.copy() for table in self.tables]
        kept = self._memory
        larger = [
            np.where(n > FULL * c, _power_of_two(n + n // 4), c)
            for n, c in zip(need, capacity, strict=True)
        ]
        self._allocate(larger, 1)
        for before, after in zip(old, self.tables, strict=True):
            chain.rebuild(before, after)
        del kept

    def nbytes(self) -> int:
        """Bytes of rings and heads."""
        return self._memory.nbytes

    def _allocate(self, capacity: Sequence[Int64s], position: int) -> None:
        """Empty rings of `capacity` (powers of two), all in one piece: numpy asks for huge pages
        from 4 MB on."""
        chains = CHAINS_PER_ENTRY * np.maximum(*capacity)
        bytes_of = [rings.ENTRY * c + rings.MARK * c // rings.BLOCK for c in capacity]
        sizes = [rings.PAIR * int(chains.sum()), *(int(size.sum()) for size in bytes_of)]
        self._memory = np.zeros(rings.LINE + sum(sizes), np.uint8)
        heads = -(-address(self._memory) // rings.LINE) * rings.LINE
        at = heads + sizes[0], heads + sizes[0] + sizes[1]
        for side, table in enumerate(self.tables):
            table[:, rings.RING] = at[side] + bytes_of[side].cumsum() - bytes_of[side]
            table[:, rings.HEADS] = heads + rings.PAIR * (chains.cumsum() - chains) + 4 * side
            table[:, rings.RING_MASK] = capacity[side] - 1
            table[:, rings.HEADS_MASK] = chains - 1
            table[:, [rings.TAIL, rings.HEAD, rings.GENERATION]] = position
            table[:, [rings.MARKED, rings.LEAVING]] = position
            table[:, [rings.NEWEST_OLD, rings.NEWEST_NEW]] = rings.TIME_MIN
            table[:, [rings.DISORDER_OLD, rings.DISORDER_NEW]] = 0


def _power_of_two(least: Int64s) -> Int64s:
    """The smallest power of two that is not below each value, at least RING_MIN."""
    bits = np.frexp((np.maximum(least, RING_MIN) - 1).astype(np.float64))[1]
    return np.left_shift(1, bits.astype(np.int64))
