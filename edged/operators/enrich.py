"""`enrich`: each row of a stream with the rows of a table that have its key.

    [operators.enriched]
    type = "enrich"; input = "readings"; table = "devices"
    on = ["device"]                   # or "stream_column = table_column"; several must all be equal
    how = "left"                      # or "inner" (default)
    columns = { time = "input.time", site = "table.site" }      # optional
    wait = true                       # default
    as_of = "since"                   # optional: a timestamp of the table
    keep = "1h"                       # how far back, default 1h

A row meets the table as of its beat: the beat's changes of the table are applied first.  The stream
is not kept, and nothing is taken back when the table changes later.  `inner` leaves rows without a
match out; `left` gives them once, with nulls.  A row of the table that is there n times matches n
times; one that is owed (`missing = "owe"`) does not match.

With `as_of` a row meets the version of its key that held at the row's event time: the one with the
latest `since` that is not after it, as in DuckDB's ASOF join (`edged.operators._table_versions`).
Versions are kept for `keep` behind the stream's watermark; a row that is older than that matches
nothing and is counted as `too_old`.

The stream's rows wait, staged, until the first rows of the table are there: until its file is at
its end, or its producers have said end of stream.  With `wait = false` they do not wait.

Without `columns` the output has the key columns once (with the stream's names), then all other
columns of the stream, then all others of the table, as `interval_join` has them.  The stream's time
column, and its weight column where it has one, must be among the columns.

Rows come out in the order of the stream, and for one row in the table's order of values
(`edged.tables.base`), whatever the workers and the state's files.  Keys are equal as in DuckDB:
null equals nothing, NaN equals NaN, -0.0 equals 0.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.schema import TIMESTAMP, Schema
from edged.data.scratch import Scratch
from edged.data.table_terms import UPSERT
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import boolean, choice, did_you_mean, duration, table, text
from edged.errors import JobError
from edged.operators._join_columns import (
    Output,
    chosen_columns,
    default_columns,
    output_schema,
    read_keys,
)
from edged.operators._row_codes import Int64s, as_positive, project
from edged.operators._table_output import gathered, nullable, outer_rows
from edged.operators._table_side import (
    TableSide,
    columns_without_weight,
    kept_columns,
    two_states,
)
from edged.operators._table_versions import TableVersions
from edged.operators.base import Loading, OperatorPlace, OperatorPlan, operator
from edged.tables.base import Matches

SIDES = ("input", "table")
INNER, LEFT = HOW = ("inner", "left")
KEEP = "1h"


@operator("enrich")
@dataclass(frozen=True)
class EnrichPlan(OperatorPlan):
    """A checked enrichment."""

    id: str
    inputs: tuple[Link, Link]
    on: tuple[tuple[str, str], ...]
    how: str
    columns: tuple[Output, ...]
    wait: bool
    output: Link
    as_of: str = ""
    """The table's column from which a version holds; empty: rows meet the table as of the beat."""
    keep_us: int = 0

    links: ClassVar[tuple[str, ...]] = ("input", "table")
    keys: ClassVar[frozenset[str]] = frozenset({"on", "how", "columns", "wait", "as_of", "keep"})
    table_links: ClassVar[frozenset[str]] = frozenset({"table"})

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> EnrichPlan:
        """Check keys and columns against the stream and the table."""
        stream, terms = inputs[0], inputs[1].table
        other = columns_without_weight(inputs[1])
        wrong = FaultCollector()
        if terms is None:
            wrong.note(f"{path}.table", "is not a table", "interval_join joins two streams")
        on = wrong.attempt(lambda: read_keys(path, document, stream, other, SIDES), ())
        how = wrong.attempt(lambda: choice(path, document, "how", HOW, INNER), INNER)
        wait = wrong.attempt(lambda: boolean(path, document, "wait", True), True)
        as_of = wrong.attempt(lambda: _as_of(path, document, inputs[1], on), "")
        keep = wrong.attempt(lambda: _keep(path, document), 0)
        columns = tuple[Output, ...]()
        if "columns" in document:
            given = wrong.attempt(lambda: table(path, document, "columns"), dict[str, Any]())
            columns = wrong.attempt(
                lambda: chosen_columns(f"{path}.columns", given, stream, other, SIDES), columns
            )
        wrong.settle()
        if "columns" not in document:
            columns = default_columns(f"{path}.columns", stream, other, on)
        time = _named(f"{path}.columns", columns, stream.time, "event time")
        weight = (
            _named(f"{path}.columns", columns, stream.weight, "weight") if stream.weight else ""
        )
        right = Link(nullable(other.schema), "") if how == LEFT else other
        schema = output_schema(columns, (stream, right))
        output = Link(schema, time, stream.disorder_us, weight)
        return cls(id, (stream, inputs[1]), on, how, columns, wait, output, as_of, keep)

    def kept(self) -> Schema:
        """The columns of the table that the state holds."""
        names = [b for _, b in self.on] + [c.source for c in self.columns if c.side == 1]
        return kept_columns(self.inputs[1], [*names, self.as_of] if self.as_of else names)

    def build(self, workers: Workers) -> Enrich:
        """The running enrichment."""
        return Enrich(self)

    def describe(self) -> list[str]:
        """Lines for `edged explain`: keys, kind, state."""
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)
        waits = "waits for the first rows of the table" if self.wait else "does not wait"
        when = "the table as of the beat"
        if self.as_of:
            when = f"the version at the row's time by {self.as_of}, kept {self.keep_us / 1e6:g} s"
        return [
            f"{self.how} on {keys}, with {when}; {waits}",
            f"state: {', '.join(self.kept().names)} of the table, on disk beyond its memory",
        ]

    def waits(self) -> Sequence[tuple[int, int]]:
        """The stream waits for the table."""
        return [(0, 1)] if self.wait else []

    def table_states(self) -> int:
        """One, or two where the table's key is another."""
        terms = self.inputs[1].table
        assert terms is not None
        return 1 + two_states(terms, [b for _, b in self.on])

    def signature_facts(self) -> list[Any]:
        """What the saved state depends on: the kept columns, the keys, and the kind of changes."""
        terms = self.inputs[1].table
        assert terms is not None
        facts = [self.kept().to_json(), [b for _, b in self.on], terms.key, terms.changes]
        return [*facts, self.as_of] if self.as_of else facts


