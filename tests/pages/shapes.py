"""Schemas, rows and batches for page tests, as hypothesis strategies."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import strategies as st

from edged.data.columns import Batch, Column
from edged.data.flow import BeatContext
from edged.data.schema import TYPES, Field, Schema
from edged.data.workers import Workers
from edged.pages.write import PageStream, PageWriter

ONE = Workers(1)
TIME = Field("time", TYPES["timestamp"])


def beat(number=1, workers=ONE):
    return BeatContext(number, 1_700_000_000_000_000 + number, workers)


def values(kind):
    if kind.startswith(("int", "uint")) or kind == "timestamp":
        info = np.iinfo(TYPES[kind].numpy)
        return st.integers(int(info.min), int(info.max))
    return {
        "bool": st.booleans(),
        "float32": st.floats(width=32),
        "float64": st.floats(),
        "string": st.text(max_size=20),
        "binary": st.binary(max_size=20),
    }[kind]


@st.composite
def schemas(draw, kinds=tuple(TYPES)):
    columns = draw(st.lists(st.tuples(st.sampled_from(kinds), st.booleans()), max_size=12))
    fields = [Field(f"c{i}", TYPES[k], nullable) for i, (k, nullable) in enumerate(columns)]
    fields.insert(draw(st.integers(0, len(fields))), TIME)
    return Schema.of(fields)


def rows(schema, max_size=40):
    cells = [
        values(f.dtype.name) | st.none() if f.nullable else values(f.dtype.name) for f in schema
    ]
    return st.lists(st.tuples(*cells).map(list), max_size=max_size)


def plain(schema):
    """The schema in the naive reader's form."""
    return [(f.name, f.dtype.name, f.nullable) for f in schema]


def batch_of(schema, rows):
    """A batch; values under nulls are deliberately not zero, and offsets do not begin at 0."""
    columns = []
    for i, f in enumerate(schema):
        cells = [row[i] for row in rows]
        valid = np.array([c is not None for c in cells], np.uint8) if f.nullable else None
        if f.dtype.variable:
            data = [
                c.encode() if isinstance(c, str) else b"null" if c is None else c for c in cells
            ]
            offsets = np.cumsum([5, *map(len, data)]).astype(np.int64)
            joined = np.frombuffer(bytearray(b"ahead" + b"".join(data)), np.uint8)
            columns.append(Column(joined, valid, offsets))
        else:
            with np.errstate(all="ignore"):
                array = np.array([1 if c is None else c for c in cells], f.dtype.numpy)
            columns.append(Column(array, valid))
    return Batch(schema, len(rows), tuple(columns))


def stream_of(schema, **settings):
    return PageStream("gateway-1", 7, "power", 3, schema, "time", **settings)


def write_all(stream, batches, *, workers=ONE):
    """Every page of the batches, one beat each, flushed at the end."""
    writer, pages = PageWriter(stream), []
    for number, batch in enumerate(batches):
        writer.write(beat(number, workers), batch)
        pages += writer.seal(beat(number, workers), False)
    return pages + writer.seal(beat(len(batches), workers), True)


def bits(row):
    """A row for comparison by bits: NaN equals NaN, -0.0 differs from 0.0."""
    return [str(struct.pack("<d", v) if isinstance(v, float) and v == v else v) for v in row]


def arrow_rows(batch, schema):
    """An Arrow batch's rows as lists of plain values, timestamps as microseconds."""
    columns = [
        batch.column(i).cast("int64").to_pylist()
        if f.dtype.name == "timestamp"
        else batch.column(i).to_pylist()
        for i, f in enumerate(schema)
    ]
    return [list(r) for r in zip(*columns, strict=True)]
