"""`detect`: steps that follow each other within a time, by key.

    [operators.delays]
    type = "detect"; input = "edges"
    keys = ["pair"]                     # default: none, all rows are of one key
    within = "1min"                     # from the first step's row to the last's
    steps = [
        { name = "sensor", where = "kind = 'sensor' AND up" },
        { name = "valve", where = "kind = 'valve' AND up", unless = "kind = 'sensor'" },
    ]
    columns = { pair = "valve.pair", since = "sensor.time", time = "valve.time" }   # optional
    after = "last_row"                  # or "next_row"

A row that satisfies the first step's `where` starts an attempt.  The first later row of the key
that satisfies the next step's `where` takes that step; rows between are skipped.  A row between
that satisfies the waiting step's `unless` ends the attempt; one that satisfies both takes the step.
A row takes one step of an attempt at most.  The last step makes a match, if it is at most `within`
after the first.

    last_row    a match ends all attempts of its key; rows after its last row start new ones.  Of
                several attempts that end with one row the oldest is the match.  As MATCH_RECOGNIZE
                with AFTER MATCH SKIP PAST LAST ROW.
    next_row    each attempt makes its own match, so matches may overlap.  As SKIP TO NEXT ROW.

Rows are taken in the order of event time, rows of one time in the order of their arrival
(`edged.operators._time_order`).  Null keys are one key, NaN keys one.  A row whose condition is an
error does not satisfy it, and is counted as `rows_in_error`.

A match is a row with columns of its steps' rows, `step.column`; without `columns` the last row's
keys, and `<step>_<time>` of each step.  Its event time is that of the last step, which must be
among the columns.  Matches come out by last row, then by first row.

State: rows that satisfy a condition, with the columns of the output, for `within` behind the
watermark, and the attempts of each key.  `attempts`, `matches` and `broken` (by `unless`) are
counted; other attempts are over their time, or ended with another's match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, empty_batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.gather import take, take_columns
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import choice, duration
from edged.documents.units import show_duration
from edged.expressions.program import Predicate, Selector
from edged.operators._deal_rows import KEPT, JoinedRows, reached_by
from edged.operators._detect_document import PatternStep, StepColumn, columns_of, read_steps
from edged.operators._kept_rows import KeptRows
from edged.operators._key_slots import KeyColumns, KeySlots, SlotLane, Slots, dealt
from edged.operators._keyed import column_names, horizon, instances_by, refuse_weight
from edged.operators._time_order import TimeOrder, deal_waiting, rows_from_state, rows_to_state
from edged.operators.base import InstanceOf, Operator, OperatorPlan, operator
from kernels.cpu import detect as kernels

Ints = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]
LAST_ROW, NEXT_ROW = AFTER = ("last_row", "next_row")
NODES_LEAST = 1024


@operator("detect")
@dataclass(frozen=True)
class DetectPlan(OperatorPlan):
    """A checked `detect`."""

    id: str
    input: Link
    by: tuple[str, ...]
    """Key columns."""
    within_us: int
    steps: tuple[PatternStep, ...]
    columns: tuple[StepColumn, ...]
    after: str
    output: Link

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset({"keys", "within", "steps", "columns", "after"})
    waits_for_time: ClassVar[bool] = True
    rows_out: ClassVar[float] = 0.01

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> DetectPlan:
        """Check `document`; raises JobError."""
        (link,) = inputs
        wrong = FaultCollector()
        wrong.attempt(lambda: refuse_weight(path, "input", link, "detect"), None)
        by = wrong.attempt(lambda: column_names(path, document, "keys", link), ())
        within = wrong.attempt(lambda: duration(path, document, "within", least=1), 1)
        after = wrong.attempt(lambda: choice(path, document, "after", AFTER, LAST_ROW), LAST_ROW)
        steps = wrong.attempt(lambda: read_steps(path, document, link), ())
        wrong.settle()
        columns, time = columns_of(path, document, link, by, steps)
        fields = [Field(c.name, *_type(link.schema.field(c.source))) for c in columns]
        output = Link(Schema.of(fields), time, 0)
        return cls(id, link, by, within, steps, columns, after, output)

    def kept(self) -> Schema:
        """The columns of rows that satisfy a condition."""
        needed = {c.source for c in self.columns} | {self.input.time}
        return Schema.of(f for f in self.input.schema if f.name in needed)

    def conditions(self) -> list[tuple[int, bool, Predicate]]:
        """PatternStep, whether it is an `unless`, and condition."""
        found = [(i, False, step.where) for i, step in enumerate(self.steps)]
        return found + [(i, True, s.unless) for i, s in enumerate(self.steps) if s.unless]

    def generated(self) -> tuple[str, ...]:
        """The kernels of the conditions."""
        return tuple(text for _, _, c in self.conditions() for text in c.generated())

    def build(self, workers: Workers) -> Detect:
        """The running operator, its kernels compiled."""
        return Detect(self, workers)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        each = f" of each {', '.join(self.by)}" if self.by else ""
        lines = [f"steps{each} within {show_duration(self.within_us)}, by time:"]
        for step in self.steps:
            unless = f", unless {step.unless_text} comes first" if step.unless else ""
            lines.append(f"  {step.name}: {step.where_text}{unless}")
        kept = ", ".join(self.kept().names)
        return [*lines, f"state: {kept} of rows that satisfy one, and the attempts of each key"]

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Keys with their attempts, the rows of these, and the rows that wait."""
        goes = instances_by(self.id, by[0], self.by, instances, instance_of)
        schema, time, steps = self.input.schema, self.input.time, len(self.steps)
        word = KeyColumns(schema, self.by, time).shape.words
        kept = JoinedRows(self.kept(), time, KEPT, states, [int(s["counted"][-1]) for s in states])
        nodes, joined = list[Ints](), list[State]()
        for number, state in enumerate(states):
            groups = np.array(state["groups"], np.int64).reshape(-1, word + steps - 1)
            groups[:, word:] = kept.joined(groups[:, word:], number)
            joined.append({**state, "groups": groups})
            nodes.append(kept.joined(np.reshape(state["nodes"], (-1, steps)), number))
        every = np.concatenate(nodes)
        slots, _, _ = dealt(schema, self.by, steps - 1, joined, goes, instances)
        waiting = deal_waiting(schema, time, "input", states, goes, instances)
        counts = np.sum([state["counted"][:-1] for state in states], axis=0)
        for i, (state, rest) in enumerate(zip(slots, waiting, strict=True)):
            heads = state["groups"][:, word:]
            rows, places, to = kept.part(reached_by(heads, every))
            heads[:] = to(heads)
            state["nodes"] = to(every[places])
            state["counted"] = np.array([*(counts if i == 0 else 0 * counts), rows.rows])
            state |= {**rows_to_state(rows, KEPT), **rest}
        return slots

    def signature_facts(self) -> list[Any]:
        """The facts that attempts depend on; conditions may change."""
        return [
            self.input.schema.to_json(), self.input.time, list(self.by), self.within_us,
            len(self.steps), self.kept().names, self.after,
        ]  # fmt: skip