class Enrich(Loading):
    """A running enrichment; `place` before `run`."""

    gauges = frozenset({"table_rows"})

    def __init__(self, plan: EnrichPlan) -> None:
        self._plan = plan
        on = tuple(b for _, b in plan.on)
        self._versions: TableVersions | None = None
        if plan.as_of:
            self._versions = TableVersions(plan.inputs[1], on, plan.kept(), plan.as_of)
        self._side = self._versions or TableSide(plan.inputs[1], on, plan.kept(), emits=False)
        self._keys = tuple(a for a, _ in plan.on)
        self._probe = Schema.of(plan.inputs[0].schema.field(a) for a in self._keys)
        self._scratch = Scratch()
        self._matched = self._unmatched = self._too_old = 0

    def place(self, place: OperatorPlace) -> None:
        """Open the table's state."""
        self._side.place(place, place.directory)

    @property
    def can_load(self) -> bool:
        """Whether the state can."""
        return self._side.can_load

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """Apply the table's changes, then match the stream's rows."""
        stream, changes = inputs
        self._side.begin(1 in self.loads, self.named)
        if changes.batch.rows or self.loads:
            self._side.commit(self._side.decode(changes.batch, beat), beat)
        self.made = self._side.made
        batch = empty_batch(self._plan.output.schema)
        if stream.batch.rows:
            batch = self._match(beat, stream.batch)
        if self._versions is not None and stream.watermark_us < WATERMARK_MAX_US:
            horizon_us = max(WATERMARK_MIN_US, stream.watermark_us - self._plan.keep_us)
            self._versions.horizon_us = max(self._versions.horizon_us, horizon_us)
        if (rows := changes.batch.rows + stream.batch.rows) or self.loads:
            self._side.work(rows)
        return Flow(batch, stream.watermark_us)

    def _match(self, beat: BeatContext, rows: Batch) -> Batch:
        keys = project(rows, self._probe, self._keys)
        at: Int64s | None
        if self._versions is not None:
            probe, at, found = self._as_of(self._versions, keys, rows)
        else:
            found = self._side.rows.probe(keys)
            at = as_positive(found.weights)
            probe = found.probe if at is None else found.probe[at]
        left, right = probe, np.arange(probe.size)
        if self._plan.how == LEFT:
            left, right = outer_rows(probe, rows.rows)
        if at is not None:
            right = _through(at, right)
        matched = int(np.count_nonzero(np.diff(probe))) + int(probe.size > 0)
        self._matched += matched
        self._unmatched += rows.rows - matched
        schema = self._plan.output.schema
        columns = gathered(
            self._plan.columns, (rows, found.rows), (left, right), schema, self._scratch,
            workers=beat.workers,
        )  # fmt: skip
        return Batch(schema, left.size, tuple(columns))

    def _as_of(
        self, versions: TableVersions, keys: Batch, rows: Batch
    ) -> tuple[Int64s, Int64s, Matches]:
        """The rows with a version at their time, its row in the matches, and these."""
        times = rows[self._plan.inputs[0].time].values
        version, found = versions.at(keys, times)
        old = times < versions.horizon_us
        self._too_old += int(old.sum())
        matched = np.flatnonzero((version >= 0) & ~old)
        return matched, version[matched], found

    def save(self, scratch: Scratch) -> State:
        """The table's state and the counters."""
        counted = np.array([self._matched, self._unmatched], np.int64)
        saved = {"counted": counted, **self._side.save()}
        if self._versions is not None:
            saved["versions"] = np.array([self._versions.horizon_us, self._too_old], np.int64)
        return saved

    def load(self, state: State) -> None:
        """The inverse of `save`."""
        self._matched, self._unmatched = (int(n) for n in state["counted"])
        self._side.load(state)
        if self._versions is not None:
            self._versions.horizon_us, self._too_old = (int(n) for n in state["versions"])

    def sync(self) -> None:
        """Make the state's files durable."""
        self._side.sync()

    def keep(self, states: Sequence[State]) -> None:
        """Delete files that nothing needs."""
        self._side.keep(states)

    def close(self) -> None:
        """Close the state."""
        self._side.close()

    def state_bytes(self) -> int:
        """Memory of the table's state."""
        return self._side.memory_bytes()

    def disk_bytes(self) -> int:
        """Bytes of its files."""
        return self._side.disk_bytes()

    def counters(self) -> Mapping[str, int | float | str]:
        """Rows with and without a match, and the table's figures (`table_…`)."""
        found = {f"table_{name}": value for name, value in self._side.counters().items()}
        if self._versions is not None:
            found["too_old"] = self._too_old
        return {"matched": self._matched, "unmatched": self._unmatched, **found}


