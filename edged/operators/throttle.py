"""`throttle`: at most so many rows of each key in a span of event time.

    [operators.fewer]
    type = "throttle"; input = "alarms"
    keys = ["device"]           # default: none, all rows are of one key
    rows = 1                    # default
    per = "1min"
    aligned = false             # default

A row passes if fewer than `rows` of its key have passed less than `per` before it, so that any span
of that length has `rows` at most.  With `aligned = true` spans begin at multiples of `per` from
1970-01-01 UTC, and the first `rows` of each pass.  The others are dropped and counted.  Rows are
taken in the order of event time, rows of one time in the order of their arrival
(`edged.operators._time_order`).  Null keys are one key, NaN keys one.

State: for `per` behind the watermark the times of the last `rows` of each key that passed; aligned,
two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.data.flow import Link
from edged.data.hashing import Hashes
from edged.documents.faults import FaultCollector
from edged.documents.reader import boolean, duration, integer
from edged.documents.units import show_duration
from edged.operators._key_slots import SlotLane, Slots
from edged.operators._keyed import BY_TIME, column_names, refuse_weight
from edged.operators._row_filter import Flags, Ints, RowFilterPlan
from edged.operators.base import operator
from kernels.cpu import keyed_rows as kernels

ROWS_OF_SPAN_MAX = 1000
"""Most rows of a span."""


@operator("throttle")
@dataclass(frozen=True)
class ThrottlePlan(RowFilterPlan):
    """A checked `throttle`."""

    rows: int = 1
    aligned: bool = False

    keys: ClassVar[frozenset[str]] = frozenset({"keys", "rows", "per", "aligned"})

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> ThrottlePlan:
        """Check `document`; raises JobError."""
        (link,) = inputs
        wrong = FaultCollector()
        wrong.attempt(lambda: refuse_weight(path, "input", link, "throttle"), None)
        by = wrong.attempt(lambda: column_names(path, document, "keys", link), ())
        rows = wrong.attempt(
            lambda: integer(path, document, "rows", 1, least=1, most=ROWS_OF_SPAN_MAX), 1
        )
        per_us = wrong.attempt(lambda: duration(path, document, "per", least=1), 1)
        aligned = wrong.attempt(lambda: boolean(path, document, "aligned", False), False)
        wrong.settle()
        return cls(id, link, by, BY_TIME, per_us, rows, aligned)

    @property
    def words(self) -> int:
        """A ring of times, or the number of a span and of its rows."""
        return kernels.SPAN_WORDS if self.aligned else kernels.RING_WORDS + self.rows

    def flag(
        self, lane: SlotLane, hashes: Hashes, number: int, lanes: int, slots: Slots, times: Ints,
        word: int, flags: Flags,
    ) -> None:  # fmt: skip
        """Flag the rows that pass."""
        step = kernels.first_of_spans if self.aligned else kernels.at_most
        step(hashes, number, lanes, slots, times, lane.groups, word, self.rows, self.keep_us, flags)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        each = f" of each {', '.join(self.by)}" if self.by else ""
        span, kind = show_duration(self.keep_us), "aligned" if self.aligned else "any"
        return [
            f"at most {self.rows} rows{each} in {kind} {span}, by time",
            f"state: {8 * self.words} bytes a key, for {span}",
        ]

    def signature_facts(self) -> list[Any]:
        """The kind of state as well."""
        return [*super().signature_facts(), self.rows, self.aligned]
