"""`filter`: the rows where a SQL condition is TRUE (not FALSE, not NULL).

    [operators.producing]
    type = "filter"
    input = "joined"
    where = "power_kw > 0"

Stateless.  Weights pass with their rows.  A batch of which every row passes is passed on without a
copy.  A row whose evaluation is an error is dropped and counted as `rows_in_error`; the first
error's event time and message are shown beside the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.data.flow import BeatContext, Flow, Link
from edged.data.gather import take
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.expressions.program import FirstError, Predicate, Selector
from edged.operators.base import Operator, OperatorPlan, operator


class Filter(Operator):
    """A running filter."""

    gauges = frozenset({"first_error_time_us"})

    def __init__(self, selector: Selector, time: str) -> None:
        self._selector = selector
        self._first_error = FirstError(time)
        self._scratch = Scratch()

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The rows that pass, under the same watermark."""
        (flow,) = inputs
        if flow.batch.rows == 0:
            return flow
        rows = self._selector.select(flow.batch, beat.workers)
        self._first_error.look(self._selector, flow.batch)
        if rows.size == flow.batch.rows:
            return flow
        kept = take(flow.batch, rows, self._scratch, "kept", beat.workers)
        origins = None if flow.origins is None else flow.origins.kept(rows)
        return Flow(kept, flow.watermark_us, origins=origins)

    def counters(self) -> Mapping[str, Any]:
        """Rows dropped because their evaluation was an error, and the first such error."""
        return self._first_error.counters(self._selector)


@operator("filter")
@dataclass(frozen=True)
class FilterPlan(OperatorPlan):
    """A checked filter."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset({"where"})
    cycles: ClassVar[tuple[float, float] | None] = (97e3, 4.0)

    id: str
    output: Link
    where: str
    predicate: Predicate

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> FilterPlan:
        """Check `where`; raises ExpressionError at `path.where`."""
        (link,) = inputs
        where = document.get("where", "")
        predicate = Predicate.of(f"{path}.where", where, link.schema)
        return cls(id, link, " ".join(where.split()), predicate)

    def generated(self) -> tuple[str, ...]:
        """The condition's kernels."""
        return self.predicate.generated()

    def build(self, workers: Workers) -> Filter:
        """The running filter, its kernel compiled."""
        return Filter(self.predicate.build(), self.output.time)

    def through_problem(self) -> str:
        """None."""
        return ""

    def describe(self) -> list[str]:
        """The condition, and whether a row can be in error."""
        lines = [f"keeps rows where {self.where}", "one generated kernel; no state"]
        if self.predicate.source.fallible:
            lines.append("rows that cannot be evaluated are dropped and counted")
        return lines

    def signature_facts(self) -> list[Any]:
        """None: nothing is saved, so any filter may replace another."""
        return []
