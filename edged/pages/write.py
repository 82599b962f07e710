"""The page writer: turns batches into sealed pages, with one open page per partition.

Invariants

1. The bytes of the pages depend only on the rows, their order and the calls of `seal` and
   `seal_early`; not on how rows are cut into batches, nor on the workers.  (The header also names
   the beat and its time.)
2. A page is sealed when the next row does not fit, or on flush; a dense page also at the end of
   the beat when no further row can fit; the largest pages also by `seal_early`, where the memory of
   all is bounded.  Each call returns its pages in (partition, seq) order.
3. A row is copied once, into its open page, and again when the page grows: its buffer starts at
   the size class (ROOM_BYTES_MIN, times ROOM_FACTOR and so on, at most the page's capacity) of its
   first rows or of the partition's largest page between its last two flushes, and moves to a larger
   class when it is full.  Growth changes no byte of a page.  A full page's buffer serves the
   partition's next page; `seal` releases the buffers of pages without rows.  So a partition with
   rows takes at most ROOM_BYTES_MIN, or ROOM_FACTOR times the largest contents of its pages since
   the flush before the last; at most POOL_BYTES_MAX a class is pooled.
4. A row that alone needs more than 16 MiB is not written; `rows_too_large` counts it.  A row that
   only exceeds the stream's capacity gets a page with a larger capacity (whole KiB).

Each worker gets a range of partitions with about equal rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, address
from edged.data.flow import BeatContext, State
from edged.data.hashing import hash_columns
from edged.data.picked import Picked
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.pages.format import (
    CAPACITY_DEFAULT,
    CAPACITY_MAX,
    FLAG_WEIGHT,
    LAYOUT_DENSE,
    LAYOUT_SLOTTED,
    SLOT_BYTES,
    WEIGHT_BYTES,
    Header,
    tuple_layout,
)
from edged.pages.header import HEADER_BYTES
from edged.pages.room import ROOM_BYTES_MIN, ROOM_FACTOR, Buffer, BufferPool, room_class
from edged.pages.seal import ENTROPY_BITS_MAX, seal_page
from kernels.cpu import pages as kernels
from kernels.cpu.pages import PAGE, SHAPE

PARALLEL_BYTES = 1 << 18
"""Fewer bytes are sealed on the calling thread."""
EARLY_SHARE = 0.75
"""Share of their limit that open pages may take after pages were sealed early."""
LEARNED_SLACK = 8
"""A page starts with room for its partition's largest recent page and 1 / LEARNED_SLACK more."""
_TIME_MIN_NONE, _TIME_MAX_NONE = 2**63 - 1, -(2**63)
_NO_ROWS: npt.NDArray[np.int64] = np.empty(0, np.int64)
_NO_HASHES: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
_SAVED = (PAGE.capacity, PAGE.tuples, PAGE.data, PAGE.time_min, PAGE.time_max)


@dataclass(frozen=True, slots=True)
class PageStream:
    """The common part of all pages of a stream; the fields are those of the header."""

    device: str
    epoch: int
    stream: str
    version: int
    schema: Schema
    time: str
    """Name of the event-time column."""
    partitions: int = 1
    partition_by: tuple[str, ...] = ()
    capacity: int = CAPACITY_DEFAULT
    weighted: bool = False
    entropy_bits_max: float = ENTROPY_BITS_MAX
    """Entropy of a page's sample, in bits per byte, above which the page is stored raw."""


