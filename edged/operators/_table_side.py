"""One table in an operator: its changes, made exact, and its rows.

The operator keeps the columns that it needs.  Two changes are the same where these are equal.  Rows
are found by the operator's key; where the table's own key is another, a second state finds them by
that.

    insert     weight 1; with a key, a row whose key is there already is refused
    upsert     the row of the key is taken back, where there is one, and the new one added
    by key     events of weight 1 as upsert; one of weight -1 takes the row of its key back, and is
               refused where there is none
    weights    as the column says; a row of weight 0 is refused, and so is, unless it is owed, a
               delete of a row that is not there

A refused change is left out and counted.  With `missing = "refuse"` the place of the last one is
kept for the status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, empty_batch
from edged.data.concatenate import concatenate
from edged.data.flow import BeatContext, Link, State
from edged.data.gather import take
from edged.data.hashing import all_valid
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.table_terms import INSERT, OWE, REFUSE, UPSERT, TableTerms
from edged.operators._row_codes import Int64s, firsts, lasts, project, row_codes, sums
from edged.operators.base import OperatorPlace
from edged.platform.disk import DISK_FULL
from edged.tables.base import (
    MEMBER,
    TABLES,
    LoadingState,
    Matches,
    TableContext,
    TableState,
    Weights,
)
from edged.tables.costs import MergePricing

LEVELS = 5
"""Directories above a state's own whose entries its opening may have made: side, operator, job,
`tables`, and the store."""
MERGE_ROWS_MIN, MERGE_ROWS_PER_CHANGE = 1 << 14, 8
"""Rows that a beat may merge: some in any case, more with the rows that it changes or probes."""


Put: TypeAlias = Callable[[TableState, Batch, Weights, BeatContext], None]


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a beat: kept columns and weights, valid until the next beat."""

    rows: Batch
    weights: Weights


