"""`scale`: multiplies one float64 column by a factor.

[operators.celsius]
type = "scale"
input = "readings"
column = "temperature"
factor = 0.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edged.plugin import (
    Batch,
    BeatContext,
    Column,
    Flow,
    JobError,
    Link,
    Operator,
    OperatorPlan,
    Scratch,
    Workers,
    operator,
    read,
)


@operator("scale")
@dataclass(frozen=True)
class ScalePlan(OperatorPlan):
    """A checked `scale`."""

    id: str
    column: str
    factor: float
    output: Link

    links: ClassVar[tuple[str, ...]] = ("input",)
    keys: ClassVar[frozenset[str]] = frozenset({"column", "factor"})

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> ScalePlan:
        """Check the table; JobError names the path of a fault."""
        column, schema = read.text(path, document, "column"), inputs[0].schema
        if column not in schema or schema.field(column).dtype.name != "float64":
            known = [f.name for f in schema if f.dtype.name == "float64"]
            raise JobError(f"{path}.column", f"{column} is no float64 column", f"one of {known}")
        return cls(id, column, read.number(path, document, "factor"), inputs[0])

    def build(self, workers: Workers) -> Scale:
        """The running operator."""
        return Scale(self)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [f"{self.column} x {self.factor:g}; no state"]

    def signature_facts(self) -> list[Any]:
        """A change of the factor keeps the state: there is none."""
        return [self.column]


class Scale(Operator):
    """Arrays in, arrays out: the other columns pass without a copy."""

    def __init__(self, plan: ScalePlan) -> None:
        self._plan, self._scratch = plan, Scratch()
        self._index = plan.output.schema.index(plan.column)

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's rows."""
        batch = inputs[0].batch
        source = batch.columns[self._index]
        values = self._scratch.get("values", batch.rows, np.float64)
        np.multiply(source.values[: batch.rows], self._plan.factor, out=values)
        columns = list(batch.columns)
        columns[self._index] = Column(values, source.valid)
        return Flow(Batch(batch.schema, batch.rows, tuple(columns)), inputs[0].watermark_us)
