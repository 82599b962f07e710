"""The bound on a join's output: how many rows of a beat it takes, and the rows that wait.

`JoinSize` bounds the pairs of a beat from above before they are made, by counts of keys by slice of
time (`kernels.cpu.join_size`).  It counts from the first beat on in which the rows that meet could
make more pairs than the limit; most joins never count.  Where keys are spread evenly over time, the
bound is at most twice the number of pairs, and about half of the limit more for rows that share a
cell by chance.  Bounds decide only how many rows a beat takes: a beat makes more pairs than the
limit where one row alone does.

`Waiting` keeps one side's rows for later beats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edged.data.columns import Batch, Column, address, apart, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import State
from edged.data.hashing import Hashes, all_valid, hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.joins.base import Int64s, Records
from kernels.cpu import join_size
from kernels.cpu.join_size import CELL, slices_of

PAIRS_MIN = 1 << 14
"""Pairs that a beat may make however small the job's memory is."""
PAIR_BYTES, COPIES = 64, 4
"""Memory of a pair: its row numbers and their room to grow, and copies of its output row: gathered,
handled by later operators, in an open page, in a page that is written to the log."""
VARIABLE_BYTES = 32
"""Assumed size of a string or a binary."""
BITS_MIN = 14
"""Base-2 logarithm of the cells of the smallest table."""
CHANCE = 2
"""Of the limit, 1 in so many pairs may be rows that share a cell by chance; a table grows to keep
it so, up to CELLS_A_ROW cells for each row of both windows."""
CELLS_A_ROW = 2
Live = Callable[[int], tuple[Hashes, Int64s]]
"""The hashes and the times of the rows that a side's window holds."""


