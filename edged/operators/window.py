"""The `window` operator: tumbling and hopping windows that emit mergeable partial aggregates.

    [operators.daily]
    type = "window"
    input = "power"
    keys = ["turbine"]          # default: none, one group per window
    size = "1d"
    every = "1d"                # default: size (tumbling); any every <= size
    aggregates = { n = "count(*)", power = "sum(power_kw)", spread = "variance(power_kw)" }

Windows are [start, start + size) with start a multiple of `every` from 1970-01-01 UTC (floored for
times before it).  A row belongs to every window that holds its time.  A window is emitted once the
watermark reaches its end; empty windows are not.  Null keys form a group of their own, all NaN keys
one group, and so do 0.0 and -0.0 (which come out as 0.0).

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
   any window still to come, so its event time never runs backwards: disorder 0.
3. Integer sums are exact (128 bits inside).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, Link, State
from edged.data.hashing import hash_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.documents.units import show_duration
from edged.operators import _redistribution
from edged.operators import _window_functions as functions
from edged.operators._window_functions import Measure
from edged.operators._window_groups import (
    GroupLane,
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
        self._shape = shape_of(schema, plan.by, plan.measures, plan.input.weight)
        self._lanes = [GroupLane(self._shape) for _ in range(workers.count if plan.by else 1)]
        output = plan.output.schema
        self._emitter = OutputBuilder(
            self._shape, plan.measures, plan.size_us, output, empty_batch(output)
        )
        self._settings = _settings(plan, schema)
        self._scratch = Scratch()
        self._rows = self._emitted = 0

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """Add the rows to their groups; emit the windows that the watermark has reached."""
        flow = inputs[0]
        if flow.batch.rows:
            self._absorb(beat, flow)
        before = _start_bound(flow.watermark_us, self._plan.size_us)
        gone = merged(self._shape, [lane.expire(before) for lane in self._lanes])
        gone = gone.left(self._shape)
        self._emitted += len(gone.rows)
        return Flow(self._emitter.batch(gone), self._watermark(flow.watermark_us))

    def save(self, scratch: Scratch) -> State:
        """Open groups and counters."""
        numbers = [self._rows, self._emitted, self._errors(), self._emitter.sums_overflowed]
        groups = merged(self._shape, [lane.copy() for lane in self._lanes])
        return {"numbers": np.array(numbers, np.int64), **to_state(groups)}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        parts = split(self._shape, from_state(self._shape, state), len(self._lanes))
        for lane, part in zip(self._lanes, parts, strict=True):
            lane.adopt(part)
        self._rows, self._emitted, errors, self._emitter.sums_overflowed = map(
            int, state["numbers"]
        )
        self._lanes[0].state[STATE.errors] = errors

    def state_bytes(self) -> int:
        """Memory of the groups."""
        return sum(lane.nbytes() for lane in self._lanes)

    def counters(self) -> Mapping[str, int | float]:
        """Groups open and emitted; sums that overflowed and rows out of range."""
        return {
            "rows": self._rows,
            "groups": sum(int(lane.state[STATE.groups]) for lane in self._lanes),
            "groups_emitted": self._emitted,
            "rows_in_error": self._errors(),
            "sums_overflowed": self._emitter.sums_overflowed,
        }

    def _absorb(self, beat: BeatContext, flow: Flow) -> None:
        batch, count = flow.batch, len(self._lanes)
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
        if watermark_us == WATERMARK_MAX_US:
            return watermark_us
        every = self._plan.every_us
        following = ((watermark_us - self._plan.size_us) // every + 1) * every
        return max(WATERMARK_MIN_US, following)

    def _errors(self) -> int:
        return sum(int(lane.state[STATE.errors]) for lane in self._lanes)


def _start_bound(watermark_us: int, size_us: int) -> int:
    """Start before which windows have ended at the watermark."""
    if watermark_us == WATERMARK_MAX_US:
        return WATERMARK_MAX_US
    return max(WATERMARK_MIN_US, watermark_us - size_us + 1)


def _settings(plan: WindowPlan, schema: Schema) -> npt.NDArray[np.int64]:
    settings: npt.NDArray[np.int64] = np.zeros(len(SETTINGS), np.int64)
    settings[SETTINGS.time] = schema.index(plan.input.time)
    settings[SETTINGS.size], settings[SETTINGS.every] = plan.size_us, plan.every_us
    settings[SETTINGS.hops] = -(-plan.size_us // plan.every_us)
    settings[SETTINGS.time_low] = -(2**63) + 2 * (plan.size_us + plan.every_us)
    settings[SETTINGS.time_high] = 2**63 - 1 - 2 * (plan.size_us + plan.every_us)
    return settings


@operator("window")
@dataclass(frozen=True)
class WindowPlan(OperatorPlan):
    """A checked `window` operator."""

    links = ("input",)
    keys = frozenset({"keys", "size", "every", "aggregates"})
    waits_for_time = True
    cycles = (85e3, 122.0)
    rows_out = 0.01

    id: str
    input: Link
    by: tuple[str, ...]
    """Key columns."""
    size_us: int
    every_us: int
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
        size, every = wrong.attempt(lambda: _lengths(path, document), (1, 1))
        measures = wrong.attempt(
            lambda: functions.measures(
                f"{path}.aggregates", doc.table(path, document, "aggregates"), inputs[0]
            ),
            none,
        )
        wrong.settle()
        output = Link(functions.output(path, schema, by, measures), "window_start", 0)
        return cls(id, inputs[0], by, size, every, measures, output)

    def build(self, workers: Workers) -> WindowOperator:
        """The running operator."""
        return WindowOperator(self, workers)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        size, every = show_duration(self.size_us), show_duration(self.every_us)
        kind = "tumbling" if self.size_us == self.every_us else f"hopping, every {every}"
        by = f" by {', '.join(self.by)}" if self.by else ""
        shape = shape_of(self.input.schema, self.by, self.measures, self.input.weight)
        calls = ", ".join(m.call() for m in self.measures)
        exact = [f"rows count by {self.input.weight}; sums are exact"] if self.input.weight else []
        return [
            f"windows of {size}, {kind}{by}: {calls}",
            *exact,
            f"hash table, {8 * shape.words + 8} bytes a group; a row is in {self._hops()} windows",
        ]

    redistribute = _redistribution.window

    def signature_facts(self) -> list[Any]:
        """The facts that open groups depend on."""
        return [
            self.input.schema.to_json(), self.input.time, list(self.by), self.size_us,
            self.every_us, [m.facts() for m in self.measures],
            *([self.input.weight] if self.input.weight else []),
        ]  # fmt: skip

    def _hops(self) -> int:
        return -(-self.size_us // self.every_us)


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
