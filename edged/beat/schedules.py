"""Schedules: which operators run in a beat, and the rows that wait in front of the others.

An operator waits where its document has a schedule (`edged.job.schedule`), and where it runs apart
from the daemon and is not ready (`edged.operators.base.Apart`).  Its flow goes on without rows and
without time then:

    input ──► waiting rows (copies) ──► operator ──► output, watermark of its last run

1. It is decided live which operators run, in the beat; the beat's record has their names (`ran`),
   and a replay does the same.
2. Waiting rows, and the watermark of the output, are part of a snapshot, and of the state that a
   replaced job hands over.  They are in the log as inputs of earlier beats.
3. Waiting rows take a share of the job's memory.  An operator that can run does so when they fill
   it.  One that cannot makes the job take no rows, as a full sink does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.beat.saved_arrays import arrays_under, put_arrays
from edged.data.columns import Batch, Column, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, State
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.job.plan import JobPlan
from edged.job.schedule import OperatorSchedule
from edged.operators.base import Apart, Deferring, Operator

WAITING_SHARE = 8
"""Part of a job's memory, 1 in WAITING_SHARE, that the rows of all waiting operators take."""
SECTION = "schedules"
"""The first part of the names of saved arrays."""
_NEVER_US = -(1 << 62)


class Schedules:
    """The operators of one job that may wait; the heart's thread only."""

    def __init__(self, plan: JobPlan, operators: Mapping[str, Operator]) -> None:
        """Of `operators`, in topological order."""
        waiting = [
            id
            for id, operator in operators.items()
            if id in plan.schedules or isinstance(operator, Apart)
        ]
        share = plan.promises.memory_bytes // WAITING_SHARE // max(1, len(waiting))
        self._gates = {id: _Gate(plan, id, operators[id], share) for id in waiting}
        self._now_us = 0
        self.flush = False
        """Whether the next beat leaves nothing waiting that can run."""

    def prepare(self, runs: bool) -> None:
        """Start the processes of operators that run apart before they are needed, or end them."""
        for gate in self._gates.values():
            if isinstance(gate.operator, Apart):
                if runs:
                    gate.operator.ready()
                else:
                    gate.operator.close()

    def begin(self, now_us: int) -> None:
        """A beat is decided at this monotonic time."""
        self._now_us, self.flush = now_us, False

    def recall(self, recorded: Mapping[str, Any] | None) -> None:
        """Say what a beat runs, by its record; None: it is decided."""
        for id, gate in self._gates.items():
            gate.begin(recorded is not None, None if recorded is None else recorded.get(id))

    def run(self, id: str, operator: Operator, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """Run an operator, or let its inputs wait."""
        gate = self._gates.get(id)
        if gate is None:
            return operator.run(beat, inputs)
        return gate.run(beat, inputs, self._now_us, self.flush)

    def ran(self) -> dict[str, Any]:
        """What the beat's record needs."""
        return {id: gate.note for id, gate in self._gates.items() if gate.went}

    def rows(self, id: str) -> int | None:
        """Rows that wait for an operator; None: it never waits."""
        return self._gates[id].rows if id in self._gates else None

    def waiting(self) -> bool:
        """Whether rows wait."""
        return any(gate.rows for gate in self._gates.values())

    @property
    def wanted(self) -> bool:
        """Whether a beat without new rows would run an operator, at the time of the last
        decision."""
        return self.wanted_at(self._now_us)

    def wanted_at(self, now_us: int, flush: bool = False) -> bool:
        """As `wanted`, at this time; with `flush` none waits that can run."""
        flush = flush or self.flush
        return any(gate.wanted(now_us, flush) for gate in self._gates.values())

    @property
    def full(self) -> bool:
        """Whether rows that fill their memory wait for an operator that cannot run."""
        return any(gate.full for gate in self._gates.values())

    def due_us(self) -> Iterator[int]:
        """Monotonic times at which to beat without new rows."""
        for gate in self._gates.values():
            if (due := gate.due_us()) is not None:
                yield due

    def save(self) -> State:
        """Waiting rows and watermarks."""
        arrays: State = {}
        for id, gate in self._gates.items():
            put_arrays(arrays, f"{SECTION}/{id}", gate.save())
        return arrays

    def load(self, arrays: State) -> None:
        """Load a saved state; what is missing starts empty."""
        for id, gate in self._gates.items():
            if state := arrays_under(arrays, f"{SECTION}/{id}"):
                gate.load(state)

    def close(self) -> None:
        """End the processes of operators that run apart."""
        for gate in self._gates.values():
            if isinstance(gate.operator, Apart):
                gate.operator.close()


class _Gate:
    """One operator and what waits in front of it."""

    def __init__(self, plan: JobPlan, id: str, operator: Operator, share_bytes: int) -> None:
        self.operator = operator
        self._schedule = plan.schedules.get(id, OperatorSchedule())
        self._schemas = [plan.links[link].schema for link in plan.inputs[id]]
        self._waiting: list[list[Batch]] = [[] for _ in self._schemas]
        self._scratch = [Scratch() for _ in self._schemas]
        self._share_bytes, self._bytes = share_bytes, 0
        self.rows = 0
        none = (WATERMARK_MIN_US,) * len(self._schemas)
        self._offered, self._seen = none, none
        """Watermarks of the inputs in the last beat, and in the last run."""
        self._ran_us = _NEVER_US
        self._out = Flow(empty_batch(plan.operators[id].output.schema), WATERMARK_MIN_US)
        """The output where it does not run."""
        self._outputs = {
            name: Flow(empty_batch(link.schema), WATERMARK_MIN_US)
            for name, link in plan.operators[id].outputs().items()
        }
        self._replays, self._recorded = False, None
        self.went = False
        self.note: Any = None

    def begin(self, replays: bool, recorded: Any) -> None:
        self._replays, self._recorded, self.went = replays, recorded, False

    def run(self, beat: BeatContext, inputs: Sequence[Flow], now_us: int, flush: bool) -> Flow:
        self._offered = tuple(flow.watermark_us for flow in inputs)
        rows = self.rows + sum(flow.batch.rows for flow in inputs)
        if self._replays:
            goes = self._recorded is not None
        else:
            ends = all(us == WATERMARK_MAX_US for us in self._offered)
            goes = self._goes(rows, self._bytes + _bytes(inputs), now_us, flush or ends)
        if not goes:
            return self._wait(inputs)
        self.went, self._ran_us = True, now_us
        flows = [self._released(i, flow) for i, flow in enumerate(inputs)]
        out = self._run(beat, flows)
        self._out = replace(self._out, watermark_us=out.watermark_us)
        for name, flow in self.operator.outputs.items():
            own = self._outputs[name]
            self._outputs[name] = replace(own, watermark_us=flow.watermark_us)
        return out

    def wanted(self, now_us: int, flush: bool) -> bool:
        return self._pending and self._goes(self.rows, self._bytes, now_us, flush)

    @property
    def full(self) -> bool:
        operator = self.operator
        crowded = self._bytes >= self._share_bytes
        return crowded and isinstance(operator, Apart) and not operator.ready()

    def due_us(self) -> int | None:
        if not self._pending:
            return None
        if isinstance(self.operator, Apart) and not self.operator.ready():
            return self.operator.due_us()
        return self._ran_us + self._schedule.every_us if self._schedule.every_us else None

    def save(self) -> State:
        outs = [self._out, *self._outputs.values()]
        numbers = [*self._seen, *(flow.watermark_us for flow in outs)]
        state: State = {"watermarks": np.array(numbers, np.int64)}
        for i, batches in enumerate(self._waiting):
            if batches:
                batch = concatenate(self._schemas[i], batches, _Fresh())
                put_arrays(state, str(i), _arrays(batch))
        return state

    def load(self, state: State) -> None:
        numbers = [int(us) for us in state["watermarks"]]
        self._seen, outs = tuple(numbers[: len(self._seen)]), numbers[len(self._seen) :]
        self._out = replace(self._out, watermark_us=outs[0])
        for (name, flow), us in zip(list(self._outputs.items()), outs[1:], strict=True):
            self._outputs[name] = replace(flow, watermark_us=us)
        for i, schema in enumerate(self._schemas):
            if arrays := arrays_under(state, str(i)):
                self._keep(i, _batch(schema, arrays))

    @property
    def _pending(self) -> bool:
        return bool(self.rows) or self._offered != self._seen

    def _goes(self, rows: int, size: int, now_us: int, flush: bool) -> bool:
        """Whether the operator runs on so many rows and bytes, decided live."""
        operator, schedule = self.operator, self._schedule
        if isinstance(operator, Deferring) and operator.waiting():
            return True
        if not rows and self._offered == self._seen:
            return False
        if rows and isinstance(operator, Apart) and not operator.ready():
            return False
        return (
            flush
            or schedule == OperatorSchedule()
            or 0 < schedule.rows <= rows
            or (schedule.every_us > 0 and now_us - self._ran_us >= schedule.every_us)
            or size >= self._share_bytes
        )

    def _wait(self, inputs: Sequence[Flow]) -> Flow:
        self.operator.set_aside = ()
        if isinstance(self.operator, Deferring):
            self.operator.processed = None
        for i, flow in enumerate(inputs):
            if flow.batch.rows:
                self._keep(i, flow.batch)
        if self._outputs:
            self.operator.outputs = self._outputs
        return self._out

    def _run(self, beat: BeatContext, flows: Sequence[Flow]) -> Flow:
        operator, self.note, self._seen = self.operator, {}, self._offered
        if not isinstance(operator, Apart):
            return operator.run(beat, flows)
        operator.replays, operator.recorded = self._replays, self._recorded
        out = operator.run(beat, flows)
        self.note = operator.note
        if operator.left is not None:
            self._keep(0, operator.left)
        return out

    def _released(self, i: int, flow: Flow) -> Flow:
        """The waiting rows of an input and the new ones."""
        batches, self._waiting[i] = self._waiting[i], []
        if not batches:
            return flow
        self.rows -= sum(batch.rows for batch in batches)
        self._bytes -= sum(batch.nbytes() for batch in batches)
        batches += [flow.batch] if flow.batch.rows else []
        return replace(flow, batch=concatenate(self._schemas[i], batches, self._scratch[i]))

    def _keep(self, i: int, batch: Batch) -> None:
        """Let a copy of the rows wait.  Batches of like size become one, so that few are left."""
        schema, waiting = self._schemas[i], self._waiting[i]
        waiting.append(concatenate(schema, [batch], _Fresh()))
        self.rows += batch.rows
        self._bytes += waiting[-1].nbytes()
        while len(waiting) > 1 and waiting[-2].rows <= 2 * waiting[-1].rows:
            last = [waiting.pop(-2), waiting.pop()]
            waiting.append(concatenate(schema, last, _Fresh()))
            self._bytes += waiting[-1].nbytes() - sum(batch.nbytes() for batch in last)


class _Fresh(Scratch):
    """Memory that is used once."""

    def get(self, name: str, size: int, dtype: Any) -> npt.NDArray[Any]:
        """A new array."""
        return np.empty(size, dtype)


def _bytes(inputs: Sequence[Flow]) -> int:
    return sum(flow.batch.nbytes() for flow in inputs)


def _arrays(batch: Batch) -> State:
    """A batch as arrays."""
    state: State = {"rows": np.array([batch.rows], np.int64)}
    for i, column in enumerate(batch.columns):
        state[f"{i}.values"] = column.values
        if column.valid is not None:
            state[f"{i}.valid"] = column.valid
        if column.offsets is not None:
            state[f"{i}.offsets"] = column.offsets
    return state


def _batch(schema: Schema, state: State) -> Batch:
    """The inverse of `_arrays`."""
    columns = [
        Column(state[f"{i}.values"], state.get(f"{i}.valid"), state.get(f"{i}.offsets"))
        for i in range(len(schema))
    ]
    return Batch(schema, int(state["rows"][0]), tuple(columns))
