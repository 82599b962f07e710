"""`bucket-cuda`: ecoJoin's bucket join on a GPU (`kernels.cuda.bucket`)."""

from __future__ import annotations

import numpy as np

from edged.joins._cuda import BLOCKS_MAX, RINGS, THREADS, CudaWindows, Mapped, blocks, ready
from edged.joins.base import Records, window_join
from kernels import cuda as kernels
from kernels.cuda import gpu


@window_join("bucket-cuda", device="cuda", ordered=True)
class BucketCuda(CudaWindows):
    """Rings, and buckets of interval buffers, in the GPU's memory."""

    about = "rings and interval buffers, 65 to 185 bytes a row"
    index_per_slot = 1 / 32

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        ready(self.name)
        self._told = Mapped(2, np.int64)
        """Free chunks, and whether a bucket has been marked."""
        self._to_clean = [False, False]
        self._batch = 0
        super().__init__(before_us, after_us, start)

    def _make_index(self, places: int) -> None:
        slots = int(self._sizes.sum())
        pool = kernels.bucket.chunks_at_most(slots, 2 * places)
        pool += kernels.bucket.chunks_at_most(self._batch, places)
        self._buckets = places
        self._lows, self._highs, self._newest = (
            gpu.cuda.device_array(places, np.uint32) for _ in range(3)
        )
        self._marks = gpu.cuda.device_array(-(-places // 32) + 1, np.uint32)
        for array in (self._lows, self._highs, self._newest, self._marks):
            kernels.ring.clear[BLOCKS_MAX, THREADS](array)
        self._older = gpu.cuda.device_array(pool, np.uint32)
        self._chunks = gpu.cuda.device_array(2 * kernels.bucket.BUFFER * pool, np.uint32)
        self._free = gpu.cuda.device_array(pool, np.uint32)
        self._free_count = gpu.cuda.device_array(1, np.int64)
        kernels.bucket.fill_free[BLOCKS_MAX, THREADS](self._free, self._free_count)
        self._told.host[0] = pool

    def _index_nbytes(self) -> int:
        index = self._lows, self._highs, self._newest, self._marks
        return int(sum(a.nbytes for a in (*index, self._older, self._chunks, self._free)))

    def _push(self, left: Records, right: Records) -> tuple[int, int]:
        """Provide chunks enough for any batch of that size."""
        self._batch = left.rows + right.rows
        if self._told.host[0] < kernels.bucket.chunks_at_most(self._batch, self._buckets):
            self._rebuild(self._sizes)
        return super()._push(left, right)

    def _rebuild(self, sizes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
        super()._rebuild(sizes)
        self._tell()
        gpu.cuda.synchronize()

    def _tell(self) -> None:
        kernels.bucket.tell[1, 1](self._free_count, self._marks, self._told.device)

    def _link(self, side: int) -> None:
        kernels.bucket.build[RINGS, THREADS](
            side,
            self._tables,
            self._firsts,
            self._links,
            self._lows,
            self._highs,
            self._newest,
            self._older,
            self._chunks,
            self._free,
            self._free_count,
            self._marks,
            self._scratch,
        )

    def _count(self, side: int, n: int, back: int, ahead: int) -> None:
        kernels.bucket.count[blocks(n), THREADS](
            side,
            n,
            self._tables,
            self._firsts,
            self._ring,
            self._links,
            self._lows,
            self._highs,
            self._newest,
            self._older,
            self._chunks,
            self._marks,
            back,
            ahead,
            self._found,
        )

    def _write(self, side: int, n: int, back: int, ahead: int, base: int, met_base: int) -> None:
        kernels.bucket.write[blocks(n), THREADS](
            side,
            n,
            self._tables,
            self._firsts,
            self._ring,
            self._links,
            self._rows,
            self._lows,
            self._highs,
            self._newest,
            self._older,
            self._chunks,
            back,
            ahead,
            base,
            met_base,
            self._found,
            self._pairs[side].device,
            self._pairs[1 - side].device,
        )

    def _count_pairs(self) -> int:
        """Learn as well whether a bucket was marked; most beats mark none (ecoJoin, 2.3)."""
        self._tell()
        pairs = super()._count_pairs()
        if self._told.host[1]:
            self._told.host[1] = 0
            self._to_clean = [True, True]
        return pairs

    def restore(self, side: int, records: Records) -> None:
        """Insert without probing."""
        super().restore(side, records)
        self._tell()
        gpu.cuda.synchronize()

    def _clean(self, side: int) -> None:
        if not self._to_clean[side]:
            return
        self._to_clean[side] = False
        kernels.bucket.cleanup[RINGS, THREADS](
            side,
            self._tables,
            self._lows,
            self._highs,
            self._newest,
            self._older,
            self._chunks,
            self._free,
            self._free_count,
            self._marks,
        )
        self._tell()
