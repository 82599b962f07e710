"""Kernel operators of tests: plans from texts, runs over batches, rows as Python has them."""

from __future__ import annotations

import hashlib
import math

import pyarrow as pa

from edged.data.columns import Batch
from edged.data.flow import BeatContext, Flow, Link
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.operators.kernel import KernelPlan
from edged.operators.user.code import UserCode

SCHEMA = Schema.of(
    [
        Field("t", TYPES["timestamp"]),
        Field("key", TYPES["string"], True),
        Field("n", TYPES["int32"]),
        Field("x", TYPES["float64"], True),
        Field("up", TYPES["bool"]),
        Field("u", TYPES["uint64"]),
        Field("f", TYPES["float32"]),
    ]
)
WORKERS = Workers(1)


def code(text, name="own.py"):
    return UserCode("file", name, text, hashlib.sha256(text.encode()).hexdigest(), name)


def plan(text, schema=SCHEMA, link=None, **document):
    link = link or Link(schema, "t", 5)
    return KernelPlan.of_code("operators.k", "k", document, link, code(text))


def batch(rows, schema=SCHEMA):
    columns = list(zip(*rows, strict=True)) if rows else [[]] * len(schema)
    arrays = [
        pa.array(list(c), pa.int64()).cast(f.dtype.arrow)
        if f.dtype.name == "timestamp"
        else pa.array(list(c), f.dtype.arrow)
        for c, f in zip(columns, schema, strict=True)
    ]
    return Batch.from_arrow(pa.record_batch(arrays, schema=schema.to_arrow()), schema)


def context(workers=WORKERS, number=1):
    return BeatContext(number, 0, workers)


def run(operator, rows, workers=WORKERS, schema=SCHEMA, watermark=0):
    """The rows of each output as dicts, times as integers."""
    operator.run(context(workers), [Flow(batch(rows, schema), watermark)])
    return {name: listed(flow.batch) for name, flow in operator.outputs.items()}


def listed(found):
    """A batch's rows as dicts."""
    arrow = found.to_arrow()
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in arrow.columns]
    values = [c.to_pylist() for c in columns]
    return [dict(zip(found.schema.names, row, strict=True)) for row in zip(*values, strict=True)]


def dicts(rows, schema=SCHEMA):
    return [dict(zip(schema.names, row, strict=True)) for row in rows]


def same(a, b):
    """Whether two values are equal, NaN to NaN."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    return a == b
