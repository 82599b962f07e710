"""`KeptRows`: columns of rows that an operator goes back to, by number, in the order of arrival.

A number is that of the row since the last `keep` or `load`.  Rows go from the front with
`drop_before`, or from anywhere with `keep`, which renumbers those that stay.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.gather import take
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.operators._join_window import Copies, RowStore

Ints = npt.NDArray[np.int64]
KEPT_LEAST = 65_536
"""Rows below which `keep` is not worth it."""
LOOKED_AT_LEAST = 256
"""Rows that are looked at first for one that is not over; then twice as many, and so on."""


class KeptRows:
    """Columns of `schema`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._store = RowStore(schema)
        self._base = 0
        """The number of row 0 of the store's arrays."""
        self._limit = KEPT_LEAST

    @property
    def start(self) -> int:
        """The number of the first row."""
        return self._base + self._store.start

    @property
    def stop(self) -> int:
        """The number of the next row."""
        return self._base + self._store.stop

    def append(self, batch: Batch) -> int:
        """Copy the rows of a batch, which has these columns among its own; returns the number of
        the first."""
        copies: Copies = []
        self._base += self._store.append(batch, copies)
        for to, source, width in copies:
            ctypes.memmove(to, source, width * batch.rows)
        return self.stop - batch.rows

    def view(self) -> tuple[Batch, int]:
        """All rows, and the number of the first row of that batch."""
        return self._store.view(), self._base

    def drop_before(self, number: int) -> None:
        """Give up the rows before a number."""
        self._store.start = max(self._store.start, min(number - self._base, self._store.stop))

    def drop_older(self, name: str, time_us: int) -> None:
        """Give up the rows before the first one whose timestamp `name` is not below a time.

        Late rows are out of order: one that lies before a time says nothing of those before it.
        """
        at, stop, some = self._store.start, self._store.stop, LOOKED_AT_LEAST
        if at == stop:
            return
        times: Ints = self._store.view()[name].values
        while at < stop:
            young = times[at : min(at + some, stop)] >= time_us
            first = int(np.argmax(young))
            if young[first]:
                at += first
                break
            at, some = at + young.size, 2 * some
        self._store.start = at

    def crowded(self, more: int) -> bool:
        """Whether `keep` is due before so many rows are appended."""
        return self._store.rows + more > self._limit

    def keep(self, numbers: Ints) -> None:
        """Keep these rows alone, ascending numbers; they become the rows 0, 1, …"""
        rows = take(self._store.view(), np.ascontiguousarray(numbers - self._base), Scratch())
        self._store, self._base = RowStore(self.schema), 0
        self.append(rows)
        self._limit = max(KEPT_LEAST, 2 * numbers.size)

    def load(self, batch: Batch) -> None:
        """Have these rows alone."""
        self._store, self._base = RowStore(self.schema), 0
        self.append(batch)
        self._limit = max(KEPT_LEAST, 2 * batch.rows)

    def nbytes(self) -> int:
        """Memory."""
        return self._store.nbytes()
