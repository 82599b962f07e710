"""State by key: a slot of words for each key (`kernels.cpu.key_slots`), in lanes.

Lanes exist for parallelism only: a key lives in one lane and sees its rows in order.  What is saved
is one list of slots, by (latest time, first row), whatever the lanes.  A key whose latest row is
older than `horizon_us` is forgotten: its next row begins a new state.  It is in no saved state, and
leaves the memory when that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MIN_US, BeatContext, State
from edged.data.hashing import Hashes, exact_bits, hash_columns
from edged.data.schema import TIMESTAMP, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.operators._window_groups import (
    GROUPS_LEAST,
    STORE_LEAST,
    Groups,
    Shape,
    from_state,
    merged,
    selected,
    shape_of,
    split,
    to_state,
)
from edged.operators._window_output import OutputBuilder
from kernels.cpu import key_slots as kernels
from kernels.cpu.key_slots import SLOT
from kernels.cpu.window import GROUP, STATE

Ints = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]
Step = Callable[["SlotLane", Hashes, int, int, Slots], None]
"""A kernel's call for a lane: the lane, hashes, its number, the number of lanes, slots."""
SWEEP_GROUPS = 1024
"""Keys of a lane below which none is dropped."""


class KeyColumns:
    """The key columns and the time of one input."""

    def __init__(self, schema: Schema, names: Sequence[str], time: str) -> None:
        self.names = tuple(names)
        self.shape = shape_of(schema, names, ())
        self.time = schema.index(time)
        self.exact = exact_bits(schema, names) > 0


class SlotLane:
    """The keys of one worker; `groups` are their slots."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.state: Ints = np.zeros(len(STATE), np.int64)
        self.groups: Ints = np.empty((GROUPS_LEAST, shape.words), np.int64)
        self._store: npt.NDArray[np.uint8] = np.empty(STORE_LEAST, np.uint8)
        self._table: Slots = np.full(2 * GROUPS_LEAST, -1, np.int32)
        self._swept = SWEEP_GROUPS

    @property
    def count(self) -> int:
        """Keys."""
        return int(self.state[STATE.groups])

    def find(
        self, columns: Ints, keys: Ints, settings: Ints, hashes: Hashes, rows: int, slots: Slots
    ) -> None:
        """Find or make the slots of this lane's rows."""
        at = 0
        while True:
            at = kernels.find_slots(
                columns, keys, settings, hashes, at, rows, self.groups, self._table, self._store,
                self.state, slots,
            )  # fmt: skip
            if at == rows:
                return
            self._reserve(self.count + 1, int(self.state[STATE.bytes] + self.state[STATE.need]))

    def sweep(self, horizon_us: int) -> None:
        """Drop keys older than the horizon where there are twice as many as after the last time."""
        if self.count >= self._swept:
            left = self.kept(horizon_us)
            if len(left.rows) < self.count:
                self.adopt(left)
            self._swept = max(SWEEP_GROUPS, 2 * self.count)

    def kept(self, horizon_us: int) -> Groups:
        """Copies of the keys that are not older than the horizon."""
        groups = Groups(self.groups[: self.count], self._store)
        return selected(self._shape, groups, groups.rows[:, GROUP.start] >= horizon_us)

    def adopt(self, groups: Groups) -> None:
        """Replace the present keys by these."""
        count, size = len(groups.rows), groups.store.size
        self.state[:] = 0
        self._reserve(count, size)
        self.groups[:count] = groups.rows
        self._store[:size] = groups.store
        self.state[STATE.groups], self.state[STATE.bytes] = count, size
        kernels.rebuild_slots(self.groups[:count], self._table)

    def nbytes(self) -> int:
        """Memory of the arrays."""
        return self.groups.nbytes + self._store.nbytes + self._table.nbytes

    def _reserve(self, groups: int, size: int) -> None:
        count, used = self.count, int(self.state[STATE.bytes])
        if groups > len(self.groups):
            larger: Ints = np.empty((1 << (groups - 1).bit_length(), self._shape.words), np.int64)
            larger[:count] = self.groups[:count]
            self.groups = larger
            self._table = np.full(2 * len(larger), -1, np.int32)
            kernels.rebuild_slots(self.groups[:count], self._table)
        if size > self._store.size:
            bytes_: npt.NDArray[np.uint8] = np.empty(1 << (size - 1).bit_length(), np.uint8)
            bytes_[:used] = self._store[:used]
            self._store = bytes_


