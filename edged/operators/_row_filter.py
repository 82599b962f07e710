"""`RowFilter`: the rows that pass, by what their keys have had before.

A kernel flags a beat's rows in the order in which they are taken; it keeps words of state for each
key (`kernels.cpu.keyed_rows`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.gather import take
from edged.data.hashing import Hashes
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.operators._key_slots import KeyColumns, KeySlots, SlotLane, Slots, dealt
from edged.operators._keyed import BY_ARRIVAL, horizon, instances_by
from edged.operators._time_order import TimeOrder, deal_waiting
from edged.operators.base import InstanceOf, Operator, OperatorPlan

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class RowFilterPlan(OperatorPlan):
    """What such operators have in common."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    waits_for_time: ClassVar[bool] = True
    dropped: ClassVar[str] = "rows_dropped"
    """The counter of rows that do not pass."""

    id: str
    input: Link
    by: tuple[str, ...]
    """Key columns."""
    order: str
    keep_us: int
    """How far behind the watermark a key is remembered."""

    @property
    def output(self) -> Link:  # type: ignore[override]
        """The input's rows."""
        disorder_us = self.input.disorder_us if self.order == BY_ARRIVAL else 0
        return Link(self.input.schema, self.input.time, disorder_us)

    @property
    @abstractmethod
    def words(self) -> int:
        """Words of a key's state."""

    @abstractmethod
    def flag(
        self, lane: SlotLane, hashes: Hashes, number: int, lanes: int, slots: Slots, times: Ints,
        word: int, flags: Flags,
    ) -> None:  # fmt: skip
        """Flag the rows of a lane that pass."""

    def build(self, workers: Workers) -> Operator:
        """The running operator."""
        return RowFilter(self, workers)

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Keys, and the rows that wait."""
        goes = instances_by(self.id, by[0], self.by, instances, instance_of)
        schema, time = self.input.schema, self.input.time
        slots, _, _ = dealt(schema, self.by, self.words, states, goes, instances)
        waiting = deal_waiting(schema, time, "input", states, goes, instances)
        counted = np.sum([state["counted"] for state in states], axis=0)
        found = []
        for i, (a, b) in enumerate(zip(slots, waiting, strict=True)):
            found.append({**a, **b, "counted": counted if i == 0 else np.zeros_like(counted)})
        return found

    def signature_facts(self) -> list[Any]:
        """The facts that the keys' state depends on."""
        return [
            self.input.schema.to_json(), self.input.time, list(self.by), self.order, self.keep_us,
            self.words,
        ]  # fmt: skip


class RowFilter(Operator):
    """A running filter of rows by key."""

    gauges = frozenset({"keys", "rows_waiting"})

    def __init__(self, plan: RowFilterPlan, workers: Workers) -> None:
        self._plan = plan
        schema, time = plan.input.schema, plan.input.time
        self._slots = KeySlots([KeyColumns(schema, plan.by, time)], plan.words, workers)
        self._order = TimeOrder(schema, time)
        self._scratch = Scratch()
        self._dropped = 0

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The beat's rows that pass."""
        (flow,) = inputs
        plan, batch, slots = self._plan, flow.batch, self._slots
        if plan.order != BY_ARRIVAL:
            batch = self._order.pass_on(batch, flow.watermark_us)
        if batch.rows:
            batch = self._passing(beat, batch)
        slots.horizon_us = horizon(slots.horizon_us, flow.watermark_us, plan.keep_us)
        return Flow(batch, flow.watermark_us)

    def _passing(self, beat: BeatContext, batch: Batch) -> Batch:
        plan, slots = self._plan, self._slots
        slots.sweep()
        slots.find(beat, batch)
        flags: Flags = self._scratch.get("flags", batch.rows, np.uint8)
        times = batch[plan.input.time].values

        def step(lane: SlotLane, hashes: Hashes, i: int, lanes: int, found: Slots) -> None:
            plan.flag(lane, hashes, i, lanes, found, times, slots.word, flags)

        slots.each(beat, batch.rows, step)
        rows = np.flatnonzero(flags)
        self._dropped += batch.rows - rows.size
        if rows.size < batch.rows:
            return take(batch, rows, self._scratch, "kept", beat.workers)
        return batch

    def save(self, scratch: Scratch) -> State:
        """Keys, the rows that wait, and the number of rows dropped."""
        counted = np.array([self._dropped], np.int64)
        return {"counted": counted, **self._slots.save(), **self._order.save("input")}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        self._dropped = int(state["counted"][0])
        self._slots.load(state)
        self._order.load(state, "input")

    def state_bytes(self) -> int:
        """Memory of keys and of rows that wait."""
        return self._slots.nbytes() + self._order.nbytes()

    def counters(self) -> Mapping[str, int | float]:
        """Keys, rows that wait for the watermark, rows that came late, and rows dropped."""
        return {
            "keys": self._slots.count(),
            **self._order.counters(),
            self._plan.dropped: self._dropped,
        }
