"""`lag`: the row before of the same key, and the changes of a value.

    [operators.edges]
    type = "lag"; input = "valves"
    keys = ["machine"]                        # default: none, all rows are of one key
    columns = { was = "bm05", since = "time" }    # name = column of the row before
    changes_only = true                       # or a list of columns; default false: every row
    first = false                             # whether the first row of a key is a change
    order = "time"                            # or "arrival"
    keep = "1d"                               # how far back the row before may lie

The output has the input's columns, then those of the row before, which are null where there is
none.  As `lag() over (partition by keys order by time)` in SQL: null keys are one key, NaN keys
one, and rows of one time are in the order of their arrival.  A row that lies more than `keep` back
is none.

`changes_only` leaves rows out whose values are not distinct from those of the row before: in the
columns that `columns` names, without the event time, or in those that are listed.  Null is no
number's equal, NaN equals NaN, -0.0 equals 0.0.

With `order = "time"` a row comes out once the watermark has reached its time, in the order of time
(`edged.operators._time_order`).  With `order = "arrival"` it comes out in its beat, and the row
before is the one that arrived before.

State: the last row of each key, with the columns that are named, for `keep` behind the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, column_table, empty_batch
from edged.data.flow import BeatContext, Flow, Link, State
from edged.data.gather import take
from edged.data.hashing import Hashes
from edged.data.schema import DType, Field, Schema
from edged.data.schema_document import COLUMN
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import boolean, choice, did_you_mean, duration, table
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.operators._key_slots import KeyColumns, KeySlots, SlotLane, Slots, dealt
from edged.operators._keyed import (
    BY_ARRIVAL,
    BY_TIME,
    DAY,
    ORDERS,
    column_names,
    horizon,
    instances_by,
    refuse_weight,
)
from edged.operators._last_rows import LastRows, deal_last
from edged.operators._time_order import TimeOrder, deal_waiting
from edged.operators.base import InstanceOf, Operator, OperatorPlan, operator
from kernels.cpu import keyed_rows as kernels
from kernels.cpu.keyed_rows import LAST_WORDS

Ints = npt.NDArray[np.int64]


@operator("lag")
@dataclass(frozen=True)
class LagPlan(OperatorPlan):
    """A checked `lag`."""

    id: str
    input: Link
    by: tuple[str, ...]
    """Key columns."""
    columns: tuple[tuple[str, str], ...]
    """Name and column of the row before."""
    changes: tuple[str, ...]
    """Columns of which one must have changed; empty: every row comes out."""
    first: bool
    order: str
    keep_us: int
    output: Link

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset(
        {"keys", "columns", "changes_only", "first", "order", "keep"}
    )
    waits_for_time: ClassVar[bool] = True

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> LagPlan:
        """Check `document`; raises JobError."""
        (link,) = inputs
        wrong = FaultCollector()
        wrong.attempt(lambda: refuse_weight(path, "input", link, "lag"), None)
        by = wrong.attempt(lambda: column_names(path, document, "keys", link), ())
        columns = wrong.attempt(lambda: _columns(path, document, link), ())
        changes = wrong.attempt(lambda: _changes(path, document, link, columns), ())
        first = wrong.attempt(lambda: boolean(path, document, "first", False), False)
        order = wrong.attempt(lambda: choice(path, document, "order", ORDERS, BY_TIME), BY_TIME)
        keep = wrong.attempt(lambda: duration(path, document, "keep", DAY, least=1), 1)
        if first and "changes_only" not in document:
            wrong.note(f"{path}.first", "every row comes out", "name changes_only")
        wrong.settle()
        fields = [
            *link.schema,
            *(Field(name, link.schema.field(column).dtype, True) for name, column in columns),
        ]
        disorder_us = 0 if order == BY_TIME else link.disorder_us
        output = Link(Schema.of(fields), link.time, disorder_us)
        return cls(id, link, by, columns, changes, first, order, keep, output)

    def kept(self) -> Schema:
        """The columns of the last rows."""
        needed = {column for _, column in self.columns} | set(self.changes)
        return Schema.of(f for f in self.input.schema if f.name in needed)

    def build(self, workers: Workers) -> Lag:
        """The running operator."""
        return Lag(self, workers)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        by = f" of the same {', '.join(self.by)}" if self.by else ""
        order = "of time" if self.order == BY_TIME else "of arrival"
        only = f"; rows where {' or '.join(self.changes)} has changed" if self.changes else ""
        return [
            f"with the row before{by}, in the order {order}{only}",
            f"state: {', '.join(self.kept().names)} of the last row of each key,"
            f" for {show_duration(self.keep_us)}",
        ]

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Keys with their last rows, and the rows that wait."""
        goes = instances_by(self.id, by[0], self.by, instances, instance_of)
        schema = self.input.schema
        slots, order, mine = dealt(schema, self.by, LAST_WORDS, states, goes, instances)
        word = KeyColumns(schema, self.by, self.input.time).shape.words
        rows = deal_last(self.kept(), word, states, slots, order, mine)
        waiting = deal_waiting(schema, self.input.time, "input", states, goes, instances)
        return [{**a, **b} for a, b in zip(rows, waiting, strict=True)]

    def signature_facts(self) -> list[Any]:
        """The facts that the last rows depend on."""
        return [
            self.input.schema.to_json(), self.input.time, list(self.by), self.kept().names,
            self.order, self.keep_us,
        ]  # fmt: skip


