"""Columns and batches: arrays in, arrays out, no Python object per tuple.

A `Column` is fixed-width (`values`: one array of the type's dtype, bool as uint8 0/1) or variable
(`values`: the bytes, `offsets`: int64[n+1] into them; offsets need not start at 0, so that a
slice shares the bytes).  `valid` is uint8[n], 1 where a value stands, 0 where it is null; a column
that is not nullable has `valid=None`, a nullable one always has the array.  The value under a null
is unspecified but readable.

A `Batch` is a schema, a row count and one column a field.  Batches are views, valid until the beat
that made them ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.lists import as_list, list_bytes
from edged.data.schema import Field, Schema
from kernels.cpu.columns import COLUMN

Array = npt.NDArray[Any]
APART_BYTES = 128
"""Distance between memory that two threads write: CPUs fetch 64-byte lines in pairs."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column's arrays; see the module's docstring for shapes."""

    values: Array
    valid: npt.NDArray[np.uint8] | None = None
    offsets: npt.NDArray[np.int64] | None = None

    def slice(self, start: int, stop: int) -> Column:
        """Rows `start:stop`, sharing memory."""
        valid = None if self.valid is None else self.valid[start:stop]
        if self.offsets is None:
            return Column(self.values[start:stop], valid)
        return Column(self.values, valid, self.offsets[start : stop + 1])


@dataclass(frozen=True, slots=True)
class Batch:
    """`rows` rows under `schema`, one `Column` a field."""

    schema: Schema
    rows: int
    columns: tuple[Column, ...]

    def __getitem__(self, name: str) -> Column:
        return self.columns[self.schema.index(name)]

    def slice(self, start: int, stop: int) -> Batch:
        """Rows `start:stop`, sharing memory."""
        return Batch(self.schema, stop - start, tuple(c.slice(start, stop) for c in self.columns))

    def nbytes(self) -> int:
        """Bytes that these rows occupy in memory."""
        total = 0
        for c in self.columns:
            total += 0 if c.valid is None else c.valid.nbytes
            if c.offsets is None:
                total += c.values.nbytes
            else:
                total += c.offsets.nbytes + int(c.offsets[-1] - c.offsets[0])
        return total

    def addresses(self) -> npt.NDArray[np.int64]:
        """The table of columns (`kernels.cpu.columns`): a row for each column.

        Kernels over any schema take this table; keep the batch alive while they run.
        """
        return column_table(self.schema, self.columns)

    def to_arrow(self, view: bool = False) -> pa.RecordBatch:
        """A copy as an Arrow record batch under `schema.to_arrow()`; with `view` values that Arrow
        lays out alike are shared."""
        arrays = [
            _to_arrow(f.dtype.stored, c, self.rows, view)
            for f, c in zip(self.schema.fields, self.columns, strict=True)
        ]
        for i, f in enumerate(self.schema.fields):
            if f.dtype.item is not None:
                arrays[i] = as_list(arrays[i], f.dtype)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.to_arrow())

    @classmethod
    def from_arrow(cls, batch: pa.RecordBatch, schema: Schema) -> Batch:
        """A copy of `batch`, cast to `schema`.

        Raises pa.ArrowInvalid for a value that does not fit, ValueError for a null in a column
        that is not nullable, KeyError for a missing column.
        """
        columns = []
        for f in schema.fields:
            array = batch.column(f.name) if f.name in batch.schema.names else None
            if array is None:
                raise KeyError(f.name)
            if isinstance(array.type, pa.DictionaryType):
                array = array.dictionary_decode()
            if array.null_count and not f.nullable:
                raise ValueError(f"column {f.name} holds nulls but is not nullable")
            if f.dtype.item is not None:
                columns.append(_of_lists(array, f))
                continue
            array = array.cast(f.dtype.arrow)
            columns.append(_from_arrow(array, f.dtype.variable, f.nullable, f.dtype.numpy))
        return cls(schema, batch.num_rows, tuple(columns))


def column_table(schema: Schema, columns: tuple[Column, ...]) -> npt.NDArray[np.int64]:
    """The table of columns (`kernels.cpu.columns`): a row for each column."""
    table = np.zeros((len(columns), len(COLUMN)), np.int64)
    for i, (f, c) in enumerate(zip(schema.fields, columns, strict=True)):
        table[i, COLUMN.width] = f.dtype.width
        table[i, COLUMN.values] = address(c.values)
        table[i, COLUMN.valid] = 0 if c.valid is None else address(c.valid)
        table[i, COLUMN.offsets] = 0 if c.offsets is None else address(c.offsets)
    return table


def address(array: Array) -> int:
    """The address of an array's first byte."""
    return int(array.__array_interface__["data"][0])


def apart(*shape: int) -> npt.NDArray[np.int64]:
    """int64 zeros that share no cache line with other memory, against false sharing.

    Rows share no lines either if their length is a multiple of 16.
    """
    words, size = APART_BYTES // 8, math.prod(shape)
    memory = np.zeros(-(-size // words) * words + words, np.int64)
    first = -(address(memory) // 8) % words
    return memory[first : first + size].reshape(shape)


def empty_batch(schema: Schema) -> Batch:
    """A batch of no rows."""
    return Batch(
        schema,
        0,
        tuple(
            Column(
                np.empty(0, f.dtype.numpy),
                np.empty(0, np.uint8) if f.nullable else None,
                np.zeros(1, np.int64) if f.dtype.variable else None,
            )
            for f in schema.fields
        ),
    )


def _to_arrow(kind: pa.DataType, c: Column, rows: int, view: bool) -> pa.Array:
    mask = None if c.valid is None else pa.py_buffer(np.packbits(c.valid, bitorder="little"))
    if c.offsets is not None:
        start, stop = int(c.offsets[0]), int(c.offsets[-1])
        offsets = pa.py_buffer((c.offsets - start).astype(np.int32))
        text = c.values[start:stop]
        data = pa.py_buffer(text if view else np.array(text, np.uint8))
        return pa.Array.from_buffers(kind, rows, [mask, offsets, data])
    if pa.types.is_boolean(kind):
        values = np.packbits(c.values, bitorder="little")
    else:
        values = c.values if view else np.array(c.values)
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(values)])


def _of_lists(array: pa.Array, f: Field) -> Column:
    valid = np.asarray(array.is_valid()).astype(np.uint8) if f.nullable else None
    values, offsets = list_bytes(array, f.dtype)
    return Column(values, valid, offsets)


def _from_arrow(array: pa.Array, variable: bool, nullable: bool, dtype: np.dtype[Any]) -> Column:
    n, shift = len(array), array.offset
    buffers = array.buffers()
    valid = None
    if nullable:
        valid = np.ones(n, np.uint8)
        if buffers[0] is not None:
            bits = np.frombuffer(buffers[0], np.uint8)
            valid[:] = np.unpackbits(bits, bitorder="little")[shift : shift + n]
    if variable:
        if n == 0:
            return Column(np.empty(0, np.uint8), valid, np.zeros(1, np.int64))
        offsets = np.frombuffer(buffers[1], np.int32)[shift : shift + n + 1].astype(np.int64)
        data = np.empty(0, np.uint8) if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
        return Column(np.array(data[: offsets[-1]]), valid, offsets)
    if n == 0:
        return Column(np.empty(0, dtype), valid)
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(buffers[1], np.uint8), bitorder="little")
        return Column(bits[shift : shift + n].copy(), valid)
    return Column(np.array(np.frombuffer(buffers[1], dtype)[shift : shift + n]), valid)
