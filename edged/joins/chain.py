"""`chain`, the default: a ring for each side and partition in arrival order, and hash chains.

An insert is two stores.  A probe walks from new to old and stops at the bound plus the disorder
seen.  Eviction moves the ring's tail.  There is no cleanup, no overflow and no atomic.
`kernels.cpu.rings` has the layout and its invariants, `_rings` the memory, `_lanes` the threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from edged.data.columns import address
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins._lanes import Lanes
from edged.joins._rings import Rings
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, marked, window_join
from kernels.cpu import chain


@window_join("chain", device="cpu", ordered=True)
class ChainJoin(WindowJoin):
    """Rings and chains on the CPU."""

    deals = True
    about = "ring and heads 36 to 100 bytes a row"

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        self._rings = Rings(start)
        self._lanes = Lanes(self._rings, before_us, after_us)

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in the family's order."""
        return self._lanes.join(left, right, beat, workers)

    def restore(self, side: int, records: Records) -> None:
        """Insert without probing."""
        self._rings.spread()
        table = self._rings.tables[side]
        if chain.point(table, address(records.data), records.counts):
            none = np.zeros_like(records.counts)
            self._rings.reserve([none, records.counts] if side else [records.counts, none])
            chain.point(table, address(records.data), records.counts)
        chain.insert_all(table)

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """The rows between the tails and the heads."""
        return marked(f"live.{side}", rows, scratch, partial(self._rings.live, side, base))

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The row at the first tail, or one before it."""
        return self._rings.oldest(side, base, rows)

    def held(self, side: int) -> int:
        """Entries between tails and heads."""
        return int(self._rings.held(side).sum())

    def nbytes(self) -> int:
        """Bytes of rings and heads."""
        return self._rings.nbytes()
