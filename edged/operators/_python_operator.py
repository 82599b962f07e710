"""The running `python` operator: a beat's rows to its children and back.

    rows ─► by partition ─► child 0: partitions 0..31   ─┐
                        └─► child 1: partitions 32..63  ─┴► outputs, in the order of the partitions

The beat waits for the children until `timeout`.  Then, and when a child ends or raises an
exception, only that partition's rows are set aside.  A child that has ended or was killed starts
again beside the beats, with backoff, from the states of the last commit.  The other rows that it
had wait for it, and so do all that come meanwhile (`edged.beat.schedules`).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from edged.data.concatenate import concatenate
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, State
from edged.data.scratch import Scratch
from edged.errors import EdgedError
from edged.operators._python_process import Answer, Bounds, ChildFailed, PythonChild, batch_of
from edged.operators._python_rows import OutputCollector, PartitionedRows, RowSorter
from edged.operators._python_state import PartitionStates
from edged.operators._python_terms import PythonTerms
from edged.operators.base import Apart, OperatorPlace, RefusedRows
from edged.operators.python_child.channel import IDLE
from edged.platform.backoff import Backoff, jitter
from edged.platform.clock import boot_us

REPLAYS_MAX = 3
"""Times that a replay tries a batch."""
TIMEOUT_US_MAX = 1_000_000
"""Default timeout at most; a race serves neither control nor the watchdog."""


@dataclass
class _Outcome:
    """What has become of a beat's rows."""

    outputs: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    aside: dict[int, str] = field(default_factory=dict)
    """Partitions whose rows are set aside, with reasons."""
    left: list[int] = field(default_factory=list)
    """Partitions whose rows come again."""
    states: dict[int, bytes] = field(default_factory=dict)


