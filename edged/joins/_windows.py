"""The memory of a window that is scanned, in the layout of `kernels.cpu.nested_loop`: four arrays
in arrival order.  Where they are full, the held entries move to the front, of larger arrays if they
fill more than half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edged.data.columns import Array, address
from edged.joins.base import Hashes, Int64s
from kernels.cpu import compare
from kernels.cpu.nested_loop import WINDOW, WINDOW_FIELDS

ENTRIES_MIN = 256
"""Initial capacity of a window."""
_DTYPES = (np.uint32, np.int64, np.uint32, np.uint8)


class Window:
    """One window, or one segment of it; `row` (`ScannedWindow`) is the argument of the kernels."""

    def __init__(self) -> None:
        self.row: Int64s = np.zeros(WINDOW_FIELDS, np.int64)
        self._arrays: list[Array] = []
        self._move(ENTRIES_MIN)

    @property
    def entries(self) -> int:
        """The number of entries held."""
        return int(self.row[WINDOW.stop] - self.row[WINDOW.start])

    def reserve(self, rows: int) -> None:
        """Make room for `count` more entries; the held ones become visible."""
        if self.row[WINDOW.stop] + rows > self._capacity:
            self._move(max(self._capacity, 2 * (self.entries + rows)))
        self.row[WINDOW.visible] = self.row[WINDOW.stop]

    def numbers(self, base: int) -> Int64s:
        """The store rows that are held, in no order."""
        start, stop = self._held()
        numbers: Int64s = (self._arrays[WINDOW.rows][start:stop] - np.uint32(base)).astype(np.int64)
        return numbers

    def hashes(self) -> Hashes:
        """For each of `numbers` its tag with its partition in the top 6 bits."""
        start, stop = self._held()
        top = self._arrays[WINDOW.parts][start:stop].astype(np.uint64) << np.uint64(58)
        hashes: Hashes = top | self._arrays[WINDOW.tags][start:stop]
        return hashes

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self._arrays)

    def _held(self) -> tuple[int, int]:
        return int(self.row[WINDOW.start]), int(self.row[WINDOW.stop])

    def _move(self, capacity: int) -> None:
        start, stop = self._held()
        arrays: list[Array] = [np.zeros(capacity + compare.WIDTH, dtype) for dtype in _DTYPES]
        for old, new in zip(self._arrays, arrays, strict=False):
            new[: stop - start] = old[start:stop]
        self._arrays, self._capacity = arrays, capacity
        for place, array in zip(WINDOW, arrays, strict=False):
            self.row[place] = address(array)
        self.row[WINDOW.start], self.row[WINDOW.stop] = 0, stop - start


def live_rows(windows: Sequence[Window], base: int) -> tuple[Int64s, Hashes]:
    """The rows that some windows hold, ascending, and for each its hash."""
    rows = np.concatenate([w.numbers(base) for w in windows])
    hashes = np.concatenate([w.hashes() for w in windows])
    order = np.argsort(rows)
    return rows[order], hashes[order]


def oldest_row(windows: Sequence[Window], base: int, rows: int) -> int:
    """The first row that some windows hold; `rows` where there is none."""
    return min((int(w.numbers(base).min()) for w in windows if w.entries), default=rows)
