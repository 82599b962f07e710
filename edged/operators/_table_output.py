"""The rows that joins with tables give out, from columns of both sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.gather import take
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.operators._join_columns import Output
from edged.operators._row_codes import Int64s


def gathered(
    columns: Sequence[Output],
    sides: tuple[Batch, Batch | None],
    rows: tuple[Int64s, Int64s],
    schema: Schema,
    scratch: Scratch,
    name: str = "",
    workers: Workers | None = None,
) -> list[Column]:
    """The output columns of the row pairs `rows`; a right row of -1, or no right side, is null.

    `schema` is the output's, in the order of `columns`.  They live in `scratch` under `name`.
    """
    left, right = sides
    picked = [c.source for c in columns if c.side == 0]
    found = dict(
        zip(picked, _take(left, picked, rows[0], scratch, f"{name}l", workers), strict=True)
    )
    picked = [c.source for c in columns if c.side == 1]
    count = rows[0].size
    if right is None or not right.rows:
        return [
            found[c.source] if c.side == 0 else _nulls(f, count)
            for c, f in zip(columns, schema, strict=False)
        ]
    absent = rows[1] < 0
    some = bool(absent.any())
    at = np.where(absent, 0, rows[1]) if some else rows[1]
    others = dict(zip(picked, _take(right, picked, at, scratch, f"{name}r", workers), strict=True))
    return [
        found[c.source] if c.side == 0 else _maybe(others[c.source], f, absent)
        for c, f in zip(columns, schema, strict=False)
    ]


def outer_rows(probe: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """The row pairs of a left join, by left row and then by match; -1 where there is no match.

    `probe` has the left row of each match, ascending, of `count` left rows.
    """
    matches = np.bincount(probe, minlength=count)
    times = np.maximum(matches, 1)
    left = np.repeat(np.arange(count), times)
    right = np.full(left.size, -1, np.int64)
    right[matches[left] > 0] = np.arange(probe.size)
    return left, right


def nullable(schema: Schema) -> Schema:
    """The schema with all columns nullable."""
    return Schema.of(Field(f.name, f.dtype, True) for f in schema)


def _take(
    batch: Batch,
    names: Sequence[str],
    rows: Int64s,
    scratch: Scratch,
    name: str,
    workers: Workers | None,
) -> tuple[Column, ...]:
    schema = Schema.of(batch.schema.field(n) for n in names)
    some = Batch(schema, batch.rows, tuple(batch[n] for n in names))
    return take(some, rows, scratch, name, workers).columns


def _maybe(c: Column, f: Field, absent: npt.NDArray[np.bool_]) -> Column:
    """The column, null where its row is absent."""
    if not f.nullable:
        return c
    valid = np.where(absent, 0, 1 if c.valid is None else c.valid).astype(np.uint8)
    return Column(c.values, valid, c.offsets)


def _nulls(f: Field, count: int) -> Column:
    offsets = np.zeros(count + 1, np.int64) if f.dtype.variable else None
    values = np.zeros(0 if f.dtype.variable else count, f.dtype.numpy)
    return Column(values, np.zeros(count, np.uint8) if f.nullable else None, offsets)
