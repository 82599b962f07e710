"""A trial of one operator on a file's rows, without a daemon: `edged operator test`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from edged.data.columns import Batch
from edged.data.flow import WATERMARK_MAX_US, WATERMARK_MIN_US, BeatContext, Flow
from edged.data.schema import TIMESTAMP, TYPES, Field, Schema
from edged.data.workers import Workers
from edged.errors import ConfigError
from edged.operators.base import Apart, Operator, OperatorPlan

SHOWN = 10
"""Rows, records and errors that are kept to be shown."""


@dataclass
class TrialResult:
    """What came of a trial."""

    rows: int = 0
    outputs: dict[str, int] = field(default_factory=dict)
    """Rows of each output."""
    first: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The first rows of each output."""
    errors: int = 0
    refused: list[dict[str, Any]] = field(default_factory=list)
    """The first rows that were set aside, with their reasons."""
    counters: Mapping[str, Any] = field(default_factory=dict)
    state_names: list[str] = field(default_factory=list)
    state: list[list[Any]] = field(default_factory=list)
    """The first records, keys first."""
    ns_a_row: float = 0.0
    """CPU time of all threads for a row, of a second pass."""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        records = [dict(zip(self.state_names, row, strict=True)) for row in self.state]
        return {
            "rows": self.rows, "outputs": self.outputs, "first": self.first,
            "rows_in_error": self.errors, "refused": self.refused, "state": records,
            "counters": dict(self.counters), "ns_a_row": round(self.ns_a_row, 2),
        }  # fmt: skip


def schema_of(found: pa.Schema) -> Schema:
    """The columns of a file as a schema.  Raises ConfigError for other types than edged's."""
    by_arrow = {kind.arrow: kind for kind in TYPES.values()}
    fields = []
    for f in found:
        kind = f.type.value_type if pa.types.is_dictionary(f.type) else f.type
        if pa.types.is_timestamp(kind):
            dtype = TIMESTAMP
        elif pa.types.is_large_string(kind):
            dtype = TYPES["string"]
        elif kind in by_arrow:
            dtype = by_arrow[kind]
        else:
            raise ConfigError(f"column {f.name}: {kind} is no type of edged; leave it out")
        fields.append(Field(f.name, dtype, f.nullable))
    return Schema.of(fields)


def without_nulls(batches: Sequence[pa.RecordBatch]) -> pa.Schema:
    """The schema of batches, in which only columns with nulls are nullable."""
    schema = batches[0].schema
    nulls = [any(b.column(i).null_count for b in batches) for i in range(len(schema))]
    return pa.schema([f.with_nullable(n) for f, n in zip(schema, nulls, strict=True)])


def run_trial(
    plan: OperatorPlan, schema: Schema, batches: Sequence[pa.RecordBatch], workers: int = 1
) -> TrialResult:
    """Run the operator over the batches, one a beat; then again, for the time."""
    result, threads = TrialResult(), Workers(workers)
    made = [Batch.from_arrow(b, schema) for b in batches]
    try:
        operator = plan.build(threads)
        for number, batch in enumerate(made, 1):
            _beat(plan, operator, threads, number, batch, len(made))
            _note(plan, operator, batch.rows, result)
        result.counters = operator.counters()
        shown = getattr(operator, "records", None)
        if shown is not None:
            result.state_names, records = shown()
            result.state = records[:SHOWN]
        operator.close()
        again = plan.build(threads)
        before = time.process_time_ns()
        for number, batch in enumerate(made, 1):
            _beat(plan, again, threads, number, batch, len(made))
        result.ns_a_row = (time.process_time_ns() - before) / max(1, result.rows)
        again.close()
    finally:
        threads.close()
    return result


def _beat(
    plan: OperatorPlan, operator: Operator, workers: Workers, number: int, batch: Batch, beats: int
) -> None:
    watermark_us = WATERMARK_MAX_US if number == beats else WATERMARK_MIN_US
    if isinstance(operator, Apart):
        operator.await_ready()
    flow = operator.run(BeatContext(number, 0, workers), [Flow(batch, watermark_us)])
    if not plan.outputs():
        operator.outputs = {"output": flow}


def _note(plan: OperatorPlan, operator: Operator, rows: int, result: TrialResult) -> None:
    result.rows += rows
    for name, flow in operator.outputs.items():
        result.outputs[name] = result.outputs.get(name, 0) + flow.batch.rows
        first = result.first.setdefault(name, [])
        count = min(SHOWN - len(first), flow.batch.rows)
        first += _listed(flow.batch.slice(0, count))
    for refused in operator.set_aside:
        result.errors += len(refused.reasons)
        for row, reason in zip(
            _listed(refused.batch.slice(0, min(SHOWN, refused.batch.rows))), refused.reasons,
            strict=False,
        ):  # fmt: skip
            if len(result.refused) < SHOWN:
                result.refused.append({"reason": reason, "row": row})


def _listed(batch: Batch) -> list[dict[str, Any]]:
    """Rows as JSON values."""
    return [
        {k: v if isinstance(v, (bool, int, float, type(None))) else _text(v) for k, v in r.items()}
        for r in batch.to_arrow().to_pylist()
    ]


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