class Lag(Operator):
    """A running `lag`."""

    gauges = frozenset({"keys", "rows_waiting"})

    def __init__(self, plan: LagPlan, workers: Workers) -> None:
        self._plan = plan
        schema = plan.input.schema
        self._slots = KeySlots([KeyColumns(schema, plan.by, plan.input.time)], LAST_WORDS, workers)
        self._last = LastRows(self._slots, plan.kept())
        self._order = TimeOrder(schema, plan.input.time)
        self._empty = empty_batch(plan.output.schema)
        self._kinds = np.array([_kind(schema.field(name).dtype) for name in plan.changes], np.uint8)
        self._compared = [Schema.of(schema.field(name) for name in plan.changes)] * 2
        self._scratch = Scratch()

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The beat's rows with those before."""
        (flow,) = inputs
        batch = flow.batch
        if self._plan.order != BY_ARRIVAL:
            batch = self._order.pass_on(batch, flow.watermark_us)
        rows = self._empty
        if batch.rows:
            rows = self._with_before(beat, batch)
        slots = self._slots
        slots.horizon_us = horizon(slots.horizon_us, flow.watermark_us, self._plan.keep_us)
        return Flow(rows, flow.watermark_us)

    def _with_before(self, beat: BeatContext, batch: Batch) -> Batch:
        before = self._before(beat, batch)
        if self._plan.changes:
            rows = self._changed(batch, before)
            if rows.size < batch.rows:
                batch = take(batch, rows, self._scratch, "kept", beat.workers)
                before = before[rows]
        sources = [column for _, column in self._plan.columns]
        columns = self._last.columns(sources, before, self._scratch, beat.workers)
        schema = self._plan.output.schema
        return Batch(schema, batch.rows, (*batch.columns, *columns))

    def _before(self, beat: BeatContext, batch: Batch) -> Ints:
        """The number of the row before each row."""
        self._slots.sweep()
        number = self._last.append(batch)
        self._slots.find(beat, batch)
        before: Ints = self._scratch.get("numbers", batch.rows, np.int64)
        times, word, keep = (
            batch[self._plan.input.time].values,
            self._slots.word,
            self._plan.keep_us,
        )

        def step(lane: SlotLane, hashes: Hashes, i: int, lanes: int, slots: Slots) -> None:
            kernels.rows_before(
                hashes, i, lanes, slots, times, lane.groups, word, number, keep, before
            )

        self._slots.each(beat, batch.rows, step)
        return before

    def _changed(self, batch: Batch, before: Ints) -> Ints:
        """The rows with a change."""
        kept, base = self._last.view()
        names = self._plan.changes
        tables = [
            column_table(schema, tuple(rows[name] for name in names))
            for schema, rows in zip(self._compared, (batch, kept), strict=True)
        ]
        flags = self._scratch.get("flags", batch.rows, np.uint8)
        at = before if not base else np.where(before < 0, -1, before - base)
        kernels.changes(*tables, self._kinds, at, self._plan.first, flags)
        return np.flatnonzero(flags)

    def save(self, scratch: Scratch) -> State:
        """Last rows by key, and the rows that wait."""
        return {**self._last.save(), **self._order.save("input")}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        self._last.load(state)
        self._order.load(state, "input")

    def state_bytes(self) -> int:
        """Memory of keys, rows, and rows that wait."""
        return self._last.nbytes() + self._order.nbytes()

    def counters(self) -> Mapping[str, int | float]:
        """Keys, rows that wait for the watermark, and rows that came late."""
        return {"keys": self._slots.count(), **self._order.counters()}


def _kind(dtype: DType) -> int:
    """How values are compared."""
    if dtype.variable:
        return kernels.BYTES
    return kernels.FLOAT if dtype.floating else kernels.INTEGER


def _columns(path: str, document: Mapping[str, Any], link: Link) -> tuple[tuple[str, str], ...]:
    """Names and sources of the columns of the row before.  Raises JobError."""
    given, wrong = table(path, document, "columns"), FaultCollector()
    taken = {name.lower() for name in link.schema.names}
    if not given:
        wrong.note(f"{path}.columns", "is empty", 'name at least one, e.g. before = "value"')
    for name, column in given.items():
        where = f"{path}.columns.{name}"
        if not COLUMN.fullmatch(name):
            wrong.note(where, f"{name!r} cannot name a column")
        elif name.lower() in taken:
            wrong.note(where, f"the input has a column {name}", "choose another name")
        if column not in link.schema:
            advice = did_you_mean(str(column), link.schema.names)
            wrong.note(where, f"no column {column!r} in the input", advice)
        taken.add(name.lower())
    wrong.settle()
    return tuple(given.items())


def _changes(
    path: str, document: Mapping[str, Any], link: Link, columns: Sequence[tuple[str, str]]
) -> tuple[str, ...]:
    """The columns of which one must have changed.  Raises JobError."""
    given = document.get("changes_only", False)
    if not isinstance(given, bool):
        return column_names(path, document, "changes_only", link)
    found = tuple(dict.fromkeys(c for _, c in columns if c != link.time)) if given else ()
    if given and columns and not found:
        problem = "columns names the event time alone"
        raise JobError(f"{path}.changes_only", problem, "list the columns that may change")
    return found
