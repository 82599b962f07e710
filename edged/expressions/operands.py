"""Operands of functions that make a column at once, as kernels and pyarrow.compute take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.columns import Array, Column, address
from edged.expressions.tree import Const
from edged.expressions.types import SqlType

Flags = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Operand:
    """A column, or a constant that stands for one; a constant's arrays have one row."""

    type: SqlType
    column: Column
    constant: Const | None
    rows: int

    @property
    def text(self) -> str:
        """A constant text."""
        assert self.constant is not None and isinstance(self.constant.value, bytes)
        return self.constant.value.decode()

    def place(self) -> tuple[int, int, int, int]:
        """The operand's row in the table of a maker (`kernels.cpu.text_make`).

        Integers and times must be int64.
        """
        c = self.column
        return (
            address(c.values),
            0 if c.offsets is None else address(c.offsets),
            0 if c.valid is None else address(c.valid),
            0 if self.constant is not None else 1,
        )

    def whole(self) -> Operand:
        """A constant repeated as a column of all rows."""
        if self.constant is None:
            return self
        c, rows = self.column, self.rows
        if c.offsets is None:
            return Operand(self.type, Column(np.repeat(c.values, rows)), None, rows)
        size = int(c.offsets[1])
        values = np.tile(c.values[:size], rows)
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        return Operand(self.type, Column(values, None, offsets), None, rows)

    def wide(self) -> Operand:
        """Values of a fixed width as int64."""
        c = self.column
        if c.values.dtype == np.int64:
            return self
        values = c.values.astype(np.int64)
        return Operand(self.type, Column(values, c.valid), self.constant, self.rows)

    def arrow(self) -> Any:
        """An Arrow array of all rows over the same memory: large strings, or values."""
        c = self.whole().column
        mask = None
        if c.valid is not None:
            mask = pa.py_buffer(np.packbits(c.valid, bitorder="little"))
        if c.offsets is not None:
            buffers = [mask, pa.py_buffer(c.offsets), pa.py_buffer(c.values)]
            return pa.Array.from_buffers(pa.large_string(), self.rows, buffers)
        kind = pa.from_numpy_dtype(c.values.dtype)
        return pa.Array.from_buffers(kind, self.rows, [mask, pa.py_buffer(c.values)])


def of_column(type: SqlType, column: Column, rows: int) -> Operand:
    """A column as an operand."""
    return Operand(type, column, None, rows)


def of_constant(node: Const, rows: int) -> Operand:
    """A constant that is not NULL as an operand."""
    value = node.value
    if isinstance(value, bytes):
        values: Array = np.frombuffer(bytearray(value or b"\0"), np.uint8)
        column = Column(values, None, np.array([0, len(value)], np.int64))
    elif isinstance(value, str):
        assert node.type.dtype is not None
        column = Column(np.array([float(value)], node.type.dtype.numpy))
    else:
        assert node.type.dtype is not None and value is not None
        column = Column(np.array([value], node.type.dtype.numpy))
    return Operand(node.type, column, node, rows)


def without(valid: Flags, bad: Flags | None) -> Flags:
    """`valid` but for the rows that `bad` flags."""
    return valid if bad is None else valid & np.bitwise_xor(bad, np.uint8(1))


def common(operands: Sequence[Operand], rows: int) -> Flags:
    """uint8 a row: 1 where no operand is null."""
    valid = np.ones(rows, np.uint8)
    for operand in operands:
        if operand.column.valid is not None:
            valid &= operand.column.valid
    return valid
