"""`take`: the rows of a batch that an index array names, in its order, as a new batch.

Filter, window, pages, the late-row split and the join's output all make their rows here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.columns import Array, Batch, Column, address
from edged.operators.base import Scratch
from edged.workers import Workers
from kernels.cpu import gather

PARALLEL_ROWS = 16_384
"""Fewer rows than this are gathered on the calling thread: waking another costs more."""

_Call = Callable[[], object]


def take(
    batch: Batch,
    rows: npt.NDArray[np.int64],
    scratch: Scratch,
    name: str = "",
    workers: Workers | None = None,
) -> Batch:
    """The rows `rows` (each 0 <= row < batch.rows; repeats allowed) of `batch`.

    The new batch lives in `scratch` under `name`: it is good until the next `take` with the same
    scratch and name.  With `workers`, large gathers are split among them.
    """
    if not (rows.flags.c_contiguous and rows.flags.writeable and rows.dtype == np.int64):
        rows = np.array(rows, np.int64)
    bounds = _bounds(rows.size, workers)
    calls: list[_Call] = []
    columns = tuple(
        _take_column(c, rows, bounds, scratch, f"{name}.{i}", calls)
        for i, c in enumerate(batch.columns)
    )
    if workers is None:
        for call in calls:
            call()
    else:
        workers.run(calls) if len(bounds) > 1 else [call() for call in calls]
    return Batch(batch.schema, rows.size, columns)


def _bounds(size: int, workers: Workers | None) -> list[tuple[int, int]]:
    """The output ranges of one column that are gathered side by side."""
    if workers is None or workers.count == 1 or size < PARALLEL_ROWS:
        return [(0, size)] if size else []
    edges = [size * i // workers.count for i in range(workers.count + 1)]
    return list(pairwise(edges))


def _take_column(
    column: Column,
    rows: npt.NDArray[np.int64],
    bounds: list[tuple[int, int]],
    scratch: Scratch,
    name: str,
    calls: list[_Call],
) -> Column:
    """Lay out one column's result and add to `calls` what fills it."""
    valid: npt.NDArray[np.uint8] | None = None
    if column.valid is not None:
        valid = scratch.get(f"{name}.valid", rows.size, np.uint8)
        _fixed_calls(column.valid, rows, bounds, valid, calls)
    if column.offsets is None:
        dtype = column.values.dtype
        values = scratch.get(f"{name}.{dtype.str}", rows.size, dtype)
        _fixed_calls(column.values, rows, bounds, values, calls)
        return Column(values, valid)
    source, size, at = address(column.values), column.values.size, address(column.offsets)
    offsets = scratch.get(f"{name}.offsets", rows.size + 1, np.int64)
    values = scratch.get(f"{name}.bytes", gather.gather_offsets(at, rows, offsets), np.uint8)
    for a, b in bounds:
        target = address(values)
        calls.append(partial(gather.gather_bytes, source, size, at, rows, a, b, offsets, target))
    return Column(values, valid, offsets)


def _fixed_calls(
    source: Array,
    rows: npt.NDArray[np.int64],
    bounds: list[tuple[int, int]],
    target: Array,
    calls: list[_Call],
) -> None:
    a, b = address(source), address(target)
    width = source.dtype.itemsize
    calls.extend(partial(gather.gather_fixed, width, a, rows, i, j, b) for i, j in bounds)
