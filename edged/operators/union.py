"""`union`: the rows of several links under one name.

    [operators.all]
    type = "union"; inputs = ["a", "b"]

The inputs have one schema (names, types, nullability, order) and one time column.  A beat's rows
come out in the order of `inputs`, and within an input in its order; the watermark is the minimum of
theirs.  A beat in which only one input has rows passes its batch through without a copy.

The output's `disorder_us` is the maximum of the inputs', as declared.  Inputs that advance at
different speeds are further apart than that.  Only the watermark, which waits for the slowest
input, separates late rows from others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
        first = inputs[0]
        for i, link in enumerate(inputs[1:], start=1):
            _agree(f"{path}.inputs[{i}]", names[0], first, names[i], link)
        disorder_us = max(link.disorder_us for link in inputs)
        return cls(id, names, Link(first.schema, first.time, disorder_us))

    def build(self, workers: Workers) -> Union:
        """The running union."""
        return Union(self.output.schema)

    def describe(self) -> list[str]:
        """Lines for `edged explain`."""
        return [f"rows of {', '.join(self.names)}, in this order within a beat; no state"]

    def signature_facts(self) -> list[Any]:
        """None: a union keeps no state, so any union may replace it."""
        return []


class Union(Operator):
    """A running union: copies into scratch where more than one input has rows."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._scratch = Scratch()

    def run(self, beat: BeatContext, inputs: Sequence[Flow]) -> Flow:
        """One beat's rows of all inputs, in order."""
        watermark_us = min(flow.watermark_us for flow in inputs)
        batches = [flow.batch for flow in inputs if flow.batch.rows]
        if len(batches) == 1:
            return Flow(batches[0], watermark_us)
        if not batches:
            return Flow(inputs[0].batch, watermark_us)
        return Flow(concatenate(self._schema, batches, self._scratch), watermark_us)


def _agree(path: str, first_name: str, first: Link, name: str, link: Link) -> None:
    advice = f"{name} and {first_name} must have equal columns; put a map before one of them"
    if link.schema != first.schema:
        raise JobError(path, _difference(first.schema, link.schema), advice)
    if link.time != first.time:
        raise JobError(path, f"its time column is {link.time}, not {first.time}", advice)


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
