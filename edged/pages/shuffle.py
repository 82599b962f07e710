"""The shuffle family: a stream of batches is partitioned into pages by many threads.

    run = Shuffle(ShufflePlan("ranges", 64, threads=2), GeneratedInput(1_000_000)).run()
    for page in run.handed():
        data = run.sealed(page)

The algorithms are in `kernels.cpu.shuffle`; here are their threads and what comes out.

What each member promises about order: in every partition, the tuples of one batch lie in the
batch's order, by page number and place; `merge` alone promises no order.  The pages of `ranges`
are the same bytes for any number of threads.

Pages are those of `edged.pages.format`, of the epoch 1, the device "shuffle" and the stream
"tuples"; their times are 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import address
from edged.data.schema import Schema
from edged.pages.format import LAYOUT_DENSE, LAYOUT_SLOTTED, Header
from edged.pages.header import HEADER_BYTES
from edged.pages.seal import seal_page
from edged.pages.shuffle_input import ColumnInput, GeneratedInput
from edged.pages.shuffle_memory import ShuffleMemory
from edged.pages.shuffle_plan import MEMBERS, RECIPES, ShufflePlan
from kernels import registry
from kernels.cpu.shuffle.limit import copy_pages
from kernels.cpu.shuffle.memory import CTX, LATENCY_BUCKETS, PAGE, THREAD

__all__ = [
    "MEMBERS", "ColumnInput", "GeneratedInput", "Shuffle", "ShufflePlan", "ShuffleRun",
    "ShuffledPage", "copy_limit", "warm",
]  # fmt: skip

_COUNTERS = {
    "accesses": THREAD.accesses, "scanned": THREAD.scanned, "moved": THREAD.moved,
    "inserted": THREAD.inserted, "reservations": THREAD.reservations,
    "cas_retries": THREAD.retries, "waits": THREAD.waits, "looks": THREAD.looks,
    "batches": THREAD.batches,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShuffledPage:
    """A page that was handed on, before it is sealed."""

    partition: int
    seq: int
    tuples: int
    capacity: int
    raw: npt.NDArray[np.uint8]
    """Its bytes; the first 224 have room for the header.  A view into the shuffle's memory, or a
    copy where slots and data do not touch there."""


class ShuffleRun:
    """What a run has left; valid until the next run of its shuffle."""

    def __init__(self, memory: ShuffleMemory) -> None:
        self._memory = memory
        self.schema: Schema = memory.source.schema
        threads = memory.threads
        began, ended = threads[:, THREAD.began_ns].min(), threads[:, THREAD.ended_ns].max()
        self.seconds = int(ended - began) / 1e9
        self.tuples = memory.source.tuples
        self.batch_tuples = memory.sizes.batch
        self.counters = {name: int(threads[:, place].sum()) for name, place in _COUNTERS.items()}
        self.pages = int(threads[:, THREAD.handed].sum())
        self.page_bytes_written = int(
            threads[:, THREAD.row_bytes].sum() + self.counters["inserted"] * memory.shape.stride
        )
        self.pages_least = self._least()
        self.least_bytes = self.pages_least * memory.plan.page_bytes
        self.peak_pages = int(memory.ctx[CTX.peak])
        self.peak_bytes = self.peak_pages * memory.plan.page_bytes + memory.bytes_beside_pages()
        latencies = slice(THREAD.latencies, THREAD.latencies + LATENCY_BUCKETS)
        self._latencies = threads[:, latencies].sum(axis=0)

    def _least(self) -> int:
        """The least number of pages for the tuples of each partition; 0 where pages are used
        again, and for rows of any size a lower bound."""
        memory = self._memory
        table, partitions = memory.pages, memory.plan.partitions
        rows = table[table[:, PAGE.handed_ns] > 0]
        if memory.pool:
            return 0
        usable, shape = memory.plan.page_bytes - HEADER_BYTES, memory.shape
        tuples = np.bincount(rows[:, PAGE.partition], rows[:, PAGE.tuples], partitions)
        data = np.bincount(rows[:, PAGE.partition], rows[:, PAGE.data], partitions)
        if shape.width:
            return int(np.ceil(tuples / max(1, usable // shape.tuple_bytes)).sum())
        return int(np.ceil((tuples * shape.stride + data) / usable).sum())

    @property
    def accesses_per_tuple(self) -> float:
        """Times that a tuple was read, wherever it lay: in its batch, a buffer, a page; and times
        that its partition was compared with a thread's range."""
        done = self.counters["accesses"] + self.counters["scanned"]
        return done / max(1, self.tuples)

    def latency_ns(self, quantile: float) -> int:
        """A quantile over pages of the time from the arrival of the oldest tuple's batch to the
        hand-over, to an eighth of it; upwards, where a buffer does not tell when it was begun."""
        edges = np.cumsum(self._latencies)
        if not edges[-1]:
            return 0
        bucket = int(np.searchsorted(edges, quantile * edges[-1]))
        power = max(0, bucket // 8 - 1)
        return (bucket - 8 * power) << power

    def handed(self) -> Iterator[ShuffledPage]:
        """The pages by partition and number.  None where the plan uses pages again."""
        table = self._memory.pages
        rows = table[table[:, PAGE.handed_ns] > 0]
        if self._memory.pool:
            return
        for row in rows[np.lexsort((rows[:, PAGE.seq], rows[:, PAGE.partition]))]:
            yield ShuffledPage(
                int(row[PAGE.partition]), int(row[PAGE.seq]), int(row[PAGE.tuples]),
                int(row[PAGE.capacity]), self._raw(row),
            )  # fmt: skip

    def _raw(self, row: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        arena, begin = self._memory.arena, int(row[PAGE.base]) - address(self._memory.arena)
        slots_end = begin + HEADER_BYTES + self._memory.shape.stride * int(row[PAGE.tuples])
        size, data_end = int(row[PAGE.data]), begin + int(row[PAGE.end_at])
        if size in (0, data_end - slots_end):
            return arena[begin : slots_end + size]
        return np.concatenate((arena[begin:slots_end], arena[data_end - size : data_end]))

    def sealed(self, page: ShuffledPage) -> bytes:
        """The page's bytes with header and checksum."""
        slotted, stride = self._memory.shape.slotted, self._memory.shape.stride
        header = Header(
            layout=LAYOUT_SLOTTED if slotted else LAYOUT_DENSE, capacity=page.capacity,
            stored_bytes=0, raw_bytes=0, tuples=page.tuples, stride=stride, checksum=0, epoch=1,
            seq=page.seq, beat=1, partition=page.partition, version=1, time_min_us=0,
            time_max_us=0, sealed_at_us=0, flags=0, device="shuffle", stream="tuples",
        )  # fmt: skip
        return seal_page(header, page.raw, compress=False)


class Shuffle:
    """A member of the family, with its memory.

    `run` may be repeated: pages then lie in memory that is faulted in."""

    def __init__(self, plan: ShufflePlan, source: GeneratedInput | ColumnInput) -> None:
        self.plan, self.source = plan, source
        self._memory = ShuffleMemory(plan, source)

    def run(self) -> ShuffleRun:
        """Shuffle the whole input on the plan's threads, which release the interpreter.

        Raises MemoryError where pages run out."""
        memory, entry = self._memory, self.plan.recipe.entry
        memory.reset()
        ctx, flag = address(memory.ctx), int(self.plan.recipe.buffered)
        _on_threads(entry, [(ctx, k, flag) for k in range(self.plan.threads)])
        if memory.ctx[CTX.failed]:
            raise MemoryError("the pages of a shuffle ran out")
        return ShuffleRun(memory)


def _on_threads(function: Any, arguments: Sequence[tuple[int, ...]]) -> None:
    """Call a kernel once a thread, the first time compiled or from the cache."""
    _compile(function, len(arguments[0]))
    if len(arguments) == 1:
        function(*arguments[0])
        return
    threads = [threading.Thread(target=function, args=a) for a in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _compile(function: Any, arguments: int) -> None:
    if not function.signatures:
        registry.forget_stale()
        function.compile(f"void({', '.join(['int64'] * arguments)})")


def warm() -> None:
    """Compile all kernels of the family, or load them from the cache."""
    for recipe in RECIPES.values():
        _compile(recipe.entry, 3)
    _compile(copy_pages, 5)


def copy_limit(size: int, threads: int, block: int, repeats: int = 3) -> tuple[float, float]:
    """GB/s of copying `size` bytes, in blocks of `block` from a source in the cache, into memory
    that is faulted in: with memcpy, and with non-temporal stores.  The best of `repeats`."""
    target, share = np.zeros(size, np.uint8), size // threads
    target[:] = 1
    sources = [np.ones(max(block, 4096), np.uint8) for _ in range(threads)]
    found = []
    for stream in (0, 1):
        arguments = [
            (address(target) + share * k // 64 * 64, share, address(sources[k]), block, stream)
            for k in range(threads)
        ]
        _compile(copy_pages, 5)
        best = 0.0
        for _ in range(repeats):
            began = time.perf_counter_ns()
            _on_threads(copy_pages, arguments)
            best = max(best, share // block * block * threads / (time.perf_counter_ns() - began))
        found.append(best)
    return found[0], found[1]
