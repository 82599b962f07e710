"""Codes of rows: equal rows of a batch have one number, in the order of their first occurrence.

Values are equal as keys are: NaN equals NaN, -0.0 equals 0.0.  A null equals a null.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Array, Batch, Column
from edged.data.schema import DType, Schema

Int64s = npt.NDArray[np.int64]
CODES_MAX = 2**62


def row_codes(batch: Batch, names: Sequence[str]) -> Int64s:
    """int64[rows]: the code of each row's values in the columns `names`; 0 where there are none."""
    codes: Int64s = np.zeros(batch.rows, np.int64)
    count = 1
    for name in names:
        column, size = _encode(_arrow(batch[name], batch.schema.field(name).dtype, batch.rows))
        if count > CODES_MAX // max(1, size):
            codes, count = _encode(pa.array(codes))
        codes = codes * size + column
        count *= max(1, size)
    return _encode(pa.array(codes))[0]


def project(batch: Batch, schema: Schema, names: Sequence[str] | None = None) -> Batch:
    """The columns `names` of a batch, by default those of `schema`, as rows of `schema`."""
    names = schema.names if names is None else names
    return Batch(schema, batch.rows, tuple(batch[name] for name in names))


def sums(codes: Int64s, weights: npt.NDArray[np.int32]) -> Int64s:
    """The sum of the weights of each code; exact for fewer than 2^53 rows times weights."""
    return np.bincount(codes, weights).astype(np.int64)


def firsts(codes: Int64s) -> Int64s:
    """The first row of each code."""
    return _ends(codes[::-1], codes.size - 1, -1)


def lasts(codes: Int64s) -> Int64s:
    """The last row of each code."""
    return _ends(codes, 0, 1)


def as_positive(weights: npt.NDArray[np.int32]) -> Int64s | None:
    """Each row as often as its weight says, rows of negative weight not at all; None: each once."""
    if (weights == 1).all():
        return None
    return np.repeat(np.arange(weights.size), np.maximum(weights, 0))


def _ends(codes: Int64s, start: int, step: int) -> Int64s:
    """The row of each code that comes last in `codes`, whose rows are `start`, `start + step`, …"""
    rows: Int64s = np.zeros(int(codes.max()) + 1 if codes.size else 0, np.int64)
    rows[codes] = start + step * np.arange(codes.size)  # the last assignment counts
    return rows


def _encode(values: pa.Array) -> tuple[Int64s, int]:
    found = values.dictionary_encode(null_encoding="encode")
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def _arrow(c: Column, dtype: DType, rows: int) -> pa.Array:
    """The column with fixed values as integers of their width."""
    valid = None if c.valid is None else pa.py_buffer(np.packbits(c.valid, bitorder="little"))
    if c.offsets is not None:
        start = int(c.offsets[0])
        ends = pa.py_buffer(c.offsets - start)
        data = pa.py_buffer(np.ascontiguousarray(c.values[start : int(c.offsets[-1])]))
        return pa.Array.from_buffers(pa.large_binary(), rows, [valid, ends, data])
    kind = pa.from_numpy_dtype(np.dtype(f"i{dtype.width}"))
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(_bits(c.values, dtype))])


def _bits(values: Array, dtype: DType) -> Array:
    if dtype.floating:
        values = values + dtype.numpy.type(0)  # -0.0 becomes 0.0
        values[np.isnan(values)] = np.nan
    return np.ascontiguousarray(values)
