"""`map`: new columns, each a SQL expression over the input's.

    [operators.m]
    type = "map"
    input = "power"
    columns = { mw = "power_kw / 1000", turbine = "turbine", time = "time" }

The event-time column must be among the outputs unchanged: a bare reference to the input's, under
any name.  The weight column of a weighted input passes unchanged, too: as a bare reference under
any name, or else as a last column of its own name.  Unchanged columns are not copied.  Stateless.
A row with an expression in error is dropped and counted as `rows_in_error`; the first error's event
time and message are shown beside the count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edged.data.columns import empty_batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.workers import Workers
from edged.errors import JobError
from edged.expressions.program import FirstError, Projection, Projector
from edged.operators.base import Operator, OperatorPlan, operator


class Map(Operator):
    """A running map."""

    gauges = frozenset({"first_error_time_us"})

    def __init__(self, projection: Projection, projector: Projector, time: str) -> None:
        self._projector = projector
        self._first_error = FirstError(time)
        self._empty = empty_batch(projection.output)

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """The computed rows, under the same watermark."""
        (flow,) = inputs
        if flow.batch.rows == 0:
            return Flow(self._empty, flow.watermark_us, origins=flow.origins)
        done = self._projector.project(flow.batch, beat.workers)
        self._first_error.look(self._projector, flow.batch)
        return Flow(done, flow.watermark_us, origins=flow.origins)

    def counters(self) -> Mapping[str, Any]:
        """Rows dropped because an expression was an error, and the first such error."""
        return self._first_error.counters(self._projector)


@operator("map")
@dataclass(frozen=True)
class MapPlan(OperatorPlan):
    """A checked map."""

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset({"columns"})
    cycles: ClassVar[tuple[float, float] | None] = (53e3, 0.5)

    id: str
    output: Link
    columns: tuple[tuple[str, str], ...]
    projection: Projection

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> MapPlan:
        """Check `columns`; raises JobError at `path.columns` or below."""
        (link,) = inputs
        columns = document.get("columns")
        if not isinstance(columns, Mapping) or not columns:
            raise JobError(
                f"{path}.columns", "a table of output names and expressions is expected",
                'columns = { time = "time", mw = "power_kw / 1000" }',
            )  # fmt: skip
        if not all(isinstance(name, str) and name for name in columns):
            raise JobError(f"{path}.columns", "an output column has no name")
        at, weight = f"{path}.columns", ""
        projection = Projection.of(at, columns, link.schema)
        time = _time_column(at, projection, link.time)
        if link.weight:
            if link.weight not in projection.passed().values():
                columns = _with_weight(at, columns, link.weight)
                projection = Projection.of(at, columns, link.schema)
            weight = _passed(projection, link.weight)
        output = Link(projection.output, time, link.disorder_us, weight)
        texts = tuple((name, " ".join(sql.split())) for name, sql in columns.items())
        return cls(id, output, texts, projection)

    def generated(self) -> tuple[str, ...]:
        """The columns' kernels."""
        return self.projection.generated()

    def build(self, workers: Workers) -> Map:
        """The running map, its kernel compiled."""
        time = self.projection.passed()[self.output.time]
        return Map(self.projection, self.projection.build(), time)

    def through_problem(self) -> str:
        """A row in error would leave it unnoticed."""
        return "drops rows that cannot be evaluated" if self.projection.source.fallible else ""

    def describe(self) -> list[str]:
        """The columns, and whether a row can be in error."""
        lines = [f"{name} = {sql}" for name, sql in self.columns]
        lines.append("one generated kernel; no state")
        if self.projection.source.fallible:
            lines.append("rows that cannot be evaluated are dropped and counted")
        return lines

    def signature_facts(self) -> list[Any]:
        """None: nothing is saved, so any map may replace another."""
        return []


def _time_column(path: str, projection: Projection, time: str) -> str:
    """The output that is the input's event-time column, preferably the one of the same name."""
    name = _passed(projection, time)
    if not name:
        raise JobError(
            path, f"the event-time column '{time}' is not among the outputs",
            f'add {time} = "{time}"; later operators need it as it is',
        )  # fmt: skip
    return name


def _with_weight(path: str, columns: Mapping[str, Any], weight: str) -> dict[str, Any]:
    """The outputs and the input's weight column."""
    if weight in columns:
        raise JobError(
            f"{path}.{weight}", "is the weight column of the input, which passes unchanged",
            "leave it out, or give the expression another name",
        )  # fmt: skip
    return {**columns, weight: f'"{weight}"'}


def _passed(projection: Projection, column: str) -> str:
    """The output that is an input column, preferably of the same name; empty: none is."""
    same = [name for name, source in projection.passed().items() if source == column]
    return column if column in same else next(iter(same), "")
