"""Memory of a kernel operator's outputs: columns that a kernel fills and that grow.

Texts come as an address and a size a row, in place of bytes and offsets, and are collected once
all rows are there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from kernels.cpu import collect
from kernels.cpu.columns import ColumnMemory

CAPACITY_LEAST = 256
Ints = npt.NDArray[np.int64]


class OutputMemory:
    """The columns of one output of one part of a batch."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.capacity = 0
        self.sources: Ints = np.empty(0, np.int64)
        """The input row of each row."""
        self.columns: list[Column] = [_column(f, 0) for f in schema]

    def reserve(self, capacity: int, kept: int = 0) -> None:
        """Make room for `capacity` rows; the first `kept` stay."""
        if capacity <= self.capacity:
            return
        capacity = max(CAPACITY_LEAST, capacity)
        larger = [_column(f, capacity) for f in self.schema]
        for old, new in zip(self.columns, larger, strict=True):
            for a, b in ((old.values, new.values), (old.valid, new.valid),
                         (old.offsets, new.offsets)):  # fmt: skip
                if a is not None and b is not None:
                    b[:kept] = a[:kept]
        sources: Ints = np.empty(capacity, np.int64)
        sources[:kept] = self.sources[:kept]
        self.columns, self.sources, self.capacity = larger, sources, capacity

    def rows(self) -> list[ColumnMemory]:
        """The rows of the table of columns."""
        return [
            ColumnMemory(
                0, address(c.values), 0 if c.valid is None else address(c.valid),
                0 if c.offsets is None else address(c.offsets), 0,
            )
            for c in self.columns
        ]  # fmt: skip


def joined(
    parts: Sequence[tuple[OutputMemory, int]], ordered: bool, scratch: Scratch, name: str
) -> Batch:
    """The first rows of each part as one batch, one part after the other.

    Unless they are `ordered` so, the rows are put in the order of their input rows.
    """
    schema, total = parts[0][0].schema, sum(count for _, count in parts)
    order: Ints | None = None
    if not ordered and len(parts) > 1:
        sources = np.concatenate([memory.sources[:count] for memory, count in parts])
        order = np.argsort(sources, kind="stable")
    columns = []
    for m, f in enumerate(schema):
        pieces = [(memory.columns[m], count) for memory, count in parts]
        values = _whole([c.values[:count] for c, count in pieces], order)
        valid = None
        if f.nullable:
            valid = _whole([c.valid[:count] for c, count in pieces if c.valid is not None], order)
        if not f.dtype.variable:
            columns.append(Column(values, valid))
            continue
        sizes = _whole([c.offsets[:count] for c, count in pieces if c.offsets is not None], order)
        offsets = scratch.get(f"{name}.{m}.offsets", total + 1, np.int64)
        size = collect.collect_offsets(np.ascontiguousarray(sizes), offsets)
        text = scratch.get(f"{name}.{m}.bytes", size, np.uint8)
        collect.collect_bytes(np.ascontiguousarray(values), offsets, 0, total, address(text))
        columns.append(Column(text, valid, offsets))
    return Batch(schema, total, tuple(columns))


def _whole(parts: Sequence[Array], order: Ints | None) -> Array:
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole if order is None else whole[order]


def _column(f: Field, capacity: int) -> Column:
    valid = np.empty(capacity, np.uint8) if f.nullable else None
    if f.dtype.variable:
        return Column(np.empty(capacity, np.int64), valid, np.empty(capacity, np.int64))
    return Column(np.empty(capacity, f.dtype.numpy), valid)
