"""64-bit hashes of key columns over a batch (`kernels.cpu.hash`).

The top 6 bits of a hash are the row's logical partition, the low bits its place in a table.
`exact_bits` says for which keys equal hashes prove equal keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address
from edged.data.schema import DType, Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from kernels.cpu import hash as kernels
from kernels.cpu.keys import CODE_FLOAT

Hashes = npt.NDArray[np.uint64]


def hash_columns(
    batch: Batch,
    names: Sequence[str],
    scratch: Scratch | None = None,
    name: str = "hash",
    workers: Workers | None = None,
) -> Hashes:
    """uint64[rows]: the hash of each row's values in the columns `names`, in that order.

    Nulls hash to a value of their own.  With `scratch` the array lives there under `name`; with
    `workers`, large batches are split among them.  No columns: every row hashes to 0.
    """
    scratch = Scratch() if scratch is None else scratch
    out: Hashes = scratch.get(f"{name}.hash", batch.rows, np.uint64)
    following: Hashes = scratch.get(f"{name}.next", batch.rows, np.uint64)
    if workers is None or workers.count == 1 or batch.rows < PARALLEL_ROWS:
        hash_range(batch, names, 0, batch.rows, out, following)
        return out
    edges = [batch.rows * i // workers.count for i in range(workers.count + 1)]
    workers.run(
        [partial(hash_range, batch, names, a, b, out, following) for a, b in pairwise(edges)]
    )
    return out


def hash_range(
    batch: Batch, names: Sequence[str], start: int, stop: int, out: Hashes, following: Hashes
) -> None:
    """`hash_columns` for the rows `start..stop` of arrays as long as the batch.

    `following` is scratch for the second column and on.
    """
    if not names:
        out[start:stop] = 0
    for i, column in enumerate(names):
        dtype = batch.schema.field(column).dtype
        if i == 0:
            _hash_column(batch[column], dtype, start, stop, out)
        else:
            _hash_column(batch[column], dtype, start, stop, following)
            kernels.hash_combine(following, start, stop, out)


def exact_bits(schema: Schema, names: Sequence[str]) -> int:
    """How many low bits of two hashes must agree for the (non-null) keys to be equal for certain.

    32: one column of up to 32 bits; 64: one column of 64 bits; 0: several columns, strings or
    binaries, whose values must be compared as well.
    """
    if len(names) != 1:
        return 0
    width = schema.field(names[0]).dtype.width
    return {0: 0, 8: 64}.get(width, 32)


def all_valid(
    batch: Batch, names: Sequence[str], scratch: Scratch | None = None, name: str = "valid"
) -> npt.NDArray[np.uint8] | None:
    """uint8[rows]: 1 where no column of `names` is null; None where none of them is nullable."""
    masks = [m for m in (batch[column].valid for column in names) if m is not None]
    if not masks:
        return None
    scratch = Scratch() if scratch is None else scratch
    out: npt.NDArray[np.uint8] = scratch.get(f"{name}.valid", batch.rows, np.uint8)
    out[:] = 1
    for mask in masks:
        kernels.all_valid(address(mask), 0, batch.rows, out)
    return out


def key_code(dtype: DType) -> int:
    """The type code of kernels that hash and compare keys (`kernels.cpu.keys`)."""
    return dtype.width + (CODE_FLOAT if dtype.floating else 0)


def _hash_column(column: Column, dtype: DType, start: int, stop: int, out: Hashes) -> None:
    offsets = 0 if column.offsets is None else address(column.offsets)
    kernels.hash_column(key_code(dtype), address(column.values), offsets, start, stop, out)
    if column.valid is not None:
        kernels.hash_nulls(address(column.valid), start, stop, out)