class JoinSize:
    """Bounds for one join."""

    def __init__(self, output: Schema, limit_bytes: int, before_us: int, after_us: int) -> None:
        """Pairs of a beat may take about `limit_bytes` with all copies."""
        width = sum((f.dtype.width or VARIABLE_BYTES) + int(f.nullable) for f in output)
        self.pairs_max = max(PAIRS_MIN, limit_bytes // (PAIR_BYTES + COPIES * width))
        self._before_us = before_us
        self._shift, self._slices = slices_of(before_us, after_us)
        self._table: Int64s | None = None
        self._bits = 0
        self._columns: Int64s = np.array([0, 2])
        """The column of each side's present generation."""
        self._new, self._seen, self._began = [0, 0], [0, 0], [0, 0]
        """Rows counted: in the present generation; so far; of these, the generation's first."""

    def too_large(
        self, records: Sequence[Records], rows: Sequence[int], held: Sequence[int], live: Live
    ) -> bool:
        """Whether a beat's records may make more pairs than it may have.  If not, they are counted.

        `rows` are those of `records`; `held` is how many rows each side's window holds at most.
        """
        left, right = rows
        limit = max(self.pairs_max, left + right)
        meetings = left * (held[1] + right) + right * held[0]
        if self._table is None and meetings <= limit:
            return False
        table = self._ready(left + right, meetings, limit, held, live)
        args = (
            table, self._bits, *self._columns.tolist(), self._before_us, self._shift,
            self._slices, records[0].data_at, records[0].counts_at, records[1].data_at,
            records[1].counts_at,
        )  # fmt: skip
        pairs: int = join_size.observe(*args, 1)
        if pairs > limit:
            join_size.observe(*args, -1)
            return True
        self._note(rows)
        return False

    def fit(self, waiting: Sequence[Waiting], held: Sequence[int], live: Live) -> tuple[int, int]:
        """Rows of both sides that a beat may take; they are counted."""
        left, right = (min(w.rows, self.pairs_max) for w in waiting)
        meetings = left * (held[1] + right) + right * held[0]
        table = self._ready(left + right, meetings, self.pairs_max, held, live)
        taken: Int64s = np.zeros(2, np.int64)
        join_size.fit(
            table, self._bits, self._columns, self._before_us, self._shift, self._slices,
            *waiting[0].keys(), *waiting[1].keys(), self.pairs_max, taken,
        )  # fmt: skip
        rows = int(taken[0]), int(taken[1])
        self._note(rows)
        return rows

    def nbytes(self) -> int:
        """Bytes of the table."""
        return 0 if self._table is None else self._table.nbytes

    def _ready(self, rows: int, meetings: int, limit: int, held: Sequence[int], live: Live) -> int:
        """The address of a table that is large and new enough for so many rows of a beat, and so
        many twos of rows that meet."""
        wanted = 2 * CHANCE * self._slices * meetings // limit
        wanted = min(wanted, CELLS_A_ROW * (sum(held) + rows))
        bits = max(wanted.bit_length() - 1, BITS_MIN)
        if self._table is None or bits > self._bits:
            self._build(bits, live)
        else:
            cells = 1 << self._bits
            least = cells * limit // (2 * CHANCE * self._slices * max(rows, 1))
            self._renew(held, min(least, cells // 2))
        assert self._table is not None
        return address(self._table)

    def _build(self, bits: int, live: Live) -> None:
        """Count all rows of both windows in a new table."""
        self._bits, self._table = bits, apart(1 << bits, CELL // 8)
        self._columns[:] = 0, 2
        for side, offset in enumerate((self._before_us, 0)):
            hashes, times = live(side)
            column = self._columns[side]
            join_size.count(address(self._table), bits, column, offset, self._shift, hashes, times)
            self._new[side] = hashes.size
            self._begin(side)

    def _renew(self, held: Sequence[int], least: int) -> None:
        """Begin a new generation on a side whose old one has left, after `least` rows."""
        for side in (0, 1):
            gone = self._seen[side] - held[side] > self._began[side]
            if gone and self._new[side] >= max(least, held[side]):
                self._begin(side)

    def _begin(self, side: int) -> None:
        assert self._table is not None
        self._columns[side] ^= 1
        join_size.forget(address(self._table), self._bits, self._columns[side])
        self._new[side], self._began[side] = 0, self._seen[side]

    def _note(self, rows: Sequence[int]) -> None:
        for side in (0, 1):
            self._new[side] += rows[side]
            self._seen[side] += rows[side]


class Waiting:
    """The rows of one side that wait for later beats, in arrival order."""

    def __init__(self, schema: Schema, keys: Sequence[str], time: str) -> None:
        self._schema, self._keys, self._time, self._at = schema, tuple(keys), time, 0
        self._clear()

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._batch.rows - self._at

    def nbytes(self) -> int:
        """Bytes of their columns and hashes."""
        return self._batch.nbytes() + self._hashes.nbytes

    def append(self, batch: Batch) -> None:
        """Have more rows wait; they are copied."""
        left = self._batch.slice(self._at, self._batch.rows)
        self._keep(concatenate(self._schema, [left, batch], Scratch()))

    def take(self, rows: int) -> Batch:
        """The first rows, which no longer wait; valid until the next `append`."""
        start, self._at = self._at, self._at + rows
        taken = self._batch.slice(start, self._at)
        if self._at == self._batch.rows:
            self._clear()
        return taken

    def keys(self) -> tuple[Hashes, int, int]:
        """The hash of each row; the address of their times; the address of a byte each that is 0
        where a key is null, or 0 where no key can be."""
        hashes: Hashes = self._hashes[self._at :]
        valid = 0 if self._valid is None else address(self._valid) + self._at
        times = self._batch[self._time].values
        return hashes, address(times) + times.itemsize * self._at, valid

    def save(self) -> State:
        """The rows, as copies."""
        batch, state = self._batch.slice(self._at, self._batch.rows), {}
        for i, column in enumerate(batch.columns):
            if column.valid is not None:
                state[f"{i}.valid"] = column.valid.copy()
            if column.offsets is None:
                state[f"{i}.values"] = column.values.copy()
            else:
                first, last = int(column.offsets[0]), int(column.offsets[-1])
                state[f"{i}.values"] = column.values[first:last].copy()
                state[f"{i}.offsets"] = column.offsets - first
        return state

    def load(self, rows: int, state: State) -> None:
        """Restore the state of a `save` of so many rows."""
        columns = tuple(
            Column(state[f"{i}.values"], state.get(f"{i}.valid"), state.get(f"{i}.offsets"))
            for i in range(len(self._schema))
        )
        self._keep(Batch(self._schema, rows, columns))

    def _keep(self, batch: Batch) -> None:
        self._batch, self._at = batch, 0
        self._hashes = hash_columns(batch, self._keys)
        self._valid = all_valid(batch, self._keys)

    def _clear(self) -> None:
        self._keep(empty_batch(self._schema))
