"""`table_join`: the join of two tables that change, as changes with weights.

    [operators.tariffed]
    type = "table_join"; left = "meters"; right = "tariffs"
    on = ["tariff"]                   # or "left_column = right_column"; several must all be equal
    how = "inner"                     # or left, semi, anti
    columns = { meter = "left.meter", price = "right.price" }   # optional

The symmetric hash join over changes (Epsio, "Optimizing Streaming JOINs", 2025): each side is kept,
and a change of one side meets the rows of the other.  Where a row changes, the results that it had
are taken back: they come out with a negative weight.  The sum of all that has come out is, after
each beat, the join of the tables as they are then, as a multiset.

Inputs are tables, or streams; a stream with a weight column is one of changes, any other inserts.
`left` gives a left row without a match once, with nulls; `semi` gives the left rows that have a
match, `anti` those that have none.  A match is a row of positive weight.

The output has the columns of the sides, as `interval_join` has them, and two more: `weight`, and
`changed_at`, its event time, the clock of the beat in which the change was seen (it never falls).
Weight columns of the inputs are no part of it.

A beat's rows come out in four parts: left changes with the right's rows before the beat, right
changes with the left's rows after it, left changes without a match, and left rows that gain or lose
their first match.  Within a part they follow the changes, and then the order of values
(`edged.tables.base`).  Pages are so the same whatever the workers, the files and their merging.

When a side has finished populating (its source is at its end), its rows no longer come in numbers:
the other side is told that probes have become rare (`TableState.probing_ends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import (
    WATERMARK_MAX_US,
    WATERMARK_MIN_US,
    BeatContext,
    Flow,
    Link,
    State,
)
from edged.data.gather import take
from edged.data.schema import INT32, TIMESTAMP, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import choice, table
from edged.errors import JobError
from edged.operators._join_columns import (
    SIDES,
    WEIGHT_MAX,
    Output,
    chosen_columns,
    default_columns,
    output_schema,
    read_keys,
)
from edged.operators._row_codes import Int64s, firsts, project, row_codes
from edged.operators._table_output import gathered, nullable
from edged.operators._table_side import (
    Changes,
    TableSide,
    columns_without_weight,
    kept_columns,
    two_states,
    under,
)
from edged.operators.base import Loading, OperatorPlace, OperatorPlan, operator
from edged.tables.base import Matches, Weights

INNER, LEFT, SEMI, ANTI = HOW = ("inner", "left", "semi", "anti")
WEIGHT, CHANGED_AT = "weight", "changed_at"
Bools = npt.NDArray[np.bool_]


@operator("table_join")
@dataclass(frozen=True)
class TableJoinPlan(OperatorPlan):
    """A checked join of tables."""

    id: str
    inputs: tuple[Link, Link]
    on: tuple[tuple[str, str], ...]
    how: str
    columns: tuple[Output, ...]
    output: Link

    links: ClassVar[tuple[str, ...]] = ("left", "right")
    keys: ClassVar[frozenset[str]] = frozenset({"on", "how", "columns"})
    table_links: ClassVar[frozenset[str]] = frozenset({"left", "right"})

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> TableJoinPlan:
        """Check keys and columns against both inputs."""
        left, right = (columns_without_weight(link) for link in inputs)
        wrong = FaultCollector()
        on = wrong.attempt(lambda: read_keys(path, document, left, right), ())
        how = wrong.attempt(lambda: choice(path, document, "how", HOW, INNER), INNER)
        columns = tuple[Output, ...]()
        if "columns" in document:
            given = wrong.attempt(lambda: table(path, document, "columns"), dict[str, Any]())
            columns = wrong.attempt(
                lambda: chosen_columns(f"{path}.columns", given, left, right), columns
            )
        wrong.settle()
        if how in (SEMI, ANTI):
            columns = _of_left(f"{path}.columns", columns, "columns" in document, left)
        elif "columns" not in document:
            columns = default_columns(f"{path}.columns", left, right, on)
        for c in columns:
            if c.name in (WEIGHT, CHANGED_AT):
                advice = "the output has one of its own: give the column another name in `columns`"
                raise JobError(f"{path}.columns.{c.name}", "is a name of the output", advice)
        if how == LEFT:
            right = replace(right, schema=nullable(right.schema))
        fields = output_schema(columns, (left, right)).fields
        schema = Schema.of([*fields, Field(CHANGED_AT, TIMESTAMP), Field(WEIGHT, INT32)])
        output = Link(schema, CHANGED_AT, 0, WEIGHT)
        return cls(id, (inputs[0], inputs[1]), on, how, columns, output)

    def side_keys(self, side: int) -> tuple[str, ...]:
        """The key columns of a side."""
        return tuple(pair[side] for pair in self.on)

    def kept(self, side: int) -> Schema:
        """The columns of a side that its state holds."""
        needed = [c.source for c in self.columns if c.side == side]
        return kept_columns(self.inputs[side], [*self.side_keys(side), *needed])

    def build(self, workers: Workers) -> TableJoin:
        """The running join."""
        return TableJoin(self)

    def describe(self) -> list[str]:
        """Lines for `edged explain`: keys, kind, state."""
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)
        held = [", ".join(self.kept(side).names) for side in range(2)]
        return [
            f"{self.how} join of changes on {keys}; results that no longer hold are taken back",
            f"state: left {held[0]}; right {held[1]}; on disk beyond its memory",
        ]

    def table_states(self) -> int:
        """One for each side, and one more where a table's key is another."""
        terms = [(link.table, self.side_keys(i)) for i, link in enumerate(self.inputs)]
        return 2 + sum(t is not None and two_states(t, on) for t, on in terms)

    def signature_facts(self) -> list[Any]:
        """What the saved state depends on."""
        terms = [link.table for link in self.inputs]
        return [
            [self.kept(side).to_json() for side in range(2)],
            self.on,
            [None if t is None else (t.key, t.changes) for t in terms],
            self.how,
            [(c.name, c.side, c.source) for c in self.columns],
        ]


