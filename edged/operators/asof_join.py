"""`asof_join`: each left row with the right row of its key that is nearest in time.

    [operators.with_wind]
    type = "asof_join"; left = "power"; right = "wind"
    on = ["turbine"]                  # or "left_name = right_name"; several must all be equal
    direction = "backward"            # default; "forward", "nearest"
    tolerance = "10min"               # "backward" without it: any distance
    how = "left"                      # or "inner" (default)
    columns = { time = "left.time", kw = "left.power_kw", wind = "right.wind_m_s" }     # optional

    backward   the latest right row at the left row's time or before; of one time the last to arrive
    forward    the earliest at its time or after; of one time the first to arrive
    nearest    the nearer of both; of two as near the later one, of one time the last to arrive

A left row meets one right row at most, and right rows any number of left rows.  `inner` leaves left
rows without one out, `left` gives them with nulls.  Keys are equal as in DuckDB: null equals
nothing, NaN equals NaN, -0.0 equals 0.0.

A left row comes out once the watermarks say that no better right row can come: `backward` when the
right stream has passed its time; `forward` when its match is there, or the right stream has passed
the tolerance; so `forward` and `nearest` need one.  The result depends on the rows alone, not on
batches, as long as no row is late.  A late left row meets what is there, a late right row is met by
rows that are taken after it.

The output has the columns of `interval_join`; its event time is the left's, which must be among
them.  State: backward, the last right row of each key, for `tolerance` behind the watermark;
forward, the left rows that wait; nearest, these, and right rows of twice the tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.flow import Link, State
from edged.data.schema import Schema
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import choice, duration, table
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.operators._asof import UNDECIDED, AsofAfter, AsofBefore, AsofColumns
from edged.operators._deal_rows import KEPT, JoinedRows
from edged.operators._join_columns import (
    SIDES,
    Output,
    chosen_columns,
    default_columns,
    output_schema,
    read_keys,
)
from edged.operators._key_slots import KeyColumns, dealt
from edged.operators._keyed import instances_by, refuse_weight
from edged.operators._last_rows import deal_last
from edged.operators._table_output import nullable
from edged.operators._time_order import deal_waiting, rows_to_state
from edged.operators.base import InstanceOf, Operator, OperatorPlan, operator
from kernels.cpu import asof

Ints = npt.NDArray[np.int64]
BACKWARD, FORWARD, NEAREST = DIRECTIONS = ("backward", "forward", "nearest")
HOW = ("inner", "left")
UNBOUNDED_US = 2**62
"""The tolerance of a join without one."""


@operator("asof_join")
@dataclass(frozen=True)
class AsofJoinPlan(OperatorPlan):
    """A checked as-of join."""

    id: str
    inputs: tuple[Link, Link]
    on: tuple[tuple[str, str], ...]
    direction: str
    tolerance_us: int
    how: str
    columns: tuple[Output, ...]
    output: Link

    links: ClassVar[tuple[str, ...]] = SIDES
    keys: ClassVar[frozenset[str]] = frozenset({"on", "direction", "tolerance", "how", "columns"})
    waits_for_time: ClassVar[bool] = True

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> AsofJoinPlan:
        """Check keys, tolerance and columns against both inputs."""
        left, right = inputs
        wrong, nothing = FaultCollector(), tuple[Output, ...]()
        for side, link in zip(SIDES, inputs, strict=True):
            wrong.attempt(lambda s=side, x=link: refuse_weight(path, s, x, "asof_join"), None)  # type: ignore[misc]
        on = wrong.attempt(lambda: read_keys(path, document, left, right), ())
        direction = wrong.attempt(
            lambda: choice(path, document, "direction", DIRECTIONS, BACKWARD), BACKWARD
        )
        tolerance = UNBOUNDED_US
        if "tolerance" in document:
            tolerance = wrong.attempt(lambda: duration(path, document, "tolerance"), 0)
        elif direction != BACKWARD:
            problem = (
                f"is missing: without it a row may wait for ever for a later one ({direction})"
            )
            wrong.note(f"{path}.tolerance", problem)
        how = wrong.attempt(lambda: choice(path, document, "how", HOW, HOW[0]), HOW[0])
        columns = nothing
        if "columns" in document:
            given = wrong.attempt(lambda: table(path, document, "columns"), dict[str, Any]())
            columns = wrong.attempt(
                lambda: chosen_columns(f"{path}.columns", given, left, right), nothing
            )
        wrong.settle()
        if "columns" not in document:
            columns = default_columns(f"{path}.columns", left, right, on)
        time = next((c.name for c in columns if c.side == 0 and c.source == left.time), None)
        if time is None:
            advice = f'add e.g. {left.time} = "left.{left.time}": it is the output\'s event time'
            raise JobError(f"{path}.columns", "the left time column is missing", advice)
        other = Link(nullable(right.schema), right.time) if how == "left" else right
        disorder_us = 0 if direction == BACKWARD else tolerance
        output = Link(output_schema(columns, (left, other)), time, disorder_us)
        return cls(id, (left, right), on, direction, tolerance, how, columns, output)

    def key_names(self, side: int) -> tuple[str, ...]:
        """The key columns of a side."""
        return tuple(pair[side] for pair in self.on)

    def key_columns(self) -> list[KeyColumns]:
        """Keys and times of both sides, and of left rows that wait."""
        left, right = self.inputs
        return [
            KeyColumns(left.schema, self.key_names(0), left.time),
            KeyColumns(right.schema, self.key_names(1), right.time),
            KeyColumns(self.waiting(), self.key_names(0), left.time),
        ]

    def kept(self, side: int) -> Schema:
        """The columns of a side that the output has, and its time."""
        link = self.inputs[side]
        needed = {c.source for c in self.columns if c.side == side} | {link.time}
        return Schema.of(f for f in link.schema if f.name in needed)

    def waiting(self) -> Schema:
        """The columns of left rows that wait: those of the output, time and keys."""
        needed = {*self.kept(0).names, *self.key_names(0)}
        return Schema.of(f for f in self.inputs[0].schema if f.name in needed)

    def build(self, workers: Workers) -> Operator:
        """The running join."""
        columns = AsofColumns(self.columns, self.output.schema, self.how == HOW[0])
        if self.direction == BACKWARD:
            return AsofBefore(self, columns, workers)
        return AsofAfter(self, columns, workers, self.direction == NEAREST)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)
        within = "any distance"
        if self.tolerance_us < UNBOUNDED_US:
            within = f"within {show_duration(self.tolerance_us)}"
        state = {
            BACKWARD: f"the last row of each key: {', '.join(self.kept(1).names)}",
            FORWARD: f"left rows that wait: {', '.join(self.waiting().names)}",
            NEAREST: "left rows that wait, and right rows of twice the tolerance",
        }
        return [
            f"{self.how} on {keys}, right row {self.direction}, {within}",
            f"state: {state[self.direction]}",
        ]

    def redistribute(
        self,
        by: Sequence[Sequence[str]],
        states: Sequence[State],
        instances: int,
        instance_of: InstanceOf,
    ) -> list[State]:
        """Keys with the right rows that they need, and the rows that wait."""
        goes = [
            instances_by(self.id, columns, self.key_names(i), instances, instance_of)
            for i, columns in enumerate(by)
        ]
        deal = self._deal_last if self.direction == BACKWARD else self._deal_waiting
        found = deal(states, goes, instances)
        for i, (side, link) in enumerate(zip(SIDES, self.inputs, strict=True)):
            dealt_rows = deal_waiting(link.schema, link.time, side, states, goes[i], instances)
            found = [{**a, **b} for a, b in zip(found, dealt_rows, strict=True)]
        counted = np.sum([state["counted"] for state in states], axis=0)
        for i, one in enumerate(found):
            one["counted"] = counted if i == 0 else np.zeros_like(counted)
        return found

    def _deal_last(
        self, states: Sequence[State], goes: Sequence[Any], instances: int
    ) -> list[State]:
        """Of a backward join: keys with their last right rows."""
        columns = self.key_columns()[1]
        schema, words = self.inputs[1].schema, len(asof.KEY)
        slots, order, mine = dealt(schema, columns.names, words, states, goes[1], instances)
        return deal_last(self.kept(1), columns.shape.words, states, slots, order, mine)

    def _deal_waiting(
        self, states: Sequence[State], goes: Sequence[Any], instances: int
    ) -> list[State]:
        """Of others: keys, left rows that wait with their matches so far, right rows of both."""
        columns, words, width = self.key_columns()[0], len(asof.KEY), len(asof.ROW)
        last = columns.shape.words + asof.KEY.last
        left, right = self.inputs
        rows = [int(state["right_rows"][0]) for state in states]
        rights = JoinedRows(self.kept(1), right.time, KEPT, states, rows)
        joined, waits = list[State](), list[Ints]()
        for number, state in enumerate(states):
            groups = np.array(state["groups"], np.int64).reshape(-1, columns.shape.words + words)
            groups[:, last] = rights.joined(groups[:, last], number)
            joined.append({**state, "groups": groups})
            some = np.array(state["matches"], np.int64).reshape(-1, width)
            some[:, asof.ROW.match] = rights.joined(some[:, asof.ROW.match], number)
            waits.append(some)
        matches, rows = np.concatenate(waits), [len(some) for some in waits]
        due = matches[:, asof.ROW.due]
        lefts = JoinedRows(self.waiting(), left.time, UNDECIDED, states, rows, due)
        found, _, _ = dealt(left.schema, columns.names, words, joined, goes[0], instances)
        to_instance = goes[0](lefts.rows)
        for i, state in enumerate(found):
            kept, places, _ = lefts.part(1 + np.flatnonzero(to_instance == i))
            mine, heads = matches[places], state["groups"][:, last]
            reached = np.concatenate([heads, mine[:, asof.ROW.match]])
            others, _, to = rights.part(reached)
            heads[:], mine[:, asof.ROW.match] = to(heads), to(mine[:, asof.ROW.match])
            state |= {"matches": mine, "right_rows": np.array([others.rows], np.int64)}
            state |= {**rows_to_state(kept, UNDECIDED), **rows_to_state(others, KEPT)}
        return found

    def signature_facts(self) -> list[Any]:
        """Schemas, keys, direction, tolerance and columns."""
        return [
            [(link.schema.to_json(), link.time) for link in self.inputs], self.on, self.direction,
            self.tolerance_us, self.how, [(c.name, c.side, c.source) for c in self.columns],
        ]  # fmt: skip
