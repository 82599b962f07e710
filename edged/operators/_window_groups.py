"""State of a window operator: groups in lanes.

A `GroupLane` owns the groups of a range of hashes, in the arrays of `kernels.cpu.window`, which
grow by doubling.  Lanes exist for parallelism only: results and saved state do not depend on their
number, because a group lives in one lane, sees its rows in arrival order, and is emitted in the
order of (window start, first row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.flow import State
from edged.data.schema import Schema
from edged.operators._window_functions import Accumulator, Measure, accumulator, type_code
from kernels.cpu import accumulate as acc
from kernels.cpu import window as kernels
from kernels.cpu.absorb import absorb
from kernels.cpu.open_windows import OPENED
from kernels.cpu.window import GROUP, SETTINGS, STATE

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GROUPS_LEAST, STORE_LEAST = 64, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """Memory layout of groups; `kernels.cpu.window` describes the tables."""

    schema: Schema
    keys: Ints
    aggs: Ints
    words: int
    places: tuple[int, ...]
    """First word of each measure's accumulator."""
    first: int
    """First word of all accumulators."""
    weighted: bool
    opened: int = 0
    """First word of an OpenWindow, in groups of windows that rows open and close; else 0."""
    latest: int = 0
    """The word of the time of the latest row, in groups that are kept for a time; else 0."""

    @property
    def order(self) -> int:
        """The word by which groups are ordered."""
        return self.opened + OPENED.last if self.opened else self.latest or GROUP.start

    @property
    def due(self) -> int:
        """The word by which groups expire."""
        return self.opened + OPENED.end if self.opened else self.latest or GROUP.start


def shape_of(
    schema: Schema,
    keys: Sequence[str],
    measures: Sequence[Measure],
    weight: str = "",
    opens: bool = False,
) -> Shape:
    """Lay out groups; measures over equal accumulators share them.  Groups of weighted rows also
    have the weight of all their rows, and with `opens` groups have an OpenWindow."""
    at, key_rows = GROUP.keys, []
    for name in keys:
        c = schema.index(name)
        key_rows.append([c, type_code(schema.fields[c].dtype), at])
        at += 2 if schema.fields[c].dtype.variable else 1
    opened = at if opens else 0
    at += len(OPENED) if opens else 0
    known: dict[Accumulator, int] = {}
    places, first = [], at
    for m in [*measures, *([Measure("", "count", "")] if weight else [])]:
        needed = accumulator(schema, m, weight)
        if needed not in known:
            known[needed] = at
            at += needed.words()
        places.append(known[needed])
    by = schema.index(weight) if weight else 0
    agg_rows = [
        [a.kind, a.column, a.code, place, by, a.second, a.second_code, a.size]
        for a, place in known.items()
    ]
    return Shape(
        schema,
        np.array(key_rows, np.int64).reshape(-1, 3),
        np.array(agg_rows, np.int64).reshape(-1, len(acc.AGGREGATE)),
        at,
        tuple(places[: len(measures)]),
        first,
        bool(weight),
        opened,
    )


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups removed from lanes, with the store of their strings."""

    rows: Ints
    store: Bytes

    def left(self, shape: Shape) -> Groups:
        """The groups to emit: of weighted rows only those in which something is left."""
        if not shape.weighted or not len(self.rows):
            return self
        return Groups(self.rows[self.rows[:, shape.first :].any(axis=1)], self.store)


class GroupLane:
    """Groups of one worker."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.state: Ints = np.zeros(len(STATE), np.int64)
        self.state[STATE.oldest] = kernels.OLDEST_NONE
        self._groups: Ints = np.empty((GROUPS_LEAST, shape.words), np.int64)
        self._store: Bytes = np.empty(STORE_LEAST, np.uint8)
        self._table = _table(GROUPS_LEAST)

    def absorb(
        self, columns: Ints, settings: Ints, hashes: npt.NDArray[np.uint64], rows: int
    ) -> None:
        """Process this lane's rows of a batch."""
        at = 0
        while True:
            at = absorb(
                columns, self._shape.keys, self._shape.aggs, settings, hashes, at, rows,
                self._groups, self._groups.view(np.float64), self._table, self._store, self.state,
            )  # fmt: skip
            if at == rows:
                return
            count = int(self.state[STATE.groups])
            self._reserve(
                count + int(settings[SETTINGS.hops]),
                int(self.state[STATE.bytes] + self.state[STATE.need]),
            )

    def expire(self, before: int) -> Groups:
        """Remove the groups whose windows begin before `before`, or end, if rows open them."""
        count, found = int(self.state[STATE.groups]), np.zeros(2, np.int64)
        if self.state[STATE.oldest] < before:
            word = self._shape.due
            kernels.count_expired(self._shape.keys, self._groups[:count], word, before, found)
        gone = Groups(
            np.empty((int(found[0]), self._shape.words), np.int64),
            np.empty(int(found[1]), np.uint8),
        )
        if found[0]:
            kernels.expire(
                self._shape.keys, self._groups, self._store, self.state, self._table,
                self._shape.due, before, gone.rows, gone.store,
            )  # fmt: skip
        return gone

    def copy(self) -> Groups:
        """All groups, as copies."""
        count, size = int(self.state[STATE.groups]), int(self.state[STATE.bytes])
        return Groups(self._groups[:count].copy(), self._store[:size].copy())

    def adopt(self, groups: Groups) -> None:
        """Replace the present groups by these."""
        count, size = len(groups.rows), groups.store.size
        self.state[:] = 0
        self._reserve(count, size)
        self._groups[:count] = groups.rows
        self._store[:size] = groups.store
        self.state[STATE.groups], self.state[STATE.bytes] = count, size
        times = groups.rows[:, self._shape.due]
        self.state[STATE.oldest] = times.min() if count else kernels.OLDEST_NONE
        kernels.rebuild(self._groups[:count], self._table, self._shape.due)

    def nbytes(self) -> int:
        """Memory of the arrays."""
        return self._groups.nbytes + self._store.nbytes + self._table.nbytes

    def _reserve(self, groups: int, size: int) -> None:
        """Make room for a number of groups and store bytes; the content stays."""
        count, used = int(self.state[STATE.groups]), int(self.state[STATE.bytes])
        if groups > len(self._groups):
            larger: Ints = np.empty((1 << (groups - 1).bit_length(), self._shape.words), np.int64)
            larger[:count] = self._groups[:count]
            self._groups, self._table = larger, _table(len(larger))
            kernels.rebuild(self._groups[:count], self._table, self._shape.due)
        if size > self._store.size:
            bytes_: Bytes = np.empty(1 << (size - 1).bit_length(), np.uint8)
            bytes_[:used] = self._store[:used]
            self._store = bytes_


