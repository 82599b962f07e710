"""The floor of the incremental join: a program that touches the lines which the join must touch.

It knows the place of every row.  It reads the directory entry and the records (40 bytes each, as
`runs` has them) that a beat's changes meet, one key ahead, copies their columns, and writes the
changes' own records.  It finds, sorts, merges, keeps and syncs nothing.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from edged.bench.energy_memory import LINE_BYTES
from edged.bench.tables_data import Incremental, PairSums, TableBeat, TableChanges
from edged.data.columns import address
from kernels.cpu import mem
from kernels.cpu.tables.probe import AHEAD

RECORD_WORDS = 5
"""Words of a record: a header of two, and three columns."""


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def touch(directory: Any, records: int, keys: Any, rows: int, k: Any, ids: Any, v: Any) -> None:
    """Copy the columns of `rows` records from each key's place on."""
    n, size = 0, 8 * RECORD_WORDS
    for i in range(keys.size):
        if i + 2 * AHEAD < keys.size:
            mem.prefetch(np.int64(directory.ctypes.data) + 4 * keys[i + 2 * AHEAD])
        if i + AHEAD < keys.size:
            first = records + size * np.int64(directory[keys[i + AHEAD]])
            for at in range(first, first + size * rows, LINE_BYTES):
                mem.prefetch(at)
        at = records + size * np.int64(directory[keys[i]])
        for _ in range(rows):
            k[n], ids[n], v[n] = mem.load_i64(at + 16), mem.load_i64(at + 24), mem.load_i64(at + 32)
            n += 1
            at += size


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def keep(records: Any, k: Any, ids: Any, v: Any, weight: Any) -> None:
    """Write the records of a beat's changes."""
    for i in range(k.size):
        records[i, 0], records[i, 1] = k[i], weight[i]
        records[i, 2], records[i, 3], records[i, 4] = k[i], ids[i], v[i]


class LineFloor:
    """The program; its beats make no answer that could be compared."""

    def __init__(self, size: Incremental) -> None:
        self._per_key = size.per_key
        self._t, self._places = _records(size.t)
        self._u, _ = _records(size.u)
        self._any = np.arange(self._u.shape[0], dtype=np.uint32)
        self._own = np.zeros((1 << 20, RECORD_WORDS), np.int64)
        self._out = [np.zeros(1 << 20, np.int64) for _ in range(3)]
        self.sums = PairSums()

    def beat(self, beat: TableBeat) -> None:
        """The rows of T that U's changes meet, a row of U for each change of T, and the changes."""
        touch(self._places, address(self._t), beat.of_u.k, self._per_key, *self._out)
        keys = beat.of_t.k % self._any.size
        touch(self._any, address(self._u), keys, 1, *self._out)
        self.sums.pairs += beat.of_u.rows * self._per_key + keys.size
        for changes in (beat.of_u, beat.of_t):
            own = self._own[: changes.rows]
            keep(own, changes.k, changes.id, changes.v, changes.weight)

    def touched(self, beat: TableBeat) -> tuple[float, float]:
        """Lines and bytes that a change touches, on average: read from tables, or written."""
        record = 8 * RECORD_WORDS
        pairs = beat.of_u.rows * self._per_key + beat.of_t.rows
        rows = beat.of_u.rows + beat.of_t.rows
        total = pairs * (record + 24) + rows * (4 + record)
        lines = beat.of_u.rows * _lines(record * self._per_key) + beat.of_t.rows * _lines(record)
        lines += rows * (1 + record / LINE_BYTES) + pairs * 24 / LINE_BYTES
        return lines / beat.changes, total / beat.changes

    def close(self) -> None:
        """Nothing to do."""


def _lines(size: int) -> float:
    """Lines that so many bytes lie on, on average, from a multiple of 8 on."""
    return (size - 8) / LINE_BYTES + 1


def _records(rows: TableChanges) -> tuple[Any, Any]:
    """Records by key, and the place of each key's first one."""
    order = np.argsort(rows.k, kind="stable")
    records = np.zeros((rows.rows, RECORD_WORDS), np.int64)
    keep(records, rows.k[order], rows.id[order], rows.v[order], rows.weight[order])
    count = 1 + int(rows.k.max())
    return records, np.searchsorted(rows.k[order], np.arange(count)).astype(np.uint32)