def _as_of(
    path: str, document: Mapping[str, Any], link: Link, on: Sequence[tuple[str, str]]
) -> str:
    """The column of the table from which a version holds; empty: none.  Raises JobError."""
    if "as_of" not in document:
        return ""
    name, terms = text(path, document, "as_of"), link.table
    where = f"{path}.as_of"
    if name not in link.schema:
        raise JobError(where, f"no column is called {name}", did_you_mean(name, link.schema.names))
    column = link.schema.field(name)
    if column.dtype is not TIMESTAMP or column.nullable:
        given = column.dtype.name + ("?" if column.nullable else "")
        raise JobError(where, f"{name} is {given}", "a version's time is a timestamp, not null")
    if terms is None or not (terms.by_key or terms.changes == UPSERT):
        advice = 'changes = "upsert" and a key: a row adds a version of its key'
        raise JobError(where, "the table's rows have no versions", advice)
    if set(terms.key) != {b for _, b in on}:
        key = ", ".join(terms.key)
        raise JobError(f"{path}.on", "versions are those of the table's key", f"on {key}")
    return name


def _keep(path: str, document: Mapping[str, Any]) -> int:
    if "keep" in document and "as_of" not in document:
        raise JobError(f"{path}.keep", "keeps versions, and there are none", "name as_of")
    return duration(path, document, "keep", KEEP) if "as_of" in document else 0


def _through(at: Int64s, right: Int64s) -> Int64s:
    """The matches behind the row pairs; -1 stays."""
    if not at.size:
        return right
    return np.where(right < 0, -1, at[np.maximum(right, 0)])


def _named(path: str, columns: Sequence[Output], source: str, what: str) -> str:
    """The output's name of a column of the stream.  Raises JobError where it is left out."""
    for c in columns:
        if c.side == 0 and c.source == source:
            return c.name
    advice = f'add e.g. {source} = "input.{source}": it is the output\'s {what}'
    raise JobError(path, f"the stream's {what} column is missing", advice)
