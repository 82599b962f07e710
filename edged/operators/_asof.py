"""The running as-of joins: `AsofBefore` (backward) and `AsofAfter` (forward, nearest).

Both take the rows of either side in the order of time, each up to a bound that no row of the other
can undercut (`edged.operators._time_order`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, empty_batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow, State
from edged.data.gather import take, take_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.operators._deal_rows import KEPT
from edged.operators._join_columns import SIDES, Output
from edged.operators._kept_rows import KeptRows
from edged.operators._key_slots import KeySlots
from edged.operators._last_rows import LastRows, nullable_columns
from edged.operators._time_order import TimeOrder, rows_from_state, rows_to_state
from edged.operators.base import Operator
from kernels.cpu import asof as kernels

Ints = npt.NDArray[np.int64]
UNDECIDED = "undecided"
"""Name of left rows that wait in a saved state."""
ROWS_LEAST = 1024
FLAGS_PER_NUMBER = 16
"""Flags that cost less than to sort a number."""
WAITING = 2
"""The third input of the slots: left rows that wait."""


@dataclass(frozen=True)
class AsofColumns:
    """The output of an as-of join."""

    columns: Sequence[Output]
    schema: Schema
    inner: bool

    def rows(
        self, left: Batch, right: Batch, base: int, match: Ints, scratch: Scratch, beat: BeatContext
    ) -> tuple[Batch, int]:
        """The output of left rows with the numbers of their matches, -1: none, and the number of
        left rows with a match.  `right` begins with the number `base`."""
        found = np.flatnonzero(match >= 0)
        matched = found.size
        if self.inner and matched < match.size:
            left = take(left, found, scratch, "left", beat.workers)
            match = match[found]
        names = [c.source for c in self.columns if c.side == 1]
        columns: dict[str, Column] = {}
        if self.inner and matched:
            at = match - base
            got = take_columns([right[n] for n in names], at, scratch, "right", beat.workers)
            columns = dict(zip(names, got, strict=True))
        elif matched or not self.inner:
            some = [right[n] for n in names]
            columns = dict(
                zip(names, nullable_columns(some, match, base, scratch, beat.workers), strict=True)
            )
        else:
            return empty_batch(self.schema), 0
        given = tuple(columns[c.source] if c.side else left[c.source] for c in self.columns)
        return Batch(self.schema, left.rows, given), matched


class AsofOperator(Operator):
    """What both have in common: bounds, the order of either side, slots and counters."""

    gauges = frozenset({"keys", "left_waiting", "right_waiting"})

    def __init__(self, plan: Any, columns: AsofColumns, workers: Workers) -> None:
        self._plan, self._columns = plan, columns
        self._tolerance: int = plan.tolerance_us
        self._times = [link.time for link in plan.inputs]
        self._slots = KeySlots(plan.key_columns(), len(kernels.KEY), workers, null_keys=False)
        self._orders = [TimeOrder(link.schema, link.time) for link in plan.inputs]
        self._scratch = Scratch()
        self._matched = self._unmatched = 0

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The left rows that are decided."""
        marks = [flow.watermark_us for flow in inputs]
        left, right = (
            order.pass_on(flow.batch, bound)
            for order, flow, bound in zip(self._orders, inputs, self._bounds(*marks), strict=True)
        )
        if left.rows or right.rows:
            self._slots.sweep()
        batch, matched, rows = self._join(beat, left, right, marks)
        self._matched += matched
        self._unmatched += rows - matched
        return Flow(batch, self._watermark(*marks))

    @abstractmethod
    def _bounds(self, left_us: int, right_us: int) -> tuple[int, int]:
        """The times up to which the rows of either side are taken."""

    @abstractmethod
    def _watermark(self, left_us: int, right_us: int) -> int:
        """The output's watermark."""

    @abstractmethod
    def _join(
        self, beat: BeatContext, left: Batch, right: Batch, marks: Sequence[int]
    ) -> tuple[Batch, int, int]:
        """The output, its left rows with a match, and the left rows decided."""

    def _sides(self, left: Batch, right: Batch) -> tuple[Any, ...]:
        """The arguments of a kernel for both sides, from hashes to times."""
        found: list[Any] = []
        for i, batch in enumerate((left, right)):
            found += [*self._slots.found(i), batch[self._times[i]].values[: batch.rows]]
        return tuple(found)

    def _each(self, beat: BeatContext, rows: int, call: Any) -> None:
        """Call for each lane: its number, and its slots' words."""
        calls = [partial(call, i, lane.groups) for i, lane in enumerate(self._slots.lanes)]
        if len(calls) > 1 and rows >= PARALLEL_ROWS:
            beat.workers.run(calls)
        else:
            for one in calls:
                one()

    def save(self, scratch: Scratch) -> State:
        """What was counted, and the rows that wait for their watermark."""
        state: State = {"counted": np.array([self._matched, self._unmatched], np.int64)}
        for side, order in zip(SIDES, self._orders, strict=True):
            state |= order.save(side)
        return state

    def load(self, state: State) -> None:
        """Restore what `save` gave."""
        self._matched, self._unmatched = (int(n) for n in state["counted"])
        for side, order in zip(SIDES, self._orders, strict=True):
            order.load(state, side)

    def counters(self) -> Mapping[str, int | float]:
        """Left rows with and without a match, keys, rows that wait, rows that came late."""
        left, right = self._orders
        return {
            "matched": self._matched,
            "unmatched": self._unmatched,
            "keys": self._slots.count(),
            "left_waiting": left.rows,
            "right_waiting": right.rows,
            "rows_late": left.late + right.late,
        }


