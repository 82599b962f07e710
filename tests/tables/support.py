"""Schemas, batches and states for the tests of tables."""

import itertools

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

from edged.data.columns import Batch
from edged.data.schema import (
    BINARY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    UINT16,
    UINT64,
    Field,
    Schema,
)  # fmt: skip
from edged.data.workers import Workers
from edged.platform.disk import SystemDisk
from edged.tables.base import TABLES, TableContext
from tests.naive.tables import order_of

SHAPES = {
    "one integer": (Schema.of([Field("k", INT64), Field("v", FLOAT64)]), ("k",)),
    "small": (Schema.of([Field("b", BOOL, True), Field("k", INT8, True)]), ("k",)),
    "string": (Schema.of([Field("v", INT32), Field("k", STRING, True)]), ("k",)),
    "strings": (
        Schema.of([Field("v", BINARY, True), Field("k", STRING), Field("t", STRING, True)]),
        ("k",),
    ),
    "composite": (
        Schema.of([Field("v", TIMESTAMP, True), Field("b", STRING), Field("a", UINT16, True)]),
        ("a", "b"),
    ),
    "floats": (Schema.of([Field("f", FLOAT32), Field("k", FLOAT64, True)]), ("k",)),
    "wide": (
        Schema.of([Field("u", UINT64), Field("k", INT32), Field("f", FLOAT32, True)]),
        ("k", "u"),
    ),
}

_POOLS = {
    "bool": [False, True],
    "string": ["", "a", "ab", "\0", "a\0", "\0\0b", "ä", "longer than eight bytes", "longer than"],
    "binary": [b"", b"\0", b"\xff", b"\0\xff", b"\0\0", b"12345678", b"123456789"],
    "float": [0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 2.0**-149],
}


def values(field):
    """A strategy for a field's values: few, so that rows and keys repeat, and the extremes."""
    name, width = field.dtype.name, field.dtype.width
    if field.dtype.floating:
        pool = _POOLS["float"]
    elif name in _POOLS:
        pool = _POOLS[name]
    elif name.startswith("uint"):
        pool = [0, 1, 2, 2 ** (8 * width) - 1]
    else:
        pool = [0, 1, -1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1))]
    return st.sampled_from([*pool, *([None] if field.nullable else [])])


def rows_of(schema):
    """A strategy for rows of a schema."""
    return st.tuples(*map(values, schema.fields))


def batch(schema, rows):
    """A batch of Python rows."""
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in schema]
    arrays = [
        pa.array(np.array(c, np.int64), pa.int64()).cast(f.dtype.arrow)
        if f.dtype.name == "timestamp" and None not in c
        else pa.array(list(c), f.dtype.arrow)
        for f, c in zip(schema.fields, columns, strict=True)
    ]
    return Batch.from_arrow(pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow()), schema)


def key_schema(schema, key):
    """The schema of probing keys."""
    return Schema.of([Field(schema.field(n).name, schema.field(n).dtype, True) for n in key])


def python_rows(found):
    """The rows of a batch, with timestamps as integers."""
    columns = []
    for array in found.to_arrow().columns:
        plain = array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
        columns.append(plain.to_pylist())
    return list(zip(*columns, strict=True))


def matches(state, keys):
    """What a probe found, as the twin says it."""
    found = state.probe(keys)
    rows = [tuple(map(order_of, row)) for row in python_rows(found.rows)]
    return list(zip(found.probe.tolist(), rows, found.weights.tolist(), strict=True))


def content(state, keys):
    """What a probe found, as bytes."""
    found = state.probe(keys)
    arrays = [found.probe, found.weights]
    for c in found.rows.columns:
        arrays += [a for a in (c.values, c.valid, c.offsets) if a is not None]
    return [a.tobytes() for a in arrays]


_numbers = itertools.count()
_workers = {}


def workers(count):
    """Worker threads that all tests share."""
    return _workers.setdefault(count, Workers(count))


def make(folder, schema, key, member="runs", disk=None, threads=1, memory=1 << 20, compact="auto"):
    """A state in a directory of its own under `folder`."""
    context = TableContext(
        disk or SystemDisk(), f"{folder}/{next(_numbers)}", workers(threads), memory, compact
    )
    return TABLES.load()[member](schema, key, context)


def reopened(state):
    """The state as a restart loads it."""
    saved = state.save()
    state.sync()
    twin = type(state)(state.schema, state.key, state.context)
    state.close()
    twin.load(saved)
    twin.keep([saved])
    return twin