def _table(groups: int) -> npt.NDArray[np.int32]:
    return np.full(2 * groups, -1, np.int32)


def merged(shape: Shape, parts: Sequence[Groups]) -> Groups:
    """The groups of all lanes by (window start, or end if rows open it; first row), their strings
    in the same order."""
    if not any(len(p.rows) for p in parts):
        return Groups(np.empty((0, shape.words), np.int64), np.empty(0, np.uint8))
    shift, shifted = 0, []
    for p in parts:
        rows = p.rows.copy()
        rows[:, _string_words(shape)] += shift
        shifted.append(rows)
        shift += p.store.size
    rows = np.concatenate(shifted)
    rows = np.ascontiguousarray(rows[np.lexsort((rows[:, GROUP.first], rows[:, shape.order]))])
    ordered: Bytes = np.empty(shift, np.uint8)
    kernels.lay_out(shape.keys, rows, np.concatenate([p.store for p in parts]), ordered)
    return Groups(rows, ordered)


def split(shape: Shape, groups: Groups, lanes: int) -> list[Groups]:
    """The inverse of `merged` for a given number of lanes."""
    partition = groups.rows[:, GROUP.hash].astype(np.uint64) >> np.uint64(58)
    lane = (partition * np.uint64(lanes)) >> np.uint64(6)
    return [selected(shape, groups, lane == i) for i in range(lanes)]


def selected(shape: Shape, groups: Groups, wanted: npt.NDArray[np.bool_]) -> Groups:
    """Copies of the groups for which `wanted` is true, in their order."""
    rows = np.ascontiguousarray(groups.rows[wanted])
    words = [w + 1 for w in _string_words(shape)]
    store: Bytes = np.empty(int(rows[:, words].sum()), np.uint8)
    kernels.lay_out(shape.keys, rows, groups.store, store)
    return Groups(rows, store)


def _string_words(shape: Shape) -> list[int]:
    return [int(w) for _, code, w in shape.keys if code == acc.VARIABLE]


def to_state(groups: Groups) -> State:
    """Groups as saved arrays."""
    return {"groups": groups.rows, "store": groups.store}


def from_state(shape: Shape, state: State) -> Groups:
    """Groups from saved arrays, copied: a snapshot's arrays may be flat or read-only."""
    rows = np.array(state["groups"], np.int64).reshape(-1, shape.words)
    return Groups(rows, np.array(state["store"], np.uint8))