class AsofBefore(AsofOperator):
    """Backward: a left row meets its key's last right row."""

    def __init__(self, plan: Any, columns: AsofColumns, workers: Workers) -> None:
        super().__init__(plan, columns, workers)
        self._last = LastRows(self._slots, plan.kept(1))

    def _bounds(self, left_us: int, right_us: int) -> tuple[int, int]:
        return min(left_us, before(right_us)), min(left_us, right_us)

    def _watermark(self, left_us: int, right_us: int) -> int:
        return min(left_us, right_us)

    def _join(
        self, beat: BeatContext, left: Batch, right: Batch, marks: Sequence[int]
    ) -> tuple[Batch, int, int]:
        batch, matched = empty_batch(self._columns.schema), 0
        if left.rows or right.rows:
            number = self._last.append(right)
            self._slots.find(beat, right, 1)
            self._slots.find(beat, left, 0, makes=False)
            match: Ints = self._scratch.get("match", left.rows, np.int64)
            sides, word, count = self._sides(left, right), self._slots.word, len(self._slots.lanes)

            def call(lane: int, groups: Ints) -> None:
                kernels.match_before(
                    lane, count, *sides, groups, word, number, self._tolerance, match
                )

            self._each(beat, left.rows + right.rows, call)
            if left.rows:
                view, base = self._last.view()
                batch, matched = self._columns.rows(left, view, base, match, self._scratch, beat)
        self._slots.horizon_us = max(
            self._slots.horizon_us, less(self._watermark(*marks), self._tolerance)
        )
        return batch, matched, left.rows

    def save(self, scratch: Scratch) -> State:
        """Also the keys and their last right rows."""
        return {**super().save(scratch), **self._last.save()}

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        super().load(state)
        self._last.load(state)

    def state_bytes(self) -> int:
        """Memory of keys, right rows, and rows that wait."""
        return self._last.nbytes() + sum(order.nbytes() for order in self._orders)


