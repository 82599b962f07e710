"""Staging: the columnar buffer of a stream's rows between arrival and beat.

    _Half A   [ consumed | live rows ............ | free ]      values, valid, offsets, bytes
    _Half B   [ free                              ....... ]      per column
    chunks    producer, stop, time_min, time_max: one entry for each message that arrived

1. Rows are contiguous: `pending`, `unlogged` and any slice of them are plain views.
2. Rows are appended at the end.  If they do not fit, the live rows move to the *other* half.  Only
   the first compaction after a `mark_logged` reuses memory; further ones allocate a half.  Views
   given to a commit at one `mark_logged` stay intact until the first compaction after the next, so
   with at most one commit in flight nothing is overwritten.
3. Live rows are those not consumed or not logged: a row is dropped only when it is both.
4. A row whose time is more than `max_ahead_us` ahead of the wall clock is refused and counted,
   never staged.  If the wall clock is before 2024 (a board without a battery boots in 1970), the
   reference is the largest staged time, or the first row's own.
5. Rows that no beat can take yet stay with their producers (`read_until_us`).
6. A table has no event time: the time of all its rows counts as 0, and none is refused.
7. Memory: each half may take `bytes_max / 2`.  `room` falls to 0 at 80 % of a half and comes back
   below 50 %.  Only a source that ignores `room` makes a half grow past its share.

Staging belongs to the loop's thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.flow import WATERMARK_MIN_US, State
from edged.data.origins import OriginLog
from edged.data.producers import Producers
from edged.data.schema import Schema
from kernels.cpu.staging import copy_rows, take_rows

__all__ = ["CLOCK_SANE_US", "TIME_MAX_US", "Chunks", "Producers", "Staging", "StagingTarget"]

CLOCK_SANE_US = 1_704_067_200_000_000
"""2024-01-01 UTC: a wall clock before it is ignored."""
TIME_MAX_US = 2**63 - 1
CHUNK_BYTES = 28
"""Memory that one chunk's entry takes."""
ROWS_MIN = 1024
"""Least rows of a half, if its share of memory allows."""
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunks:
    """The messages of staged rows: chunk i is rows `stop[i-1]:stop[i]`, never empty."""

    producer: npt.NDArray[np.int32]
    stop: Int64s
    time_min: Int64s
    time_max: Int64s

    def __len__(self) -> int:
        return self.stop.size

    def after(self, count: int) -> Chunks:
        """The chunks after the first `count`, with the same stops."""
        return Chunks(
            self.producer[count:], self.stop[count:], self.time_min[count:], self.time_max[count:]
        )

    @property
    def rows(self) -> int:
        """Rows that the chunks hold together."""
        return int(self.stop[-1]) if self.stop.size else 0

    @classmethod
    def of(cls, rows: int, producer: int, times: Int64s) -> Chunks:
        """One chunk of `rows` rows with these times (no chunk where there are no rows)."""
        if rows == 0:
            return cls(np.empty(0, np.int32), *(np.empty(0, np.int64) for _ in range(3)))
        return cls(
            np.array([producer], np.int32),
            np.array([rows], np.int64),
            np.array([times.min()], np.int64),
            np.array([times.max()], np.int64),
        )


class _Half:
    """One of the two buffers: arrays of `rows_max` rows, `bytes_max[c]` bytes a variable column."""

    def __init__(self, schema: Schema, rows_max: int, bytes_max: Sequence[int]) -> None:
        self.rows_max, self.bytes_max = rows_max, list(bytes_max)
        columns = []
        for f, size in zip(schema.fields, bytes_max, strict=True):
            valid = np.empty(rows_max, np.uint8) if f.nullable else None
            if f.dtype.variable:
                offsets = np.empty(rows_max + 1, np.int64)
                offsets[0] = 0
                columns.append(Column(np.empty(size, np.uint8), valid, offsets))
            else:
                columns.append(Column(np.empty(rows_max, f.dtype.numpy), valid))
        self.batch = Batch(schema, rows_max, tuple(columns))
        self.addresses = self.batch.addresses()

    def nbytes(self) -> int:
        arrays = [a for c in self.batch.columns for a in (c.values, c.valid, c.offsets)]
        return sum(a.nbytes for a in arrays if a is not None)

    def view(self, start: int, stop: int) -> Batch:
        return self.batch.slice(start, stop)

    def bytes_at(self, row: int) -> Int64s:
        """Byte offset of row `row` in each column (0 for fixed width)."""
        ends = [0 if c.offsets is None else c.offsets[row] for c in self.batch.columns]
        return np.array(ends, np.int64)