class Detect(Operator):
    """A running `detect`."""

    gauges = frozenset({"keys", "rows_waiting", "rows_kept"})

    def __init__(self, plan: DetectPlan, workers: Workers) -> None:
        self._plan = plan
        schema, self._time = plan.input.schema, plan.input.time
        steps = len(plan.steps)
        names = {*plan.kept().names, *plan.by}
        self._used = Schema.of(f for f in schema if f.name in names)
        """The columns that a row is needed for once the conditions are known."""
        keys = KeyColumns(self._used, plan.by, self._time)
        self._slots = KeySlots([keys], steps - 1, workers)
        self._order = TimeOrder(schema, self._time)
        self._empty = empty_batch(plan.output.schema)
        self._selectors: list[tuple[int, bool, Selector]] = [
            (step, unless, condition.build()) for step, unless, condition in plan.conditions()
        ]
        self._kept = KeptRows(plan.kept())
        self._nodes: Ints = np.zeros((NODES_LEAST, steps), np.int64)
        """A row for each row of the memory of `_kept`."""
        self._scratch = Scratch()
        self._counts: Ints = np.zeros(3, np.int64)

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The matches whose last row is in this beat."""
        (flow,) = inputs
        batch, found = self._order.pass_on(flow.batch, flow.watermark_us), None
        if batch.rows:
            found = self._matches(beat, batch)
        rows = self._empty
        if found is not None and len(found):
            rows = self._output(found, beat.workers)
        slots = self._slots
        slots.horizon_us = horizon(slots.horizon_us, flow.watermark_us, self._plan.within_us)
        self._kept.drop_older(self._time, slots.horizon_us)
        return Flow(rows, flow.watermark_us)

    def _conditions(self, beat: BeatContext, batch: Batch) -> tuple[Bits, Bits]:
        """A bit of each row for each step that it satisfies, and that it forbids."""
        bits = [self._scratch.get(name, batch.rows, np.uint64) for name in ("where", "unless")]
        for some in bits:
            some[:] = 0
        for step, unless, selector in self._selectors:
            rows = selector.select(batch, beat.workers)
            bits[unless][rows] |= np.uint64(1 << step)
        return bits[0], bits[1]

    def _matches(self, beat: BeatContext, batch: Batch) -> Ints | None:
        """The numbers of the rows of each match, by step; None: no row satisfies a condition."""
        wheres, unlesses = self._conditions(beat, batch)
        some = np.flatnonzero(wheres | unlesses)
        if not some.size:
            return None
        used = tuple(batch[f.name] for f in self._used)
        batch = Batch(self._used, batch.rows, used)
        if some.size < batch.rows:
            batch = take(batch, some, self._scratch, "some", beat.workers)
            wheres, unlesses = wheres[some], unlesses[some]
        self._slots.sweep()
        self._slots.find(beat, batch)
        oldest, number = self._kept.start, self._append(batch)
        view, base = self._kept.view()
        wanted, times = batch[self._time].values[: batch.rows], view[self._time].values
        lanes = len(self._slots.lanes)
        shape = (self._kept.stop - self._kept.start, len(self._plan.steps))
        found: list[Ints] = [np.empty(shape, np.int64) for _ in range(lanes)]
        counts: Ints = np.zeros((lanes, self._counts.size), np.int64)

        def step(lane: SlotLane, hashes: Any, i: int, count: int, slots: Slots) -> None:
            kernels.take_steps(
                hashes, i, count, slots, wanted, wheres, unlesses, lane.groups, self._slots.word,
                self._plan.within_us, self._plan.after == LAST_ROW, number, base, oldest,
                self._nodes, times, found[i], counts[i],
            )  # fmt: skip

        self._slots.each(beat, batch.rows, step)
        self._counts += counts.sum(axis=0)
        matches = np.concatenate(
            [rows[: count[kernels.MATCHES]] for rows, count in zip(found, counts, strict=True)]
        )
        return matches[np.lexsort((matches[:, 0], matches[:, -1]))]

    def _append(self, batch: Batch) -> int:
        """Keep rows, with a node each; returns the number of the first."""
        start, stop, old = self._kept.start, self._kept.stop, self._kept.view()[1]
        number = self._kept.append(batch)
        base = self._kept.view()[1]
        room = self._kept.stop - base
        if base != old or room > len(self._nodes):
            live = self._nodes[start - old : stop - old].copy()
            if room > len(self._nodes):
                self._nodes = np.zeros((2 * room, self._nodes.shape[1]), np.int64)
            self._nodes[start - base : stop - base] = live
        return number

    def _output(self, found: Ints, workers: Workers) -> Batch:
        """The rows of matches."""
        view, base = self._kept.view()
        columns = list[Column]()
        for i, picked in enumerate(self._plan.columns):
            rows = np.ascontiguousarray(found[:, picked.step]) - base
            columns += take_columns([view[picked.source]], rows, self._scratch, f"{i}", workers)
        return Batch(self._plan.output.schema, len(found), tuple(columns))

    def save(self, scratch: Scratch) -> State:
        """Keys with their attempts, the rows kept and those that wait, and the counts."""
        view, base = self._kept.view()
        first, stop = self._kept.start, self._kept.stop
        groups, word = self._slots.groups(), self._slots.word
        heads = groups.rows[:, word:]
        heads[:] = np.maximum(heads - first, 0)
        nodes = np.maximum(self._nodes[first - base : stop - base] - first, 0)
        kept = view.slice(first - base, stop - base)
        return {
            "counted": np.array([*self._counts, kept.rows], np.int64), "nodes": nodes,
            **self._slots.save(groups), **rows_to_state(kept, KEPT), **self._order.save("input"),
        }  # fmt: skip

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        *counts, rows = (int(n) for n in state["counted"])
        self._counts[:] = counts
        self._slots.load(state)
        self._order.load(state, "input")
        self._kept.load(rows_from_state(state, KEPT, self._kept.schema, rows))
        self._nodes = np.zeros((max(NODES_LEAST, rows), self._nodes.shape[1]), np.int64)
        self._nodes[:rows] = np.reshape(state["nodes"], (rows, self._nodes.shape[1]))

    def state_bytes(self) -> int:
        """Memory of keys, attempts and rows."""
        rows = self._kept.nbytes() + self._nodes.nbytes + self._order.nbytes()
        return rows + self._slots.nbytes()

    def counters(self) -> Mapping[str, int | float]:
        """Attempts, matches, attempts ended by `unless`; keys and rows."""
        names = ("matches", "attempts", "broken")
        return {
            **dict(zip(names, map(int, self._counts), strict=True)),
            "keys": self._slots.count(),
            "rows_kept": self._kept.stop - self._kept.start,
            **self._order.counters(),
            "rows_in_error": sum(selector.errors for _, _, selector in self._selectors),
        }


def _type(field: Field) -> tuple[Any, bool]:
    return field.dtype, field.nullable
