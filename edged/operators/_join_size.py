"""The bound on a join's output: how many rows of a beat it takes, and the rows that wait.

`JoinSize` estimates the pairs of a beat (`kernels.cpu.join_size`) before they are made.  It counts
keys from the first beat on in which the rows that meet could make more pairs than the limit; most
joins never count.  Counts of keys do not see times: they are multiplied with a share, learnt from
beat to beat, of the rows of equal keys that are close enough in time.  Without it the demo's join
took 231 000 rows in 7 311 beats.  The share begins at 1, so that the first beats are small.  Where
rows come close after a long stretch in which they were not, one beat makes more pairs than it may
have, and the share rises with it.  Estimates decide only how many rows a beat takes.

`Waiting` keeps one side's rows for later beats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address, apart, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import State
from edged.data.hashing import Hashes, all_valid, hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.joins.base import Records
from kernels.cpu import join_size
from kernels.cpu.join_size import BUCKETS, COUNTS, EVERY

PAIRS_MIN = 1 << 14
"""Pairs that a beat may make however small the job's memory is."""
PAIR_BYTES, COPIES = 64, 4
"""Memory of a pair: its row numbers and their room to grow, and copies of its output row: gathered,
handled by later operators, in an open page, in a page that is written to the log."""
VARIABLE_BYTES = 32
"""Assumed size of a string or a binary."""
FORGET = 0.25
"""Part of a beat in the learnt rate of pairs where it is below the rate so far."""
SHARE_FALLS, SHARE_MIN = 0.5, 1e-6
"""How fast the learnt share of close rows falls from beat to beat, and its least value."""
Live = Callable[[int], Hashes]
"""The hashes of the rows that a side's window holds."""
_MASK = 2**31


class JoinSize:
    """Estimates for one join."""

    def __init__(self, output: Schema, limit_bytes: int) -> None:
        """Pairs of a beat may take about `limit_bytes` with all copies."""
        width = sum((f.dtype.width or VARIABLE_BYTES) + int(f.nullable) for f in output)
        self.pairs_max = max(PAIRS_MIN, limit_bytes // (PAIR_BYTES + COPIES * width))
        self._table: npt.NDArray[np.int64] | None = None
        self._new, self._old = [0, 0], [0, 0]
        self._seen, self._began = [0, 0], [0, 0]
        """Rows counted so far; of these, the first of the new generation."""
        self._draw = 1
        self._rate, self._chances = 0.0, 0.0
        """Pairs per two rows of opposite sides, learnt; such twos in this beat."""
        self._share, self._estimated = 1.0, 0.0
        """Part of the rows of equal keys that are close enough in time to be pairs, learnt; such
        rows by the counts of this beat, 0 where they are not known."""

    def too_large(
        self, records: Sequence[Records], rows: Sequence[int], held: Sequence[int], live: Live
    ) -> bool:
        """Whether a beat's records make more pairs than it may have.  If not, they are counted.

        `rows` are those of `records`; `held` is how many rows each side's window holds at most.
        """
        left, right = rows
        limit = max(self.pairs_max, left + right)
        if self._table is None:
            if left * (held[1] + right) + right * held[0] <= limit:
                return False
            self._build(live)
        assert self._table is not None
        self._renew(held)
        self._draw = (1103515245 * self._draw + 12345) % _MASK
        args = (
            address(self._table), records[0].data_at, left, records[1].data_at, right,
            (self._draw >> 16) % EVERY,
        )  # fmt: skip
        self._chances = left * self._count(1) + right * (self._count(0) + left)
        met: int = join_size.observe(*args, EVERY)
        self._estimated = met - self._chances / BUCKETS
        if max(self._estimated * self._share, self._rate * self._chances) > limit:
            join_size.observe(*args, -EVERY)
            return True
        self._note(rows)
        return False

    def fit(self, waiting: Sequence[Waiting], held: Sequence[int], live: Live) -> tuple[int, int]:
        """Rows of both sides that a beat may take; they are counted."""
        if self._table is None:
            self._build(live)
        assert self._table is not None
        self._renew(held)
        counts = np.array([self._count(0), self._count(1)], np.float64)
        taken: npt.NDArray[np.int64] = np.zeros(2, np.int64)
        (left, left_valid), (right, right_valid) = (w.hashes() for w in waiting)
        limit = self.pairs_max / self._share
        join_size.fit(
            address(self._table), left, left_valid, right, right_valid, int(limit),
            counts[::-1] / BUCKETS, counts[::-1] * self._rate / self._share, taken,
        )  # fmt: skip
        rows = int(taken[0]), int(taken[1])
        self._estimated = limit if sum(rows) < left.size + right.size else 0.0
        self._chances = rows[0] * self._count(1) + rows[1] * (self._count(0) + rows[0])
        self._note(rows)
        return rows

    def learn(self, pairs: int) -> None:
        """Note how many pairs the beat made."""
        if self._chances:
            rate = pairs / self._chances
            self._rate = max(rate, (1 - FORGET) * self._rate + FORGET * rate)
        if self._estimated >= PAIRS_MIN:
            share = max(pairs / self._estimated, SHARE_FALLS * self._share, SHARE_MIN)
            self._share, self._estimated = min(1.0, share), 0.0

    def _build(self, live: Live) -> None:
        self._table = apart(BUCKETS * COUNTS // 2)
        for side in (0, 1):
            hashes = live(side)
            join_size.count(address(self._table), side, hashes)
            self._new[side] = hashes.size
            self._begin(side)

    def _renew(self, held: Sequence[int]) -> None:
        """Begin a new generation on a side whose old one has left."""
        for side in (0, 1):
            gone = self._seen[side] - held[side] > self._began[side]
            if gone and self._new[side] >= max(BUCKETS, held[side]):
                self._begin(side)

    def _begin(self, side: int) -> None:
        assert self._table is not None
        counts = self._table.view(np.int32).reshape(BUCKETS, COUNTS)
        counts[:, 2 * side + 1] = counts[:, 2 * side]
        counts[:, 2 * side] = 0
        self._old[side], self._new[side] = self._new[side], 0
        self._began[side] = self._seen[side]

    def _count(self, side: int) -> int:
        return self._new[side] + self._old[side]

    def _note(self, rows: Sequence[int]) -> None:
        for side in (0, 1):
            self._new[side] += rows[side]
            self._seen[side] += rows[side]


class Waiting:
    """The rows of one side that wait for later beats, in arrival order."""

    def __init__(self, schema: Schema, keys: Sequence[str]) -> None:
        self._schema, self._keys, self._at = schema, tuple(keys), 0
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

    def hashes(self) -> tuple[Hashes, int]:
        """The hash of each row, and the address of a byte each that is 0 where a key is null; 0
        where no key can be."""
        at = 0 if self._valid is None else address(self._valid) + self._at
        hashes: Hashes = self._hashes[self._at :]
        return hashes, at

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
