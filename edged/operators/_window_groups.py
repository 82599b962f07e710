"""State of a window operator: groups in lanes, and the output columns of finished groups.

A `GroupLane` owns the groups of a range of hashes, in the arrays of `kernels.cpu.window`, which
grow by doubling.  Lanes exist for parallelism only: results and saved state do not depend on their
number, because a group lives in one lane, sees its rows in arrival order, and is emitted in the
order of (window start, first row).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.flow import State
from edged.data.schema import DType, Field, Schema
from edged.operators import _window_weights as weights
from kernels.cpu import accumulate as acc
from kernels.cpu import weighted
from kernels.cpu import window as kernels
from kernels.cpu.window import GROUP, SETTINGS, STATE

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

GROUPS_LEAST, STORE_LEAST = 64, 4096
TYPE_CODES = {
    "bool": acc.U1, "int8": acc.I1, "int16": acc.I2, "int32": acc.I4, "int64": acc.I8,
    "uint8": acc.U1, "uint16": acc.U2, "uint32": acc.U4, "uint64": acc.U8, "float32": acc.F4,
    "float64": acc.F8, "timestamp": acc.I8, "string": acc.VARIABLE, "binary": acc.VARIABLE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measure:
    """One aggregate of a job: its output name, function and column ("" for `count(*)`)."""

    name: str
    function: str
    column: str


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


def shape_of(
    schema: Schema, keys: Sequence[str], measures: Sequence[Measure], weight: str = ""
) -> Shape:
    """Lay out groups; measures over equal accumulators share them.  Groups of weighted rows also
    have the weight of all their rows."""
    at, key_rows = GROUP.keys, []
    for name in keys:
        c = schema.index(name)
        key_rows.append([c, TYPE_CODES[schema.fields[c].dtype.name], at])
        at += 2 if schema.fields[c].dtype.variable else 1
    known: dict[tuple[int, int, int], int] = {}
    places, first = [], at
    for m in [*measures, *([Measure("", "count", "")] if weight else [])]:
        needed = _accumulator(schema, m, weight)
        if needed not in known:
            known[needed] = at
            at += weighted.WORDS[needed[0]]
        places.append(known[needed])
    by = schema.index(weight) if weight else 0
    agg_rows = [[*key, place, by] for key, place in known.items()]
    return Shape(
        schema,
        np.array(key_rows, np.int64).reshape(-1, 3),
        np.array(agg_rows, np.int64).reshape(-1, len(acc.AGGREGATE)),
        at,
        tuple(places[: len(measures)]),
        first,
        bool(weight),
    )


def _accumulator(schema: Schema, m: Measure, weight: str) -> tuple[int, int, int]:
    """(kind, column, type code) of a measure's accumulator."""
    if weight:
        kind = weights.accumulator(schema, m.function, m.column)
        c = schema.index(m.column) if m.column else 0
        counts = m.function == "count"
        return kind, c, 0 if counts else TYPE_CODES[schema.fields[c].dtype.name]
    if not m.column:
        return acc.ROWS, 0, 0
    c = schema.index(m.column)
    dtype = schema.fields[c].dtype
    if m.function == "count":
        return acc.COUNT, c, 0
    kinds = {
        "sum": (acc.SUM_INT, acc.SUM_FLOAT), "mean": (acc.SUM_INT, acc.SUM_FLOAT),
        "min": (acc.MIN_INT, acc.MIN_FLOAT), "max": (acc.MAX_INT, acc.MAX_FLOAT),
        "variance": (acc.MOMENTS, acc.MOMENTS),
    }  # fmt: skip
    return kinds[m.function][dtype.floating], c, TYPE_CODES[dtype.name]


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
            at = kernels.absorb(
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
        """Remove the groups that start before `before`."""
        count, found = int(self.state[STATE.groups]), np.zeros(2, np.int64)
        if self.state[STATE.oldest] < before:
            kernels.count_expired(self._shape.keys, self._groups[:count], before, found)
        gone = Groups(
            np.empty((int(found[0]), self._shape.words), np.int64),
            np.empty(int(found[1]), np.uint8),
        )
        if found[0]:
            kernels.expire(
                self._shape.keys, self._groups, self._store, self.state, self._table, before,
                gone.rows, gone.store,
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
        starts = groups.rows[:, GROUP.start]
        self.state[STATE.oldest] = starts.min() if count else kernels.OLDEST_NONE
        kernels.rebuild(self._groups[:count], self._table)

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
            kernels.rebuild(self._groups[:count], self._table)
        if size > self._store.size:
            bytes_: Bytes = np.empty(1 << (size - 1).bit_length(), np.uint8)
            bytes_[:used] = self._store[:used]
            self._store = bytes_


def _table(groups: int) -> npt.NDArray[np.int32]:
    return np.full(2 * groups, -1, np.int32)


def merged(shape: Shape, parts: Sequence[Groups]) -> Groups:
    """The groups of all lanes by (window start, first row), their strings in the same order."""
    if not any(len(p.rows) for p in parts):
        return Groups(np.empty((0, shape.words), np.int64), np.empty(0, np.uint8))
    shift, shifted = 0, []
    for p in parts:
        rows = p.rows.copy()
        rows[:, _string_words(shape)] += shift
        shifted.append(rows)
        shift += p.store.size
    rows = np.concatenate(shifted)
    rows = np.ascontiguousarray(rows[np.lexsort((rows[:, GROUP.first], rows[:, GROUP.start]))])
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


@dataclass(slots=True)
class OutputBuilder:
    """Makes the output batch of finished groups; counts sums that int64 cannot hold."""

    shape: Shape
    measures: tuple[Measure, ...]
    size_us: int
    output: Schema
    nothing: Batch
    """The output of a beat in which no window ends."""
    sums_overflowed: int = 0

    def batch(self, groups: Groups) -> Batch:
        """Key columns, window start and end, then every measure's columns."""
        rows, columns = groups.rows, []
        if not len(rows):
            return self.nothing
        for k in range(len(self.shape.keys)):
            field = self.shape.schema.fields[int(self.shape.keys[k, 0])]
            columns.append(self._key(k, field, groups))
        start = np.ascontiguousarray(rows[:, GROUP.start])
        columns += [Column(start), Column(start + self.size_us)]
        for measure, place in zip(self.measures, self.shape.places, strict=True):
            if self.shape.weighted and self._exact(measure):
                columns += self._weighted(measure, rows, place)
            else:
                columns += self._measured(measure, np.ascontiguousarray(rows[:, place : place + 3]))
        return Batch(self.output, len(rows), tuple(columns))

    def _key(self, k: int, field: Field, groups: Groups) -> Column:
        _, code, w = self.shape.keys[k]
        rows = groups.rows
        valid: Bytes | None = None
        if field.nullable:
            valid = ((rows[:, GROUP.nulls] >> k & 1) ^ 1).astype(np.uint8)
        if code != acc.VARIABLE:
            return Column(_narrowed(rows[:, w], field.dtype), valid)
        sizes = np.ascontiguousarray(rows[:, w + 1])
        offsets: Ints = np.empty(len(rows) + 1, np.int64)
        values: Bytes = np.empty(int(sizes.sum()), np.uint8)
        kernels.strings(groups.store, np.ascontiguousarray(rows[:, w]), sizes, offsets, values)
        return Column(values, valid, offsets)

    def _exact(self, measure: Measure) -> bool:
        """Whether weighted rows have an exact sum of floats; other accumulators look alike."""
        if measure.function in ("sum", "mean"):
            return self.shape.schema.field(measure.column).dtype.floating
        return measure.function == "variance"

    def _weighted(self, measure: Measure, rows: Ints, place: int) -> list[Column]:
        if measure.function == "variance":
            return [Column(c) for c in weights.moments(rows, place)]
        total, there = weights.float_sums(rows, place)
        if measure.function == "mean":
            return [Column(rows[:, place].copy()), Column(total)]
        if not self.output.field(measure.name).nullable:
            return [Column(total)]
        return [Column(total, there.astype(np.uint8))]

    def _measured(self, measure: Measure, words: Ints) -> list[Column]:
        if measure.function == "count":
            return [Column(words[:, 0].copy())]
        dtype = self.shape.schema.field(measure.column).dtype
        if measure.function == "variance":
            floats = words.view(np.float64)
            return [Column(c.copy()) for c in (words[:, 0], floats[:, 1], floats[:, 2])]
        if measure.function in ("min", "max"):
            return [self._extreme(measure, words, dtype)]
        if dtype.floating:
            count, total = words[:, 1].copy(), words.view(np.float64)[:, 0].copy()
            whole: npt.NDArray[Any] = total
            fits = np.ones(len(words), np.bool_)
        else:
            count, whole = words[:, 2].copy(), words[:, 0].copy()
            fits = words[:, 1] == whole >> 63
            total = np.where(fits, whole, words[:, 1] * 2.0**64 + whole.view(np.uint64))
        if measure.function == "mean":
            return [Column(count), Column(total)]
        self.sums_overflowed += int((~fits).sum())
        if not self.output.field(measure.name).nullable:
            return [Column(whole)]
        there = (count != 0) | words[:, :2].any(axis=1)
        return [Column(whole, (there & fits).astype(np.uint8))]

    def _extreme(self, measure: Measure, words: Ints, dtype: DType) -> Column:
        if dtype.floating:
            values = words.view(np.float64)[:, 0].astype(dtype.numpy)
        else:
            values = _narrowed(words[:, 0], dtype)
        if not self.output.field(measure.name).nullable:
            return Column(values)
        return Column(values, (words[:, 1] > 0).astype(np.uint8))


def _narrowed(words: Ints, dtype: DType) -> npt.NDArray[Any]:
    """The low bytes of 64-bit words as values of a fixed-width type."""
    narrow = np.ascontiguousarray(words).astype(f"u{dtype.width}")
    return narrow.view(dtype.numpy)
