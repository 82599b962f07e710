"""Calls into pyarrow.compute: the only place of expressions that makes any.

Every result is checked: its length is the batch's, its type the one asked for, and its nulls are
those that the caller expects.  A result that differs is an error of the library or of its use, and
no row of it is believed: KernelError.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from edged.data.columns import Column
from edged.errors import KernelError
from edged.expressions.operands import Flags


def compute(
    function: str,
    arguments: list[Any],
    kind: pa.DataType,
    valid: Flags,
    options: Any = None,
    fewer: bool = False,
) -> Any:
    """`function(*arguments)` as an array of `kind` with a value in exactly the rows of `valid`.

    With `fewer`, other rows may be null as well.

    Raises KernelError where the result has another length, type or number of nulls.
    """
    import pyarrow.compute as pc  # 10 MB that most jobs do without

    try:
        made = pc.call_function(function, arguments, options)
    except pa.ArrowException as problem:
        raise KernelError(f"pyarrow.compute.{function}: {problem}") from None
    rows, nulls = valid.size, valid.size - int(np.count_nonzero(valid))
    if not isinstance(made, pa.Array):
        raise KernelError(f"pyarrow.compute.{function} gave no array but {type(made).__name__}")
    wrong = made.null_count < nulls if fewer else made.null_count != nulls
    if wrong or (len(made), made.type) != (rows, kind):
        raise KernelError(
            f"pyarrow.compute.{function} gave {len(made)} rows of {made.type}, {made.null_count} "
            f"null; {rows} rows of {kind}, {nulls} null, are expected"
        )
    return made


def text_column(array: Any, valid: Flags) -> Column:
    """An array of large strings as a column of its own memory."""
    if len(array) == 0:
        return Column(np.empty(0, np.uint8), valid, np.zeros(1, np.int64))
    _, offsets, data = array.buffers()
    at = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Column(np.array(bytes_[: at[-1]]), valid, np.array(at))


def values(array: Any, dtype: Any) -> Any:
    """The values of an array of fixed width, unspecified under nulls."""
    if len(array) == 0:
        return np.empty(0, dtype)
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].copy()
    return np.array(np.frombuffer(data, dtype)[array.offset : array.offset + len(array)])
