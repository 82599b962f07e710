"""`LastRows`: the last row of each key, for operators that look back at it.

All rows are appended; a slot's word `word` is the number of its key's last row plus one, the word
behind it that row's time.  When the rows that are no key's last one prevail, they go.  In a saved
state row i is that of slot i.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.concatenate import concatenate
from edged.data.flow import State
from edged.data.gather import take, take_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.operators._kept_rows import KeptRows
from edged.operators._key_slots import KeySlots
from edged.operators._time_order import rows_from_state, rows_to_state
from edged.operators._window_groups import Groups
from kernels.cpu.window import GROUP

Ints = npt.NDArray[np.int64]
ROWS = "last"
"""Name of the rows in a saved state."""


class LastRows:
    """The last rows of the keys of `slots`."""

    def __init__(self, slots: KeySlots, schema: Schema) -> None:
        self._slots, self._kept = slots, KeptRows(schema)
        self._scratch = Scratch()

    def append(self, batch: Batch) -> int:
        """Keep the rows of a batch; returns the number of the first."""
        if self._kept.crowded(batch.rows):
            self._compact()
        return self._kept.append(batch)

    def _compact(self) -> None:
        word, numbers = self._slots.word, list[Ints]()
        for lane in self._slots.lanes:
            groups = lane.groups[: lane.count]
            groups[groups[:, GROUP.start] < self._slots.horizon_us, word] = 0
            numbers.append(groups[groups[:, word] > 0, word] - 1)
        live = np.sort(np.concatenate(numbers))
        self._kept.keep(live)
        for lane in self._slots.lanes:
            last = lane.groups[: lane.count, word]
            there = last > 0
            last[there] = np.searchsorted(live, last[there] - 1) + 1

    def view(self) -> tuple[Batch, int]:
        """The rows, and the number of the first."""
        return self._kept.view()

    def columns(
        self, names: Sequence[str], numbers: Ints, scratch: Scratch, workers: Workers | None
    ) -> list[Column]:
        """Columns of the rows of these numbers, null where a number is negative."""
        batch, base = self._kept.view()
        return nullable_columns([batch[name] for name in names], numbers, base, scratch, workers)

    def save(self) -> State:
        """Slots and rows."""
        groups = self._slots.groups()
        groups = Groups(groups.rows[groups.rows[:, self._slots.word] > 0], groups.store)
        batch, base = self._kept.view()
        rows = take(batch, groups.rows[:, self._slots.word] - 1 - base, Scratch())
        groups.rows[:, self._slots.word] = 1 + np.arange(len(groups.rows))
        return {**self._slots.save(groups), **rows_to_state(rows, ROWS)}

    def load(self, state: State) -> None:
        """Restore what `save` gave."""
        self._slots.load(state)
        rows = sum(lane.count for lane in self._slots.lanes)
        self._kept.load(rows_from_state(state, ROWS, self._kept.schema, rows))

    def nbytes(self) -> int:
        """Memory."""
        return self._slots.nbytes() + self._kept.nbytes() + self._scratch.nbytes


def deal_last(
    schema: Schema, word: int, states: Sequence[State], slots: Sequence[State], order: Ints,
    mine: Sequence[Ints],
) -> list[State]:  # fmt: skip
    """The rows of several saved states with dealt slots (`_key_slots.dealt`)."""
    words = slots[0]["groups"].shape[1]
    parts = [rows_from_state(s, ROWS, schema, s["groups"].size // words) for s in states]
    rows = take(concatenate(schema, parts, Scratch()), order, Scratch())
    found = []
    for state, numbers in zip(slots, mine, strict=True):
        state["groups"][:, word] = 1 + np.arange(numbers.size)
        found.append({**state, **rows_to_state(take(rows, numbers, Scratch()), ROWS)})
    return found


def nullable_columns(
    columns: Sequence[Column], numbers: Ints, base: int, scratch: Scratch,
    workers: Workers | None = None,
) -> list[Column]:  # fmt: skip
    """The columns' values at `numbers - base`, null where a number is negative.

    There is at least one row where a number is not.
    """
    absent = numbers < 0
    if absent.all():
        return [_nulls(c, numbers.size) for c in columns]
    at = np.where(absent, 0, numbers - base)
    there = ~absent
    found = []
    for c in take_columns(columns, at, scratch, "before", workers):
        valid = there.view(np.uint8) if c.valid is None else c.valid & there
        found.append(Column(c.values, valid, c.offsets))
    return found


def _nulls(c: Column, rows: int) -> Column:
    valid = np.zeros(rows, np.uint8)
    if c.offsets is not None:
        return Column(np.empty(0, np.uint8), valid, np.zeros(rows + 1, np.int64))
    return Column(np.zeros(rows, c.values.dtype), valid)
