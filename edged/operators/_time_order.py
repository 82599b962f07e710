"""`TimeOrder`: the rows of a stream in the order of their event time, as far as it is final.

A row is given out once the watermark has reached its time, rows of one time in the order of their
arrival.  What comes out, over all beats, depends on the rows and their order of arrival alone, not
on batches, as long as no row is late.  A late row that the stream lets through comes out in its
beat, behind rows of later times.

A beat whose rows are in order and reached already passes through without a copy.  Others are sorted
when they arrive; a row is copied once into the waiting rows and once out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import WATERMARK_MIN_US, State
from edged.data.gather import take
from edged.data.schema import Schema
from edged.data.scratch import Scratch

Ints = npt.NDArray[np.int64]


class TimeOrder:
    """The rows of one input that wait for its watermark."""

    def __init__(self, schema: Schema, time: str) -> None:
        self._schema, self._time = schema, schema.index(time)
        self._empty = empty_batch(schema)
        self._waiting: list[Batch] = []
        """Batches in the order of arrival, each sorted by time."""
        self._joined, self._out = Scratch(), Scratch()
        self.last_us = WATERMARK_MIN_US
        """The latest time of a row that came out."""
        self.late = 0
        """Rows that came out behind one of a later time."""

    def pass_on(self, batch: Batch, bound_us: int) -> Batch:
        """The rows up to a time, of those that wait and `batch`; the rest waits.

        Valid until the next call, and as long as `batch` is.
        """
        ready = self._ready(batch, bound_us)
        if ready.rows:
            times = self._times(ready)
            self.late += int(np.searchsorted(times, self.last_us))
            self.last_us = max(self.last_us, int(times[-1]))
        return ready

    def _ready(self, batch: Batch, bound_us: int) -> Batch:
        if batch.rows:
            times = self._times(batch)
            if not (times[1:] >= times[:-1]).all():
                order = np.argsort(times, kind="stable").astype(np.int64)
                batch = take(batch, order, self._joined, "sorted")
            if not self._waiting and int(self._times(batch)[-1]) <= bound_us:
                return batch
            self._waiting.append(batch)
        parts, left = list[Batch](), list[Batch]()
        for waiting in self._waiting:
            stop = int(np.searchsorted(self._times(waiting), bound_us, side="right"))
            if stop:
                parts.append(waiting.slice(0, stop))
            if stop < waiting.rows:
                rest = waiting.slice(stop, waiting.rows)
                left.append(_copy(rest) if waiting is batch else rest)
        self._waiting = left
        return self._in_order(parts, self._joined, self._out)

    def _in_order(self, parts: list[Batch], joined: Scratch, out: Scratch) -> Batch:
        """The rows of several sorted batches, sorted."""
        if not parts:
            return self._empty
        if len(parts) == 1:
            return parts[0]
        whole = concatenate(self._schema, parts, joined)
        times = self._times(whole)
        if (times[1:] >= times[:-1]).all():
            return whole
        return take(whole, np.argsort(times, kind="stable").astype(np.int64), out)

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(batch.rows for batch in self._waiting)

    def nbytes(self) -> int:
        """Bytes of the rows that wait, and of memory for sorting."""
        return sum(b.nbytes() for b in self._waiting) + self._joined.nbytes + self._out.nbytes

    def counters(self) -> dict[str, int]:
        """Rows that wait for the watermark, and rows that came late."""
        return {"rows_waiting": self.rows, "rows_late": self.late}

    def sorted_rows(self) -> Batch:
        """The rows that wait, by time."""
        return self._in_order(self._waiting, Scratch(), Scratch())

    def join(self, other: TimeOrder, rows: Batch | None = None) -> None:
        """Take over what another has counted, and its rows, or those given."""
        self._waiting += other._waiting if rows is None else [rows]
        self.last_us = max(self.last_us, other.last_us)
        self.late += other.late

    def save(self, name: str) -> State:
        """The rows that wait, by time, and what was counted."""
        batch = self.sorted_rows()
        counted = np.array([batch.rows, self.last_us, self.late], np.int64)
        return {f"{name}.waiting": counted, **rows_to_state(batch, name)}

    def load(self, state: State, name: str) -> None:
        """Restore what `save` gave."""
        rows, self.last_us, self.late = (int(n) for n in state[f"{name}.waiting"])
        batch = rows_from_state(state, name, self._schema, rows)
        self._waiting = [batch] if rows else []

    def _times(self, batch: Batch) -> Ints:
        times: Ints = batch.columns[self._time].values
        return times


def deal_waiting(
    schema: Schema,
    time: str,
    name: str,
    states: Sequence[State],
    goes: Callable[[Batch], Ints],
    count: int,
) -> list[State]:
    """The waiting rows of several saved states, dealt out to `count` new ones; `goes` says where
    each row of a batch goes.  What was counted goes to the first."""
    whole = TimeOrder(schema, time)
    for state in states:
        one = TimeOrder(schema, time)
        one.load(state, name)
        whole.join(one)
    rows = whole.sorted_rows()
    to, found = goes(rows), list[State]()
    for i in range(count):
        part = TimeOrder(schema, time)
        part.join(whole, take(rows, np.flatnonzero(to == i), Scratch()))
        part.late = 0 if i else part.late
        found.append(part.save(name))
    return found


def rows_to_state(batch: Batch, name: str) -> State:
    """Copies of columns, for a saved state."""
    found = State()
    for i, column in enumerate(_copy(batch).columns):
        found[f"{name}.{i}.values"] = column.values
        if column.valid is not None:
            found[f"{name}.{i}.valid"] = column.valid
        if column.offsets is not None:
            found[f"{name}.{i}.offsets"] = column.offsets
    return found


def rows_from_state(state: State, name: str, schema: Schema, rows: int) -> Batch:
    """The inverse of `rows_to_state`."""
    columns = tuple(
        Column(
            np.array(state[f"{name}.{i}.values"], f.dtype.numpy),
            np.array(state[f"{name}.{i}.valid"], np.uint8) if f.nullable else None,
            np.array(state[f"{name}.{i}.offsets"], np.int64) if f.dtype.variable else None,
        )
        for i, f in enumerate(schema)
    )
    return Batch(schema, rows, columns)


def _copy(batch: Batch) -> Batch:
    columns = []
    for c in batch.columns:
        valid = None if c.valid is None else c.valid[: batch.rows].copy()
        if c.offsets is None:
            columns.append(Column(c.values[: batch.rows].copy(), valid))
            continue
        first, last = int(c.offsets[0]), int(c.offsets[batch.rows])
        offsets = c.offsets[: batch.rows + 1] - first
        columns.append(Column(c.values[first:last].copy(), valid, offsets))
    return Batch(batch.schema, batch.rows, tuple(columns))