class KeySlots:
    """Slots of the keys of one input, or of several whose keys have the same types."""

    def __init__(
        self, inputs: Sequence[KeyColumns], words: int, workers: Workers, *, null_keys: bool = True
    ) -> None:
        """Each slot has `words` words of state, from `word` on."""
        self._inputs, self._null_keys = inputs, null_keys
        shape = inputs[0].shape
        self.word = shape.words
        self._shape = replace(shape, words=shape.words + words)
        self.lanes = [SlotLane(self._shape) for _ in range(workers.count if len(shape.keys) else 1)]
        self.horizon_us = WATERMARK_MIN_US
        self._scratch = Scratch()
        self._rows = 0
        self._found: list[tuple[Hashes, Slots]] = [_none()] * len(inputs)

    def sweep(self) -> None:
        """Drop keys that are forgotten, where there are many; slots that were found are void."""
        for lane in self.lanes:
            lane.sweep(self.horizon_us)

    def find(
        self, beat: BeatContext, batch: Batch, side: int = 0, *, makes: bool = True,
        counts: bool = True,
    ) -> Slots:  # fmt: skip
        """The slots of an input's rows; they are numbers of their lane, -1: none.

        `makes`: new keys get one.  `counts`: the rows are new ones.
        """
        columns, count = self._inputs[side], len(self.lanes)
        hashes = hash_columns(batch, columns.names, self._scratch, f"{side}", beat.workers)
        slots: Slots = self._scratch.get(f"{side}.slots", batch.rows, np.int32)
        table, calls = batch.addresses(), []
        for number, lane in enumerate(self.lanes):
            settings: Ints = np.zeros(len(SLOT), np.int64)
            settings[SLOT.time], settings[SLOT.base] = columns.time, self._rows
            settings[SLOT.lane], settings[SLOT.lanes] = number, count
            settings[SLOT.makes], settings[SLOT.null_keys] = makes, self._null_keys
            settings[SLOT.horizon], settings[SLOT.word] = self.horizon_us, self.word
            settings[SLOT.exact] = columns.exact
            keys = columns.shape.keys
            calls.append(partial(lane.find, table, keys, settings, hashes, batch.rows, slots))
        _run(beat, batch.rows, calls)
        self._rows += batch.rows * counts
        self._found[side] = hashes, slots
        return slots

    def each(self, beat: BeatContext, rows: int, step: Step, side: int = 0) -> None:
        """Run a step for each lane, of the rows of the last `find` of an input."""
        hashes, slots = self._found[side]
        count = len(self.lanes)
        calls = [partial(step, lane, hashes, i, count, slots) for i, lane in enumerate(self.lanes)]
        _run(beat, rows, calls)

    def found(self, side: int) -> tuple[Hashes, Slots]:
        """Hashes and slots of the last `find` of an input."""
        return self._found[side]

    @property
    def rows_seen(self) -> int:
        """Rows of all inputs that were counted: the number of the next one."""
        return self._rows

    def forget_before(self, side: int, numbers: Ints) -> None:
        """Take slots from rows of the last `find` of an input that are older, by their number among
        all rows, than the state of their key."""
        hashes, slots = self._found[side]
        count = np.uint64(len(self.lanes))
        lanes = ((hashes >> np.uint64(58)) * count) >> np.uint64(6)
        for number, lane in enumerate(self.lanes):
            mine = np.flatnonzero((lanes == number) & (slots >= 0))
            firsts = lane.groups[slots[mine], GROUP.first]
            slots[mine[numbers[mine] < firsts]] = -1

    def count(self) -> int:
        """Keys."""
        return sum(lane.count for lane in self.lanes)

    def nbytes(self) -> int:
        """Memory."""
        return sum(lane.nbytes() for lane in self.lanes)

    def groups(self) -> Groups:
        """All slots, as copies, in the saved order."""
        return merged(self._shape, [lane.kept(self.horizon_us) for lane in self.lanes])

    def save(self, groups: Groups | None = None) -> State:
        """The slots, or those given, and how many rows were seen."""
        numbers = np.array([self._rows, self.horizon_us], np.int64)
        return {"seen": numbers, **to_state(self.groups() if groups is None else groups)}

    def load(self, state: State) -> None:
        """Restore what `save` gave, for any number of lanes."""
        self._rows, self.horizon_us = (int(n) for n in state["seen"])
        parts = split(self._shape, from_state(self._shape, state), len(self.lanes))
        for lane, part in zip(self.lanes, parts, strict=True):
            lane.adopt(part)


def key_rows(schema: Schema, names: Sequence[str], words: int, state: State) -> Batch:
    """The keys of saved slots with so many words of state, as rows."""
    shape = shape_of(schema, names, ())
    groups = from_state(replace(shape, words=shape.words + words), state)
    more = [Field(f" {name}", TIMESTAMP) for name in ("start", "end")]
    output = Schema.of([*(schema.field(name) for name in names), *more])
    return OutputBuilder(shape, (), 0, output, empty_batch(output)).batch(groups)


def dealt(
    schema: Schema,
    names: Sequence[str],
    words: int,
    states: Sequence[State],
    instances: Callable[[Batch], Ints],
    count: int,
) -> tuple[list[State], Ints, list[Ints]]:
    """The slots of several saved states, dealt out by key to `count` new ones.

    Also: the slots' order, as numbers of all slots of `states` one after the other, and which of
    them in that order each new state has.
    """
    shape = shape_of(schema, names, ())
    shape = replace(shape, words=shape.words + words)
    parts = [from_state(shape, state) for state in states]
    rows = np.concatenate([part.rows for part in parts])
    order = np.lexsort((rows[:, GROUP.first], rows[:, GROUP.start])).astype(np.int64)
    groups = merged(shape, parts)
    seen = np.sum([state["seen"][:1] for state in states], axis=0)
    horizon = np.min([state["seen"][1:] for state in states], axis=0)
    numbers = np.concatenate([seen, horizon])
    goes = instances(key_rows(schema, names, words, to_state(groups)))
    found, mine = [], []
    for i in range(count):
        found.append({"seen": numbers.copy(), **to_state(selected(shape, groups, goes == i))})
        mine.append(np.flatnonzero(goes == i))
    return found, order, mine


def _none() -> tuple[Hashes, Slots]:
    return np.empty(0, np.uint64), np.empty(0, np.int32)


def _run(beat: BeatContext, rows: int, calls: Sequence[Callable[[], None]]) -> None:
    if len(calls) > 1 and rows >= PARALLEL_ROWS:
        beat.workers.run(calls)
    else:
        for call in calls:
            call()
