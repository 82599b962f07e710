"""`take`: the rows of a batch selected by an index array, in its order, as a new batch.

Filter, window, pages, the late-row split and the join's output use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address, apart
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from kernels.cpu import gather, team

_Parts = list[tuple[int, ...]]
"""Rows of parts (`kernels.cpu.gather.GatherPart`)."""
_Int64s = npt.NDArray[np.int64]


def take(
    batch: Batch,
    rows: _Int64s,
    scratch: Scratch,
    name: str = "",
    workers: Workers | None = None,
) -> Batch:
    """The rows `rows` (each 0 <= row < batch.rows; repeats allowed) of `batch`.

    The new batch lives in `scratch` under `name` and is valid until the next `take` with the same
    scratch and name.  With `workers`, large gathers are split among them.
    """
    columns = take_columns(batch.columns, rows, scratch, name, workers)
    return Batch(batch.schema, rows.size, columns)


def take_columns(
    columns: Sequence[Column],
    rows: _Int64s,
    scratch: Scratch,
    name: str = "",
    workers: Workers | None = None,
) -> tuple[Column, ...]:
    """As `take`, of columns."""
    if not (rows.flags.c_contiguous and rows.flags.writeable and rows.dtype == np.int64):
        rows = np.array(rows, np.int64)
    bounds = _bounds(rows.size, workers)
    parts: _Parts = []
    rows_at = address(rows)
    taken = tuple(
        [
            _take_column(c, rows, rows_at, bounds, scratch, f"{name}.{i}", parts)
            for i, c in enumerate(columns)
        ]
    )
    if parts:
        _gather(parts, workers if len(bounds) > 1 else None)
    return taken


def take_fixed(source: Array, rows: _Int64s, target: Array) -> None:
    """`target[:] = source[rows]`, for values of a fixed width."""
    parts: _Parts = []
    _fixed_parts(source, address(rows), [(0, rows.size)], target, parts)
    _gather(parts, None)


def _gather(parts: _Parts, workers: Workers | None) -> None:
    table, function = np.array(parts, np.int64), gather.gather_part.address
    if workers is None:
        gather.gather_all(function, table)
        return
    calls = apart(len(parts), team.CALL_FIELDS)
    calls[:, team.CALL.function] = function
    calls[:, team.CALL.argument] = address(table) + table.strides[0] * np.arange(len(parts))
    workers.compute(calls)


def _bounds(size: int, workers: Workers | None) -> list[tuple[int, int]]:
    """The output ranges of one column that are gathered side by side."""
    if workers is None or workers.count == 1 or size < PARALLEL_ROWS:
        return [(0, size)] if size else []
    edges = [size * i // workers.count for i in range(workers.count + 1)]
    return list(pairwise(edges))


def _take_column(
    column: Column,
    rows: _Int64s,
    rows_at: int,
    bounds: list[tuple[int, int]],
    scratch: Scratch,
    name: str,
    parts: _Parts,
) -> Column:
    """Allocate one column's result and add the gathers that fill it to `parts`."""
    valid: npt.NDArray[np.uint8] | None = None
    if column.valid is not None:
        valid = scratch.get(f"{name}.valid", rows.size, np.uint8)
        _fixed_parts(column.valid, rows_at, bounds, valid, parts)
    if column.offsets is None:
        dtype = column.values.dtype
        values = scratch.get(f"{name}.{dtype.str}", rows.size, dtype)
        _fixed_parts(column.values, rows_at, bounds, values, parts)
        return Column(values, valid)
    source, size, at = address(column.values), column.values.size, address(column.offsets)
    offsets = scratch.get(f"{name}.offsets", rows.size + 1, np.int64)
    values = scratch.get(f"{name}.bytes", gather.gather_offsets(at, rows, offsets), np.uint8)
    for a, b in bounds:
        parts.append((size, source, rows_at, a, b, address(values), at, address(offsets)))
    return Column(values, valid, offsets)


def _fixed_parts(
    source: Array,
    rows_at: int,
    bounds: list[tuple[int, int]],
    target: Array,
    parts: _Parts,
) -> None:
    a, b, width = address(source), address(target), source.itemsize
    parts.extend([(width, a, rows_at, i, j, b, 0, 0) for i, j in bounds])