class _ChunkLog:
    """Chunk entries, with stops as rows of the current half; grows and compacts into new arrays."""

    def __init__(self) -> None:
        self.producer = np.empty(256, np.int32)
        self.stop, self.time_min, self.time_max = (np.empty(256, np.int64) for _ in range(3))
        self.head = self.logged = self.tail = 0

    def reserve(self, count: int) -> None:
        """Make room for `count` more entries."""
        if self.tail + count <= self.stop.size:
            return
        start, tail = min(self.head, self.logged), self.tail
        size = self.stop.size
        while (tail - start + count) * 4 > size * 3:
            size *= 2
        for name in ("producer", "stop", "time_min", "time_max"):
            old = getattr(self, name)
            new = np.empty(size, old.dtype)
            new[: tail - start] = old[start:tail]
            setattr(self, name, new)
        self.head, self.logged, self.tail = self.head - start, self.logged - start, tail - start

    def entries(self, start: int, stop: int, first_row: int) -> Chunks:
        """Entries `start:stop`, with stops counted from `first_row`.

        Stops are a copy, since a compaction moves them; the rest are views, which stay valid: an
        entry is never overwritten, and `reserve` makes new arrays.
        """
        return Chunks(
            self.producer[start:stop],
            self.stop[start:stop] - first_row,
            self.time_min[start:stop],
            self.time_max[start:stop],
        )


@dataclass(frozen=True, slots=True)
class StagingTarget:
    """The place that a kernel writes to: the half's address table, the first free row and bytes,
    and the chunk arrays with the first free entry."""

    addresses: Int64s
    times: Int64s
    row: int
    bytes_at: Int64s
    chunks: _ChunkLog


