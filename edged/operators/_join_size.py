"""The bound on a join's output: how many rows of a beat it takes, and the rows that wait.

`JoinSize` bounds the pairs of a beat before they are made, by counts of keys by slice of time
(`kernels.cpu.join_size`).  It counts from the first beat on in which the rows that meet could make
more pairs than the limit; most joins never count.

It counts a sample of the rows where that tells enough: 1 row in `mean`, and a counted pair stands
for mean^2.  A beat passes on an estimate of up to half of the limit.  If no row meets more than m
rows of the other side, T pairs are estimated with a relative variance of about mean^2 / T +
2 mean m / T (a pair is counted if both of its rows are; pairs that share a row are not
independent).  `mean` keeps the first term below 1 / 512 at the limit, and no cell may have so large
a count that the second is above 2 / SKEW.  Where all keys are as large as that allows, a beat that
makes 1.5 times the limit passes only at a deviation of 3.3; elsewhere none above the limit does.

In other beats, and after one that a sample could not judge, all rows are counted for a while.  Then
the bound is never below the number of pairs, and where keys are spread evenly over time it is at
most twice that number, and about half of the limit more for rows that share a cell by chance.

Bounds decide only how many rows a beat takes, and its record keeps that: a replay decides nothing.
A beat makes more pairs than the limit where one row alone does.

`Waiting` keeps one side's rows for later beats.
"""

from __future__ import annotations

from collections import deque
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
from kernels.cpu.join_size import CELL, COUNTS, LOGGED, slices_of

PAIRS_MIN = 1 << 14
"""Pairs that a beat may make however small the job's memory is."""
PAIR_BYTES, COPIES = 64, 4
"""Memory of a pair: its row numbers and their room to grow, and copies of its output row: gathered,
handled by later operators, in an open page, in a page that is written to the log."""
VARIABLE_BYTES = 32
"""Assumed size of a string or a binary."""
BITS_MIN = 14
"""Base-2 logarithm of the cells of the smallest table."""
CHANCE = 4
"""Where all rows are counted, 1 in so many pairs of the limit may be rows that share a cell by
chance.  A table grows to keep it so, up to CELLS_A_ROW cells for each row of both windows.  In a
sample, as many may as the limit has: their number is known but for its deviation."""
CELLS_A_ROW = 2
SKEW, EVEN = 32, 4
"""Bound of a sample (see above), and the count of a cell that it must allow: even keys reach it."""
GAPS_MAX = 63
"""Longest distance between rows of a sample, less 1.  A sample of 1 row in 32 costs 1.2 ns a row,
counting all rows 10 to 15 (5 * 10^5 a side and beat, windows of 10^6)."""
CALM, CALM_MAX = 16, 1024
"""Beats for which all rows are counted after one that a sample could not judge; twice as many each
time, up to CALM_MAX."""
LEAVES = 256
"""Groups of beats, about, in which the rows of a window leave it."""
LOGS = COUNTS.left_log, COUNTS.right_log
Live = Callable[[int], tuple[Hashes, Int64s]]
"""The hashes and the times of the rows that a side's window holds."""