@dataclass(frozen=True, slots=True)
class WrittenPage:
    """A sealed page: its partition, its sequence number, its stored bytes."""

    partition: int
    seq: int
    data: bytes
    raw_bytes: int
    """Its size before compression."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """One batch prepared for the kernels."""

    columns: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    cursor: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]


class PageWriter:
    """The open pages of one stream."""

    def __init__(self, stream: PageStream) -> None:
        self.stream = stream
        self.rows_written = self.rows_too_large = 0
        self.pages_sealed = self.pages_compressed = self.bytes_raw = self.bytes_stored = 0
        self.pages_early = 0
        """Pages sealed only to bound the memory of the open ones."""
        self._dense = stream.schema.fixed_width
        self._places, self._shape = _shape_of(stream)
        self._row_bytes = stride_bytes(stream.schema, stream.weighted)
        self._state = np.zeros((stream.partitions, len(PAGE)), np.int64)
        self._state[:, PAGE.time_min] = _TIME_MIN_NONE
        self._state[:, PAGE.time_max] = _TIME_MAX_NONE
        self._capacity = np.full(stream.partitions, stream.capacity, np.int64)
        self._seq = np.ones(stream.partitions, np.int64)
        self._too_large = np.zeros(stream.partitions, np.int64)
        self._most_used = np.zeros((2, stream.partitions), np.int64)
        """Bytes of each partition's largest sealed page: since its last flush, and before that."""
        self._buffers: dict[int, Buffer] = {}
        self._pool = BufferPool()
        self._scratch = Scratch()
        self._full: list[WrittenPage] = []

    def write(
        self, beat: BeatContext, batch: Batch | Picked, weights: npt.NDArray[np.int32] | None = None
    ) -> None:
        """Copy the rows of `batch` into the open pages; `seal` returns those that became full.

        `weights` (int32[rows], writable) is required if the stream is weighted.
        """
        if batch.rows == 0:
            return
        before = int(self._too_large.sum())
        rows = self._prepare(batch, weights, beat.workers)
        self._allocate_buffers(rows)
        calls = [partial(self._fill, beat, rows, a, b) for a, b in self._ranges(rows, beat.workers)]
        for sealed in beat.workers.run(calls):
            self._full += sealed
        refused = int(self._too_large.sum()) - before
        self.rows_too_large += refused
        self.rows_written += batch.rows - refused

    def seal(self, beat: BeatContext, flush: bool) -> list[WrittenPage]:
        """The full pages, or with `flush` every page with rows."""
        tuples = self._state[:, PAGE.tuples]
        ready = tuples > 0
        if not flush:
            used = HEADER_BYTES + (tuples + 1) * self._shape[SHAPE.stride]
            ready &= self._dense & (used > self._capacity)
        self._seal_all(beat, np.flatnonzero(ready).tolist())
        if flush:
            self._pool.flushed(int(self._state[:, PAGE.capacity].sum()))
        self._release((tuples == 0) & (self._state[:, PAGE.buffer] != 0))
        return self._hand_over()

    def exceeds(self, limit: int) -> bool:
        """Whether the rows of open pages need more than `limit` bytes of buffers.  If the buffers
        take more, those that are larger than their rows need are replaced first."""
        if self.open_bytes() <= limit:
            return False
        self._pool.clear()
        self._most_used[:] = 0
        rooms = self._rooms()
        self._release((rooms == 0) & (self._state[:, PAGE.buffer] != 0))
        for p in np.flatnonzero(rooms < self._state[:, PAGE.capacity]).tolist():
            self._move(p, int(rooms[p]))
        self._pool.clear()
        return int(rooms.sum()) > limit

    def seal_early(self, beat: BeatContext, limit: int) -> list[WrittenPage]:
        """Seal the largest pages until the rows of the others need at most EARLY_SHARE of `limit`
        bytes.  Call it after `seal`; the choice depends on the open pages' contents alone."""
        rooms, used = self._rooms(), self._used_bytes()
        left, early = int(rooms.sum()), []
        for p in np.lexsort((np.arange(used.size), -used)).tolist():
            if left <= limit * EARLY_SHARE or rooms[p] == 0:
                break
            left -= int(rooms[p])
            early.append(p)
        self._seal_all(beat, early)
        self.pages_early += len(early)
        self._release((self._state[:, PAGE.tuples] == 0) & (self._state[:, PAGE.buffer] != 0))
        self._pool.clear()
        return self._hand_over()

    def _seal_all(self, beat: BeatContext, partitions: Sequence[int]) -> None:
        calls = [partial(self._seal, beat, p) for p in partitions]
        if calls and int(self._used_bytes()[partitions].sum()) >= PARALLEL_BYTES:
            self._full += beat.workers.run(calls)
        else:
            self._full += [call() for call in calls]

    def _hand_over(self) -> list[WrittenPage]:
        """The sealed pages, counted, in (partition, seq) order."""
        sealed, self._full = self._full, []
        sealed.sort(key=lambda page: (page.partition, page.seq))
        self.bytes_raw += sum(page.raw_bytes for page in sealed)
        self.bytes_stored += sum(len(page.data) for page in sealed)
        self.pages_sealed += len(sealed)
        self.pages_compressed += sum(len(page.data) < page.raw_bytes for page in sealed)
        return sealed

    def open_rows(self) -> int:
        """Rows in unsealed pages."""
        return int(self._state[:, PAGE.tuples].sum())

    def open_bytes(self) -> int:
        """Memory of the open pages' buffers in bytes, pooled ones included."""
        return int(self._state[:, PAGE.capacity].sum()) + self._pool.held_bytes()

    def save(self) -> State:
        """Open pages and sequence numbers, as copies.  Call it between beats, after `seal`."""
        used = [
            self._page(int(p))[HEADER_BYTES:] for p in np.flatnonzero(self._state[:, PAGE.tuples])
        ]
        state = self._state.copy()
        state[:, PAGE.capacity] = self._capacity
        return {
            "seq": self._seq.copy(),
            "state": state[:, _SAVED],
            "bytes": np.concatenate([*used, np.empty(0, np.uint8)]),
        }

    def load(self, state: State) -> None:
        """Restore what `save` of a writer for an equal stream returned."""
        self._buffers.clear()
        self._full.clear()
        self._seq[:] = state["seq"]
        self._state[:] = 0
        self._state[:, _SAVED] = state["state"]
        self._capacity[:] = self._state[:, PAGE.capacity]
        self._state[:, PAGE.capacity] = 0
        used = self._used_bytes()
        at = 0
        for p in np.flatnonzero(self._state[:, PAGE.tuples]):
            page = self._state[p]
            buffer = self._open(int(p), int(used[p])).memory
            slots = int(page[PAGE.tuples] * self._shape[SHAPE.stride])
            data = int(page[PAGE.data])
            saved = state["bytes"][at : at + slots + data]
            buffer[HEADER_BYTES : HEADER_BYTES + slots] = saved[:slots]
            buffer[buffer.size - data :] = saved[slots:]
            at += slots + data

    def skip(self, last: Mapping[int, int]) -> None:
        """Drop the open pages, and continue after page `last[partition]` in each partition."""
        self._state[:, PAGE.tuples] = self._state[:, PAGE.data] = 0
        self._state[:, PAGE.time_min] = _TIME_MIN_NONE
        self._state[:, PAGE.time_max] = _TIME_MAX_NONE
        self._release(self._state[:, PAGE.buffer] != 0)
        self._capacity[:] = self.stream.capacity
        for partition, seq in last.items():
            self._seq[partition] = max(self._seq[partition], seq + 1)

    def last_seqs(self) -> list[int]:
        """The sequence number of each partition's last sealed page; 0: none yet."""
        last: list[int] = (self._seq - 1).tolist()
        return last

    def _prepare(
        self, batch: Batch | Picked, weights: npt.NDArray[np.int32] | None, workers: Workers
    ) -> _Rows:
        """Compute every row's partition, and prepare the arguments of the kernels."""
        stream, scratch = self.stream, self._scratch
        columns, shape = batch.addresses(), self._shape
        if stream.weighted:
            if weights is None:
                raise ValueError("a weighted stream needs a weight for every row")
            shape = shape.copy()
            shape[SHAPE.weights] = address(weights)
            if self._dense:
                columns = np.vstack((columns, np.array([[4, address(weights), 0, 0, 0]], np.int64)))
        hashes, order = _NO_HASHES, _NO_ROWS
        edges: npt.NDArray[np.int64] = np.zeros(stream.partitions + 1, np.int64)
        by = stream.partition_by
        if by and (stream.partitions > 1 or not self._dense):
            keys = batch if isinstance(batch, Batch) else batch.batch(scratch, workers, by)
            hashes = hash_columns(keys, by, scratch, workers=workers)
        if hashes.size and stream.partitions > 1:
            order = scratch.get("order", batch.rows, np.int64)
            kernels.partition_rows(hashes, stream.partitions, edges, order)
        else:
            edges[1:] = batch.rows
        return _Rows(columns, shape, order, hashes, edges[:-1].copy(), edges)

    def _allocate_buffers(self, rows: _Rows) -> None:
        counts = rows.edges[1:] - rows.edges[:-1]
        missing = np.flatnonzero((counts > 0) & (self._state[:, PAGE.buffer] == 0))
        need = HEADER_BYTES + counts[missing] * self._row_bytes
        most = self._most_used[1, missing]
        need = np.maximum(need, most + most // LEARNED_SLACK)
        for p, least in zip(missing.tolist(), need.tolist(), strict=True):
            self._open(p, least)

    def _ranges(self, rows: _Rows, workers: Workers) -> Sequence[tuple[int, int]]:
        """Ranges of partitions with about equal rows, one per worker."""
        total, partitions = int(rows.edges[-1]), self.stream.partitions
        if workers.count == 1 or partitions == 1 or total < PARALLEL_ROWS:
            return [(0, partitions)]
        shares = np.arange(1, workers.count) * (total / workers.count)
        cuts = np.searchsorted(rows.edges, shares)
        return [(a, b) for a, b in pairwise([0, *map(int, cuts), partitions]) if a < b]

    def _fill(self, beat: BeatContext, rows: _Rows, first: int, last: int) -> list[WrittenPage]:
        """Write the rows of partitions first..last-1, sealing each page that becomes full."""
        sealed: list[WrittenPage] = []
        while True:
            if self._dense:
                first = kernels.fill_dense(
                    rows.columns, self._places, rows.shape, rows.order, rows.cursor, rows.edges,
                    self._state, first, last,
                )  # fmt: skip
            else:
                first = kernels.fill_slotted(
                    rows.columns, self._places, rows.shape, rows.order, rows.hashes, rows.cursor,
                    rows.edges, self._state, first, last,
                )  # fmt: skip
            if first == last:
                return sealed
            page = self._state[first]
            stride = int(self._shape[SHAPE.stride])
            used = HEADER_BYTES + int(page[PAGE.tuples]) * stride + int(page[PAGE.data])
            more = stride if self._dense else int(page[PAGE.need]) - HEADER_BYTES
            if used + more <= self._capacity[first]:
                self._move(first, used + more)
            elif page[PAGE.tuples]:
                sealed.append(self._seal(beat, first))
            elif HEADER_BYTES + more > CAPACITY_MAX:
                self._too_large[first] += 1
                rows.cursor[first] += 1
            else:
                self._capacity[first] = -(-(HEADER_BYTES + more) // 1024) * 1024
                self._open(first, HEADER_BYTES + more)

    def _open(self, partition: int, need: int) -> Buffer:
        """A buffer for the partition's page that holds `need` bytes or is as large as may be."""
        buffer = self._pool.take(room_class(need, int(self._capacity[partition])))
        self._buffers[partition] = buffer
        page = self._state[partition]
        page[PAGE.buffer], page[PAGE.capacity] = buffer.at, buffer.memory.size
        return buffer

    def _rooms(self) -> npt.NDArray[np.int64]:
        """Bytes of the least size class for the contents of each partition's open page; 0: no
        rows."""
        used = self._used_bytes()
        rooms = np.full(used.size, ROOM_BYTES_MIN, np.int64)
        while (small := rooms < used).any():
            rooms[small] *= ROOM_FACTOR
        return np.where(self._state[:, PAGE.tuples] > 0, np.minimum(rooms, self._capacity), 0)

    def _move(self, partition: int, need: int) -> None:
        """Move the partition's open page to a buffer that holds `need` bytes."""
        page, given = self._state[partition], self._buffers[partition]
        slots = HEADER_BYTES + int(page[PAGE.tuples] * self._shape[SHAPE.stride])
        data = int(page[PAGE.data])
        old, new = given.memory, self._open(partition, need).memory
        new[HEADER_BYTES:slots] = old[HEADER_BYTES:slots]
        new[new.size - data :] = old[old.size - data :]
        self._pool.give(given)

    def _release(self, pages: npt.NDArray[np.bool_]) -> None:
        """Hand back the buffers of pages without rows, whose partitions are marked in `pages`."""
        self._pool.give_all([self._buffers.pop(p) for p in np.flatnonzero(pages).tolist()])
        self._state[pages, PAGE.buffer] = self._state[pages, PAGE.capacity] = 0
        self._most_used[1, pages] = self._most_used[0, pages]
        self._most_used[0, pages] = 0

    def _used_bytes(self) -> npt.NDArray[np.int64]:
        stride = self._shape[SHAPE.stride]
        used: npt.NDArray[np.int64] = (
            HEADER_BYTES + self._state[:, PAGE.tuples] * stride + self._state[:, PAGE.data]
        )
        return used

    def _page(self, partition: int) -> npt.NDArray[np.uint8]:
        """The trimmed page: a view if it is dense, else a copy with its data moved up."""
        page, buffer = self._state[partition], self._buffers[partition].memory
        slots = HEADER_BYTES + int(page[PAGE.tuples] * self._shape[SHAPE.stride])
        data = int(page[PAGE.data])
        if data == 0:
            return buffer[:slots]
        return np.concatenate((buffer[:slots], buffer[buffer.size - data :]))

    def _seal(self, beat: BeatContext, partition: int) -> WrittenPage:
        """Seal the partition's open page and reset its buffer for the next."""
        stream, page = self.stream, self._state[partition]
        seq = int(self._seq[partition])
        header = Header(
            layout=LAYOUT_DENSE if self._dense else LAYOUT_SLOTTED,
            capacity=int(self._capacity[partition]), stored_bytes=0, raw_bytes=0,
            tuples=int(page[PAGE.tuples]), stride=int(self._shape[SHAPE.stride]), checksum=0,
            epoch=stream.epoch, seq=seq, beat=beat.number, partition=partition,
            version=stream.version, time_min_us=int(page[PAGE.time_min]),
            time_max_us=int(page[PAGE.time_max]), sealed_at_us=beat.wall_us,
            flags=FLAG_WEIGHT if stream.weighted else 0, device=stream.device,
            stream=stream.stream,
        )  # fmt: skip
        raw = self._page(partition)
        data = seal_page(header, raw, entropy_bits_max=stream.entropy_bits_max)
        self._most_used[0, partition] = max(self._most_used[0, partition], raw.size)
        self._seq[partition] += 1
        page[PAGE.tuples] = page[PAGE.data] = 0
        page[PAGE.time_min], page[PAGE.time_max] = _TIME_MIN_NONE, _TIME_MAX_NONE
        if self._capacity[partition] != stream.capacity:
            self._capacity[partition] = stream.capacity
            self._open(partition, HEADER_BYTES)
        return WrittenPage(partition, seq, data, raw.size)


def _shape_of(stream: PageStream) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kernels' `places` and `shape` for a stream's schema."""
    schema, dense = stream.schema, stream.schema.fixed_width
    layout = tuple_layout(schema, stream.weighted)
    places: list[list[int]] = []
    for i in range(len(schema)):
        bit_at = layout.bitmap_at + i // 8 if layout.bitmap_bytes else -1
        places.append([layout.places[i], bit_at, 1 << (i % 8)])
    if dense and stream.weighted:
        places.append([0, -1, 0])
    shape: npt.NDArray[np.int64] = np.zeros(len(SHAPE), np.int64)
    slot = SLOT_BYTES + (WEIGHT_BYTES if stream.weighted else 0)
    shape[SHAPE.stride] = layout.fixed_bytes if dense else slot
    shape[SHAPE.fixed] = layout.fixed_bytes
    shape[SHAPE.bitmap_at], shape[SHAPE.bitmap_bytes] = layout.bitmap_at, layout.bitmap_bytes
    shape[SHAPE.time] = schema.index(stream.time)
    return np.array(places, np.int64), shape


def stride_bytes(schema: Schema, weighted: bool = False) -> int:
    """The least number of bytes of a tuple of `schema` in a page."""
    slot = 0 if schema.fixed_width else SLOT_BYTES + (WEIGHT_BYTES if weighted else 0)
    return slot + tuple_layout(schema, weighted).fixed_bytes
