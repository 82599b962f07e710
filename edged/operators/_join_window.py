"""One side of an interval join: its window's columns, and what a beat does with its rows.

`Store` keeps columns of the rows that may still match, in arrival order and contiguous: rows
`start..stop` of its arrays are held.  Appending is a copy; when an array is full, what is held
moves to the front, into an array twice its size where it fills more than half.

`Side` is a store and the way into a `WindowJoin`: it stores, hashes and partitions a beat's rows,
and writes the records that the join takes.  Which of them are held is the join's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.columns import Array, Batch, Column, address
from edged.hashing import Hashes, all_valid, hash_range
from edged.joins.base import Records
from edged.operators.base import PARTITIONS, Scratch
from edged.schema import Field, Schema
from kernels.cpu import partition

ROWS_MIN = 1024
"""Rows that a store has room for at first."""
Calls = list[Callable[[], Any]]
Lend = Callable[[int], npt.NDArray[np.int64]]
"""Memory for the records of so many rows: a join's `buffer` of one side."""
Int64s = npt.NDArray[np.int64]


class Store:
    """Columns of `schema` for the rows held; see the module's docstring."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.start = self.stop = 0
        self._capacity = ROWS_MIN
        self._columns = [_Growing(f) for f in schema.fields]

    @property
    def rows(self) -> int:
        """Rows held."""
        return self.stop - self.start

    def append(self, batch: Batch, calls: Calls) -> int:
        """Make room for `batch`, which has the store's columns among its own.

        The copying itself is added to `calls`.  Returns by how many rows the rows held have moved
        towards the front.
        """
        moved = 0
        if self.stop + batch.rows > self._capacity:
            moved = self.start
            need = self.rows + batch.rows
            self._capacity = max(self._capacity, 2 * need)
            for column in self._columns:
                column.move(self.start, self.stop, self._capacity)
            self.start, self.stop = 0, self.rows
        for column, field in zip(self._columns, self.schema.fields, strict=True):
            column.append(self.stop, batch[field.name], batch.rows, calls)
        self.stop += batch.rows
        return moved

    def view(self) -> Batch:
        """All rows up to `stop`; those before `start` are dead but readable."""
        columns = tuple(c.view(self.stop) for c in self._columns)
        return Batch(self.schema, self.stop, columns)

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(c.nbytes() for c in self._columns)


class _Growing:
    """One column's arrays with room to grow."""

    def __init__(self, field: Field) -> None:
        self._values = np.empty(ROWS_MIN, field.dtype.numpy)
        self._valid = np.empty(ROWS_MIN, np.uint8) if field.nullable else None
        self._offsets = np.zeros(ROWS_MIN + 1, np.int64) if field.dtype.variable else None

    def move(self, start: int, stop: int, capacity: int) -> None:
        """Move rows `start..stop` to the front of arrays of `capacity` rows."""
        if self._valid is not None:
            self._valid = _moved(self._valid, start, stop, capacity)
        if self._offsets is None:
            self._values = _moved(self._values, start, stop, capacity)
            return
        first, last = int(self._offsets[start]), int(self._offsets[stop])
        self._values = _moved(self._values, first, last, self._values.size)
        self._offsets = _moved(self._offsets, start, stop + 1, capacity + 1)
        self._offsets[: stop - start + 1] -= first

    def append(self, at: int, column: Column, rows: int, calls: Calls) -> None:
        if self._valid is not None and column.valid is not None:
            calls.append(partial(np.copyto, self._valid[at : at + rows], column.valid))
        if self._offsets is None or column.offsets is None:
            calls.append(partial(np.copyto, self._values[at : at + rows], column.values))
            return
        first, last = int(column.offsets[0]), int(column.offsets[rows])
        end = int(self._offsets[at])
        if end + last - first > self._values.size:
            self._values = _moved(self._values, 0, end, 2 * (end + last - first))
        into = self._offsets[at + 1 : at + rows + 1]
        np.add(column.offsets[1 : rows + 1], end - first, out=into)
        target = self._values[end : end + last - first]
        calls.append(partial(np.copyto, target, column.values[first:last]))

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

    def __init__(self, schema: Schema, keys: Sequence[str], time: str, start: int = 0) -> None:
        """An empty window of `schema`'s columns; `start` is the first row's number."""
        self.store = Store(schema)
        self.base = start % 2**32
        self._keys, self._time = tuple(keys), time
        self._scratch = Scratch()
        self._batch, self._valid, self._first = Batch(schema, 0, ()), 0, 0
        self._ranges: list[tuple[int, int]] = []

    def arrive(self, batch: Batch, ranges: int, calls: Calls) -> None:
        """Begin with a beat's rows: `calls` store, hash and count them."""
        self._keep(batch, calls)
        rows = batch.rows
        self._hashes: Hashes = self._scratch.get("hashes", rows, np.uint64)
        following: Hashes = self._scratch.get("following", rows, np.uint64)
        mask = all_valid(batch, self._keys, self._scratch)
        self._valid = 0 if mask is None else address(mask)
        self._cut(rows, ranges)
        for k, (a, b) in enumerate(self._ranges):
            calls.append(partial(self._count, following, k, a, b))

    def _keep(self, batch: Batch, calls: Calls) -> None:
        self._batch = batch
        self.base = (self.base + self.store.append(batch, calls)) % 2**32
        self._first = self.base + self.store.stop - batch.rows

    def _cut(self, rows: int, ranges: int) -> None:
        edges = [rows * k // ranges for k in range(ranges + 1)]
        self._ranges = list(pairwise(edges))
        by_range = self._scratch.get("counts", ranges * PARTITIONS, np.int64)
        self._by_range = by_range.reshape(ranges, PARTITIONS)

    def _count(self, following: Hashes, k: int, start: int, stop: int) -> None:
        hash_range(self._batch, self._keys, start, stop, self._hashes, following)
        partition.count(self._hashes, self._valid, start, stop, self._by_range[k])

    def place(self, lend: Lend, calls: Calls) -> Records:
        """When all is counted: `calls` write the records, partition by partition."""
        by_range = self._by_range
        counts: Int64s = by_range.sum(axis=0)
        records = Records(lend(int(counts.sum())), counts)
        flat = by_range.T.ravel()
        cursors = np.ascontiguousarray((flat.cumsum() - flat).reshape(PARTITIONS, -1).T)
        times = address(self._batch[self._time].values) if self._batch.rows else 0
        scatter = partial(partition.scatter, self._hashes, self._valid, times, self._first)
        for k, (a, b) in enumerate(self._ranges):
            calls.append(partial(scatter, a, b, cursors[k], address(records.data)))
        return records

    def load(self, batch: Batch) -> None:
        """Take in a saved window's rows; this one must be empty."""
        calls: Calls = []
        self._keep(batch, calls)
        for call in calls:
            call()

    def records(self, rows: Int64s, hashes: Hashes, lend: Lend) -> Records:
        """The records of stored rows, ascending, whose hashes are known: for another join."""
        self._batch, self._first = self.store.view(), self.base
        self._hashes = np.zeros(self.store.stop, np.uint64)
        self._hashes[rows] = hashes
        alive = np.zeros(self.store.stop, np.uint8)
        alive[rows] = 1
        self._valid = address(alive)
        self._cut(self.store.stop, 1)
        calls: Calls = []
        partition.count(self._hashes, self._valid, 0, self.store.stop, self._by_range[0])
        records = self.place(lend, calls)
        for call in calls:
            call()
        return records