class JoinSize:
    """Bounds for one join."""

    def __init__(self, output: Schema, limit_bytes: int, before_us: int, after_us: int) -> None:
        """Pairs of a beat may take about `limit_bytes` with all copies."""
        width = sum((f.dtype.width or VARIABLE_BYTES) + int(f.nullable) for f in output)
        self.pairs_max = max(PAIRS_MIN, limit_bytes // (PAIR_BYTES + COPIES * width))
        shift, self._slices = slices_of(before_us, after_us)
        gaps = GAPS_MAX
        while gaps and EVEN * self._slices * SKEW * _mean(gaps) ** 2 > self.pairs_max:
            gaps >>= 1
        self._counts = apart(len(COUNTS))
        self._counts[COUNTS.before], self._counts[COUNTS.shift] = before_us, shift
        self._counts[COUNTS.slices], self._counts[COUNTS.random] = self._slices, 1
        self._gaps = gaps
        """The gaps of a sample; 0 where none tells enough."""
        self._table: Int64s | None = None
        self._logs = RowLog(), RowLog()
        self._exact = 0
        """Beats for which all rows are counted still."""
        self._calm = CALM

    def too_large(
        self, records: Sequence[Records], arrived: Sequence[int], held: Sequence[int], live: Live
    ) -> bool:
        """Whether a beat's records may make more pairs than it may have.  If not, they are counted.

        `arrived` is how many rows each side has in the beat, those without a record included;
        `held` is how many each side's window holds at most, without them.
        """
        left, right = arrived
        limit = max(self.pairs_max, left + right)
        meetings = left * (held[1] + right) + right * held[0]
        if self._table is None and meetings <= limit:
            return False
        pairs = self._observe(records, arrived, held, meetings, limit, live)
        if pairs is None:
            self._calm, self._exact = min(2 * self._calm, CALM_MAX), self._calm
            pairs = self._observe(records, arrived, held, meetings, limit, live)
            assert pairs is not None
        if pairs > limit:
            self._undo()
            self._exact = max(self._exact, CALM)
            return True
        self._exact = max(self._exact - 1, 0)
        for log, rows in zip(self._logs, arrived, strict=True):
            log.note(rows)
        return False

    def fit(self, waiting: Sequence[Waiting], held: Sequence[int], live: Live) -> tuple[int, int]:
        """Rows of both sides that a beat may take; they are counted."""
        left, right = (min(w.rows, self.pairs_max) for w in waiting)
        meetings = left * (held[1] + right) + right * held[0]
        self._exact = max(self._exact, CALM)
        at = self._ready((left, right), held, meetings, self.pairs_max, live)
        taken: Int64s = np.zeros(2, np.int64)
        join_size.fit(at, *waiting[0].keys(), *waiting[1].keys(), self.pairs_max, taken)
        rows = int(taken[0]), int(taken[1])
        for log, place, count in zip(self._logs, LOGS, rows, strict=True):
            log.went_on(int(self._counts[place]))
            log.note(count)
        return rows

    def nbytes(self) -> int:
        """Bytes of the table and the logs."""
        return 0 if self._table is None else self._table.nbytes + sum(x.nbytes for x in self._logs)

    def _observe(
        self, records: Sequence[Records], arrived: Sequence[int], held: Sequence[int],
        meetings: int, limit: int, live: Live,
    ) -> int | None:  # fmt: skip
        """Count a beat's records; returns how many pairs they make: at most, or by an estimate; or
        None where the sample cannot tell, and nothing is counted."""
        at = self._ready(arrived, held, meetings, limit, live)
        before = [log.rows for log in self._logs]
        met: int = join_size.observe(
            at, records[0].data_at, records[0].counts_at, records[1].data_at, records[1].counts_at
        )
        for log, place in zip(self._logs, LOGS, strict=True):
            log.went_on(int(self._counts[place]))
        gaps = int(self._counts[COUNTS.gaps])
        if gaps == 0:
            return met
        new = [log.rows - n for log, n in zip(self._logs, before, strict=True)]
        by_chance = new[0] * (before[1] + new[1]) + new[1] * before[0]
        by_chance = by_chance * self._slices >> int(self._counts[COUNTS.bits])
        mean = _mean(gaps)
        skewed = int(self._counts[COUNTS.most]) * self._slices * mean**2 * SKEW > limit
        if skewed or 2 * (met - by_chance) * mean**2 > limit:
            self._undo()
            return None
        return 0

    def _undo(self) -> None:
        """Take the rows of the beat that was observed last out of the counts."""
        for side, log in enumerate(self._logs):
            join_size.recount(address(self._counts), side, *log.drop_new(), -1)

    def _ready(
        self, arriving: Sequence[int], held: Sequence[int], meetings: int, limit: int, live: Live
    ) -> int:
        """The address of counts that are large enough for so many arriving rows, and so many twos
        of rows that meet, and that have forgotten the rows that have left."""
        gaps = 0 if self._exact else self._gaps
        wanted = (1 if gaps else CHANCE) * self._slices * meetings // limit
        wanted = min(wanted, CELLS_A_ROW * (sum(held) + sum(arriving)))
        bits = max(wanted.bit_length() - 1, BITS_MIN)
        if self._table is None or gaps != self._counts[COUNTS.gaps]:
            self._build(bits, gaps, held, live)
        for side, log in enumerate(self._logs):
            for gone in log.leave(held[side]):
                join_size.recount(address(self._counts), side, *gone, -1)
        if bits > self._counts[COUNTS.bits]:
            self._make_table(bits)
            for side, log in enumerate(self._logs):
                join_size.recount(address(self._counts), side, *log.entries(), 1)
        self._point(arriving)
        return address(self._counts)

    def _build(self, bits: int, gaps: int, held: Sequence[int], live: Live) -> None:
        """Count the rows of both windows in a new table."""
        self._make_table(bits)
        self._counts[COUNTS.gaps] = gaps
        rows = [live(side) for side in (0, 1)]
        for log in self._logs:
            log.clear()
        self._point([hashes.size for hashes, _ in rows])
        for side, (hashes, times) in enumerate(rows):
            join_size.count(address(self._counts), side, hashes, times)
            self._logs[side].went_on(int(self._counts[LOGS[side]]))
            self._logs[side].note(held[side])

    def _make_table(self, bits: int) -> None:
        """An empty table."""
        self._table = apart(1 << bits, CELL // 8)
        self._counts[COUNTS.table], self._counts[COUNTS.bits] = address(self._table), bits
        self._counts[COUNTS.most] = 0

    def _point(self, rows: Sequence[int]) -> None:
        """Have the kernels write to the logs, which get room for so many rows."""
        for log, place, count in zip(self._logs, LOGS, rows, strict=True):
            self._counts[place] = log.room(count)


class RowLog:
    """One side's rows that are counted, by key and slice of time, beat by beat, oldest first."""

    def __init__(self) -> None:
        self._rows = np.empty(0, np.uint64)
        self._start = self._stop = self._noted = 0
        """The entries that are counted; those of the last beat begin at `_noted`."""
        self._arrived = 0
        self._groups: deque[tuple[int, int]] = deque()
        """For beats: rows that had arrived with them, and where their entries end."""

    @property
    def rows(self) -> int:
        """Entries that are counted."""
        return self._stop - self._start

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return self._rows.nbytes

    def clear(self) -> None:
        """Drop all entries: the window is empty."""
        self._start = self._stop = self._noted = self._arrived = 0
        self._groups.clear()

    def room(self, rows: int) -> int:
        """The address at which entries go on, with room for so many rows."""
        if self._stop + rows > self._rows.size:
            moved, cells = self._start, self._rows
            if 2 * (self.rows + rows) > cells.size:
                cells = np.empty(2 * (self.rows + rows), np.uint64)
            cells[: self.rows] = self._rows[self._start : self._stop].copy()
            self._rows = cells
            self._start, self._stop, self._noted = 0, self._stop - moved, self._noted - moved
            self._groups = deque((arrived, end - moved) for arrived, end in self._groups)
        return address(self._rows) + LOGGED * self._stop

    def went_on(self, at: int) -> None:
        """Entries up to an address were written."""
        self._stop = (at - address(self._rows)) // LOGGED

    def note(self, rows: int) -> None:
        """So many rows arrived with the entries that were written last."""
        self._arrived += rows
        if len(self._groups) > 1:
            window = self._arrived - self._groups[0][0]
            if LEAVES * (self._arrived - self._groups[-2][0]) < window:
                self._groups.pop()
        self._groups.append((self._arrived, self._stop))
        self._noted = self._stop

    def leave(self, held: int) -> list[tuple[int, int]]:
        """Take out what has left a window that holds `held` rows; returns the entries, by address
        and number."""
        gone = []
        while self._groups and self._groups[0][0] <= self._arrived - held:
            end = self._groups.popleft()[1]
            gone.append(self._place(self._start, end))
            self._start = end
        return gone

    def drop_new(self) -> tuple[int, int]:
        """Take out the entries that were written last; returns their address and number."""
        gone = self._place(self._noted, self._stop)
        self._stop = self._noted
        return gone

    def entries(self) -> tuple[int, int]:
        """The address and the number of all entries."""
        return self._place(self._start, self._stop)

    def _place(self, start: int, stop: int) -> tuple[int, int]:
        return address(self._rows) + LOGGED * start, stop - start


def _mean(gaps: int) -> float:
    """The mean distance of rows whose distances are 1 to `gaps` + 1."""
    return 1 + gaps / 2


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
