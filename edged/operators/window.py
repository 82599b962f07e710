"""The `window` operator: windows that emit mergeable partial aggregates.

    [operators.daily]
    type = "window"
    input = "power"
    keys = ["turbine"]          # default: none, one group per window
    size = "1d"
    every = "1d"                # default: size (tumbling); any every <= size
    aggregates = { n = "count(*)", power = "sum(power_kw)", spread = "variance(power_kw)" }

In place of `size`, `gap = "5min"` gives sessions, which end with a pause of that length in the rows
of a key, and `rows = 100` windows of so many rows of a key (`kernels.cpu.open_windows`).

With a size, windows are [start, start + size) with start a multiple of `every` from 1970-01-01 UTC
(floored for times before it).  A row belongs to every window that holds its time.  A window is
emitted once the watermark reaches its end; empty windows are not.  Null keys form a group of their
own, all NaN keys one group, and so do 0.0 and -0.0 (which come out as 0.0).

Output: the keys, `window_start` (its event time), `window_end`, then for each aggregate `a`

    count(*)     a: int64                       rows
    count(c)     a: int64                       values that are not null
    sum(c)       a: int64 or float64            null where all values are; int64 also where the sum
                                                does not fit: counted as `sums_overflowed`
    min(c)       a: the column's type           NaN is greater than every number; null where all
    max(c)       a: the column's type           values are
    mean(c)      a_count: int64, a_sum: float64
    variance(c)  a_count: int64, a_mean: float64, a_m2: float64
    first(c)     a: the column's type, a_time; null where all values are.  By event time; of values
    last(c)      at one time the least is the first, the greatest the last

and those of `edged.operators._window_functions`: spreads, pairs, quantiles, different values.

Partials of one window and key merge: counts and sums add, minima and maxima compare, means are
sum(a_sum) / sum(a_count), and variances merge with Chan's formula: for two parts with n, mean, m2
and d = mean2 - mean1: n = n1 + n2, mean = mean1 + d * n2 / n and
m2 = m2_1 + m2_2 + d * d * n1 * n2 / n; the sample variance is m2 / (n - 1).  A window has
several partials where rows arrive after it was emitted (a stream with `late = "process"`): each
such beat emits one.

A row of weight n counts n times, so one of weight -n takes n rows back; aggregates that cannot take
a row back are refused on a weighted input.  Counts are weights then, and all sums are exact, of
floats too (`kernels.cpu.exact_sums`), so that they do not depend on the order.  A group in which
nothing is left is not emitted.  Where a later partial takes back what an earlier one has counted,
its counts are negative, or 0 with sums that are not; a variance with a_count 0 has Σwx as a_mean
and Σwx² as a_m2.

Invariants
1. Output depends on the rows, their order and the watermarks, not on batches or workers.  Float
   sums and moments are taken in arrival order.
2. Rows come out by (window start, first arrival).  The output's watermark is the smallest start of
   any window still to come, so its event time never runs backwards: disorder 0.  Sessions and
   windows of a number of rows come out by their end, which is their event time.
3. Integer sums are exact (128 bits inside).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.hashing import hash_columns
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.documents.units import show_duration
from edged.errors import JobError
from edged.operators import _redistribution
from edged.operators import _window_functions as functions
from edged.operators._keyed import refuse_weight
from edged.operators._time_order import TimeOrder
from edged.operators._window_functions import Measure
from edged.operators._window_groups import (
    GroupLane,
    Shape,
    from_state,
    merged,
    shape_of,
    split,
    to_state,
)
from edged.operators._window_output import OutputBuilder
from edged.operators.base import Operator, OperatorPlan, operator
from kernels.cpu.window import SETTINGS, STATE

HOPS_MAX = 10_000
"""Windows that a row may belong to."""
KEYS_MAX = 32


class WindowOperator(Operator):
    """A running window operator."""

    gauges = frozenset({"groups"})

    def __init__(self, plan: WindowPlan, workers: Workers) -> None:
        self._plan = plan
        schema = plan.input.schema
        self._shape = plan.shape()
        self._order = TimeOrder(schema, plan.input.time) if plan.opens else None
        self._lanes = [GroupLane(self._shape) for _ in range(workers.count if plan.by else 1)]
        self._emitter = plan.builder()
        self._settings = _settings(plan, self._shape)
        self._scratch = Scratch()
        self._rows = self._emitted = 0

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """Add the rows to their groups; emit the windows that the watermark has reached."""
        flow = inputs[0]
        batch = flow.batch
        if self._order is not None:
            batch = self._order.pass_on(batch, flow.watermark_us)
        if batch.rows:
            self._absorb(beat, batch)
        before = self._bound(flow.watermark_us)
        gone = merged(self._shape, [lane.expire(before) for lane in self._lanes])
        gone = gone.left(self._shape)
        self._emitted += len(gone.rows)
        return Flow(self._emitter.batch(gone), self._watermark(flow.watermark_us))

    def save(self, scratch: Scratch) -> State:
        """Open groups and counters."""
        numbers = [self._rows, self._emitted, self._errors(), self._emitter.sums_overflowed]
        groups = merged(self._shape, [lane.copy() for lane in self._lanes])
        waiting = self._order.save("input") if self._order is not None else State()
        return {"numbers": np.array(numbers, np.int64), **to_state(groups), **waiting}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        parts = split(self._shape, from_state(self._shape, state), len(self._lanes))
        for lane, part in zip(self._lanes, parts, strict=True):
            lane.adopt(part)
        self._rows, self._emitted, errors, self._emitter.sums_overflowed = map(
            int, state["numbers"]
        )
        self._lanes[0].state[STATE.errors] = errors
        if self._order is not None:
            self._order.load(state, "input")

    def state_bytes(self) -> int:
        """Memory of the groups, and of rows that wait for their order."""
        waiting = self._order.nbytes() if self._order is not None else 0
        return waiting + sum(lane.nbytes() for lane in self._lanes)

    def counters(self) -> Mapping[str, int | float]:
        """Groups open and emitted; sums that overflowed and rows out of range; rows that wait for
        their order, and those that came late."""
        ordered = self._order.counters() if self._order is not None else {}
        return {
            "rows": self._rows,
            "groups": sum(int(lane.state[STATE.groups]) for lane in self._lanes),
            "groups_emitted": self._emitted,
            "rows_in_error": self._errors(),
            "sums_overflowed": self._emitter.sums_overflowed,
            **ordered,
        }

    def _absorb(self, beat: BeatContext, batch: Batch) -> None:
        count = len(self._lanes)
        columns = batch.addresses()
        hashes = hash_columns(batch, self._plan.by, self._scratch, workers=beat.workers)
        calls = []
        for number, lane in enumerate(self._lanes):
            settings = self._settings.copy()
            settings[SETTINGS.lane], settings[SETTINGS.lanes] = number, count
            settings[SETTINGS.base] = self._rows
            calls.append(partial(lane.absorb, columns, settings, hashes, batch.rows))
        if count > 1 and batch.rows >= PARALLEL_ROWS:
            beat.workers.run(calls)
        else:
            for call in calls:
                call()
        self._rows += batch.rows

    def _watermark(self, watermark_us: int) -> int:
        if watermark_us == WATERMARK_MAX_US or self._plan.opens:
            return watermark_us
        every = self._plan.every_us
        following = ((watermark_us - self._plan.size_us) // every + 1) * every
        return max(WATERMARK_MIN_US, following)

    def _bound(self, watermark_us: int) -> int:
        """Start, or end of windows that rows open, before which they come out."""
        if watermark_us == WATERMARK_MAX_US:
            return WATERMARK_MAX_US
        if self._plan.opens:
            return watermark_us + 1
        return max(WATERMARK_MIN_US, watermark_us - self._plan.size_us + 1)

    def _errors(self) -> int:
        return sum(int(lane.state[STATE.errors]) for lane in self._lanes)


def _settings(plan: WindowPlan, shape: Shape) -> npt.NDArray[np.int64]:
    settings: npt.NDArray[np.int64] = np.zeros(len(SETTINGS), np.int64)
    settings[SETTINGS.time] = plan.input.schema.index(plan.input.time)
    settings[SETTINGS.size], settings[SETTINGS.every] = plan.size_us, plan.every_us
    settings[SETTINGS.hops] = -(-plan.size_us // plan.every_us)
    reach = max(plan.size_us + plan.every_us, plan.gap_us)
    if plan.opens:
        settings[SETTINGS.gap], settings[SETTINGS.rows] = plan.gap_us, plan.rows
        settings[SETTINGS.opened] = shape.opened
    settings[SETTINGS.time_low] = -(2**63) + 2 * reach
    settings[SETTINGS.time_high] = 2**63 - 1 - 2 * reach
    return settings


@operator("window")
@dataclass(frozen=True)
class WindowPlan(OperatorPlan):
    """A checked `window` operator."""

    links = ("input",)
    keys = frozenset({"keys", "size", "every", "gap", "rows", "aggregates"})
    waits_for_time = True
    cycles = (85e3, 122.0)
    rows_out = 0.01

    id: str
    input: Link
    by: tuple[str, ...]
    """Key columns."""
    size_us: int
    every_us: int
    gap_us: int
    """Pause that ends a session; 0: no sessions."""
    rows: int
    """Rows of a window; 0: windows end otherwise."""
    measures: tuple[Measure, ...]
    output: Link

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> WindowPlan:
        """Check `document`; raises JobError."""
        schema = inputs[0].schema
        wrong, none = FaultCollector(), tuple[Measure, ...]()
        by = wrong.attempt(lambda: doc.names(path, document, "keys", ()), ())
        for i, name in enumerate(by):
            if name not in schema:
                advice = doc.did_you_mean(name, schema.names)
                wrong.note(f"{path}.keys[{i}]", f"no column {name!r} in the input", advice)
        if len(by) > KEYS_MAX:
            wrong.note(f"{path}.keys", f"{len(by)} keys", f"at most {KEYS_MAX}")
        size, every, gap, rows = wrong.attempt(lambda: _extent(path, document), (1, 1, 0, 0))
        if gap or rows:
            kind = "sessions" if gap else "windows of rows"
            wrong.attempt(lambda: refuse_weight(path, "input", inputs[0], kind), None)
        measures = wrong.attempt(
            lambda: functions.measures(
                f"{path}.aggregates", doc.table(path, document, "aggregates"), inputs[0]
            ),
            none,
        )
        wrong.settle()
        time = "window_end" if gap or rows else "window_start"
        output = Link(functions.output(path, schema, by, measures), time, 0)
        return cls(id, inputs[0], by, size, every, gap, rows, measures, output)

    @property
    def opens(self) -> bool:
        """Whether rows open and close the windows."""
        return bool(self.gap_us or self.rows)

    def shape(self) -> Shape:
        """The layout of its groups."""
        return shape_of(
            self.input.schema, self.by, self.measures, self.input.weight, opens=self.opens
        )

    def builder(self) -> OutputBuilder:
        """What makes its output."""
        size = self.gap_us if self.opens else self.size_us
        output = self.output.schema
        return OutputBuilder(self.shape(), self.measures, size, output, empty_batch(output))

    def build(self, workers: Workers) -> WindowOperator:
        """The running operator."""
        return WindowOperator(self, workers)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        by = f" by {', '.join(self.by)}" if self.by else ""
        calls = ", ".join(m.call() for m in self.measures)
        exact = [f"rows count by {self.input.weight}; sums are exact"] if self.input.weight else []
        size = 8 * self.shape().words + 8
        rows = "rows in the order of time" if self.opens else f"a row is in {self._hops()} windows"
        return [
            f"{self._kind()}{by}: {calls}", *exact, f"hash table, {size} bytes a group; {rows}",
        ]  # fmt: skip

    def _kind(self) -> str:
        """What the windows are, for `describe`."""
        if self.gap_us:
            return f"sessions that end after {show_duration(self.gap_us)} without rows"
        if self.rows:
            return f"windows of {self.rows} rows"
        size, every = show_duration(self.size_us), show_duration(self.every_us)
        tumbling = self.size_us == self.every_us
        return f"windows of {size}, {'tumbling' if tumbling else f'hopping, every {every}'}"

    redistribute = _redistribution.window

    def signature_facts(self) -> list[Any]:
        """The facts that open groups depend on."""
        return [
            self.input.schema.to_json(), self.input.time, list(self.by), self.size_us,
            self.every_us, [m.facts() for m in self.measures],
            *([self.input.weight] if self.input.weight else []),
            *([["gap", self.gap_us, "rows", self.rows]] if self.opens else []),
        ]  # fmt: skip

    def _hops(self) -> int:
        return -(-self.size_us // self.every_us)


def _extent(path: str, document: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Size, distance and gap of the windows, in µs, and their number of rows."""
    given = [key for key in ("size", "gap", "rows") if key in document]
    advice = "name one of size, gap and rows"
    if not given:
        raise JobError(f"{path}.size", "is missing", advice)
    if len(given) > 1:
        raise JobError(f"{path}.{given[1]}", f"does not go with {given[0]}", advice)
    if given != ["size"] and "every" in document:
        raise JobError(f"{path}.every", f"does not go with {given[0]}", "every belongs to size")
    if given == ["gap"]:
        return 1, 1, doc.duration(path, document, "gap", least=1), 0
    if given == ["rows"]:
        return 1, 1, 0, doc.integer(path, document, "rows", least=1)
    return (*_lengths(path, document), 0, 0)


def _lengths(path: str, document: Mapping[str, Any]) -> tuple[int, int]:
    """Size and distance of the windows, in µs."""
    wrong = FaultCollector()
    size = wrong.attempt(lambda: doc.duration(path, document, "size", least=1), 0)
    every = wrong.attempt(lambda: doc.duration(path, document, "every", size or 1, least=1), 1)
    if size and every > size:
        wrong.note(
            f"{path}.every", "is longer than size: rows between windows would be lost",
            f"at most {show_duration(size)}",
        )  # fmt: skip
    if -(-size // every) > HOPS_MAX:
        wrong.note(
            f"{path}.every", f"puts a row into {-(-size // every)} windows", f"at most {HOPS_MAX}"
        )
    wrong.settle()
    return size, every
