"""Rows picked out of other batches by row numbers, copied only when they are read as a batch.

A join's output is such rows: pairs of row numbers of its two windows.  The page writer copies them
straight into pages; any other reader takes `PickedFlow.batch`, which copies them once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column, address, column_table
from edged.data.flow import Flow
from edged.data.gather import take_columns
from edged.data.schema import Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from kernels.cpu.columns import COLUMN


@dataclass(frozen=True, slots=True)
class Picked:
    """`rows` rows under `schema`: row r of column c is row `picks[c][r]` of `columns[c]`."""

    schema: Schema
    rows: int
    columns: tuple[Column, ...]
    picks: tuple[npt.NDArray[np.int64], ...]
    """Contiguous and writable; columns of one origin have one array."""

    def addresses(self) -> npt.NDArray[np.int64]:
        """The table of columns (`kernels.cpu.columns`), with row numbers."""
        table = column_table(self.schema, self.columns)
        for c, picks in enumerate(self.picks):
            table[c, COLUMN.rows] = address(picks)
        return table

    def batch(
        self,
        scratch: Scratch,
        workers: Workers | None = None,
        names: Sequence[str] | None = None,
    ) -> Batch:
        """A copy in `scratch` of all columns, or of those with `names`."""
        schema, chosen = self.schema, list(range(len(self.columns)))
        if names is not None:
            chosen = [schema.index(name) for name in names]
            schema = Schema.of(schema.fields[c] for c in chosen)
        origins: dict[int, list[int]] = {}
        for c in chosen:
            origins.setdefault(id(self.picks[c]), []).append(c)
        copies: dict[int, Column] = {}
        for number, mine in enumerate(origins.values()):
            columns, rows = [self.columns[c] for c in mine], self.picks[mine[0]]
            taken = take_columns(columns, rows, scratch, f"picked.{number}", workers)
            copies.update(zip(mine, taken, strict=True))
        return Batch(schema, self.rows, tuple([copies[c] for c in chosen]))


class PickedFlow(Flow):
    """A flow of picked rows; `batch` copies them when it is first read."""

    picked: Picked
    _copied: list[Batch]
    _copy: Callable[[], Batch]

    def __init__(
        self, picked: Picked, watermark_us: int, scratch: Scratch, workers: Workers | None
    ) -> None:
        given = {
            "watermark_us": watermark_us, "populated": True, "origins": None, "picked": picked,
            "_copied": list[Batch](), "_copy": partial(picked.batch, scratch, workers),
        }  # fmt: skip
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def batch(self) -> Batch:
        """The rows, copied."""
        if not self._copied:
            self._copied.append(self._copy())
        return self._copied[0]

    @property
    def copied(self) -> bool:
        """Whether another reader has had the rows copied already."""
        return bool(self._copied)
