"""Memory of the joins on a GPU, and the windows that `chain-cuda` and `bucket-cuda` share.

Three zones, as in the ecoJoin paper: batches and pairs lie in mapped memory (`Mapped`), which both
processors read and write without a copy where they share their memory, and over the bus where they
do not; tables lie in the GPU's own; the rest is the CPU's.  After `cuda.synchronize()` the host
sees what kernels wrote.

`CudaWindows` has everything but the hash index: rings, growth, eviction, the sequence of kernels of
a beat (`kernels.cuda.ring`).  A member makes, links and probes its index.

numba's CUDA target and the kernels are loaded with the first member that is made, not with this
module.  Without the package `numba-cuda` that is a JobError, without a GPU a ConfigError.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import ConfigError, JobError
from edged.joins._rings import FULL, RING_MIN
from edged.joins.base import Beat, Hashes, Int64s, Records, WindowJoin, marked
from kernels import cuda as kernels
from kernels.cpu import bitmap, rings
from kernels.cpu.partition import PARTITIONS
from kernels.cuda import gpu

THREADS = 3 if gpu.SIMULATED else gpu.THREADS_MAX
"""Threads a block; each is a Python thread in the simulator.  With two, tests would not notice if
three of the seven barriers of `kernels.cuda.blocks` were missing."""
BLOCKS_MAX = 2 if gpu.SIMULATED else 2048
RINGS = 2 if gpu.SIMULATED else PARTITIONS
"""Blocks of the kernels that work partition by partition."""


def ready(name: str) -> None:
    """Raises JobError where there is nothing to compile the member with, ConfigError where there is
    no GPU to run it on."""
    if not gpu.INSTALLED:
        raise JobError(
            "kernel",
            f"{name!r} needs the package numba-cuda, which is not installed",
            "pip install 'edged[cuda]', or `make cuda` in a checkout; or a kernel of the CPU",
        )
    if not gpu.SIMULATED and not gpu.cuda.is_available():
        raise ConfigError("no NVIDIA GPU or driver found: choose a join that runs on the CPU")


def current_uuid() -> str:
    """The UUID of the GPU that kernels run on, as NVML writes it."""
    uuid: str = gpu.cuda.get_current_device().uuid
    return uuid


def blocks(n: int) -> int:
    """Blocks of THREADS for n elements; kernels stride over what is left."""
    return max(1, min(BLOCKS_MAX, -(-n // THREADS)))


class Mapped:
    """An array in memory that host and GPU both see: `host` and `device`."""

    def __init__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> None:
        self.device: Any = gpu.cuda.mapped_array(shape, dtype=dtype)
        plain = self.device if isinstance(self.device, np.ndarray) else self.device._ary
        self.host: npt.NDArray[Any] = np.asarray(plain)
        self.host[...] = 0

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(self.host.nbytes)


def grown(held: Mapped, size: int) -> Mapped:
    """A one-dimensional array of at least `size` elements, `held` where it is; else a new one."""
    if held.host.size >= size:
        return held
    return Mapped(max(size, 2 * held.host.size), held.host.dtype)


class CudaWindows(WindowJoin):
    """Both windows on the GPU, without the index."""

    index_per_slot: float
    """Places of the hash index for each slot of a ring."""

    def __init__(self, before_us: int, after_us: int, start: int = 0) -> None:
        super().__init__(before_us, after_us, start)
        ready(self.name)
        self._queues = [Mapped(2 * rings.AHEAD, np.int64) for _ in range(2)]
        self._pairs = [Mapped(1024, np.int64) for _ in range(2)]
        self._counts = Mapped((2, PARTITIONS), np.int64)
        self._report = Mapped((2, PARTITIONS, len(kernels.ring.REPORT)), np.int64)
        self._total = Mapped(1, np.int64)
        self._hashes, self._alive = Mapped(1, np.uint64), Mapped(1, np.uint8)
        self._firsts = gpu.cuda.device_array((2, PARTITIONS + 1), np.int64)
        self._sums = gpu.cuda.device_array(PARTITIONS, np.int64)
        self._scratch_size = 0
        self._make_scratch(1024)
        self._sizes = np.zeros((2, PARTITIONS), np.int64)
        position = (start + 1) % 2**32 or 1
        table = np.zeros((2, PARTITIONS, kernels.ring.FIELDS), np.int64)
        self._lay_out(table, np.full((2, PARTITIONS), RING_MIN, np.int64), position)
        self._allocate(table)

    def buffer(self, side: int, rows: int) -> Int64s:
        """A batch's place in mapped memory."""
        self._queues[side] = grown(self._queues[side], 2 * (rows + rings.AHEAD))
        return self._queues[side].host

    def join(
        self, left: Records, right: Records, beat: Beat, workers: Workers | None
    ) -> tuple[Int64s, Int64s]:
        """One beat's pairs, in the family's order; `workers` have nothing to do."""
        sizes = self._push(left, right)
        spans = (self.before_us, self.after_us), (self.after_us, self.before_us)
        for side, n in enumerate(sizes):
            if n:
                self._count(side, n, *spans[side])
                self._insert(side)
        pairs = self._count_pairs()
        for side, n in enumerate(sizes):
            if n and pairs:
                bases = beat.bases[side], beat.bases[1 - side]
                self._write(side, n, *spans[side], *bases)
        for side in range(2):
            self._let_go(side, beat.bounds_us[side], beat.everything[side])
        gpu.cuda.synchronize()
        out = [queue.host[:pairs] for queue in self._pairs]
        if pairs and beat.keys.shape[0]:
            kept = bitmap.keep_equal(beat.keys, *out)
            out = [rows[:kept] for rows in out]
        return out[0], out[1]

    def restore(self, side: int, records: Records) -> None:
        """Insert without probing."""
        none = Records(np.zeros(0, np.int64), np.zeros(PARTITIONS, np.int64))
        self._push(*((none, records) if side else (records, none)))
        if records.rows:
            self._insert(side)
        self._let_go(side, kernels.ring.TIME_MIN, False)
        gpu.cuda.synchronize()

    def live(self, side: int, base: int, rows: int, scratch: Scratch) -> tuple[Int64s, Hashes]:
        """The rows between the tails and the heads."""
        return marked(f"live.{side}", rows, scratch, partial(self._mark, side, base))

    def _mark(self, side: int, base: int, hashes: Hashes, alive: npt.NDArray[np.uint8]) -> None:
        rows = alive.size
        self._hashes, self._alive = grown(self._hashes, rows), grown(self._alive, rows)
        self._alive.host[:rows] = 0
        kernels.ring.export[RINGS, THREADS](
            side,
            base,
            self._tables,
            self._links,
            self._rows,
            self._hashes.device,
            self._alive.device,
        )
        gpu.cuda.synchronize()
        hashes[:], alive[:] = self._hashes.host[:rows], self._alive.host[:rows]

    def oldest(self, side: int, base: int, rows: int) -> int:
        """The first of the rows at the tails."""
        tail, head, row = self._report.host[side].T
        first = (row[tail < head] - base) & kernels.ring.LOW_32
        return int(first.min(initial=rows))

    def held(self, side: int) -> int:
        """Entries between tails and heads."""
        report, fields = self._report.host[side], kernels.ring.REPORT
        return int((report[:, fields.head] - report[:, fields.tail]).sum())

    def nbytes(self) -> int:
        """Bytes of rings, row numbers and index, in the GPU's memory."""
        return int(self._ring.nbytes + self._rows.nbytes) + self._index_nbytes()

    # What a member adds

    @abstractmethod
    def _make_index(self, places: int) -> None:
        """Make an empty index of `places`."""

    @abstractmethod
    def _index_nbytes(self) -> int:
        """Bytes of the index."""

    @abstractmethod
    def _link(self, side: int) -> None:
        """Insert a side's entries, those of this beat, into the index."""

    @abstractmethod
    def _count(self, side: int, n: int, back: int, ahead: int) -> None:
        """Count the matches of a side's n records."""

    @abstractmethod
    def _write(self, side: int, n: int, back: int, ahead: int, base: int, met_base: int) -> None:
        """Write the matches of a side's n records."""

    def _clean(self, side: int) -> None:
        """Release the index places of entries that have left."""
        return

    # The sequence of kernels

    def _push(self, left: Records, right: Records) -> tuple[int, int]:
        """Copy both batches into the rings' free slots."""
        batches, sizes = (left, right), (left.rows, right.rows)
        self._reserve(np.stack([left.counts, right.counts]))
        self._make_scratch(sum(sizes) + 1)
        self._counts.host[:] = left.counts, right.counts
        kernels.ring.begin[1, 2](self._counts.device, self._tables, self._firsts, self._sums)
        for side, n in enumerate(sizes):
            if n:
                queue = self._queue(side, batches[side].data, n)
                kernels.ring.load[blocks(n), THREADS](
                    side, queue, n, self._tables, self._firsts, self._ring, self._links, self._rows
                )
        return sizes

    def _queue(self, side: int, data: Int64s, n: int) -> Any:
        """The batch's queue; records that were not put into `buffer` are copied there."""
        held = self._queues[side]
        if held.host.ctypes.data != data.ctypes.data:
            self.buffer(side, n)[: 2 * n] = data[: 2 * n]
        return self._queues[side].device

    def _insert(self, side: int) -> None:
        self._link(side)
        kernels.ring.advance[RINGS, THREADS](side, self._tables, self._firsts, self._ring)

    def _count_pairs(self) -> int:
        """Place each record's pairs, and make room for them; returns their number."""
        kernels.ring.totals[RINGS, THREADS](self._firsts, self._found, self._sums)
        kernels.ring.offsets[RINGS, THREADS](
            self._firsts, self._sums, self._found, self._total.device
        )
        gpu.cuda.synchronize()
        pairs = int(self._total.host[0])
        self._pairs = [grown(queue, pairs) for queue in self._pairs]
        return pairs

    def _let_go(self, side: int, bound_us: int, everything: bool) -> None:
        kernels.ring.evict[RINGS, THREADS](
            side,
            bound_us,
            int(everything),
            self._tables,
            self._ring,
            self._rows,
            self._report.device,
        )
        self._clean(side)

    # Memory

    def _make_scratch(self, n: int) -> None:
        """Make room for n records' counts, first matches and the sort's arrays."""
        if n <= self._scratch_size:
            return
        self._scratch_size = max(n, 2 * self._scratch_size)
        self._found = gpu.cuda.device_array(self._scratch_size + 1, np.int64)
        self._starts = gpu.cuda.device_array(self._scratch_size, np.uint32)
        self._scratch = gpu.cuda.device_array((4, self._scratch_size), np.uint32)

    def _reserve(self, counts: Int64s) -> None:
        """Make room for `counts` (int64[2, 64]) more entries; live entries are kept."""
        fields = kernels.ring.REPORT
        tail, head = self._report.host[:, :, fields.tail], self._report.host[:, :, fields.head]
        need = head - tail + counts
        if (need <= self._sizes).all() and int((head + counts).max()) <= rings.POSITION_MAX:
            return
        larger = np.where(need > FULL * self._sizes, _power_of_two(need + need // 4), self._sizes)
        self._rebuild(larger)

    def _lay_out(self, table: Int64s, sizes: Int64s, position: int) -> None:
        """Lay out rings of `sizes` and their index; entries are numbered from `position` on."""
        ring, report = kernels.ring.RING, kernels.ring.REPORT
        places = _power_of_two((self.index_per_slot * sizes).astype(np.int64), 1)
        for fields, size in (
            ((ring.first, ring.mask), sizes),
            ((ring.index_at, ring.index_mask), places),
        ):
            table[:, :, fields[0]] = (size.cumsum() - size.ravel()).reshape(size.shape)
            table[:, :, fields[1]] = size - 1
        table[:, :, [ring.tail, ring.head, ring.begin]] = position
        self._sizes = sizes
        self._places = int(places.sum())
        self._report.host[:, :, [report.tail, report.head]] = position

    def _allocate(self, table: Int64s) -> None:
        """The arrays for the rings that `table` describes, and an empty index."""
        ring = kernels.ring.RING
        table[:, :, [ring.newest_old, ring.newest_new]] = rings.TIME_MIN
        table[:, :, ring.generation] = table[:, :, ring.head]
        self._tables = gpu.cuda.to_device(table)
        slots = int(self._sizes.sum())
        self._ring = gpu.cuda.device_array(2 * slots, np.int64)
        self._links = self._ring.view(np.uint32)
        self._rows = gpu.cuda.device_array(slots, np.uint32)
        self._make_index(self._places)

    def _rebuild(self, sizes: Int64s) -> None:
        """Move the live entries into empty rings of `sizes`, numbered from 1 again."""
        ring = kernels.ring.RING
        gpu.cuda.synchronize()
        old = self._tables, self._ring, self._links, self._rows
        before = self._tables.copy_to_host()
        held = before[:, :, ring.head] - before[:, :, ring.tail]
        table = np.zeros_like(before)
        self._lay_out(table, sizes, 1)
        self._allocate(table)
        for side in range(2):
            kernels.ring.move[RINGS, THREADS](
                side, *old, self._tables, self._ring, self._links, self._rows
            )
        firsts = np.zeros((2, PARTITIONS + 1), np.int64)
        firsts[:, 1:] = held.cumsum(axis=1)
        self._firsts.copy_to_device(firsts)
        self._make_scratch(int(held.sum()) + 1)
        for side in range(2):
            self._link(side)
        gpu.cuda.synchronize()
        table[:, :, ring.head] = 1 + held
        self._report.host[:, :, kernels.ring.REPORT.head] = 1 + held
        kept = slice(ring.newest_old, ring.generation)
        table[:, :, kept] = before[:, :, kept]
        passed = before[:, :, ring.generation] - before[:, :, ring.tail]
        table[:, :, ring.generation] = 1 + np.maximum(0, passed)
        self._tables.copy_to_device(table)


def _power_of_two(least: Int64s, smallest: int = RING_MIN) -> Int64s:
    """The smallest powers of two that are not below each value, nor below `smallest`."""
    bits = np.frexp((np.maximum(least, smallest) - 1).astype(np.float64))[1]
    return np.left_shift(1, bits.astype(np.int64))
