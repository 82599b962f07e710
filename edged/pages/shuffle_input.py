"""Inputs of a shuffle: a generator of tuples, or columns and row numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch
from edged.data.hashing import hash_columns
from edged.data.schema import TYPES, Field, Schema
from edged.data.scratch import Scratch
from edged.pages.format import tuple_layout
from edged.pages.shuffle_plan import RowShape
from kernels.cpu.pages import SHAPE

KEY_BYTES, LENGTH_BYTES = 4, 4
BATCH_BYTES = 1 << 17
ZIPF_KEYS = 1 << 16
"""Length of the table that skewed keys are drawn from."""
ZIPF_VALUES = 1 << 20


@dataclass(frozen=True, slots=True)
class GeneratedInput:
    """A seeded generator of tuples: a uint32 key and data.  `kernels.cpu.shuffle.source` defines
    every byte."""

    tuples: int
    tuple_bytes: int = 16
    """Bytes of key and data, 4 at least; 0: data of any size."""
    data_bytes: tuple[int, int] = (0, 120)
    """Least and most bytes of data of any size."""
    layout: str = "slotted"
    batch: int = 0
    """Tuples of a batch; 0: by rule."""
    seed: int = 1
    zipf: float = 0.0
    """Exponent of the distribution of keys; 0: all 32-bit keys are equally likely."""
    fresh: bool = True
    """Whether each tuple gets new data, or only a new key."""

    def __post_init__(self) -> None:
        if self.layout not in ("dense", "slotted"):
            raise ValueError(f"no layout {self.layout!r}")
        if self.tuple_bytes == 0 and self.layout == "dense":
            raise ValueError("rows of dense pages have one width")
        if self.tuple_bytes != 0 and self.tuple_bytes < KEY_BYTES:
            raise ValueError("a tuple has a key of 4 bytes")

    @property
    def shape(self) -> RowShape:
        """The rows in pages."""
        if self.layout == "dense":
            return RowShape(False, self.tuple_bytes, self.tuple_bytes, self.tuple_bytes)
        if self.tuple_bytes:
            width = self.tuple_bytes + LENGTH_BYTES
            return RowShape(True, width, width, width)
        low, high = self.data_bytes
        head = KEY_BYTES + LENGTH_BYTES
        return RowShape(True, 0, head + high, head + (low + high) // 2)

    @property
    def batch_tuples(self) -> int:
        """Tuples of a batch."""
        return self.batch or max(256, min(8192, BATCH_BYTES // self.shape.row_bytes_max))

    @property
    def schema(self) -> Schema:
        """The columns of a page."""
        fields = [Field("key", TYPES["uint32"])]
        if self.layout == "slotted":
            return Schema.of([*fields, Field("data", TYPES["binary"])])
        left = self.tuple_bytes - KEY_BYTES
        for kind, size in (("uint64", 8), ("uint32", 4), ("uint16", 2), ("uint8", 1)):
            while left >= size:
                fields.append(Field(f"data{len(fields)}", TYPES[kind]))
                left -= size
        return Schema.of(fields)

    def key_table(self) -> npt.NDArray[np.uint32]:
        """The keys to draw from, each as often as it is likely; empty where all are."""
        if not self.zipf:
            return np.empty(0, np.uint32)
        rng = np.random.default_rng(self.seed)
        weights = np.arange(1, ZIPF_VALUES + 1, dtype=np.float64) ** -self.zipf
        edges = np.cumsum(weights)
        drawn = np.searchsorted(edges, rng.random(ZIPF_KEYS) * edges[-1])
        keys: npt.NDArray[np.uint32] = drawn.astype(np.uint32) * np.uint32(2654435761)
        return keys


@dataclass(frozen=True, slots=True)
class ColumnInput:
    """Rows of a batch by number, partitioned by the hash of the columns `partition_by`.  A row
    comes as often as its number does.  Keep the batch's arrays alive and unchanged meanwhile."""

    columns: Batch
    rows: npt.NDArray[np.int64]
    partition_by: tuple[str, ...]
    batch: int = 0
    hashes: npt.NDArray[np.uint64] = field(init=False, compare=False)
    shape: RowShape = field(init=False, compare=False)

    def __post_init__(self) -> None:
        hashes = hash_columns(self.columns, self.partition_by, Scratch()).copy()
        object.__setattr__(self, "hashes", hashes)
        object.__setattr__(self, "shape", self._shape())

    def _shape(self) -> RowShape:
        schema = self.columns.schema
        fixed = tuple_layout(schema).fixed_bytes
        if schema.fixed_width:
            return RowShape(False, fixed, fixed, fixed)
        sizes = np.full(self.columns.rows, fixed, np.int64)
        for column in self.columns.columns:
            if column.offsets is not None:
                lengths = np.diff(column.offsets)
                sizes += lengths if column.valid is None else lengths * column.valid
        used = sizes[self.rows] if self.rows.size else np.array([fixed])
        return RowShape(True, 0, int(used.max()), int(used.mean()))

    @property
    def tuples(self) -> int:
        """Number of tuples."""
        return int(self.rows.size)

    @property
    def batch_tuples(self) -> int:
        """Tuples of a batch."""
        return self.batch or max(256, min(8192, BATCH_BYTES // self.shape.row_bytes_mean))

    @property
    def schema(self) -> Schema:
        """The columns of a page."""
        return self.columns.schema

    def tables(self) -> list[npt.NDArray[Any]]:
        """The kernels' `columns`, `places` and `shape`."""
        schema = self.schema
        layout = tuple_layout(schema)
        places = []
        for i in range(len(schema)):
            bit_at = layout.bitmap_at + i // 8 if layout.bitmap_bytes else -1
            places.append([layout.places[i], bit_at, 1 << (i % 8)])
        shape = np.zeros(len(SHAPE), np.int64)
        shape[SHAPE.stride] = self.shape.stride
        shape[SHAPE.fixed] = layout.fixed_bytes
        shape[SHAPE.bitmap_at], shape[SHAPE.bitmap_bytes] = layout.bitmap_at, layout.bitmap_bytes
        return [self.columns.addresses(), np.array(places, np.int64), shape]
