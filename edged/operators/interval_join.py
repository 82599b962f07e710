"""`interval_join`: pairs of two streams' rows with equal keys and times near each other.

    [operators.joined]
    type = "interval_join"; left = "power"; right = "wind"
    on = ["turbine"]                  # or "left_name = right_name"; several must all be equal
    before = "5min"; after = "5min"   # -before <= right.time - left.time <= after, default 0
    columns = { time = "left.time", kw = "left.power_kw", wind = "right.wind_m_s" }     # optional
    kernel = "auto"                   # or a member of `edged.joins`

Without `columns` the output has the key columns once (with the left's names), then all other
columns of the left, then all others of the right.  Where names clash the right's get the suffix
`_right`.  The output's event time is the left's time column, which must be among the columns.

A pair has the product of both rows' weights.  A weight column that `columns` leaves out becomes the
last column; where both sides have one, the output has one for both, with the left's name.  A pair
whose weight int32 cannot hold is left out and counted (`weights_overflowed`).

Keys are equal as in DuckDB: null equals nothing, NaN equals NaN, -0.0 equals 0.0.  Both columns of
a pair must have one type.  Each pair comes out once, in the beat in which its second row arrives.
Rows are held until the other side's watermark rules out a partner.  A late row, where the job
admits it, meets the partners that are still held.

Output watermark: the minimum of the left's watermark and the right's less `after`; an ended side
does not hold it back.  Between beats, output times run back by at most both inputs' disorder plus
`before` plus `after`.

Placement chooses the kernel while the job runs (`edged.placement.placement`), unless the document
names one.  The order of the output, and so every page made of it, depends only on the input's rows
and beats: (partition, pass, probing row, partner newest first), see `edged.joins.base`.  The live
rows are saved (see `save`), so that a window moves from one kernel to another by `load`, or within
the life of a join by `switch`.

A bound on the output (`bound`) limits the pairs of a beat: rows that would make more wait for the
next beats (`edged.operators._join_size`).  One row at least is joined in a beat, with all its
partners.  Bounds of eviction and the output's watermark stand still while rows wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.gather import take
from edged.data.hashing import exact_bits, key_code
from edged.data.picked import Picked, PickedFlow
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import duration, table, text
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.joins.base import (
    Beat,
    Hashes,
    Int64s,
    Records,
    WindowJoin,
    find_join,
    load_joins,
    no_keys,
)
from edged.operators import _redistribution
from edged.operators._join_columns import (
    SIDES,
    Output,
    chosen_columns,
    default_columns,
    multiply,
    output_schema,
    read_keys,
    with_weight,
)
from edged.operators._join_size import JoinSize, Waiting
from edged.operators._join_window import Arrival, Side
from edged.operators.base import Deferring, OperatorPlan, Placed, operator
from edged.placement.placement import AUTO, DEFAULT
from kernels.cpu.keys import KEY

JOIN_PARALLEL_ROWS = 4096
"""Beats with fewer rows on both sides are joined on the calling thread, unless the join sets its
own number of threads."""


@operator("interval_join")
@dataclass(frozen=True)
class IntervalJoinPlan(OperatorPlan):
    """A checked interval join."""

    id: str
    inputs: tuple[Link, Link]
    on: tuple[tuple[str, str], ...]
    before_us: int
    after_us: int
    columns: tuple[Output, ...]
    output: Link
    kernel: str = AUTO

    links: ClassVar[tuple[str, ...]] = ("left", "right")
    keys: ClassVar[frozenset[str]] = frozenset({"on", "before", "after", "columns", "kernel"})
    cycles: ClassVar[tuple[float, float] | None] = (430e3, 34.0)

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> IntervalJoinPlan:
        """Check keys, bounds and columns against both inputs."""
        left, right = inputs
        wrong, nothing = FaultCollector(), tuple[Output, ...]()
        none = dict[str, Any]()
        on = wrong.attempt(lambda: read_keys(path, document, left, right), ())
        before_us = wrong.attempt(lambda: duration(path, document, "before", 0), 0)
        after_us = wrong.attempt(lambda: duration(path, document, "after", 0), 0)
        kernel = wrong.attempt(lambda: _kernel(path, document), AUTO)
        columns = nothing
        if "columns" in document:
            given = wrong.attempt(lambda: table(path, document, "columns"), none)
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
        columns, weight = with_weight(f"{path}.columns", columns, (left, right))
        disorder_us = left.disorder_us + right.disorder_us + before_us + after_us
        output = Link(output_schema(columns, (left, right)), time, disorder_us, weight)
        return cls(id, (left, right), on, before_us, after_us, columns, output, kernel)

    @property
    def placed(self) -> bool:
        """Whether the kernel is left to placement."""
        return self.kernel == AUTO

    def build(self, workers: Workers) -> IntervalJoin:
        """The running join."""
        return IntervalJoin(self)

    def kept(self, side: int) -> Schema:
        """The columns that a side's window holds: output columns, times, and keys to verify."""
        link = self.inputs[side]
        needed = set(self.taken(side).names) | {link.time}
        if exact_bits(link.schema, self.key_names(side)) != 32:
            needed |= set(self.key_names(side))
        return Schema.of(f for f in link.schema if f.name in needed)

    def taken(self, side: int) -> Schema:
        """The columns that a side gives to the output."""
        needed = {c.source for c in self.columns if c.side == side}
        if self.multiplies:
            needed.add(self.inputs[side].weight)
        return Schema.of(f for f in self.inputs[side].schema if f.name in needed)

    @property
    def multiplies(self) -> bool:
        """Whether both inputs have weights."""
        return all(link.weight for link in self.inputs)

    redistribute = _redistribution.join

    def window_us(self) -> int:
        """Both bounds together."""
        return self.before_us + self.after_us

    def window_schemas(self) -> tuple[Schema, Schema]:
        """The kept columns of either side."""
        return self.kept(0), self.kept(1)

    def key_names(self, side: int) -> tuple[str, ...]:
        """The key columns of a side."""
        return tuple(pair[side] for pair in self.on)

    def describe(self) -> list[str]:
        """Lines for `edged explain`: keys, bounds, kernel and state."""
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in self.on)
        low, high = show_duration(self.before_us), show_duration(self.after_us)
        verified = exact_bits(self.inputs[0].schema, self.key_names(0)) != 32
        check = "64-bit hash, then compared" if verified else "32-bit hash, exact"
        held = [", ".join(self.kept(side).names) for side in range(2)]
        member = _member("kernel", self.kernel)
        by = " until placement finds a better one" if self.kernel == AUTO else ""
        return [
            f"left and right on {keys}, right {low} before to {high} after left",
            f"kernel {member.name} ({member.device.upper()}){by}, keys by {check}",
            f"window of {show_duration(self.before_us + self.after_us)}:"
            f" left {held[0]}; right {held[1]}; {member.about}",
        ]

    def ahead_us(self) -> tuple[int, int]:
        """A left row further than `before` ahead of the right stream has no partner yet, nor has a
        right row further than `after` ahead of the left."""
        return self.before_us, self.after_us

    def signature_facts(self) -> list[Any]:
        """Schemas, keys, bounds and columns; the saved state does not depend on the kernel."""
        facts: list[Any] = [
            [(link.schema.to_json(), link.time) for link in self.inputs],
            self.on,
            self.before_us,
            self.after_us,
            [(c.name, c.side, c.source) for c in self.columns],
        ]
        return [*facts, [link.weight for link in self.inputs]] if self.multiplies else facts


