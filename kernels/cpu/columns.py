"""The table that describes columns of any types to kernels: a row of addresses for each column.

`edged.data.columns.Batch.addresses` makes it of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

from kernels.cpu.records import ADDRESS, I64, field, words


class ColumnMemory(NamedTuple):
    """The memory of a column."""

    width: I64 = field("bytes of a value; 0: values of any length")
    values: ADDRESS = field("values; of values of any length, their bytes")
    valid: ADDRESS = field("uint8, 1 where a value stands and 0 where it is null; 0: no nulls")
    offsets: ADDRESS = field(
        "int64[rows + 1], where in the bytes each value begins; 0: fixed width"
    )
    rows: ADDRESS = field(
        "int64, the number in this memory of each row of the batch; 0: its own (page kernels only)"
    )


COLUMN = words(ColumnMemory)
