"""Records of a kernel operator by key, in lanes (`kernels.cpu.slots`).

A lane owns the records of a range of hashes, as a window's (`edged.operators._window_groups`): its
saved state is theirs, the same for any number of lanes.

Records that are kept for a time are forgotten once the horizon has passed their latest row, or
another row of their key has come after a pause.  They are in no saved state, and leave the memory
when that grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Batch, address, empty_batch
from edged.data.flow import State
from edged.data.hashing import hash_columns
from edged.data.schema import TIMESTAMP, Field, Schema
from edged.data.scratch import Scratch
from edged.operators._key_slots import SWEEP_GROUPS
from edged.operators._window_groups import (
    GroupLane,
    Groups,
    Shape,
    from_state,
    merged,
    selected,
    shape_of,
    to_state,
)
from edged.operators._window_output import OutputBuilder
from edged.operators.base import InstanceOf
from edged.operators.user.declarations import StateField
from kernels.cpu import slots as kernels
from kernels.cpu.columns import COLUMN
from kernels.cpu.slots import KEEP
from kernels.cpu.window import GROUP, SETTINGS, SHUT, STATE

Ints = npt.NDArray[np.int64]
KEPT_FOR_EVER: Ints = np.zeros(len(KEEP), np.int64)


def record_shape(schema: Schema, keys: Sequence[str], words: int, keep_us: int = 0) -> Shape:
    """The layout of records with `words` words of state, that are kept so long; 0: for ever."""
    shape = shape_of(schema, keys, ())
    if keep_us:
        at = shape.words
        shape = replace(shape, words=at + 1, first=at + 1, latest=at)
    return replace(shape, words=shape.words + words)


def keep_settings(shape: Shape, keep_us: int, horizon_us: int, time: int) -> Ints:
    """What `find` needs of how long records are kept; `time` is the event-time column's number."""
    keeping: Ints = np.zeros(len(KEEP), np.int64)
    keeping[KEEP.keep], keeping[KEEP.horizon] = keep_us, horizon_us
    keeping[KEEP.time], keeping[KEEP.word] = time, shape.latest
    return keeping


def defaults_of(state: Mapping[str, StateField]) -> Ints:
    """The words of a new record's state."""
    words = np.zeros(sum(f.words for f in state.values()), np.int64)
    for f in state.values():
        part = words[f.word : f.word + f.words]
        if f.type == "float64":
            part.view(np.float64)[:] = f.default
        else:
            part[:] = int(f.default)
    return words


@dataclass
class LaneRows:
    """A lane's rows of a batch, and the number of the record of each; valid until the next."""

    rows: Ints
    slots: npt.NDArray[np.int32]


class RecordLane(GroupLane):
    """The records of one worker."""

    def __init__(self, shape: Shape, defaults: Ints) -> None:
        super().__init__(shape)
        self._shape, self._defaults = shape, defaults
        self._scratch = Scratch()
        self._swept = SWEEP_GROUPS

    def find(
        self, columns: Ints, settings: Ints, hashes: npt.NDArray[np.uint64], count: int,
        keeping: Ints = KEPT_FOR_EVER,
    ) -> LaneRows:  # fmt: skip
        """The records of this lane's rows of a batch; new ones have the defaults."""
        if keeping[KEEP.keep]:
            self._sweep(int(keeping[KEEP.horizon]))
        before, found = int(self.state[STATE.groups]), np.zeros(1, np.int64)
        rows = self._scratch.get("rows", count, np.int64)
        slots = self._scratch.get("slots", count, np.int32)
        at = 0
        while True:
            at = kernels.find_slots(
                columns, self._shape.keys, settings, hashes, at, count, self._groups, self._table,
                self._store, self.state, rows, slots, found, keeping,
            )  # fmt: skip
            if at == count:
                break
            self._reserve(
                int(self.state[STATE.groups]) + 1,
                int(self.state[STATE.bytes] + self.state[STATE.need]),
            )
        self._groups[before : int(self.state[STATE.groups]), self._shape.first :] = self._defaults
        return LaneRows(rows[: found[0]], slots[: found[0]])

    def _sweep(self, horizon_us: int) -> None:
        """Drop records that are forgotten where there are twice as many as after the last time."""
        if int(self.state[STATE.groups]) >= self._swept:
            self.expire(max(horizon_us, kernels.GONE + 1))
            self._swept = max(SWEEP_GROUPS, 2 * int(self.state[STATE.groups]))

    def kept(self, horizon_us: int) -> Groups:
        """Copies of the records that are not forgotten."""
        records = self.copy()
        if not self._shape.latest:
            return records
        return selected(self._shape, records, self._there(records.rows, horizon_us))

    def live(self, horizon_us: int) -> int:
        """Number of the records that are not forgotten."""
        count = int(self.state[STATE.groups])
        if not self._shape.latest:
            return count
        return int(np.count_nonzero(self._there(self._groups[:count], horizon_us)))

    def _there(self, rows: Ints, horizon_us: int) -> npt.NDArray[np.bool_]:
        """Which records are not forgotten."""
        found: npt.NDArray[np.bool_] = rows[:, GROUP.start] != SHUT
        found &= rows[:, self._shape.latest] >= horizon_us
        return found

    def make_record(self) -> None:
        """Make the only record of an operator without keys."""
        nothing = np.zeros((0, len(COLUMN)), np.int64)
        self.find(nothing, lane_settings(0, 1, 0), np.zeros(1, np.uint64), 1)

    def memory(self) -> tuple[int, int]:
        """The address of the first record's state, and bytes from one record to the next."""
        return address(self._groups) + 8 * self._shape.first, 8 * self._shape.words


def lane_settings(lane: int, lanes: int, base: int) -> Ints:
    """What `find` needs of the lane."""
    settings: Ints = np.zeros(len(SETTINGS), np.int64)
    settings[SETTINGS.lane], settings[SETTINGS.lanes] = lane, lanes
    settings[SETTINGS.base], settings[SETTINGS.hops] = base, 1
    return settings


def key_values(shape: Shape, schema: Schema, by: Sequence[str], records: Groups) -> pa.RecordBatch:
    """The keys of records as columns."""
    return _keys(shape, schema, by, records).to_arrow().select([*by])


def _keys(shape: Shape, schema: Schema, by: Sequence[str], records: Groups) -> Batch:
    """The keys of records, and two columns of times."""
    times = [Field(name, TIMESTAMP) for name in ("start of records", "end of records")]
    output = Schema.of([*(schema.field(name) for name in by), *times])
    return OutputBuilder(shape, (), 0, output, empty_batch(output)).batch(records)


def redistributed(
    shape: Shape,
    schema: Schema,
    by: Sequence[str],
    dealt: Sequence[str],
    states: Sequence[State],
    instances: int,
    instance_of: InstanceOf,
) -> list[State]:
    """The states of new instances: records by the hash of the columns `dealt` of their keys."""
    records = merged(shape, [from_state(shape, state) for state in states])
    goes = np.zeros(len(records.rows), np.int64)
    if instances > 1:
        goes = instance_of(hash_columns(_keys(shape, schema, by, records), dealt))
    numbers = np.sum([state["numbers"] for state in states], axis=0)
    found = []
    for i in range(instances):
        counts = numbers.copy() if i == 0 else np.zeros_like(numbers)
        firsts = records.rows[:, GROUP.first]
        counts[0] = max(int(counts[0]), int(firsts.max(initial=-1)) + 1)
        found.append({"numbers": counts, **to_state(selected(shape, records, goes == i))})
        if shape.latest:
            found[-1]["horizon"] = np.min([state["horizon"] for state in states], axis=0)
    return found
