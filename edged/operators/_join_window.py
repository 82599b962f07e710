"""One side of an interval join: its window's columns, and the path of a beat's rows into the join.

`RowStore` holds columns of the rows that may still match, in arrival order and contiguous: rows
`start..stop` of its arrays.  Appending copies.  A full array moves its live rows to the front, into
an array twice its size where they fill more than half.

`Side` is a store and its input to a `WindowJoin`.  `Arrival` stores, hashes and partitions a beat's
rows of both sides (`kernels.cpu.ingest`) and writes the records that the join takes.  The join
decides which records stay live.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address, apart
from edged.data.hashing import Hashes, all_valid, key_code
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.joins.base import Records
from kernels.cpu import ingest, partition, team
from kernels.cpu.partition import PARTITIONS

ROWS_MIN = 1024
"""Initial capacity of a store in rows."""
Copies = list[tuple[int, int, int]]
"""(target address, source address, bytes a row)."""
Lend = Callable[[int], npt.NDArray[np.int64]]
"""Memory for the records of a number of rows: a join's `buffer` of one side."""
Int64s = npt.NDArray[np.int64]


class RowStore:
    """Columns of `schema` for the live rows; see the module's docstring."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.start = self.stop = 0
        self._capacity = ROWS_MIN
        self._columns = [_Growing(f) for f in schema.fields]
        self._read: Schema | None = None
        self._places: list[int] = []
        """Places of the store's columns in batches of the schema `_read`."""

    @property
    def rows(self) -> int:
        """Live rows."""
        return self.stop - self.start

    def append(self, batch: Batch, copies: Copies) -> int:
        """Make room for `batch`, which has the store's columns among its own.

        Fixed-width columns are not copied: their copies are appended to `copies`.  Strings and
        binaries are copied at once.  Returns the distance in rows by which the live rows moved to
        the front.
        """
        moved = 0
        if self.stop + batch.rows > self._capacity:
            moved = self.start
            need = self.rows + batch.rows
            self._capacity = max(self._capacity, 2 * need)
            for column in self._columns:
                column.move(self.start, self.stop, self._capacity)
            self.start, self.stop = 0, self.rows
        if batch.schema is not self._read:
            self._read = batch.schema
            self._places = [batch.schema.index(name) for name in self.schema.names]
        for column, place in zip(self._columns, self._places, strict=True):
            column.append(self.stop, batch.columns[place], batch.rows, copies)
        self.stop += batch.rows
        return moved

    def view(self) -> Batch:
        """All rows up to `stop`; those before `start` are dead but readable."""
        return Batch(self.schema, self.stop, self.columns(range(len(self._columns))))

    def columns(self, places: Iterable[int]) -> tuple[Column, ...]:
        """Some columns of `view`."""
        return tuple([self._columns[place].view(self.stop) for place in places])

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(c.nbytes() for c in self._columns)


class _Growing:
    """One column's arrays with room to grow."""

    def __init__(self, field: Field) -> None:
        self._values = np.empty(ROWS_MIN, field.dtype.numpy)
        self._valid = np.empty(ROWS_MIN, np.uint8) if field.nullable else None
        self._offsets = np.zeros(ROWS_MIN + 1, np.int64) if field.dtype.variable else None
        self._locate()

    def _locate(self) -> None:
        """Note the addresses of the arrays."""
        self._values_at = address(self._values)
        self._valid_at = 0 if self._valid is None else address(self._valid)

    def move(self, start: int, stop: int, capacity: int) -> None:
        """Move rows `start..stop` to the front of arrays of `capacity` rows."""
        self._move(start, stop, capacity)
        self._locate()

    def _move(self, start: int, stop: int, capacity: int) -> None:
        if self._valid is not None:
            self._valid = _moved(self._valid, start, stop, capacity)
        if self._offsets is None:
            self._values = _moved(self._values, start, stop, capacity)
            return
        first, last = int(self._offsets[start]), int(self._offsets[stop])
        self._values = _moved(self._values, first, last, self._values.size)
        self._offsets = _moved(self._offsets, start, stop + 1, capacity + 1)
        self._offsets[: stop - start + 1] -= first

    def append(self, at: int, column: Column, rows: int, copies: Copies) -> None:
        if self._valid is not None and column.valid is not None:
            copies.append((self._valid_at + at, address(column.valid), 1))
        if self._offsets is None or column.offsets is None:
            width = self._values.itemsize
            copies.append((self._values_at + width * at, address(column.values), width))
            return
        first, last = int(column.offsets[0]), int(column.offsets[rows])
        end = int(self._offsets[at])
        if end + last - first > self._values.size:
            self._values = _moved(self._values, 0, end, 2 * (end + last - first))
        into = self._offsets[at + 1 : at + rows + 1]
        np.add(column.offsets[1 : rows + 1], end - first, out=into)
        self._values[end : end + last - first] = column.values[first:last]

    def view(self, stop: int) -> Column:
        valid = None if self._valid is None else self._valid[:stop]
        if self._offsets is None:
            return Column(self._values[:stop], valid)
        return Column(self._values, valid, self._offsets[: stop + 1])

    def nbytes(self) -> int:
        arrays = (self._values, self._valid, self._offsets)
        return sum(a.nbytes for a in arrays if a is not None)


