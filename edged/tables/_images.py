"""Records of a schema's rows: batches to records, and records to batches.

`kernels.cpu.tables.images` has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address, empty_batch
from edged.data.hashing import Hashes, exact_bits
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.tables.base import Weights
from kernels.cpu.tables import images

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RowRecords:
    """Records that lie in `memory`, record i from `offsets[i]` on, in no order."""

    memory: Bytes
    offsets: Int64s

    def addresses(self) -> Int64s:
        """Where each record lies."""
        return self.offsets[:-1] + address(self.memory)


@dataclass(frozen=True, slots=True)
class KeyImages:
    """The images of keys: the key columns alone.  `at` has the place and the bytes of each; it is
    empty where equal hashes are equal keys."""

    memory: Bytes
    at: Int64s
    agree: int
    """Bytes at the front of records of one key that are the same, the header included."""
    stride: int
    """Bytes of every record; 0: they differ."""

    @property
    def base(self) -> int:
        """Where `memory` lies."""
        return address(self.memory)


class Images:
    """Both ways for one schema and key."""

    def __init__(self, schema: Schema, key: Sequence[str], scratch: Scratch | None = None) -> None:
        self.schema = schema
        others = [name for name in schema.names if name not in key]
        self._order = [schema.index(name) for name in (*key, *others)]
        self._keys = len(key)
        self._exact = exact_bits(schema, key) > 0
        fixed = _fixed([schema.fields[i] for i in self._order[: self._keys]])
        self._agree = images.HEADER + (fixed & ~7)
        whole = images.HEADER + _fixed(schema.fields)
        self._stride = (whole + 7) & ~7 if schema.fixed_width else 0
        self._scratch = Scratch() if scratch is None else scratch

    def encode(self, batch: Batch, hashes: Hashes, weights: Weights) -> RowRecords:
        """The records of a batch's rows, valid until the next call."""
        fields = [self.schema.fields[i] for i in self._order]
        table = _table(fields, [batch.columns[i] for i in self._order])
        offsets = self._scratch.get("offsets", batch.rows + 1, np.int64)
        size = images.measure(table, _fixed(fields), images.HEADER, offsets)
        memory = self._scratch.get("records", size, np.uint8)
        images.write_headers(address(memory), offsets, hashes, weights)
        at = self._scratch.get("at", batch.rows, np.int64)
        np.add(offsets[:-1], address(memory) + images.HEADER, out=at)
        images.encode(table, at)
        return RowRecords(memory, offsets)

    def encode_keys(self, keys: Batch) -> KeyImages:
        """The images of probing keys, whose columns are in the key's order."""
        if self._exact:
            return KeyImages(
                np.empty(1, np.uint8), np.empty(0, np.int64), self._agree, self._stride
            )
        fields = [self.schema.fields[i] for i in self._order[: self._keys]]
        table = _table(fields, keys.columns)
        offsets = self._scratch.get("key offsets", keys.rows + 1, np.int64)
        size = images.measure(table, _fixed(fields), 0, offsets)
        memory = self._scratch.get("keys", size, np.uint8)
        at = self._scratch.get("at", keys.rows, np.int64)
        np.add(offsets[:-1], address(memory), out=at)
        images.encode(table, at)
        places = self._scratch.get("key places", 2 * keys.rows, np.int64)
        places[::2] = offsets[:-1]
        places[1::2] = at - address(memory) - offsets[:-1]
        return KeyImages(memory, places, self._agree, self._stride)

    def decode(self, records: Int64s, name: str = "column") -> Batch:
        """The rows of the records at these addresses, valid until the next call with `name`."""
        if records.size == 0:
            return empty_batch(self.schema)
        at = self._scratch.get("at", records.size, np.int64)
        np.add(records, images.HEADER, out=at)
        columns: list[Column | None] = [None] * len(self._order)
        fixed: list[int] = []
        for i in self._order:
            field, place = self.schema.fields[i], f"{name} {i}"
            if field.dtype.variable:
                self._decode_fixed(fixed, columns, at)
                columns[i] = self._decode_variable(field, place, at)
                fixed = []
            else:
                values = self._scratch.get(place, at.size, field.dtype.numpy)
                columns[i] = Column(values, self._valid(field, place, at.size))
                fixed.append(i)
        self._decode_fixed(fixed, columns, at)
        return Batch(self.schema, records.size, tuple(c for c in columns if c is not None))

    def _decode_fixed(self, which: list[int], columns: list[Column | None], at: Int64s) -> None:
        """Fill columns that lie behind each other in the images."""
        found = [c for i in which if (c := columns[i]) is not None]
        if found:
            images.decode_fixed(_table([self.schema.fields[i] for i in which], found), at)

    def _valid(self, field: Field, name: str, rows: int) -> Bytes | None:
        return self._scratch.get(f"{name} valid", rows, np.uint8) if field.nullable else None

    def _decode_variable(self, field: Field, name: str, at: Int64s) -> Column:
        rows, valid = at.size, self._valid(field, name, at.size)
        offsets = self._scratch.get(f"{name} offsets", rows + 1, np.int64)
        table = _table([field], [Column(offsets.view(np.uint8), valid, offsets)])
        size = images.decode_lengths(address(table), at)
        column = Column(self._scratch.get(name, size, np.uint8), valid, offsets)
        images.decode_bytes(address(_table([field], [column])), at)
        return column


def _fixed(fields: Sequence[Field]) -> int:
    """Bytes that every image of these columns has."""
    return sum(f.dtype.width + f.nullable for f in fields)


def _table(fields: Sequence[Field], columns: Sequence[Column]) -> Int64s:
    """The kernels' description of columns (`kernels.cpu.tables.images.ImageColumn`)."""
    column = images.COLUMN
    table = np.zeros((len(fields), len(column)), np.int64)
    for row, f, c in zip(table, fields, columns, strict=True):
        row[column.kind] = _kind(f)
        row[column.width] = f.dtype.width
        row[column.nullable] = f.nullable
        row[column.values] = address(c.values)
        row[column.valid] = 0 if c.valid is None else address(c.valid)
        row[column.offsets] = 0 if c.offsets is None else address(c.offsets)
    return table


def _kind(field: Field) -> int:
    dtype = field.dtype
    if dtype.variable:
        return images.VARIABLE
    if dtype.floating:
        return images.FLOAT
    return images.SIGNED if dtype.name.startswith(("int", "timestamp")) else images.UNSIGNED
