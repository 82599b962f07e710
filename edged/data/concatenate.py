"""`concatenate`: the rows of several batches, one after the other, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edged.data.columns import Batch, Column
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch


def concatenate(schema: Schema, batches: Sequence[Batch], scratch: Scratch) -> Batch:
    """The rows of all `batches`, which have the columns of `schema` in its order, as a copy that
    lives in `scratch` until the next call with it."""
    rows = sum(batch.rows for batch in batches)
    columns = tuple(
        _column(str(i), f, [batch.columns[i] for batch in batches], rows, scratch)
        for i, f in enumerate(schema.fields)
    )
    return Batch(schema, rows, columns)


def _column(
    name: str, field: Field, parts: Sequence[Column], rows: int, scratch: Scratch
) -> Column:
    valid = None
    if field.nullable:
        valid = scratch.get(f"{name}.valid", rows, np.uint8)
        np.concatenate([c.valid for c in parts if c.valid is not None], out=valid)
    if not field.dtype.variable:
        values = scratch.get(name, rows, field.dtype.numpy)
        np.concatenate([c.values for c in parts], out=values)
        return Column(values, valid)
    return _variable(name, parts, rows, valid, scratch)


def _variable(
    name: str, parts: Sequence[Column], rows: int, valid: Any, scratch: Scratch
) -> Column:
    extents = [(c, int(c.offsets[0]), int(c.offsets[-1])) for c in parts if c.offsets is not None]
    values = scratch.get(name, sum(stop - start for _, start, stop in extents), np.uint8)
    offsets = scratch.get(f"{name}.offsets", rows + 1, np.int64)
    row, byte = 0, 0
    for column, start, stop in extents:
        assert column.offsets is not None
        count = column.offsets.size
        np.add(column.offsets, byte - start, out=offsets[row : row + count])
        values[byte : byte + stop - start] = column.values[start:stop]
        row, byte = row + count - 1, byte + stop - start
    return Column(values, valid, offsets)
