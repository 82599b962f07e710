"""Lists of a fixed length as columns: bytes in memory and in pages, lists in Arrow.

A list column has the layout of a `binary` one: the elements of each row, one after the other,
little-endian.  `as_list` and `list_column` are inverses.  Elements are never null; the bytes of a
null list are unspecified.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.schema import DType

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


def as_list(values: pa.Array, dtype: DType) -> pa.Array:
    """A `binary` array as lists.  Raises ValueError where one has another length."""
    assert dtype.item is not None
    size, rows = dtype.item.width * dtype.length, len(values)
    _, offsets, data = values.buffers()
    at: Any = [0]
    if rows:
        at = np.frombuffer(offsets, np.int32)[values.offset : values.offset + rows + 1]
    begins, sizes = np.array(at[:-1], np.int64), np.diff(at)
    there = np.asarray(values.is_valid()) if rows else np.empty(0, np.bool_)
    if bool(np.any(sizes[there] != size)):
        raise ValueError(f"a value has another length than {dtype}")
    raw: Bytes = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    if there.all():
        flat = raw[int(begins[0]) : int(begins[0]) + rows * size] if rows else raw[:0]
    else:
        whole: Bytes = np.zeros((rows, size), np.uint8)
        whole[there] = raw[begins[there][:, None] + np.arange(size)]
        flat = whole.reshape(-1)
    elements = pa.Array.from_buffers(
        dtype.item.arrow, rows * dtype.length, [None, pa.py_buffer(np.ascontiguousarray(flat))]
    )
    mask = None if there.all() else pa.array(~there)
    return pa.FixedSizeListArray.from_arrays(elements, dtype.length, mask=mask)


def list_bytes(array: pa.Array, dtype: DType) -> tuple[Bytes, Ints]:
    """The bytes of lists of any Arrow form, and their offsets.

    Raises pa.ArrowInvalid for a list of another length, ValueError for an element that is null.
    """
    assert dtype.item is not None
    fixed: Any = array.cast(dtype.arrow)
    size, rows = dtype.item.width * dtype.length, len(fixed)
    elements = fixed.values.slice(fixed.offset * dtype.length, rows * dtype.length)
    if elements.null_count:
        nulls = np.asarray(elements.is_null()).reshape(rows, dtype.length).any(axis=1)
        if bool(np.any(nulls & np.asarray(fixed.is_valid()))):
            raise ValueError("an element of a list is null")
    first = elements.offset * dtype.item.width
    data = elements.buffers()[1]
    raw: Bytes = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return np.array(raw[first : first + rows * size]), np.arange(rows + 1, dtype=np.int64) * size
