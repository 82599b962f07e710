"""`union`: the rows of several links under one name.

    [operators.all]
    type = "union"; inputs = ["a", "b"]

The inputs have one schema (names, types, nullability, order) and one time column.  A beat's rows
come out in the order of `inputs`, and within an input in its order; the watermark is the minimum of
theirs.  A beat in which only one input has rows passes its batch through without a copy.

Where one input is weighted, all have its columns and the weight column of one name; an input that
lacks the weight column, and only that, has weight 1 in each row.

The output's `disorder_us` is the maximum of the inputs', as declared.  Inputs that advance at
different speeds are further apart than that.  Only the watermark, which waits for the slowest
input, separates late rows from others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.concatenate import concatenate
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import JobError
from edged.operators.base import Operator, OperatorPlan, operator


@operator("union")
@dataclass(frozen=True)
class UnionPlan(OperatorPlan):
    """A checked union."""

    id: str
    names: tuple[str, ...]
    output: Link

    links: ClassVar[tuple[str, ...]] = ("*inputs",)
    keys: ClassVar[frozenset[str]] = frozenset()
    cycles: ClassVar[tuple[float, float] | None] = (27e3, 1.0)

    @classmethod
    def parse(
        cls, path: str, id: str, document: Mapping[str, Any], inputs: Sequence[Link]
    ) -> UnionPlan:
        """Check that the inputs agree."""
        names = tuple(document["inputs"])
        at = next((i for i, link in enumerate(inputs) if link.weight), 0)
        first = inputs[at]
        for i, link in enumerate(inputs):
            if i != at:
                _agree(f"{path}.inputs[{i}]", names[at], first, names[i], link)
        disorder_us = max(link.disorder_us for link in inputs)
        return cls(id, names, Link(first.schema, first.time, disorder_us, first.weight))

    def build(self, workers: Workers) -> Union:
        """The running union."""
        return Union(self.output)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [f"rows of {', '.join(self.names)}, in this order within a beat; no state"]

    def signature_facts(self) -> list[Any]:
        """None: a union keeps no state, so any union may replace it."""
        return []


class Union(Operator):
    """A running union: copies into scratch where more than one input has rows."""

    def __init__(self, output: Link) -> None:
        self._schema, self._weight = output.schema, output.weight
        self._scratch = Scratch()
        self._ones: npt.NDArray[np.int32] = np.ones(0, np.int32)

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's rows of all inputs, in order."""
        watermark_us = min(flow.watermark_us for flow in inputs)
        batches = [flow.batch for flow in inputs if flow.batch.rows]
        if self._weight:
            batches = [self._weighted(batch) for batch in batches or [inputs[0].batch]]
        if len(batches) == 1:
            return Flow(batches[0], watermark_us)
        if not batches:
            return Flow(inputs[0].batch, watermark_us)
        return Flow(concatenate(self._schema, batches, self._scratch), watermark_us)

    def _weighted(self, batch: Batch) -> Batch:
        """The batch; with a weight of 1 in each row where it has no weights."""
        if len(batch.schema) == len(self._schema):
            return batch
        if self._ones.size < batch.rows:
            self._ones = np.ones(batch.rows, np.int32)
        columns, at = list(batch.columns), self._schema.index(self._weight)
        columns.insert(at, Column(self._ones[: batch.rows]))
        return Batch(self._schema, batch.rows, tuple(columns))


def _agree(path: str, first_name: str, first: Link, name: str, link: Link) -> None:
    advice = f"{name} and {first_name} must have equal columns; put a map before one of them"
    wanted = first.schema
    if first.weight and not link.weight:
        wanted = Schema.of(f for f in first.schema if f.name != first.weight)
    if link.schema != wanted:
        raise JobError(path, _difference(wanted, link.schema), advice)
    if link.time != first.time:
        raise JobError(path, f"its time column is {link.time}, not {first.time}", advice)
    if link.weight and link.weight != first.weight:
        problem = f"its weight column is {link.weight}, not {first.weight}"
        raise JobError(path, problem, advice)


def _difference(first: Schema, other: Schema) -> str:
    """The first difference between two unequal schemas, as text."""
    for f in first:
        if f.name not in other:
            return f"lacks the column {f.name}"
        o = other.field(f.name)
        if o != f:
            return f"{f.name} is {_type(o)}, not {_type(f)}"
    for o in other:
        if o.name not in first:
            return f"has one column more, {o.name}"
    return f"has its columns in another order: {', '.join(other.names)}"


def _type(f: Field) -> str:
    return f.dtype.name + ("?" if f.nullable else "")