class AsofAfter(AsofOperator):
    """Forward and nearest: left rows wait for a later right row, at most the tolerance."""

    gauges = AsofOperator.gauges | {"rows_undecided"}

    def __init__(self, plan: Any, columns: AsofColumns, workers: Workers, nearest: bool) -> None:
        super().__init__(plan, columns, workers)
        self._nearest = nearest
        self._left, self._right = KeptRows(plan.waiting()), KeptRows(plan.kept(1))
        self._rows: Ints = np.zeros((ROWS_LEAST, len(kernels.ROW)), np.int64)
        """An `AsofRow` for each row of the memory of `_left`."""
        self._over = 0
        """The number of the first left row that is not over its tolerance."""
        self._undecided = 0
        self._front_us = WATERMARK_MIN_US
        """The latest time of a left row that was taken."""

    def _bounds(self, left_us: int, right_us: int) -> tuple[int, int]:
        if self._nearest:
            return min(left_us, before(right_us)), min(left_us, before(right_us))
        return min(left_us, right_us), min(before(left_us), right_us)

    def _known(self, left_us: int, right_us: int) -> int:
        """The time up to which all right rows have been taken."""
        return min(before(right_us), self._bounds(left_us, right_us)[1])

    def _watermark(self, left_us: int, right_us: int) -> int:
        known = self._known(left_us, right_us)
        waiting = known if known == WATERMARK_MAX_US else less(known, self._tolerance - 1)
        return min(left_us, right_us, waiting)

    def _join(
        self, beat: BeatContext, left: Batch, right: Batch, marks: Sequence[int]
    ) -> tuple[Batch, int, int]:
        decided = self._walk(beat, left, right) if left.rows or right.rows else list[Ints]()
        found = ascending(np.concatenate([*decided, self._past(self._known(*marks))]))
        batch, matched = empty_batch(self._columns.schema), 0
        if found.size:
            rows, base = self._left.view()
            some = take(rows, found - base, self._scratch, "decided")
            match = self._rows[found - base, kernels.ROW.match] - 1
            view, base = self._right.view()
            batch, matched = self._columns.rows(some, view, base, match, self._scratch, beat)
        self._undecided += left.rows - found.size
        self._forget(marks)
        return batch, matched, found.size

    def _walk(self, beat: BeatContext, left: Batch, right: Batch) -> list[Ints]:
        """Take the rows of both sides; returns the numbers of left rows that are decided."""
        oldest = self._right.start
        number, left_number = self._right.append(right), self._append(left)
        self._slots.find(beat, left, 0)
        self._slots.find(beat, right, 1, makes=self._nearest)
        sides, word, count = self._sides(left, right), self._slots.word, len(self._slots.lanes)
        rows, base = self._left.view()
        times = rows[self._times[0]].values
        most = self._undecided + left.rows
        decided: list[Ints] = [np.empty(most + 1, np.int64) for _ in range(count)]

        def call(lane: int, groups: Ints) -> None:
            kernels.match_after(
                lane, count, *sides, groups, word, number, oldest, self._tolerance, self._nearest,
                left_number, times, self._rows, base, decided[lane],
            )  # fmt: skip

        self._each(beat, left.rows + right.rows, call)
        return [numbers[1 : 1 + numbers[0]] for numbers in decided]

    def _append(self, left: Batch) -> int:
        """Keep left rows, with an `AsofRow` each; returns the number of the first."""
        start, stop, old = self._left.start, self._left.stop, self._left.view()[1]
        number = self._left.append(left)
        base = self._left.view()[1]
        room = self._left.stop - base
        if base != old or room > len(self._rows):
            live = self._rows[start - old : stop - old].copy()
            if room > len(self._rows):
                self._rows = np.zeros((2 * room, len(kernels.ROW)), np.int64)
            self._rows[start - base : stop - base] = live
        rows = self._rows[number - base : number - base + left.rows]
        times = left[self._times[0]].values[: left.rows]
        np.maximum(times, self._front_us, out=rows[:, kernels.ROW.due])
        rows[:, kernels.ROW.born] = self._slots.rows_seen + np.arange(left.rows)
        self._front_us = self._orders[0].last_us
        return number

    def _past(self, known_us: int) -> Ints:
        """Decide the left rows that are over their tolerance; their numbers."""
        rows, base = self._left.view()
        over = max(self._over, self._left.start)
        self._over = rows.rows + base
        if known_us < WATERMARK_MAX_US:
            due = self._rows[over - base : rows.rows, kernels.ROW.due]
            bound_us = less(known_us, self._tolerance)
            self._over = over + int(np.searchsorted(due, bound_us, "right"))
        done = self._rows[over - base : self._over - base, kernels.ROW.done]
        found = np.flatnonzero(done == 0) + over
        done[:] = 1
        return found

    def _forget(self, marks: Sequence[int]) -> None:
        """Give up left rows that have come out, up to the first that has not, and right rows that
        none can meet."""
        base, at, stop = self._left.view()[1], self._left.start, self._left.stop
        while at < stop:
            done = self._rows[at - base : min(at + ROWS_LEAST, stop) - base, kernels.ROW.done]
            some = int(np.argmin(done))
            if done[some] == 0:
                at += some
                break
            at += done.size
        self._left.drop_before(at)
        horizon_us = less(self._watermark(*marks), self._tolerance)
        self._slots.horizon_us = max(self._slots.horizon_us, horizon_us)
        if self._nearest:
            self._right.drop_older(self._times[1], self._slots.horizon_us)
        else:
            self._right.drop_before(self._right.stop)

    def save(self, scratch: Scratch) -> State:
        """Also the keys, the left rows that wait with their matches so far, and the right rows."""
        first, base = self._right.start, self._right.view()[1]
        groups, word = self._slots.groups(), self._slots.word
        groups.rows[:, word + kernels.KEY.head] = groups.rows[:, word + kernels.KEY.ended] = 0
        _move(groups.rows, word + kernels.KEY.last, first)
        view, left_base = self._left.view()
        rows = self._rows[self._left.start - left_base : self._left.stop - left_base]
        waits = np.flatnonzero(rows[:, kernels.ROW.done] == 0)
        matches = rows[waits].copy()
        matches[:, kernels.ROW.next] = 0
        _move(matches, kernels.ROW.match, first)
        left = take(view, waits + (self._left.start - left_base), Scratch())
        right = self._right.view()[0].slice(first - base, self._right.stop - base)
        return {
            **super().save(scratch), **self._slots.save(groups), "matches": matches,
            "right_rows": np.array([right.rows], np.int64),
            **rows_to_state(left, UNDECIDED), **rows_to_state(right, KEPT),
        }  # fmt: skip

    def load(self, state: State) -> None:
        """Load a saved state, for any number of workers."""
        super().load(state)
        self._slots.load(state)
        matches = np.array(state["matches"], np.int64).reshape(-1, len(kernels.ROW))
        left = rows_from_state(state, UNDECIDED, self._left.schema, len(matches))
        rows = int(state["right_rows"][0])
        self._right.load(rows_from_state(state, KEPT, self._right.schema, rows))
        self._left.load(left.slice(0, 0))
        self._over, self._undecided, self._front_us = 0, left.rows, self._orders[0].last_us
        self._append(left)
        self._chain(left, matches[:, kernels.ROW.born])
        self._rows[: len(matches), kernels.ROW.match :] = matches[:, kernels.ROW.match :]

    def _chain(self, left: Batch, born: Ints) -> None:
        """Chain left rows that wait, by their numbers, to those of their keys that are still
        known."""
        beat = BeatContext(0, 0, Workers(1))
        self._slots.find(beat, left, WAITING, makes=False, counts=False)
        self._slots.forget_before(WAITING, born)
        hashes, slots = self._slots.found(WAITING)
        times = left[self._times[0]].values
        nothing = hashes[:0], slots[:0], times[:0]
        count = len(self._slots.lanes)

        def call(lane: int, groups: Ints) -> None:
            kernels.match_after(
                lane, count, hashes, slots, times, *nothing, groups, self._slots.word, 0, 0,
                self._tolerance, 0, 0, times, self._rows, 0, np.empty(1 + left.rows, np.int64),
            )  # fmt: skip

        self._each(beat, left.rows, call)

    def state_bytes(self) -> int:
        """Memory of keys and rows."""
        rows = self._left.nbytes() + self._right.nbytes() + self._rows.nbytes
        return rows + self._slots.nbytes() + sum(order.nbytes() for order in self._orders)

    def counters(self) -> Mapping[str, int | float]:
        """Also the left rows that wait for a later right row."""
        return {**super().counters(), "rows_undecided": self._undecided}


def ascending(numbers: Ints) -> Ints:
    """Distinct numbers, sorted; by flags where they lie close."""
    if not numbers.size:
        return numbers
    least = int(numbers.min())
    span = int(numbers.max()) - least + 1
    if span > FLAGS_PER_NUMBER * numbers.size:
        return np.sort(numbers)
    flags = np.zeros(span, np.bool_)
    flags[numbers - least] = True
    return np.flatnonzero(flags) + least


def _move(rows: Ints, column: int, first: int) -> None:
    """Count numbers plus one from `first` on; those before it become 0."""
    rows[:, column] = np.maximum(rows[:, column] - first, 0)


def before(time_us: int) -> int:
    """The time before one; that of an end or a beginning stays."""
    if time_us in (WATERMARK_MIN_US, WATERMARK_MAX_US):
        return time_us
    return time_us - 1


def less(time_us: int, span_us: int) -> int:
    """A time less a span; that of an end is no bound, as that of a beginning."""
    if time_us == WATERMARK_MAX_US:
        return WATERMARK_MIN_US
    return max(WATERMARK_MIN_US, time_us - span_us)
