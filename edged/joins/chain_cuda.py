"""`chain-cuda`: the chained-ring join on a GPU (`kernels.cuda.chain`)."""

from __future__ import annotations

import numpy as np

from edged.joins._cuda import BLOCKS_MAX, RINGS, THREADS, CudaWindows, blocks
from edged.joins.base import window_join
from kernels import cuda as kernels
from kernels.cuda import gpu


@window_join("chain-cuda", device="cuda", ordered=True)
class ChainCuda(CudaWindows):
    """Rings and chains in the GPU's memory."""

    index_per_slot = 2.0

    def _make_index(self, places: int) -> None:
        self._heads = gpu.cuda.device_array(places, np.uint32)
        kernels.ring.clear[BLOCKS_MAX, THREADS](self._heads)

    def _index_nbytes(self) -> int:
        return int(self._heads.nbytes)

    def _link(self, side: int) -> None:
        kernels.chain.link[RINGS, THREADS](
            side, self._tables, self._firsts, self._links, self._heads, self._scratch
        )

    def _count(self, side: int, n: int, back: int, ahead: int) -> None:
        kernels.chain.count[blocks(n), THREADS](
            side,
            n,
            self._tables,
            self._firsts,
            self._ring,
            self._links,
            self._heads,
            back,
            ahead,
            self._found,
            self._starts,
        )

    def _write(self, side: int, n: int, back: int, ahead: int, base: int, met_base: int) -> None:
        kernels.chain.write[blocks(n), THREADS](
            side,
            n,
            self._tables,
            self._firsts,
            self._ring,
            self._links,
            self._rows,
            back,
            ahead,
            base,
            met_base,
            self._found,
            self._starts,
            self._pairs[side].device,
            self._pairs[1 - side].device,
        )
