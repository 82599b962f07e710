"""`deduplicate`: the first row of each key within a bound of event time.

    [operators.once]
    type = "deduplicate"; input = "readings"
    keys = ["device", "seq"]
    within = "1h"

A row passes if no row of its key has passed less than `within` before it; others are dropped and
counted as `duplicates`.  Rows are taken in the order of event time, rows of one time in the order
of their arrival (`edged.operators._time_order`), so that the first one is the earliest, whatever
order they come in.  Null keys are one key, NaN keys one.

State: the time of the last row of each key that passed, for `within` behind the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.data.flow import Link
from edged.data.hashing import Hashes
from edged.documents.faults import FaultCollector
from edged.documents.reader import REQUIRED, duration
from edged.documents.units import show_duration
from edged.operators._key_slots import SlotLane, Slots
from edged.operators._keyed import BY_TIME, column_names, refuse_weight
from edged.operators._row_filter import Flags, Ints, RowFilterPlan
from edged.operators.base import operator
from kernels.cpu import keyed_rows as kernels


@operator("deduplicate")
@dataclass(frozen=True)
class DeduplicatePlan(RowFilterPlan):
    """A checked `deduplicate`."""

    keys: ClassVar[frozenset[str]] = frozenset({"keys", "within"})
    dropped: ClassVar[str] = "duplicates"

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> DeduplicatePlan:
        """Check `document`; raises JobError."""
        (link,) = inputs
        wrong = FaultCollector()
        wrong.attempt(lambda: refuse_weight(path, "input", link, "deduplicate"), None)
        by = wrong.attempt(lambda: column_names(path, document, "keys", link, REQUIRED), ())
        within_us = wrong.attempt(lambda: duration(path, document, "within", least=1), 1)
        wrong.settle()
        return cls(id, link, by, BY_TIME, within_us)

    @property
    def words(self) -> int:
        """The time of one row."""
        return kernels.RING_WORDS + 1

    def flag(
        self, lane: SlotLane, hashes: Hashes, number: int, lanes: int, slots: Slots, times: Ints,
        word: int, flags: Flags,
    ) -> None:  # fmt: skip
        """Flag rows that are no duplicates."""
        kernels.at_most(
            hashes, number, lanes, slots, times, lane.groups, word, 1, self.keep_us, flags
        )

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        span = show_duration(self.keep_us)
        return [
            f"the first row of each {', '.join(self.by)} within {span}, by time",
            f"state: a time for each key, for {span}",
        ]