class TableSide:
    """See the module's docstring.  `place` comes before all else."""

    def __init__(self, link: Link, on: tuple[str, ...], kept: Schema, emits: bool = True) -> None:
        """`kept` holds the columns `on` and those of the table's key.  `emits`: the operator gives
        out rows of changes, so that `decode` returns them where they are loaded, too."""
        self._emits = emits
        self._pricing, self._merging_us = MergePricing(), 0
        self._loads = False
        self._named: Mapping[str, Any] | None = None
        self.made: dict[str, Any] = {}
        """What `decode` has loaded: by state the runs, and how many changes are refused so far."""
        self._link, self.on, self.kept = link, on, kept
        self._terms = link.table or TableTerms(missing=REFUSE)
        self._scratch = [Scratch() for _ in range(4)]
        self._rows: TableState | None = None
        self._by_key: TableState | None = None
        self.refused = 0
        self.refused_at = ""

    def place(self, place: OperatorPlace, directory: str) -> None:
        """Open the states in `directory`."""
        TABLES.load()
        self._pricing, self._merging_us = place.pricing, place.merging_us
        self._rows = self._open(self.on, place, f"{directory}/rows")
        key = self._terms.key
        if two_states(self._terms, self.on):
            self._by_key = self._open(key, place, f"{directory}/key")

    @property
    def rows(self) -> TableState:
        """The rows by the operator's key."""
        assert self._rows is not None
        return self._rows

    @property
    def states(self) -> Mapping[str, TableState]:
        """All states, by their name in a saved state."""
        found = {"rows": self.rows}
        return found if self._by_key is None else {**found, "key": self._by_key}

    @property
    def can_load(self) -> bool:
        """Whether its states can load."""
        return all(isinstance(state, LoadingState) for state in self.states.values())

    def _loading(self) -> dict[str, LoadingState]:
        return {n: state for n, state in self.states.items() if isinstance(state, LoadingState)}

    def begin(self, loads: bool, named: Mapping[str, Any] | None) -> None:
        """Before a beat's `decode`: whether its rows are loaded, and in a replay what `made`
        was."""
        self._loads, self._named = loads, named
        self.made = {name: [] for name in self.states}

    def decode(self, batch: Batch, beat: BeatContext) -> Changes:
        """The changes that a beat's rows mean for the state as it is; nothing is applied.

        Loaded changes are in the order of their runs, with equal rows summed.
        """
        if not self._loads:
            return self._meaning(batch, beat)
        if self._named is not None:
            self.refused = self._named["refused"]
            for name, state in self._loading().items():
                _with_room(partial(state.reload, self._named[name]), beat)
        else:
            put = _load_whole if self._emits else _load
            changes = self._put(self._meaning(batch, beat), beat, put)
            if self._by_key is not None:
                _load(self._by_key, changes.rows, changes.weights, beat)
            self.made = {name: state.loading() for name, state in self._loading().items()}
            self.made["refused"] = self.refused
        if not self._emits:
            return Changes(empty_batch(self.kept), np.empty(0, np.int32))
        return Changes(*self._loading()["rows"].loaded())

    def _meaning(self, batch: Batch, beat: BeatContext) -> Changes:
        rows = project(batch, self.kept)
        if self._link.weight:
            if self._terms.by_key:
                return self._events(*self.events(batch, beat), beat)
            weights = np.ascontiguousarray(batch[self._link.weight].values, np.int32)
            return self._weighted(rows, weights, beat)
        changes = Changes(rows, np.ones(rows.rows, np.int32))
        if not self._terms.key or not rows.rows:
            return changes
        if self._terms.changes == UPSERT:
            return self._upserts(rows)
        return self._inserts(changes, beat) if self._terms.changes == INSERT else changes

    def events(self, batch: Batch, beat: BeatContext) -> tuple[Batch, Weights]:
        """A beat's rows by key: weight 1 replaces the row of its key, -1 takes it back."""
        rows = project(batch, self.kept)
        if not self._link.weight:
            return rows, np.ones(rows.rows, np.int32)
        weights = np.ascontiguousarray(batch[self._link.weight].values, np.int32)
        sure = np.abs(weights) == 1
        if sure.all():
            return rows, weights
        at = int(np.flatnonzero(~sure)[0])
        self.refuse(int((~sure).sum()), rows, at, beat, "its weight is neither 1 nor -1")
        kept = np.flatnonzero(sure)
        return take(rows, kept, self._scratch[3]), weights[kept]

    def commit(self, changes: Changes, beat: BeatContext) -> Changes:
        """Apply what `decode` has returned; returns what has changed."""
        if self._loads:
            for state in self._loading().values():
                state.end_load()
            return changes
        if not changes.rows.rows:
            return changes
        changes = self._put(changes, beat, _apply)
        if self._by_key is not None:
            _apply(self._by_key, changes.rows, changes.weights, beat)
        return changes

    def work(self, rows: int) -> None:
        """Merge a while, after a beat of `rows` rows; longer where energy is cheap, and never
        beyond its share of half the tolerance."""
        most = int(self._merging_us * 1_000 / self._pricing.merge_ns)
        usual = MERGE_ROWS_MIN + MERGE_ROWS_PER_CHANGE * rows
        for state in self.states.values():
            state.work(most if self._pricing.cheap else min(most, usual))

    def save(self) -> State:
        """The states and the count of refused changes."""
        saved: State = {"refused": np.array([self.refused], np.int64)}
        for name, state in self.states.items():
            saved |= {f"{name}/{key}": array for key, array in state.save().items()}
        return saved

    def load(self, saved: State) -> None:
        """The inverse of `save`."""
        self.refused = int(saved["refused"][0])
        for name, state in self.states.items():
            state.load(under(saved, name))

    def sync(self) -> None:
        """Make the files of the last `save` durable."""
        for state in self.states.values():
            state.sync()

    def close(self) -> None:
        """Close the states."""
        for state in self.states.values():
            state.close()

    def memory_bytes(self) -> int:
        """Memory of the states."""
        return sum(state.memory_bytes() for state in self.states.values())

    def disk_bytes(self) -> int:
        """Bytes of the states' files."""
        return sum(state.disk_bytes() for state in self.states.values())

    def keep(self, saved: Sequence[State]) -> None:
        """Delete the files that no state needs."""
        for name, state in self.states.items():
            state.keep([under(each, name) for each in saved])

    def counters(self) -> dict[str, int | float | str]:
        """The counters of the rows' state, and what was refused."""
        found: dict[str, int | float | str] = {**self.rows.counters(), "refused": self.refused}
        joules = self._pricing.joules(float(found.get("debt_ns", 0)))
        if joules is not None:
            found["debt_j"] = joules
        return {**found, "refused_at": self.refused_at} if self.refused_at else found

    def _open(self, key: tuple[str, ...], place: OperatorPlace, directory: str) -> TableState:
        context = TableContext(
            place.disk, directory, place.workers, place.memory_bytes, self._terms.compact,
            scratch=place.scratch, pricing=place.pricing,
        )  # fmt: skip
        state = TABLES[MEMBER](self.kept, key, context)
        for above in [str(path) for path in PurePath(directory).parents[:LEVELS]]:
            place.disk.sync_directory(above)
        return state

    def _upserts(self, rows: Batch) -> Changes:
        """The last row of each key, and the rows that they replace taken back."""
        newest = np.sort(lasts(row_codes(rows, self._terms.key)))
        if newest.size < rows.rows:
            rows = take(rows, newest, self._scratch[0])
        return self._replacing(self._found(rows), rows)

    def _replacing(self, old: Matches, rows: Batch) -> Changes:
        """The rows, and the old ones of their keys taken back; what is in both is no change."""
        if not old.rows.rows:
            return Changes(rows, np.ones(rows.rows, np.int32))
        both = concatenate(self.kept, [old.rows, rows], self._scratch[1])
        weights = np.concatenate([-old.weights, np.ones(rows.rows, np.int32)])
        codes = row_codes(both, self.kept.names)
        changed = np.flatnonzero(sums(codes, weights)[codes])
        if changed.size == both.rows:
            return Changes(both, weights)
        return Changes(take(both, changed, self._scratch[2]), weights[changed])

    def _events(self, rows: Batch, weights: Weights, beat: BeatContext) -> Changes:
        """What is left of events by key: the last one of each key decides."""
        if not rows.rows:
            return Changes(rows, weights)
        codes = row_codes(rows, self._terms.key)
        newest = np.sort(lasts(codes))
        last = take(rows, newest, self._scratch[0])
        old = self._found(last)
        held = np.zeros(newest.size, np.bool_)
        held[codes[newest[old.probe]]] = True
        absent = deletes_of_nothing(codes, weights < 0, held)
        if absent.size:
            self.refuse(absent.size, rows, int(absent[0]), beat, "no such row is there")
        stay = np.flatnonzero(weights[newest] > 0)
        if stay.size < newest.size:
            last = take(last, stay, self._scratch[0], "stay")
        return self._replacing(old, last)

    def _inserts(self, changes: Changes, beat: BeatContext) -> Changes:
        """The first row of each key, without those whose key is there."""
        rows, count = changes.rows, changes.rows.rows
        old = self._found(rows)
        first = np.zeros(count, np.bool_)
        first[firsts(row_codes(rows, self._terms.key))] = True
        first[old.probe] = False
        if first.all():
            return changes
        at = int(np.flatnonzero(~first)[0])
        self.refuse(count - int(first.sum()), rows, at, beat, "its key is there already")
        kept = np.flatnonzero(first)
        return Changes(take(rows, kept, self._scratch[0]), changes.weights[kept])

    def _found(self, rows: Batch) -> Matches:
        """The rows of these rows' table key."""
        key = self._terms.key
        state = self.rows if self._by_key is None else self._by_key
        names = state.key
        assert set(names) == set(key)
        return state.probe(project(rows, Schema.of(self.kept.field(n) for n in names)))

    def _weighted(self, rows: Batch, weights: Weights, beat: BeatContext) -> Changes:
        if rows.rows and not weights.all():
            zero = weights == 0
            at = int(np.flatnonzero(zero)[0])
            self.refuse(int(zero.sum()), rows, at, beat, "its weight is 0")
            kept = np.flatnonzero(~zero)
            rows, weights = take(rows, kept, self._scratch[0]), weights[kept]
        if self._terms.missing == OWE or not (weights < 0).any():
            return Changes(rows, weights)
        return self._without_missing(Changes(rows, weights), beat)

    def _without_missing(self, changes: Changes, beat: BeatContext) -> Changes:
        """The changes without deletes of rows that are not there."""
        rows, weights = changes.rows, changes.weights
        codes = row_codes(rows, self.kept.names)
        falls = sums(codes, weights)
        at = firsts(codes)
        known = all_valid(rows, self.on)
        falling = falls < 0
        if known is not None:
            falling &= known[at] != 0  # rows with a null key are not kept
        asked = at[np.flatnonzero(falling)]
        if not asked.size:
            return changes
        some = take(rows, asked, self._scratch[1])
        keys = project(some, Schema.of(self.kept.field(n) for n in self.on))
        distinct = firsts(row_codes(keys, self.on))  # a key asked for twice gives its rows twice
        found = self.rows.probe(take(keys, distinct, self._scratch[1], "keys"))
        both = concatenate(self.kept, [some, found.rows], self._scratch[2])
        both_codes = row_codes(both, self.kept.names)
        held = sums(both_codes, np.concatenate([np.zeros(some.rows, np.int32), found.weights]))
        have, net = held[both_codes[: some.rows]], falls[codes[asked]]
        short = have + net < 0
        if not short.any():
            return changes
        self.refuse(
            int(-(have + net)[short].sum()), some, int(np.flatnonzero(short)[0]), beat,
            "no such row is there",
        )  # fmt: skip
        lacking = np.zeros(at.size, np.bool_)
        lacking[codes[asked[short]]] = True
        last = asked[short][have[short] > 0]
        weights = weights.copy()
        weights[lacking[codes]] = 0
        weights[last] = -have[short][have[short] > 0]
        kept = np.flatnonzero(weights)
        return Changes(take(rows, kept, self._scratch[3]), weights[kept])

    def _put(self, changes: Changes, beat: BeatContext, put: Put) -> Changes:
        """Apply or load the changes, without those whose sum of weights leaves int32."""
        try:
            put(self.rows, changes.rows, changes.weights, beat)
        except OverflowError:
            return self._split(changes, beat, put)
        return changes

    def _split(self, changes: Changes, beat: BeatContext, put: Put) -> Changes:
        accepted = np.zeros(changes.rows.rows, np.bool_)
        waiting = [(0, changes.rows.rows)]
        while waiting:
            start, stop = waiting.pop()
            try:
                part = changes.rows.slice(start, stop)
                put(self.rows, part, changes.weights[start:stop], beat)
                accepted[start:stop] = True
            except OverflowError:
                if stop - start == 1:
                    self.refuse(1, changes.rows, start, beat, "its weight leaves 32 bits")
                    continue
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
        kept = np.flatnonzero(accepted)
        return Changes(take(changes.rows, kept, Scratch()), changes.weights[kept])

    def refuse(self, count: int, rows: Batch, at: int, beat: BeatContext, why: str) -> None:
        """Count refused changes; the first one is row `at`."""
        self.refused += count
        if self._terms.missing == REFUSE:
            (values,) = rows.slice(at, at + 1).to_arrow().to_pylist()
            self.refused_at = f"beat {beat.number}, {values}: {why}"