class IntervalJoin(Placed, Deferring):
    """A running interval join."""

    gauges = frozenset({"left_live", "right_live", "rows_waiting"})

    def __init__(self, plan: IntervalJoinPlan, start: int = 0) -> None:
        """`start` is the number of the first row and of the kernel's first entry; tests set it near
        a limit."""
        self._plan = plan
        links = plan.inputs
        self._join = _new_member(plan, plan.kernel, start)
        left, right = (
            Side(links[i].schema, plan.kept(i), plan.key_names(i), links[i].time, start)
            for i in (0, 1)
        )
        self._sides = (left, right)
        self._arrival = Arrival(self._sides)
        self._verify = exact_bits(links[0].schema, plan.key_names(0)) != 32
        self._scratch = Scratch()
        self._sources = [plan.taken(i) for i in (0, 1)]
        self._places = [
            [plan.kept(i).index(name) for name in self._sources[i].names] for i in (0, 1)
        ]
        self._wanted = [(c.side, self._sources[c.side].index(c.source)) for c in plan.columns]
        self._watermarks = (WATERMARK_MIN_US, WATERMARK_MIN_US)
        self._arrived = [0, 0]
        self._matches = self._rows = self._deferred = self._overflowed = 0
        self._size: JoinSize | None = None
        self._waiting = [Waiting(links[i].schema, plan.key_names(i), links[i].time) for i in (0, 1)]

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's pairs."""
        left, right = inputs
        watermarks, self.processed = (left.watermark_us, right.watermark_us), None
        self._arrived = [n + r.batch.rows for n, r in zip(self._arrived, inputs, strict=True)]
        if self.recorded is not None or self.waiting():
            return self._run_part(beat, inputs)
        rows = self._rows = left.batch.rows + right.batch.rows
        if rows == 0 and watermarks == self._watermarks:
            return self._nothing()
        held = [side.store.rows for side in self._sides]
        records = self._arrive(beat, (left.batch, right.batch))
        if self._size is not None and self.decides:
            arrived = left.batch.rows, right.batch.rows
            if self._size.too_large(records, arrived, held, self._window):
                for side, flow in zip(self._sides, inputs, strict=True):
                    side.store.stop -= flow.batch.rows
                return self._run_part(beat, inputs)
        self._watermarks = watermarks
        return self._join_rows(beat, records, rows)

    def _run_part(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """Join as many rows, of those that wait and the new ones, as a beat may."""
        for waiting, flow in zip(self._waiting, inputs, strict=True):
            if flow.batch.rows:
                waiting.append(flow.batch)
        if self.held:
            return self._nothing()
        taken: Sequence[int] = [w.rows for w in self._waiting]
        if self.recorded is not None:
            taken = self.recorded
        elif self._size is not None and self.decides:
            held = [side.store.rows for side in self._sides]
            taken = self._size.fit(self._waiting, held, self._window)
        self.processed = list(taken)
        batches = [w.take(n) for w, n in zip(self._waiting, taken, strict=True)]
        if not self.waiting():
            self._watermarks = inputs[0].watermark_us, inputs[1].watermark_us
        else:
            self._deferred += 1
        rows = self._rows = sum(taken)
        return self._join_rows(beat, self._arrive(beat, batches), rows)

    def _nothing(self) -> Flow:
        return Flow(empty_batch(self._plan.output.schema), self._watermark(*self._watermarks))

    def _arrive(self, beat: BeatContext, batches: Sequence[Batch]) -> tuple[Records, Records]:
        lends = [partial(self._join.buffer, i) for i in (0, 1)]
        return self._arrival.take(batches, lends, beat.workers)

    def _join_rows(self, beat: BeatContext, records: tuple[Records, Records], rows: int) -> Flow:
        """Join the records of `rows` rows that have arrived."""
        many = rows >= JOIN_PARALLEL_ROWS or self._join.deals
        workers = beat.workers if many else None
        pairs = self._join.join(*records, self._beat_facts(*self._watermarks), workers)
        flow = self._output(pairs, workers)
        for i, side in enumerate(self._sides):
            side.store.start = self._join.oldest(i, side.base, side.store.stop)
        return flow

    def _window(self, side: int) -> tuple[Hashes, Int64s]:
        """The hashes and the times of the rows that a side's window holds."""
        rows, hashes = self._live(side, Scratch())
        times: Int64s = self._sides[side].store.view()[self._plan.inputs[side].time].values[rows]
        return hashes, times

    def bound(self, limit_bytes: int) -> None:
        """Bound the pairs of a beat."""
        plan = self._plan
        self._size = JoinSize(plan.output.schema, limit_bytes, plan.before_us, plan.after_us)

    def waiting(self) -> int:
        """Rows of both sides that wait."""
        return self._waiting[0].rows + self._waiting[1].rows

    def _watermark(self, left_us: int, right_us: int) -> int:
        if right_us != WATERMARK_MAX_US:
            right_us = max(WATERMARK_MIN_US, right_us - self._plan.after_us)
        return min(left_us, right_us)

    def switch(self, kernel: str) -> None:
        """Continue with another member, which takes over the windows' rows."""
        if kernel == self._join.name:
            return
        join = _new_member(self._plan, kernel)
        for i, side in enumerate(self._sides):
            rows, hashes = self._live(i, Scratch())
            join.restore(i, side.records(rows, hashes, partial(join.buffer, i)))
        self._join.close()
        self._join = join

    @property
    def kernel(self) -> str:
        """The member that runs."""
        return self._join.name

    @property
    def pinned(self) -> bool:
        """Whether the document names a member."""
        return self._plan.kernel != AUTO

    def size(self) -> tuple[int, int]:
        """Rows of both sides in the last beat; the mean of both windows' rows."""
        return self._rows, (self._join.held(0) + self._join.held(1)) // 2

    def _beat_facts(self, left_us: int, right_us: int) -> Beat:
        """Bases, eviction bounds and key columns of this beat."""
        left, right = self._sides
        bounds = (
            max(WATERMARK_MIN_US, right_us - self._plan.after_us),
            max(WATERMARK_MIN_US, left_us - self._plan.before_us),
        )
        ended = (right_us == WATERMARK_MAX_US, left_us == WATERMARK_MAX_US)
        keys = self._key_table() if self._verify else no_keys()
        return Beat((left.base, right.base), bounds, ended, keys)

    def _key_table(self) -> npt.NDArray[np.int64]:
        """The key columns of both stores, for the kernel to compare."""
        plan = self._plan
        keys = np.zeros((len(plan.on), len(KEY)), np.int64)
        views = [side.store.view() for side in self._sides]
        for k in range(keys.shape[0]):
            dtype = plan.inputs[0].schema.field(plan.on[k][0]).dtype
            keys[k, KEY.code] = key_code(dtype)
            places = (KEY.left, KEY.left_offsets), (KEY.right, KEY.right_offsets)
            for i, (values, offsets) in enumerate(places):
                column = views[i][plan.on[k][i]]
                keys[k, values] = address(column.values)
                keys[k, offsets] = 0 if column.offsets is None else address(column.offsets)
        return keys

    def _output(self, pairs: Sequence[Int64s], workers: Workers | None) -> Flow:
        """The output rows of the pairs (left rows, right rows)."""
        plan, watermark_us = self._plan, self._watermark(*self._watermarks)
        columns = [self._sides[i].store.columns(self._places[i]) for i in (0, 1)]
        found = tuple([columns[side][i] for side, i in self._wanted])
        picks = tuple([pairs[side] for side, _ in self._wanted])
        picked = Picked(plan.output.schema, pairs[0].size, found, picks)
        if not plan.multiplies:
            self._matches += picked.rows
            return PickedFlow(picked, watermark_us, self._scratch, workers)
        right = columns[1][self._sources[1].index(plan.inputs[1].weight)], pairs[1]
        weighed = multiply(picked, plan.output.weight, right, self._scratch, workers)
        self._overflowed += picked.rows - weighed.rows
        self._matches += weighed.rows
        return Flow(weighed, watermark_us)

    def save(self, scratch: Scratch) -> State:
        """Per side its live rows in arrival order: `<side>.hash` (uint64: partition on top, tag
        below) and, for column i of `kept`, `<side>.<i>.values`, `.valid`, `.offsets`.

        Where rows wait, `waiting` is their numbers and the watermarks that stand still, and
        `<side>.waiting.<i>.…` has column i of the input.
        """
        counts = [self._matches] + [self._overflowed] * self._plan.multiplies
        state: State = {"matches": np.array(counts, np.int64)}
        if self.waiting():
            counts = [w.rows for w in self._waiting]
            state["waiting"] = np.array([*counts, *self._watermarks], np.int64)
            for name, waiting in zip(SIDES, self._waiting, strict=True):
                state |= {f"{name}.waiting.{key}": a for key, a in waiting.save().items()}
        for k, (name, side) in enumerate(zip(SIDES, self._sides, strict=True)):
            rows, hashes = self._live(k, scratch)
            state[f"{name}.hash"] = hashes
            batch = take(side.store.view(), rows, scratch, name)
            for i, column in enumerate(batch.columns):
                state[f"{name}.{i}.values"] = column.values
                if column.valid is not None:
                    state[f"{name}.{i}.valid"] = column.valid
                if column.offsets is not None:
                    state[f"{name}.{i}.offsets"] = column.offsets
        return state

    def _live(self, side: int, scratch: Scratch) -> tuple[npt.NDArray[np.int64], Hashes]:
        """Rows of a side's store that its window holds, ascending, and their hashes."""
        at = self._sides[side]
        base, rows = at.base + at.store.start, at.store.stop - at.store.start
        found, hashes = self._join.live(side, base % 2**32, rows, scratch)
        found += at.store.start
        return found, hashes

    def load(self, state: State) -> None:
        """Load a saved window; this join must be new."""
        self._matches, self._overflowed = int(state["matches"][0]), int(state["matches"][1:].sum())
        for k, (name, side) in enumerate(zip(SIDES, self._sides, strict=True)):
            schema, hashes = self._plan.kept(k), state[f"{name}.hash"]
            columns = tuple(
                Column(
                    state[f"{name}.{i}.values"],
                    state.get(f"{name}.{i}.valid"),
                    state.get(f"{name}.{i}.offsets"),
                )
                for i in range(len(schema))
            )
            side.load(Batch(schema, hashes.size, columns))
            rows = np.arange(hashes.size)
            self._join.restore(k, side.records(rows, hashes, partial(self._join.buffer, k)))
        if (waiting := state.get("waiting")) is not None:
            counts, marks = waiting[:2].tolist(), waiting[2:].tolist()
            self._watermarks = marks[0], marks[1]
            for name, w, count in zip(SIDES, self._waiting, counts, strict=True):
                prefix = f"{name}.waiting."
                w.load(
                    count, {k[len(prefix) :]: a for k, a in state.items() if k.startswith(prefix)}
                )

    def state_bytes(self) -> int:
        """Bytes of both windows, of the rows that wait, and of the counts of keys."""
        windows = self._join.nbytes() + sum(side.store.nbytes() for side in self._sides)
        counts = 0 if self._size is None else self._size.nbytes()
        return windows + sum(w.nbytes() for w in self._waiting if w.rows) + counts

    def counters(self) -> Mapping[str, int | float | str]:
        """Rows that arrived on each side, rows held, pairs found, rows that wait, beats that left
        rows waiting, the running member, and pairs left out because int32 cannot hold their weight.
        """
        weighed = {"weights_overflowed": self._overflowed} if self._plan.multiplies else {}
        return {
            "kernel": self.kernel,
            "left_rows": self._arrived[0],
            "right_rows": self._arrived[1],
            "left_live": self._join.held(0),
            "right_live": self._join.held(1),
            "matches": self._matches,
            "rows_waiting": self.waiting(),
            "beats_cut": self._deferred,
            **weighed,
        }


def _member(path: str, name: str) -> type[WindowJoin]:
    """The member `name` if the daemon may run it.  Raises JobError otherwise."""
    member = find_join(DEFAULT if name == AUTO else name)
    if member is None or not member.ordered:
        choices = ", ".join([AUTO, *(m.name for m in load_joins().values() if m.ordered)])
        raise JobError(path, f"{name!r} is not a kernel of a join", f"one of {choices}")
    return member


def _kernel(path: str, document: Mapping[str, Any]) -> str:
    """The kernel that a document names, or AUTO."""
    kernel = text(path, document, "kernel", AUTO)
    _member(f"{path}.kernel", kernel)
    return kernel


def _new_member(plan: IntervalJoinPlan, name: str, start: int = 0) -> WindowJoin:
    """A member with empty windows.  Raises JobError where it or its library is missing."""
    path = f"operators.{plan.id}.kernel"
    try:
        return _member(path, name)(plan.before_us, plan.after_us, start)
    except JobError as wrong:
        raise JobError(path, wrong.problem, wrong.advice) from wrong
