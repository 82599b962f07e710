"""The memory of a shuffle: what `kernels.cpu.shuffle.memory` declares, allocated and linked."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import APART_BYTES, address
from edged.pages.header import HEADER_BYTES
from edged.pages.shuffle_input import ColumnInput, GeneratedInput
from edged.pages.shuffle_plan import CACHE_LINE, ShufflePlan, sizes_of
from kernels.cpu.shuffle import members, memory
from kernels.cpu.shuffle.memory import BATCH, CTX, OWNER, THREAD
from kernels.cpu.shuffle.vectors import LANES

_NORESERVE = 0x4000
"""MAP_NORESERVE of Linux: Python names it from 3.13 on."""
_SLACK = 256
"""Bytes around rows that a wide copy may read."""
_COLOUR = 7 * CACHE_LINE
"""Pages begin on different sets of the caches."""


class ShuffleMemory:
    """Memory of one shuffle.  `reset` makes it as new for another run; pages stay faulted in."""

    def __init__(self, plan: ShufflePlan, source: GeneratedInput | ColumnInput) -> None:
        self.plan, self.source, self.shape = plan, source, source.shape
        self.sizes = sizes_of(plan, source.shape, source.batch, source.batch_tuples)
        self._kept: list[Any] = []
        self.owners_in_all = plan.partitions * (plan.threads if plan.member == "merge" else 1)
        self.pages_max, self.pool, arena_bytes, self.region = self._page_numbers()
        self.arena_map = mmap.mmap(
            -1, arena_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        )
        if plan.pool_bytes:
            self.arena_map.madvise(mmap.MADV_HUGEPAGE)
        self.arena = np.frombuffer(self.arena_map, np.uint8)
        self.ctx = self._words(256)
        self.pages = self._words((self.pages_max + 1) * memory.PAGE_BYTES // 8)
        self.pages = self.pages.reshape(-1, memory.PAGE_BYTES // 8)
        self.threads = self._words(plan.threads * memory.THREAD_BYTES // 8)
        self.threads = self.threads.reshape(plan.threads, -1)
        self._ring = self._words(self.pages_max + 1)
        self._owner_words = APART_BYTES // 8 if plan.padded else len(OWNER)
        self._owners = self._owner_table()
        self._batches: list[npt.NDArray[np.int64]] = []
        self._local_owners: list[npt.NDArray[np.int64]] = []
        self._units: list[npt.NDArray[np.int64]] = []
        self._context()
        self._thread_memory()
        self.reset()

    def reset(self) -> None:
        """Prepare another run."""
        for place in (
            CTX.ticket, CTX.page_count, CTX.arena_used, CTX.live, CTX.peak, CTX.ring_lock,
            CTX.ring_head, CTX.ring_tail, CTX.arrived, CTX.failed,
        ):  # fmt: skip
            self.ctx[place] = 0
        self.pages[:] = 0
        for owners in (self._owners, *self._local_owners):
            owners[:, OWNER.lock] = owners[:, OWNER.page] = owners[:, OWNER.seq] = 0
        for batch in self._batches:
            batch[BATCH.tuples] = batch[BATCH.filled] = 0
        for unit in self._units:
            slots = np.arange(members.GROUP_SLOTS)
            unit[:, BATCH.claimed] = slots - members.GROUP_SLOTS
            unit[:, BATCH.made] = unit[:, BATCH.done] = 0
        for k, thread in enumerate(self.threads):
            thread[THREAD.began_ns :] = 0
            thread[THREAD.rng] = 7919 * k + 12345
            thread[THREAD.chunk_count] = 0

    def _page_numbers(self) -> tuple[int, int, int, int]:
        """Most pages, pages before reuse, bytes of their memory, and the distance of two."""
        plan, shape, tuples = self.plan, self.shape, self.source.tuples
        region = -(-plan.page_bytes // CACHE_LINE) * CACHE_LINE + _COLOUR
        usable = plan.page_bytes - HEADER_BYTES
        own_size = shape.tuple_bytes_max > usable
        if own_size or plan.flushes:
            pages = tuples + self.owners_in_all + 1
        else:
            pages = 2 * tuples * shape.tuple_bytes_max // usable + self.owners_in_all + 16
            pages = min(pages, tuples + self.owners_in_all + 16)
        pool = 0
        if plan.pool_bytes:
            if own_size:
                raise ValueError("pages of their own size are not used again")
            batch = self.sizes.batch * shape.tuple_bytes_max // usable + 2
            least = (
                self.owners_in_all
                + plan.threads * (batch + 2)
                + plan.partitions * (plan.threads if plan.member.startswith("hybrid") else 0)
            )
            pool = max(plan.pool_bytes // region, least)
            if plan.member.startswith("radix"):
                pool = max(pool, pages)
            pages = pool + plan.threads
        own_bytes = (shape.tuple_bytes_max + HEADER_BYTES + 1024 + _SLACK) if own_size else 0
        return pages, pool, max(region, own_bytes) * (pages + 1) + 4096, region

    def bytes_beside_pages(self) -> int:
        """Bytes of buffers, and of materialised tuples with their hashes and partitions."""
        plan, shape = self.plan, self.shape
        total = 0
        if plan.recipe.buffered:
            total += plan.threads * plan.partitions * self.sizes.buffer_stride
        if plan.member.startswith("radix"):
            row = shape.row_bytes_mean + (8 if shape.width else 20)
            total += self.source.tuples * row
        return total

    def _words(self, count: int) -> npt.NDArray[np.int64]:
        """Zeroed words at an address that is a multiple of 128."""
        array = np.zeros(count + 16, np.int64)
        self._kept.append(array)
        first = -address(array) % APART_BYTES // 8
        return array[first : first + count]

    def _bytes(self, count: int) -> int:
        """The address of zeroed bytes, with slack on both sides."""
        array = np.zeros(count + 4 * _SLACK, np.uint8)
        self._kept.append(array)
        return -(-(address(array) + _SLACK) // APART_BYTES) * APART_BYTES

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self._kept.append(array)
        return address(array) if array.size else 0

    def _owner_table(self) -> npt.NDArray[np.int64]:
        table = self._words(self.plan.partitions * self._owner_words)
        table = table.reshape(self.plan.partitions, self._owner_words)
        table[:, OWNER.number] = np.arange(self.plan.partitions)
        return table

    def _context(self) -> None:
        plan, sizes, source, c = self.plan, self.sizes, self.source, self.ctx
        c[CTX.partitions], c[CTX.threads] = plan.partitions, plan.threads
        c[CTX.manager], c[CTX.slotted] = plan.recipe.manager, self.shape.slotted
        c[CTX.alone] = plan.recipe.alone
        c[CTX.stride], c[CTX.width] = self.shape.stride, self.shape.width
        c[CTX.widths : CTX.widths + 8].view(np.uint32)[:] = self.shape.width
        c[CTX.fixed_max], c[CTX.end_at] = sizes.fixed_max, sizes.end_at
        c[CTX.page_bytes], c[CTX.page_region] = plan.page_bytes, self.region
        c[CTX.arena] = -(-address(self.arena) // CACHE_LINE) * CACHE_LINE
        c[CTX.pages], c[CTX.pages_max] = address(self.pages), self.pages_max
        c[CTX.pool], c[CTX.ring] = self.pool, address(self._ring)
        c[CTX.owners], c[CTX.owner_bytes] = address(self._owners), 8 * self._owner_words
        c[CTX.threads_at] = address(self.threads)
        c[CTX.two_step], c[CTX.batch_insert] = plan.two_step, plan.batch_insert
        c[CTX.stream], c[CTX.yields] = sizes.nontemporal, plan.yields
        c[CTX.flushes], c[CTX.hashed] = plan.flushes, plan.function == "hash"
        c[CTX.mask] = plan.masked
        c[CTX.buffer_tuples], c[CTX.buffer_data] = sizes.buffer_tuples, sizes.buffer_data
        c[CTX.buffer_bytes] = sizes.buffer_stride
        c[CTX.batch], c[CTX.tuples] = sizes.batch, source.tuples
        if isinstance(source, GeneratedInput):
            low, high = source.data_bytes
            c[CTX.seed], c[CTX.fresh] = source.seed, source.fresh
            c[CTX.data_min], c[CTX.data_span] = low, high - low + 1
            table = source.key_table()
            c[CTX.key_table], c[CTX.key_mask] = self._keep(table), max(0, table.size - 1)
        else:
            if plan.function != "hash":
                raise ValueError("rows of columns are partitioned by hash")
            columns, places, shape = source.tables()
            c[CTX.columns], c[CTX.column_count] = self._keep(columns), len(columns)
            c[CTX.places], c[CTX.shape] = self._keep(places), self._keep(shape)
            c[CTX.order] = self._keep(source.rows)
            c[CTX.row_hashes] = self._keep(source.hashes)

    def _batch(self, tuples: int, to: npt.NDArray[np.int64] | None = None) -> int:
        """The address of a batch's record, with memory for its tuples."""
        batch = self._words(memory.BATCH_BYTES // 8) if to is None else to
        batch[BATCH.rows] = self._bytes(tuples * self.shape.row_bytes_max)
        if not self.shape.width:
            batch[BATCH.offsets] = self._bytes(8 * (tuples + 1))
        for place in (BATCH.keys, BATCH.hashes, BATCH.targets):
            batch[place] = self._bytes(4 * (tuples + LANES))
        self._batches.append(batch)
        return address(batch)

    def _thread_memory(self) -> None:
        plan, tuples = self.plan, self.sizes.batch
        histogram = plan.member.startswith(("radix", "hybrid"))
        for k, thread in enumerate(self.threads):
            if plan.recipe.buffered:
                self._buffers(thread)
            if plan.recipe.grouped:
                thread[THREAD.selected] = self._bytes(4 * (tuples + LANES))
            else:
                thread[THREAD.batch] = self._batch(tuples)
            if plan.member == "merge":
                self._local_owners.append(self._owner_table())
                thread[THREAD.owners] = address(self._local_owners[-1])
            if histogram:
                self._histogram(thread)
            thread[THREAD.first] = plan.partitions * k // plan.threads
            thread[THREAD.last] = plan.partitions * (k + 1) // plan.threads
        if plan.recipe.grouped:
            self._unit_memory()

    def _buffers(self, thread: npt.NDArray[np.int64]) -> None:
        partitions = self.plan.partitions
        if self.sizes.lines:
            thread[THREAD.lines] = self._bytes(partitions * self.sizes.buffer_stride)
            return
        thread[THREAD.buffers] = self._bytes(partitions * self.sizes.buffer_stride)
        thread[THREAD.fill] = self._bytes(4 * partitions)
        thread[THREAD.used] = self._bytes(4 * partitions)
        thread[THREAD.since] = self._bytes(8 * partitions)

    def _histogram(self, thread: npt.NDArray[np.int64]) -> None:
        partitions, tuples = self.plan.partitions, self.sizes.batch
        if self.plan.member.startswith("radix"):
            tuples = self.source.tuples
            thread[THREAD.store] = self._batch(tuples)
        thread[THREAD.counts] = self._bytes(8 * partitions)
        thread[THREAD.sizes] = self._bytes(8 * partitions)
        thread[THREAD.starts] = self._bytes(8 * partitions)
        if not self.shape.width:
            thread[THREAD.lengths] = self._bytes(4 * tuples)
        thread[THREAD.cursors] = self._bytes(memory.CURSOR_BYTES * partitions)
        chunks = min(tuples * self.plan.threads, self.plan.threads * partitions + self.pages_max)
        thread[THREAD.chunks] = self._bytes(memory.CHUNK_BYTES * (chunks + 1))

    def _unit_memory(self) -> None:
        plan = self.plan
        units = plan.units if plan.member.startswith("units") else 1
        for u in range(units):
            first, last = plan.threads * u // units, plan.threads * (u + 1) // units
            words = self._words(members.GROUP_SLOTS * memory.BATCH_BYTES // 8)
            unit = words.reshape(members.GROUP_SLOTS, -1)
            for slot in unit:
                self._batch(self.sizes.batch, slot)
            self._units.append(unit)
            for k in range(first, last):
                thread, place = self.threads[k], k - first
                thread[THREAD.unit], thread[THREAD.unit_threads] = address(unit), last - first
                thread[THREAD.first] = plan.partitions * place // (last - first)
                thread[THREAD.last] = plan.partitions * (place + 1) // (last - first)