def deletes_of_nothing(
    codes: Int64s, deletes: npt.NDArray[np.bool_], held: npt.NDArray[np.bool_]
) -> Int64s:
    """The deletes whose key has no row when they come, ascending.

    `codes` are the events' keys, `held` says of each key whether it had a row before the first.
    """
    order = np.argsort(codes, kind="stable")
    key, gone = codes[order], deletes[order]
    first = np.ones(key.size, np.bool_)
    first[1:] = key[1:] != key[:-1]
    before = np.ones(key.size, np.bool_)
    before[1:] = ~gone[:-1]
    return np.sort(order[gone & ~np.where(first, held[key], before)])


def _apply(state: TableState, rows: Batch, weights: Weights, beat: BeatContext) -> None:
    """Apply changes to a state."""
    _with_room(lambda: state.apply(rows, weights), beat)


def _load(state: TableState, rows: Batch, weights: Weights, beat: BeatContext) -> None:
    """Write changes into a run that the state is to take."""
    assert isinstance(state, LoadingState)
    _with_room(lambda: state.load_run(rows, weights, whole=False), beat)


def _load_whole(state: TableState, rows: Batch, weights: Weights, beat: BeatContext) -> None:
    """As `_load`, with the rows that the state does not take in a file apart."""
    assert isinstance(state, LoadingState)
    _with_room(lambda: state.load_run(rows, weights, whole=True), beat)