class PythonOperator(Apart):
    """A running `python` operator."""

    gauges = frozenset({"children", "watermark_us"})

    def __init__(self, terms: PythonTerms) -> None:
        self._terms = terms
        self._children: list[PythonChild | None] = [None] * terms.processes
        self._backoff, self._retry_us = Backoff(jitter), 0
        self._partitioner = RowSorter(terms.by, terms.partitions)
        links = terms.links
        self._first, self._collector = next(iter(links)), OutputCollector(links)
        self._states = PartitionStates()
        self._watermark_us = WATERMARK_MIN_US
        self._timeout_us = terms.timeout_us or TIMEOUT_US_MAX
        self._wake: Callable[[], None] = lambda: None
        self._rows = self._batches = self._out = self._aside = self._restarts = self._us = 0
        self._enforced, self._trouble, self.note = "", "", {}
        self._tried: set[int] = set()
        """Partitions on which a child was killed."""

    def place(self, place: OperatorPlace) -> None:
        """The heart to wake, and how long it may wait."""
        self._wake = place.wake
        if not self._terms.timeout_us:
            self._timeout_us = min(TIMEOUT_US_MAX, place.latency_us // 2)

    # children ----------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether all children run; starts those that do not, when it is time."""
        is_ready = True
        for number, child in enumerate(self._children):
            if child is not None and child.refused:
                self._fail(number, child.refused)
                child = None
            if child is None and boot_us() >= self._retry_us:
                child = self._start(number)
            is_ready = is_ready and child is not None and child.ready
        return is_ready

    def due_us(self) -> int | None:
        """When a child that has ended starts again."""
        return self._retry_us if None in self._children else None

    def close(self) -> None:
        """Kill the children."""
        for number, child in enumerate(self._children):
            if child is not None:
                child.end()
                self._children[number] = None

    def children(self) -> list[PythonChild]:
        """Those that run."""
        return [child for child in self._children if child is not None]

    def _owner(self, partition: int) -> int:
        return partition * self._terms.processes // self._terms.partitions

    def _start(self, number: int) -> PythonChild | None:
        """A new child; None: the system has no room for one now."""
        resumption = self._states.resumption(self._owner, number)
        try:
            child = PythonChild(self._terms.child_code, resumption, self._wake)
        except OSError as problem:
            self._fail(number, f"its process cannot start: {problem}")
            return None
        self._children[number] = child
        return child

    def _fail(self, number: int, reason: str) -> None:
        """Kill a child that has failed; it starts again later."""
        child = self._children[number]
        if child is not None:
            child.end()
        self._children[number] = None
        self._restarts += 1
        self._trouble = reason
        self._retry_us = boot_us() + int(1e6 * self._backoff.failed())

    def await_ready(self) -> None:
        """Have all children run.  Raises EdgedError."""
        for number in range(len(self._children)):
            for _ in range(REPLAYS_MAX):
                child = self._children[number] or self._start(number)
                if child is None:
                    continue
                child.await_start()
                if child.ready:
                    break
                self._fail(number, child.refused)
            else:
                raise EdgedError(f"operators.{self._terms.id}: cannot run: {self._trouble}")

    # a beat ------------------------------------------------------------------------------------

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's rows."""
        (flow,) = inputs
        self.note, self.left, self.set_aside, self.problem = {}, None, (), ""
        made: list[tuple[str, pa.RecordBatch]] = []
        if flow.batch.rows:
            rows = self._partitioner.sort(flow.batch, beat)
            outcome = self._replayed(rows) if self.replays else self._live(rows)
            made = outcome.outputs
            self._settle(rows, outcome)
        batches = self._collector.batches(made, self._watermark_us)
        if self.left is None:
            self._watermark_us = max(self._watermark_us, self._behind(flow.watermark_us))
        self._out += sum(batch.rows for batch in batches.values())
        flows = {name: Flow(batch, self._watermark_us) for name, batch in batches.items()}
        if self._first:
            self.outputs = flows
        return flows[self._first]

    def _behind(self, watermark_us: int) -> int:
        if watermark_us in (WATERMARK_MAX_US, WATERMARK_MIN_US):
            return watermark_us
        return max(WATERMARK_MIN_US, watermark_us - self._terms.behind_us)

    def _live(self, rows: PartitionedRows) -> _Outcome:
        """Run the rows, for the first time."""
        outcome = self._exchange(rows, rows.bounds, time.monotonic() + self._timeout_us / 1e6)
        if self._terms.deterministic:
            return outcome
        self.note = {
            "out": [[name, _packed(batch)] for name, batch in outcome.outputs],
            "states": [[p, _text(data)] for p, data in outcome.states.items()],
        }
        return outcome

    def _replayed(self, rows: PartitionedRows) -> _Outcome:
        """Run them as a record says."""
        recorded = self.recorded or {}
        aside, left = recorded.get("aside", []), recorded.get("left", [])
        if not self._terms.deterministic:
            states = {p: base64.b64decode(text) for p, text in recorded["states"]}
            self._recall(rows, states, aside, left)
            outputs = [(name, _unpacked(text)) for name, text in recorded["out"]]
            outcome = _Outcome(outputs)
        else:
            bounds = [bound for bound in rows.bounds if bound[0] not in (*aside, *left)]
            self.await_ready()
            outcome = self._exchange(rows, bounds, None)
            if outcome.aside or outcome.left:
                reason = next(iter(outcome.aside.values()), self._trouble)
                raise EdgedError(f"operators.{self._terms.id}: cannot be replayed: {reason}")
        outcome.aside, outcome.left = dict.fromkeys(aside, ""), left
        self.note = recorded
        return outcome

    def _recall(
        self, rows: PartitionedRows, states: Mapping[int, bytes], aside: Sequence[int],
        left: Sequence[int],
    ) -> None:  # fmt: skip
        """Take states from a record.  Of a child without any the rows are kept, as they were when
        its states could not be saved."""
        for number in range(len(self._children)) if self._terms.stateful else ():
            own = [b for b in rows.bounds if self._owner(b[0]) == number and b[0] not in left]
            saved = {p: data for p, data in states.items() if self._owner(p) == number}
            if saved:
                self._states.save(saved, self._owner, number)
            elif own:
                self._states.processed(batch_of(*rows.arrow(own)), dict.fromkeys(aside, ""))

    def _exchange(
        self, rows: PartitionedRows, bounds: Bounds, deadline_s: float | None
    ) -> _Outcome:
        """Hand the rows to the children, and take what they give; without a deadline wait for
        ever."""
        outcome, asked = _Outcome(), []
        for number in range(len(self._children)):
            own = [bound for bound in bounds if self._owner(bound[0]) == number]
            if not own:
                continue
            batch, moved = rows.arrow(own)
            save = self._saves(own)
            try:
                self._running(number).ask(batch, moved, save)
                asked.append((number, own, save))
            except ChildFailed as problem:
                self._lost(number, own, problem, outcome)
        for number, own, save in asked:
            try:
                answer = self._running(number).answer(deadline_s)
                self._take(number, own, save, answer, outcome)
            except ChildFailed as problem:
                self._lost(number, own, problem, outcome)
        return outcome

    def _running(self, number: int) -> PythonChild:
        child = self._children[number]
        if child is None:
            raise ChildFailed(self._trouble)
        return child

    def _saves(self, bounds: Bounds) -> bool:
        if not self._terms.stateful:
            return False
        return not self._terms.deterministic or self._states.due({p: None for p, _, _ in bounds})

    def _take(
        self, number: int, bounds: Bounds, save: bool, answer: Answer, outcome: _Outcome
    ) -> None:
        """A child's answer."""
        self._backoff.succeeded()
        self._tried.difference_update(p for p, _, _ in bounds)
        self._enforced = ", ".join(self._running(number).enforced)
        self._batches += 1
        self._us += answer.us
        outcome.outputs += answer.outputs
        outcome.aside |= answer.failed
        if not self._terms.stateful:
            return
        if save and not answer.failed and not answer.unsaved:
            self._states.save(answer.states, self._owner, number)
            outcome.states |= answer.states
        else:
            self._states.processed(self._running(number).request(), answer.failed)
        if answer.failed:  # an exception may leave a state half changed
            self._fail(number, next(iter(answer.failed.values())))
        elif answer.unsaved:
            self._trouble = f"save() fails: {answer.unsaved}"

    def _lost(self, number: int, bounds: Bounds, problem: ChildFailed, outcome: _Outcome) -> None:
        """A child is gone, or too slow: the partition in work is set aside, the others wait.

        A child that was killed from outside, as for want of memory, tries once more.
        """
        mine, at = [p for p, _, _ in bounds], problem.partition
        if at == IDLE or (problem.killed and at not in self._tried):
            guilty = []
            self._tried.add(at)
        else:
            guilty = [at] if at in mine else mine
        outcome.aside |= dict.fromkeys(guilty, str(problem))
        outcome.left += [p for p in mine if p not in guilty]
        self._fail(number, str(problem))

    def _settle(self, rows: PartitionedRows, outcome: _Outcome) -> None:
        """Set rows aside, and let others come again."""
        self._rows += rows.batch.rows
        if outcome.left:
            parts = [rows.of(p) for p in sorted(outcome.left)]
            self.left = concatenate(self._terms.schema, parts, Scratch())
            self._rows -= self.left.rows
        if outcome.aside:
            found = [(rows.of(p), reason) for p, reason in sorted(outcome.aside.items())]
            batch = concatenate(self._terms.schema, [rows for rows, _ in found], Scratch())
            reasons = [reason for rows, reason in found for _ in range(rows.rows)]
            self._aside += batch.rows
            self.set_aside = [RefusedRows(batch, reasons)]
            if self._terms.stops:
                self.problem = found[0][1]
        if not self.replays and (outcome.aside or outcome.left):
            self.note |= {"aside": sorted(outcome.aside), "left": sorted(outcome.left)}

    # state -------------------------------------------------------------------------------------

    def save(self, scratch: Scratch) -> State:
        """Saved states, batches since, counters."""
        numbers = [
            self._watermark_us, self._rows, self._batches, self._out, self._aside,
            self._collector.late,
        ]  # fmt: skip
        return {"numbers": np.array(numbers, np.int64), **self._states.to_arrays()}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of children."""
        self._watermark_us, self._rows, self._batches, self._out, self._aside, late = (
            int(n) for n in state["numbers"]
        )
        self._collector.late = late
        self._states.load(state)

    def state_bytes(self) -> int:
        """Saved states, and batches since."""
        return self._states.nbytes

    def records(self) -> tuple[list[str], list[list[Any]]]:
        """The states now, for `edged operator test`."""
        for number, child in enumerate(self._children):
            if self._terms.stateful and child is not None and self._rows:
                self._states.save(child.save(), self._owner, number)
        saved = sorted(self._states.saved.items())
        return ["partition", "bytes", "begins"], [[p, len(d), d[:16].hex()] for p, d in saved]

    def counters(self) -> Mapping[str, Any]:
        """Rows, batches and time in the children; what was set aside; restarts; limits."""
        return {
            "rows": self._rows,
            "batches": self._batches,
            "rows_out": self._out,
            "rows_in_error": self._aside,
            "rows_late": self._collector.late,
            "child_us": self._us,
            "restarts": self._restarts,
            "children": sum(child is not None and child.ready for child in self._children),
            "enforced": self._enforced,
            "problem": self._trouble,
        }


def _packed(batch: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return _text(sink.getvalue())


def _unpacked(text: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(base64.b64decode(text)) as opened:
        return opened.read_next_batch()


def _text(data: Any) -> str:
    return base64.b64encode(data).decode()