class TableJoin(Loading):
    """A running join of tables; `place` before `run`."""

    gauges = frozenset({"left_rows", "right_rows"})

    def __init__(self, plan: TableJoinPlan) -> None:
        self._plan = plan
        left, right = (TableSide(plan.inputs[i], plan.side_keys(i), plan.kept(i)) for i in (0, 1))
        self._sides = (left, right)
        self._probes = tuple(
            Schema.of(plan.kept(i).field(n) for n in plan.side_keys(i)) for i in (0, 1)
        )
        self._scratch = [Scratch(), Scratch()]
        self._told = [False, False]
        """By side, whether the other one has been told that it has its rows."""
        self._now_us = WATERMARK_MIN_US
        self._rows_out = self._overflowed = 0

    def place(self, place: OperatorPlace) -> None:
        """Open both sides' states."""
        for side, name in zip(self._sides, SIDES, strict=True):
            side.place(place, f"{place.directory}/{name}")

    @property
    def can_load(self) -> bool:
        """Whether both sides' states can."""
        return all(side.can_load for side in self._sides)

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The changes of the join that the inputs' changes make."""
        rows = inputs[0].batch.rows + inputs[1].batch.rows
        for i, (side, name) in enumerate(zip(self._sides, SIDES, strict=True)):
            side.begin(i in self.loads, _below(self.named, name))
        batch = empty_batch(self._plan.output.schema)
        if rows or self.loads:
            self._now_us = max(self._now_us, beat.wall_us)
            parts = [part for part in self._changes(beat, inputs) if part.rows]
            if parts:
                schema = self._plan.output.schema
                batch = parts[0]
                if len(parts) > 1:
                    batch = concatenate(schema, parts, self._scratch[1])
            self._rows_out += batch.rows
        made = [{f"{name}/{key}": value for key, value in side.made.items()}
                for side, name in zip(self._sides, SIDES, strict=True)]  # fmt: skip
        self.made = made[0] | made[1]
        self._tell(inputs)
        if rows or self.loads:
            for side in self._sides:
                side.work(rows)
        ended = all(flow.watermark_us == WATERMARK_MAX_US for flow in inputs)
        return Flow(batch, WATERMARK_MAX_US if ended else self._now_us)

    def _changes(self, beat: BeatContext, inputs: Sequence[Flow]) -> list[Batch]:
        left, right = self._sides
        parts = []
        changed = left.commit(left.decode(inputs[0].batch, beat), beat)
        if changed.rows.rows:
            parts += self._left_changes(changed)
        changed = right.decode(inputs[1].batch, beat)
        if not changed.rows.rows:
            return parts
        keys = had = None
        if self._plan.how != INNER:
            keys = self._distinct_keys(changed.rows)
            had = _have_match(right.rows.probe(keys), keys.rows)
        changed = right.commit(changed, beat)
        if self._plan.how in (INNER, LEFT):
            parts.append(self._right_changes(changed))
        if keys is not None and had is not None:
            has = _have_match(right.rows.probe(keys), keys.rows)
            parts.append(self._turned(keys, had, has))
        return parts

    def _left_changes(self, changed: Changes) -> list[Batch]:
        """Left changes with the right's rows, and those that match none."""
        rows, weights, how = changed.rows, changed.weights, self._plan.how
        matches = self._sides[1].rows.probe(project(rows, self._probes[1], self._sides[0].on))
        parts = []
        if how in (INNER, LEFT):
            pairs = matches.probe, np.arange(matches.probe.size)
            product = weights[matches.probe].astype(np.int64) * matches.weights
            parts.append(self._pairs(rows, matches.rows, pairs, product, "a"))
        if how != INNER:
            has = _have_match(matches, rows.rows)
            at = np.flatnonzero(has if how == SEMI else ~has)
            parts.append(self._alone(rows, at, weights[at], "b"))
        return parts

    def _right_changes(self, changed: Changes) -> Batch:
        """Right changes with the left's rows."""
        rows = changed.rows
        matches = self._sides[0].rows.probe(project(rows, self._probes[0], self._sides[1].on))
        pairs = np.arange(matches.probe.size), matches.probe
        product = matches.weights.astype(np.int64) * changed.weights[matches.probe]
        return self._pairs(matches.rows, rows, pairs, product, "c")

    def _turned(self, keys: Batch, had: Bools, has: Bools) -> Batch:
        """Left rows whose key has got its first match, or lost its last one."""
        turned = np.flatnonzero(had != has)
        some = take(keys, turned, self._scratch[0], "turned")
        matches = self._sides[0].rows.probe(project(some, self._probes[0], some.schema.names))
        gives = has[turned] if self._plan.how == SEMI else had[turned]
        sign = np.where(gives, 1, -1).astype(np.int32)[matches.probe]
        at = np.arange(matches.probe.size)
        return self._alone(matches.rows, at, matches.weights * sign, "d")

    def _distinct_keys(self, rows: Batch) -> Batch:
        """The distinct join keys of right rows, in the order of their first occurrence."""
        right = self._sides[1]
        at = firsts(row_codes(rows, right.on))
        return take(project(rows, self._probes[1], right.on), at, self._scratch[0], "keys")

    def _pairs(
        self, left: Batch, right: Batch, pairs: tuple[Int64s, Int64s], weights: Int64s, name: str
    ) -> Batch:
        """Pairs with the product of their weights, without those that int32 cannot hold."""
        fit = np.flatnonzero(np.abs(weights) <= WEIGHT_MAX)
        if fit.size < weights.size:
            self._overflowed += weights.size - fit.size
            pairs, weights = (pairs[0][fit], pairs[1][fit]), weights[fit]
        return self._output(left, right, pairs, weights.astype(np.int32), name)

    def _alone(self, rows: Batch, at: Int64s, weights: Weights, name: str) -> Batch:
        """Left rows without a right row."""
        return self._output(rows, None, (at, np.full(at.size, -1, np.int64)), weights, name)

    def _output(
        self,
        left: Batch,
        right: Batch | None,
        pairs: tuple[Int64s, Int64s],
        weights: Weights,
        name: str,
    ) -> Batch:
        schema = self._plan.output.schema
        columns = gathered(self._plan.columns, (left, right), pairs, schema, self._scratch[0], name)
        count = pairs[0].size
        columns += [Column(np.full(count, self._now_us, np.int64)), Column(weights)]
        return Batch(schema, count, tuple(columns))

    def _tell(self, inputs: Sequence[Flow]) -> None:
        """Tell a state that probes have become rare, once the other side has its rows."""
        for i, flow in enumerate(inputs):
            whole = flow.watermark_us == WATERMARK_MAX_US
            if self._plan.inputs[i].table is not None:
                whole |= flow.populated
            if whole and not self._told[i]:
                self._told[i] = True
                for state in self._sides[1 - i].states.values():
                    state.probing_ends()

    def save(self, scratch: Scratch) -> State:
        """Both sides' states, the clock and the counter."""
        saved: State = {"now": np.array([self._now_us, self._rows_out, self._overflowed], np.int64)}
        for name, side in zip(SIDES, self._sides, strict=True):
            saved |= {f"{name}/{key}": array for key, array in side.save().items()}
        return saved

    def load(self, state: State) -> None:
        """The inverse of `save`."""
        self._now_us, self._rows_out, self._overflowed = (int(n) for n in state["now"])
        for name, side in zip(SIDES, self._sides, strict=True):
            side.load(under(state, name))

    def sync(self) -> None:
        """Make the states' files durable."""
        for side in self._sides:
            side.sync()

    def keep(self, states: Sequence[State]) -> None:
        """Delete files that nothing needs."""
        for name, side in zip(SIDES, self._sides, strict=True):
            side.keep([under(state, name) for state in states])

    def close(self) -> None:
        """Close the states."""
        for side in self._sides:
            side.close()

    def state_bytes(self) -> int:
        """Memory of both sides' states."""
        return sum(side.memory_bytes() for side in self._sides)

    def disk_bytes(self) -> int:
        """Bytes of their files."""
        return sum(side.disk_bytes() for side in self._sides)

    def counters(self) -> Mapping[str, int | float | str]:
        """Rows given out, and the sides' figures (`left_…`, `right_…`)."""
        found: dict[str, int | float | str] = {
            "changes_out": self._rows_out,
            "weights_overflowed": self._overflowed,
        }
        for name, side in zip(SIDES, self._sides, strict=True):
            found |= {f"{name}_{key}": value for key, value in side.counters().items()}
        return found


def _below(named: Mapping[str, Any] | None, side: str) -> dict[str, Any] | None:
    """A side's part of what was loaded."""
    if named is None:
        return None
    parts = ((key.partition("/"), value) for key, value in named.items())
    return {name: value for (owner, _, name), value in parts if owner == side}


def _have_match(matches: Matches, rows: int) -> Bools:
    """Which of the probing rows have a match of positive weight."""
    has: Bools = np.zeros(rows, np.bool_)
    has[matches.probe[matches.weights > 0]] = True
    return has


def _of_left(path: str, columns: tuple[Output, ...], given: bool, left: Link) -> tuple[Output, ...]:
    """The columns of a semi or anti join, all of the left.  Raises JobError for one of the
    right."""
    if not given:
        return tuple(Output(name, 0, name) for name in left.schema.names)
    for c in columns:
        if c.side:
            raise JobError(f"{path}.{c.name}", "is of the right", "semi and anti give left rows")
    return columns
