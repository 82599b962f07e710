"""The memory of the chain join: a ring for each partition, or pools that partitions share.

`kernels.cpu.rings` has the layout, `kernels.cpu.pool` the pools.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import address, apart
from edged.joins.base import Hashes
from kernels.cpu import beat, chain, heavy_hitters, pool, rings
from kernels.cpu.partition import PARTITIONS

RING_MIN = 64
"""Initial capacity of a partition's ring."""
CHAINS_PER_ENTRY = 4
"""Chains for each slot of the larger of a partition's two rings: four to ten a live row."""
FULL = 0.7
"""Where one ring must grow, rings fuller than this grow as well: each growth moves all entries."""
SHORT_POOLED_MAX, LONG_POOLED_MAX = 1 << 24, 1 << 21
"""Rows a side up to which rings are pooled, for short beats and for longer ones.  Pooling takes 0.1
to 0.2 s at 10^6 and 0.6 to 4 s at 10^7."""
POOL_MIN = 4096
"""Least capacity of a pool's ring."""

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Rings:
    """The rings of both sides; `tables` (left, right) are the arguments of the chain kernels."""

    def __init__(self, start: int = 0) -> None:
        """Empty rings whose first entry gets the position `start` + 1."""
        self.tables = tuple(apart(PARTITIONS, rings.FIELDS) for _ in range(2))
        self._memory: Bytes
        self._logs = apart(2, beat.POOLS_MAX, pool.LOG_FIELDS)
        self._pools = 0
        """Pools of a side; 0 where each partition has a ring."""
        self.hot = np.zeros(PARTITIONS, np.uint8)
        """1 for each partition that has chains of heavy hitters (`kernels.cpu.heavy_hitters`)."""
        smallest = np.full(PARTITIONS, RING_MIN, np.int64)
        self._allocate([smallest, smallest], (start + 1) % 2**32 or 1)

    @property
    def pooled(self) -> bool:
        """Whether partitions share rings."""
        return self._pools > 0

    def rows(self) -> int:
        """Entries of both sides."""
        return sum(int(self.held(side).sum()) for side in (0, 1))

    def held(self, side: int) -> Int64s:
        """The number of entries in each ring (int64[64])."""
        table = self.tables[side]
        entries: Int64s = table[:, rings.RING.head] - table[:, rings.RING.tail]
        return entries

    def reserve(self, counts: Sequence[Int64s]) -> None:
        """Make room for `counts` (int64[64] for each side) more entries, in a ring for each
        partition; live entries are kept."""
        self.spread()
        capacity = [table[:, rings.RING.mask] + 1 for table in self.tables]
        need = [self.held(side) + counts[side] for side in (0, 1)]
        full = any((n > c).any() for n, c in zip(need, capacity, strict=True))
        last = [t[:, rings.RING.head] + c for t, c in zip(self.tables, counts, strict=True)]
        if not full and max(int(x.max()) for x in last) <= rings.POSITION_MAX:
            return
        old, kept = [table.copy() for table in self.tables], self._memory
        larger = [
            np.where(n > FULL * c, _power_of_two(n + n // 4, RING_MIN), c)
            for n, c in zip(need, capacity, strict=True)
        ]
        self._allocate(larger, 1)
        for before, after in zip(old, self.tables, strict=True):
            chain.rebuild(before, after)
        del kept

    def gather(
        self, pools: int, bases: Sequence[int], bounds_us: Int64s, counts: Sequence[Int64s]
    ) -> None:
        """Join partitions to `pools` rings a side, with room for `counts` (int64[64] for each side)
        more entries; nothing changes where the windows are too large.

        `bases` are the numbers of the stores' rows 0; rows below `bounds_us` have left.
        """
        beat_rows = sum(int(rows.sum()) for rows in counts)
        most = SHORT_POOLED_MAX if beat_rows <= pool.SHORT else LONG_POOLED_MAX
        need = np.array([self.held(side) + counts[side] for side in (0, 1)])
        if need.sum(axis=1).max() > most:
            return
        self.spread()
        old, kept = [table.copy() for table in self.tables], self._memory
        need = need.reshape(2, pools, PARTITIONS // pools).sum(axis=2).max(axis=0)
        capacity = _power_of_two(need + need // 8, POOL_MIN)
        self._allocate([capacity, capacity], 1)
        self._pools = pools
        for side, (before, table) in enumerate(zip(old, self.tables, strict=True)):
            after = table[:pools]
            after[:, rings.RING.log] = [address(log) for log in self._logs[side, :pools]]
            for k in range(pools):
                pool.gather(before, after, bases[side], int(bounds_us[side]), k)
        del kept

    def spread(self) -> None:
        """Give each partition a ring of its own again; dead entries of pools leave."""
        if not self.pooled:
            return
        old, kept = [table[: self._pools].copy() for table in self.tables], self._memory
        counts = [np.zeros(PARTITIONS, np.int64) for _ in range(2)]
        for table, held in zip(old, counts, strict=True):
            pool.shares(table, held)
        self._allocate([_power_of_two(held + held // 2, RING_MIN) for held in counts], 1)
        self._pools = 0
        for table, after in zip(old, self.tables, strict=True):
            chain.rebuild(table, after)
        del kept

    def live(self, side: int, base: int, hashes: Hashes, alive: Bytes) -> None:
        """Mark the store rows of the entries that are held and not dead, and write their hashes."""
        chain.live(self.tables[side], base, hashes, alive)

    def oldest(self, side: int, base: int, rows: int) -> int:
        """A store row before which no row is held; `rows` where none is held."""
        return int(chain.oldest(self.tables[side], base, rows))

    def nbytes(self) -> int:
        """Bytes of rings and heads."""
        return self._memory.nbytes

    def _allocate(self, capacity: Sequence[Int64s], position: int) -> None:
        """Empty rings of `capacity` (powers of two), for as many partitions, in one piece of
        memory: numpy uses huge pages from 4 MB on."""
        self.hot[:] = 0
        chains = CHAINS_PER_ENTRY * np.maximum(*capacity)
        named = (chains >= heavy_hitters.CHAINS_MIN) & (chains <= heavy_hitters.CHAINS_MAX)
        heads_bytes = rings.PAIR * chains + heavy_hitters.NAMES_BYTES * named
        bytes_of = [rings.ENTRY * c + rings.MARK * c // rings.BLOCK for c in capacity]
        sizes = [int(heads_bytes.sum()), *(int(size.sum()) for size in bytes_of)]
        self._memory = np.zeros(rings.LINE + sum(sizes), np.uint8)
        heads = -(-address(self._memory) // rings.LINE) * rings.LINE
        at = heads + sizes[0], heads + sizes[0] + sizes[1]
        for side, whole in enumerate(self.tables):
            whole[:] = 0
            table = whole[: chains.size]
            table[:, rings.RING.entries] = at[side] + bytes_of[side].cumsum() - bytes_of[side]
            table[:, rings.RING.heads] = heads + heads_bytes.cumsum() - heads_bytes + 4 * side
            table[:, rings.RING.mask] = capacity[side] - 1
            table[:, rings.RING.heads_mask] = chains - 1
            table[:, [rings.RING.tail, rings.RING.head, rings.RING.generation]] = position
            table[:, [rings.RING.marked, rings.RING.leaving]] = position
            table[:, [rings.RING.newest_old, rings.RING.newest_new]] = rings.TIME_MIN


def _power_of_two(least: Int64s, smallest: int) -> Int64s:
    """The smallest powers of two that are not below each value, nor below `smallest`."""
    bits = np.frexp((np.maximum(least, smallest) - 1).astype(np.float64))[1]
    return np.left_shift(1, bits.astype(np.int64))