class Staging:
    """A stream's staged rows; see the module's docstring for the rules."""

    reuse = True
    """Whether halves are used again; an arm of benchmarks allocates each time."""

    def __init__(
        self, name: str, schema: Schema, time: str, bytes_max: int, max_ahead_us: int
    ) -> None:
        """`time` is the name of the event-time column; empty: it is a table."""
        self.name, self.schema = name, schema
        self.timed = time != ""
        self.time_index = schema.index(time) if self.timed else 0
        """Index of the event-time column, unless `timed` is False."""
        self._no_times = np.empty(0, np.int64)
        self.bytes_max, self.max_ahead_us = bytes_max, max_ahead_us
        self.producers = Producers()
        self.refused_ahead = 0
        """Rows refused because their time was too far ahead."""
        self.received = 0
        """Rows that a source has staged since this object was made."""
        self.latest_us = WATERMARK_MIN_US
        """Largest time staged by any producer."""
        self.useful_us = TIME_MAX_US
        """The next beat takes no rows later than this; the job moves it."""
        self.origins: OriginLog | None = None
        """The messages that staged rows come from; None: nothing asks for them."""
        self.held = False
        """Whether the source must not read: the job is paused or drains."""
        self.pressed: Callable[[], bool] = lambda: False
        """Whether beats take no rows for now, because a sink is full."""
        self._half_bytes = max(bytes_max // 2, 1)
        self._high, self._low = self._half_bytes * 4 // 5, self._half_bytes // 2
        self._ahead = self._half_bytes // 8
        self._full = False
        self._row_bytes = sum((f.dtype.width or 8) + int(f.nullable) for f in schema)
        wire = sum(
            4 if f.dtype.variable else 0.125 if f.dtype.name == "bool" else f.dtype.width
            for f in schema
        )
        self.staged_per_wire_byte = max(1.0, self._row_bytes / wire)
        """Largest growth of a byte of Arrow IPC body when it is staged (bits become bytes)."""
        self._variable = [i for i, f in enumerate(schema) if f.dtype.variable]
        rows = max(1, min(ROWS_MIN, self._half_bytes // self._row_bytes))
        self._half = _Half(schema, rows, [rows * 8 * int(f.dtype.variable) for f in schema])
        self._other = _Half(schema, 0, [0] * len(schema))
        self._head = self._logged = self._tail = 0
        self._log = _ChunkLog()
        self._reusable = True
        self._beat_rows = 0
        """Rows of the last beat that had any."""

    @property
    def forwards(self) -> bool:
        """Whether a message is acknowledged when what was made of it is (durability `through`)."""
        return self.origins is not None and self.origins.forwards

    @property
    def rows(self) -> int:
        """Rows staged and not consumed."""
        return self._tail - self._head

    @property
    def full(self) -> bool:
        """Whether sources must not read: the high watermark was reached, the low one not yet."""
        return self.room() == 0

    @property
    def batch_bytes_max(self) -> int:
        """Largest single batch, in staged bytes, that always fits an empty staging."""
        return self._high

    def live_bytes(self) -> int:
        """Bytes of live rows (not consumed, or not logged)."""
        start = min(self._head, self._logged)
        chunks = self._log.tail - min(self._log.head, self._log.logged)
        total = (self._tail - start) * self._row_bytes + chunks * CHUNK_BYTES
        for c in self._variable:
            offsets = self._half.batch.columns[c].offsets
            assert offsets is not None
            total += int(offsets[self._tail] - offsets[start])
        return total

    def memory_bytes(self) -> int:
        """Bytes allocated: both halves, used or not."""
        return self._half.nbytes() + self._other.nbytes()

    def room(self) -> int:
        """Bytes that may be staged before the source must stop reading.

        0 from the high watermark until staging falls below the low one, while it is held, and,
        while beats take no rows, with any row: more would be acknowledged and wait.
        """
        if self.held or (self._tail > self._head and self.pressed()):
            return 0
        live = self.live_bytes()
        self._full = live > self._low if self._full else live >= self._high
        return 0 if self._full else self._high - live

    def read_until_us(self) -> int:
        """Producers whose last row is later than this stay unread for now.

        No beat can take their rows before the slowest producer catches up; until then the rows
        would fill staging and every snapshot.  An eighth of a half is spent on such rows, so that
        their producers get acks.
        """
        return self.useful_us if self.live_bytes() > self._ahead else TIME_MAX_US

    def pending(self, rows: int | None = None) -> Batch:
        """The first `rows` rows that are staged and not consumed, by default all, as views."""
        return self._half.view(self._head, self._tail if rows is None else self._head + rows)

    def chunks(self) -> Chunks:
        """The chunks of the pending rows."""
        return self._log.entries(self._log.head, self._log.tail, self._head)

    def consume(self, chunks: int, rows: int) -> None:
        """Drop the first `chunks` pending chunks, which are the first `rows` pending rows."""
        head = self._log.head + chunks
        stop = int(self._log.stop[head - 1]) if chunks else self._head
        if head > self._log.tail or stop - self._head != rows:
            raise ValueError(f"stream {self.name}: {chunks} chunks are not {rows} rows")
        self._log.head, self._head = head, stop

    def unlogged(self) -> tuple[Batch, Chunks]:
        """Views and chunks of rows appended since the last `mark_logged`, consumed or not."""
        return self._half.view(self._logged, self._tail), self.arrived()

    def arrived(self) -> Chunks:
        """The chunks of `unlogged`."""
        return self._log.entries(self._log.logged, self._log.tail, self._logged)

    @property
    def unlogged_rows(self) -> int:
        """Number of the rows of `unlogged`."""
        return self._tail - self._logged

    @property
    def unlogged_chunks(self) -> int:
        """Number of the chunks of `unlogged`."""
        return self._log.tail - self._log.logged

    def mark_logged(self) -> None:
        """The rows of `unlogged` and the delta of `producers.changes` are in a beat's record."""
        self._beat_rows = self.unlogged_rows or self._beat_rows
        self._logged, self._log.logged = self._tail, self._log.tail
        self._reusable = True
        self.producers.mark_logged()

    def limit_us(self, wall_us: int) -> int:
        """The largest accepted time; TIME_MAX_US if there is no reference yet."""
        if not self.timed:
            return TIME_MAX_US - 1
        reference = wall_us if wall_us >= CLOCK_SANE_US else self.latest_us
        if reference == WATERMARK_MIN_US:
            return TIME_MAX_US
        return min(reference + self.max_ahead_us, TIME_MAX_US)

    def append(self, batch: Batch, producer: int, wall_us: int) -> int:
        """Stage `batch` as one chunk; rows too far ahead are refused.  Returns rows staged.

        Moves the producer's `latest_us`; `seq`, `seen_us` and `ended` are the caller's.
        """
        times = self._times(batch)
        keep = self._admit(times, wall_us)
        if keep is not None:
            self.refused_ahead += batch.rows - keep.size
            self.producers.ahead[producer] += batch.rows - keep.size
            times = times[keep]
        self._stage(batch, keep, Chunks.of(times.size, producer, times))
        return int(times.size)

    def append_logged(self, batch: Batch, chunks: Chunks) -> None:
        """Stage the rows of a record again; they count as logged.

        Apply the record's producer changes first: chunks refer to them.
        """
        received = self.received
        self._stage(batch, None, chunks)
        self.received = received
        self._logged, self._log.logged = self._tail, self._log.tail
        self._reusable = True
        self.producers.mark_logged()

    def reserve(self, rows: int, bytes_each: Int64s, chunks: int) -> StagingTarget:
        """Make room for `rows` rows with `bytes_each[column]` bytes; returns the place.

        Nothing is staged until `extend`; another `reserve` discards what was written.
        """
        self._turn(rows)
        half, ends = self._half, self._half.bytes_at(self._tail)
        need = ends + bytes_each
        if self._tail + rows > half.rows_max or any(
            need[c] > half.bytes_max[c] for c in self._variable
        ):
            self._compact(rows, bytes_each)
            half = self._half
            ends = half.bytes_at(self._tail)
        self._log.reserve(chunks)
        times = self._times(half.batch)
        return StagingTarget(half.addresses, times, self._tail, ends, self._log)

    def extend(self, rows: int, chunks: int, latest_us: int) -> None:
        """Stage the rows and chunk entries written to the reserved place.

        The caller updates the producers' arrays.
        """
        self._tail += rows
        self.received += rows
        self._log.tail += chunks
        self.latest_us = max(self.latest_us, latest_us)

    def save(self) -> State:
        """Pending rows, their chunks and the producers, as copies."""
        state: State = {"producers": _json_array(self.producers.to_json())}
        for i, column in enumerate(self.pending().columns):
            if column.valid is not None:
                state[f"valid.{i}"] = column.valid.copy()
            if column.offsets is None:
                state[f"values.{i}"] = column.values.copy()
            else:
                first, last = int(column.offsets[0]), int(column.offsets[-1])
                state[f"values.{i}"] = column.values[first:last].copy()
                state[f"offsets.{i}"] = column.offsets - first
        chunks = self.chunks()
        for name in ("producer", "stop", "time_min", "time_max"):
            state[f"chunks.{name}"] = getattr(chunks, name).copy()
        state["refused_ahead"] = np.array([self.refused_ahead], np.int64)
        return state

    def load(self, state: State) -> None:
        """Restore the state of a `save`; staged rows are discarded."""
        self.producers.restore(_json_of(state["producers"]))
        self._head = self._logged = self._tail = 0
        self._log = _ChunkLog()
        columns = [
            Column(state[f"values.{i}"], state.get(f"valid.{i}"), state.get(f"offsets.{i}"))
            for i in range(len(self.schema))
        ]
        names = ("producer", "stop", "time_min", "time_max")
        chunks = Chunks(*(state[f"chunks.{name}"] for name in names))
        self.append_logged(Batch(self.schema, chunks.rows, tuple(columns)), chunks)
        self.refused_ahead = int(state["refused_ahead"][0])
        self.latest_us = max(self.latest_us, int(self.producers.latest_us.max()))

    def _times(self, batch: Batch) -> Int64s:
        """The times of the rows; zeros of a table."""
        if self.timed:
            return batch.columns[self.time_index].values
        if self._no_times.size < batch.rows:
            self._no_times = np.zeros(batch.rows, np.int64)
        return self._no_times[: batch.rows]

    def _admit(self, times: Int64s, wall_us: int) -> Int64s | None:
        """Rows to keep, or None for all."""
        if times.size == 0:
            return None
        limit = self.limit_us(wall_us)
        if limit == TIME_MAX_US and wall_us < CLOCK_SANE_US:
            limit = min(int(times[0]) + self.max_ahead_us, TIME_MAX_US)
        if times.max() <= limit:
            return None
        return np.flatnonzero(times <= limit)

    def _stage(self, batch: Batch, keep: Int64s | None, chunks: Chunks) -> None:
        if batch.rows == 0 or len(chunks) == 0:
            return
        sizes = [0 if c.offsets is None else c.offsets[-1] - c.offsets[0] for c in batch.columns]
        to = self.reserve(chunks.rows, np.array(sizes, np.int64), len(chunks))
        source = batch.addresses()
        if keep is None:
            copy_rows(source, 0, batch.rows, to.addresses, to.row, to.bytes_at)
        else:
            take_rows(source, keep, to.addresses, to.row, to.bytes_at)
        log, at = self._log, slice(self._log.tail, self._log.tail + len(chunks))
        log.producer[at] = chunks.producer
        log.stop[at] = chunks.stop + self._tail
        log.time_min[at], log.time_max[at] = chunks.time_min, chunks.time_max
        np.maximum.at(self.producers.latest_us, chunks.producer, chunks.time_max)
        self.extend(chunks.rows, len(chunks), int(chunks.time_max.max()))

    def _turn(self, rows: int) -> None:
        """With no live row, go on in the other half, from its first row, where the rows of a beat
        fit.  A stream whose beats take all its rows then uses as much memory as these, which stays
        in the CPU's caches, and allocates none."""
        half, other = self._half, self._other
        if not (self.reuse and self._reusable and self._tail == self._head > 0):
            return
        if self._head != self._logged or other.rows_max < 2 * self._beat_rows + rows:
            return
        if all(other.bytes_max[c] >= half.bytes_max[c] for c in self._variable):
            self._half, self._other, self._reusable = other, half, False
            self._log.stop[: self._log.tail] -= self._tail
            self._head = self._logged = self._tail = 0

    def _compact(self, rows: int, bytes_each: Int64s) -> None:
        """Move live rows to the other half, which grows if it is small and may grow."""
        start, half = min(self._head, self._logged), self._half
        live = self._tail - start
        need_bytes = half.bytes_at(self._tail) - half.bytes_at(start) + bytes_each
        other = self._roomy(live + rows, need_bytes)
        to = np.zeros(len(self.schema), np.int64)
        copy_rows(half.addresses, start, self._tail, other.addresses, 0, to)
        self._half, self._other, self._reusable = other, half, False
        self._head, self._logged, self._tail = self._head - start, self._logged - start, live
        self._log.stop[: self._log.tail] -= start

    def _roomy(self, rows: int, need_bytes: Int64s) -> _Half:
        """The other half if it may be reused and has a quarter to spare, else a new one.

        A new half has up to twice the need, within its share of memory if possible.
        """
        other, need = self._other, rows * self._row_bytes + int(need_bytes.sum())
        grown = self._half_bytes / max(need, 1)
        spare = 4 / 3 if grown > 4 / 3 else 1.0
        reusable = self.reuse and self._reusable and other.rows_max >= rows * spare
        if reusable and all(other.bytes_max[c] >= need_bytes[c] * spare for c in self._variable):
            return other
        rows_max = max(rows, int(rows * min(2.0, grown)))
        sizes = [max(int(n), int(n * min(2.0, grown))) for n in need_bytes]
        like = [max(a, b) for a, b in zip(sizes, self._half.bytes_max, strict=True)]
        if max(rows_max, self._half.rows_max) * self._row_bytes + sum(like) <= self._half_bytes:
            return _Half(self.schema, max(rows_max, self._half.rows_max), like)
        return _Half(self.schema, rows_max, sizes)


def _json_array(document: Any) -> npt.NDArray[np.uint8]:
    text = json.dumps(document, separators=(",", ":")).encode()
    return np.frombuffer(bytearray(text), np.uint8)


def _json_of(array: npt.NDArray[Any]) -> Any:
    return json.loads(array.tobytes())