def _with_room(work: Callable[[], None], beat: BeatContext) -> None:
    """Do it; where the disk is full, wait for room."""
    while True:
        try:
            return work()
        except OSError as problem:
            if problem.errno not in DISK_FULL or beat.await_room is None:
                raise
            beat.await_room(problem)


def two_states(terms: TableTerms, on: Sequence[str]) -> bool:
    """Whether the table's own key needs a state beside that of the operator's key."""
    return terms.finds_by_key and set(terms.key) != set(on)


def needed_by_table(link: Link) -> tuple[str, ...]:
    """The columns that a table's changes are found by, beside the operator's."""
    terms = link.table
    return () if terms is None or not terms.finds_by_key else terms.key


def under(saved: State, name: str) -> State:
    """The arrays of a part, without its name."""
    return {k.removeprefix(f"{name}/"): v for k, v in saved.items() if k.startswith(f"{name}/")}


def kept_columns(link: Link, names: Sequence[str]) -> Schema:
    """The named columns of a link, in its order, and those of the table's key."""
    wanted = {*names, *needed_by_table(link)}
    return Schema.of(f for f in link.schema if f.name in wanted)


def columns_without_weight(link: Link) -> Link:
    """The link as a side of a join: its weight column is none of its columns."""
    schema = Schema.of(f for f in link.schema if f.name != link.weight)
    return Link(schema, link.time, link.disorder_us)
