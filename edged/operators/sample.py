"""`sample`: every n-th row, or a fraction by hash.

    [operators.some]
    type = "sample"; input = "readings"
    every = 100                 # the first row of each key and every 100th after it
    keys = ["device"]           # default: none, all rows are of one key
    order = "time"              # or "arrival"
    keep = "1d"                 # how long a key's count is kept

    [operators.tenth]
    type = "sample"; input = "readings"
    fraction = 0.1
    keys = ["device"]           # default: all columns

With `every`, rows are counted for each key in the order of event time, or of arrival; the count of
a key without rows for `keep` behind the watermark begins again.  Null keys are one key.

With `fraction` a row passes if the hash of its keys lies in that fraction of all hashes: equal keys
pass or do not pass together, on every device and in every run.  There is no state and no waiting,
and weighted rows pass with their weights: an update takes back what its insert has added, because
the weight is not hashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edged.data.flow import BeatContext, Flow, Link
from edged.data.gather import take
from edged.data.hashing import Hashes, hash_columns
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.documents.reader import choice, duration, integer, number
from edged.errors import JobError
from edged.operators._key_slots import SlotLane, Slots
from edged.operators._keyed import BY_TIME, DAY, ORDERS, column_names, refuse_weight
from edged.operators._row_filter import Flags, Ints, RowFilterPlan
from edged.operators.base import Operator, operator
from kernels.cpu import keyed_rows as kernels
from kernels.cpu.hash import K

EVERY_MAX = 1_000_000_000
HASH_BITS = 53
"""Bits of a hash that are compared with a fraction: what a float64 holds."""
WITH_EVERY = ("order", "keep")
"""Keys that have no meaning without `every`."""


@operator("sample")
@dataclass(frozen=True)
class SamplePlan(RowFilterPlan):
    """A checked `sample`."""

    every: int = 0
    """0: a fraction."""
    fraction: float = 0.0

    keys: ClassVar[frozenset[str]] = frozenset({"keys", "every", "fraction", *WITH_EVERY})

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> SamplePlan:
        """Check `document`; raises JobError."""
        (link,) = inputs
        wrong, every, fraction = FaultCollector(), 0, 0.0
        by = wrong.attempt(lambda: column_names(path, document, "keys", link), ())
        if ("every" in document) == ("fraction" in document):
            wrong.note(path, "has neither or both of every and fraction", "name one of them")
        elif "every" in document:
            every = wrong.attempt(
                lambda: integer(path, document, "every", least=1, most=EVERY_MAX), 1
            )
            wrong.attempt(lambda: refuse_weight(path, "input", link, "counting"), None)
        else:
            fraction = wrong.attempt(lambda: _fraction(path, document), 1.0)
            for key in WITH_EVERY:
                if key in document:
                    wrong.note(f"{path}.{key}", "a fraction has no state", "leave it out")
        order = wrong.attempt(lambda: choice(path, document, "order", ORDERS, BY_TIME), BY_TIME)
        keep_us = wrong.attempt(lambda: duration(path, document, "keep", DAY, least=1), 1)
        wrong.settle()
        if not every and not by:
            by = tuple(name for name in link.schema.names if name != link.weight)
        return cls(id, link, by, order, keep_us, every, fraction)

    @property
    def output(self) -> Link:  # type: ignore[override]
        """The input's rows."""
        return super().output if self.every else self.input

    @property
    def words(self) -> int:
        """One number."""
        return kernels.COUNT_WORDS

    def flag(
        self, lane: SlotLane, hashes: Hashes, number: int, lanes: int, slots: Slots, times: Ints,
        word: int, flags: Flags,
    ) -> None:  # fmt: skip
        """Flag each n-th row."""
        kernels.every_nth(hashes, number, lanes, slots, times, lane.groups, word, self.every, flags)

    def build(self, workers: Workers) -> Operator:
        """The running operator."""
        return super().build(workers) if self.every else FractionSample(self)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        of = f" of each {', '.join(self.by)}" if self.by else ""
        if not self.every:
            return [f"{self.fraction:g} of all {', '.join(self.by)}, by hash; no state"]
        return [f"every {self.every}th row{of}, by {self.order}", "state: a number for each key"]

    def signature_facts(self) -> list[Any]:
        """The counts' facts; a fraction has no state."""
        return [*super().signature_facts(), self.every] if self.every else []


class FractionSample(Operator):
    """A running sample of a fraction."""

    def __init__(self, plan: SamplePlan) -> None:
        self._plan, self._scratch = plan, Scratch()
        self._bound = np.uint64(round(plan.fraction * 2**HASH_BITS))
        self._dropped = 0

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The beat's rows whose hash is in the fraction."""
        (flow,) = inputs
        batch = flow.batch
        hashes = hash_columns(batch, self._plan.by, self._scratch, workers=beat.workers)
        # spread, because a sample must not prefer partitions, which the top bits choose
        rows = np.flatnonzero(hashes * K >> np.uint64(64 - HASH_BITS) < self._bound)
        self._dropped += batch.rows - rows.size
        if rows.size < batch.rows:
            batch = take(batch, rows, self._scratch, "kept", beat.workers)
        return Flow(batch, flow.watermark_us)

    def counters(self) -> Mapping[str, int | float]:
        """Rows dropped."""
        return {"rows_dropped": self._dropped}


def _fraction(path: str, document: Mapping[str, Any]) -> float:
    found = number(path, document, "fraction")
    if not 0 < found <= 1:
        raise JobError(f"{path}.fraction", f"{found:g} is no fraction", "above 0, at most 1")
    return found