def _moved(array: Array, start: int, stop: int, capacity: int) -> Array:
    """`array[start:stop]` at the front of this array or, where it is too small, of a new one."""
    target = array if capacity <= array.size else np.empty(capacity, array.dtype)
    target[: stop - start] = array[start:stop]
    return target


class Side:
    """One side's window.  `base` is the row number (mod 2^32) of row 0 of the store's arrays."""

    def __init__(
        self, source: Schema, schema: Schema, keys: Sequence[str], time: str, start: int = 0
    ) -> None:
        """An empty window of `schema`'s columns for rows of `source`; `start` is the first row's
        number."""
        self.store = RowStore(schema)
        self.base = start % 2**32
        self._keys, self._time = tuple(keys), time
        self._scratch = Scratch()
        columns = max(1, len(keys)), max(1, 2 * len(schema))
        self._key_table: Int64s = np.zeros((columns[0], ingest.KEY_FIELDS), np.int64)
        self._copy_table: Int64s = np.zeros((columns[1], ingest.COPY_FIELDS), np.int64)
        dtypes = [source.field(name).dtype for name in keys]
        self._key_table[: len(keys), ingest.KEY.code] = [key_code(dtype) for dtype in dtypes]
        self._plain = len(dtypes) == 1 and not dtypes[0].variable
        self._tables = address(self._key_table), address(self._copy_table)
        self._mask: Array | None = None
        self._nullable = any(source.field(name).nullable for name in keys)
        self._read: Schema | None = None
        self._places: list[int] = []
        """Places of the keys, and then of the time, in batches of the schema `_read`."""

    def describe(self, batch: Batch, records: int, row: Int64s) -> None:
        """Make room for a beat's rows and write into `row` the work of `kernels.cpu.ingest`; the
        records go to address `records`."""
        copies: Copies = []
        self.base = (self.base + self.store.append(batch, copies)) % 2**32
        self._copy_table[: len(copies)] = copies
        if batch.schema is not self._read:
            self._read = batch.schema
            self._places = [batch.schema.index(name) for name in (*self._keys, self._time)]
        *keys, time = self._places
        for k, place in enumerate(keys):
            column = batch.columns[place]
            self._key_table[k, ingest.KEY.values] = address(column.values)
            self._key_table[k, ingest.KEY.offsets] = (
                0 if column.offsets is None else address(column.offsets)
            )
        self._mask = all_valid(batch, self._keys, self._scratch) if self._nullable else None
        kept = 0 if self._plain else address(self._scratch.get("hashes", batch.rows, np.uint64))
        row[: ingest.SIDE.kept + 1] = (
            batch.rows, self._tables[0], len(self._keys),
            0 if self._mask is None else address(self._mask),
            address(batch.columns[time].values), self.base + self.store.stop - batch.rows,
            self._tables[1], len(copies), records, kept,
        )  # fmt: skip

    def load(self, batch: Batch) -> None:
        """Load a saved window's rows into this window, which must be empty."""
        copies: Copies = []
        self.base = (self.base + self.store.append(batch, copies)) % 2**32
        for to, source, width in copies:
            ctypes.memmove(to, source, width * batch.rows)

    def records(self, rows: Int64s, hashes: Hashes, lend: Lend) -> Records:
        """The records, ascending, of stored rows with known hashes; input for another join."""
        kept = np.zeros(self.store.stop, np.uint64)
        kept[rows] = hashes
        alive = np.zeros(self.store.stop, np.uint8)
        alive[rows] = 1
        counts: Int64s = np.zeros(PARTITIONS, np.int64)
        partition.count(kept, address(alive), 0, self.store.stop, counts)
        records = Records(lend(rows.size), counts)
        times = address(self.store.view()[self._time].values)
        cursors = counts.cumsum() - counts
        partition.scatter(
            kept, address(alive), times, self.base, 0, self.store.stop, cursors,
            address(records.data),
        )  # fmt: skip
        return records


class Arrival:
    """The path of both sides' batches to records."""

    def __init__(self, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self._rows: Int64s = np.zeros((2, ingest.SIDE_FIELDS), np.int64)
        self._counts: Int64s = np.zeros((2, PARTITIONS), np.int64)
        empty: Int64s = np.empty(0, np.int64)
        self._records = [Records(empty, counts) for counts in self._counts]
        self._tasks = ingest.count_part.address, ingest.place_part.address
        self._alone = Workers(1)
        self._allocate_counters(self._alone)

    def take(
        self, batches: Sequence[Batch], lends: Sequence[Lend], workers: Workers | None
    ) -> tuple[Records, Records]:
        """The beat's records, left and right; valid until the next call."""
        workers = workers or self._alone
        if workers is not self._workers:
            self._allocate_counters(workers)
        for k, (side, batch, lend) in enumerate(zip(self._sides, batches, lends, strict=True)):
            data = lend(batch.rows)
            if data is not self._records[k].data:
                self._records[k] = Records(data, self._counts[k])
            side.describe(batch, self._records[k].data_at, self._rows[k])
        ingest.arrive(*self._tables, *self._tasks)
        return self._records[0], self._records[1]

    def _allocate_counters(self, workers: Workers) -> None:
        """Allocate the counters of `workers`."""
        self._workers = workers
        parts = team.SHARES * workers.count
        self._parts: Int64s = apart(parts, ingest.PART_FIELDS)
        self._calls: Int64s = apart(parts, team.CALL_FIELDS)
        tables = self._rows, self._parts, self._calls, self._counts
        self._tables = workers.seats, *map(address, tables)
