"""Partitioning schemes: which instances of the next stage a row of a link goes to.

    hash         by the hash of key columns; not the bits that a daemon uses inside
    random       by the row's number since the link began, mixed: a replay decides the same
    round_robin  in turn, row by row; the turn is state
    broadcast    to every instance
    direct       to the instance that an integer column names
    expression   to the instance that a SQL expression yields, which may call a plug-in's functions

With `direct` and an expression, rows that name no instance are dropped and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edged.data.columns import Batch, Column
from edged.data.hashing import hash_columns
from edged.data.schema import INT64, Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.errors import EdgedError, JobError
from edged.expressions.program import Projection
from kernels.cpu import link_partition as kernels

HASH, RANDOM, ROUND_ROBIN = "hash", "random", "round_robin"
BROADCAST, DIRECT = "broadcast", "direct"
SCHEMES = (HASH, RANDOM, ROUND_ROBIN, BROADCAST, DIRECT)
NOWHERE = -1
"""The instance of a row that names none."""

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Shares:
    """The rows of each instance; `rows` None: all of the batch."""

    rows: list[Int64s | None]
    lost: int = 0
    """Rows that name no instance."""


class Partitioner:
    """Deals rows out; `count` is its state, the number of rows dealt out before.

    `direction` computes the instance where the scheme is an expression.
    """

    def __init__(
        self,
        scheme: str,
        instances: int,
        by: Sequence[str],
        direction: Direction | None = None,
    ) -> None:
        self._scheme, self._instances, self._by = scheme, instances, tuple(by)
        self._direction = direction
        self._projector = None if direction is None else direction.projection.build()
        self._scratch = Scratch()
        self.count = 0

    def deal(self, batch: Batch, workers: Workers) -> Shares:
        """The rows of each instance, valid until the next call."""
        first, rows, instances = self.count, batch.rows, self._instances
        self.count += rows
        if self._scheme == BROADCAST:
            return Shares([None] * instances)
        if instances == 1 and self._scheme in (HASH, RANDOM, ROUND_ROBIN):
            return Shares([None])
        of = self._instances_of(batch, first, workers)
        starts: Int64s = self._scratch.get("starts", instances + 1, np.int64)
        order: Int64s = self._scratch.get("rows", rows, np.int64)
        lost = kernels.group(of, instances, starts, order)
        edges = starts.tolist()
        return Shares([order[edges[k] : edges[k + 1]] for k in range(instances)], int(lost))

    def _instances_of(self, batch: Batch, first: int, workers: Workers) -> Int64s:
        out: Int64s = self._scratch.get("of", batch.rows, np.int64)
        if self._scheme == HASH:
            hashes = hash_columns(batch, self._by, self._scratch, "key", workers)
            kernels.by_hash(hashes, self._instances, out)
        elif self._scheme == RANDOM:
            kernels.at_random(first, self._instances, out)
        elif self._scheme == ROUND_ROBIN:
            np.remainder(np.arange(first, first + batch.rows), self._instances, out=out)
        elif self._scheme == DIRECT:
            _named(batch, self._by[0], out)
        else:
            self._expressed(batch, out, workers)
        return out

    def _expressed(self, batch: Batch, out: Int64s, workers: Workers) -> None:
        """The values of the expression; NOWHERE for nulls and for rows in error."""
        assert self._direction is not None and self._projector is not None
        out[:] = NOWHERE
        numbers: Int64s = self._scratch.get("numbers", batch.rows, np.int64)
        numbers[:] = np.arange(batch.rows)
        wide = self._direction.projection.schema
        done = self._projector.project(Batch(wide, batch.rows, (*batch.columns, Column(numbers))),
                                       workers)  # fmt: skip
        column, rows = done.columns
        out[rows.values] = column.values
        if column.valid is not None:
            out[rows.values[column.valid == 0]] = NOWHERE


@dataclass(frozen=True)
class Direction:
    """A checked expression that yields an instance, and the number of each row beside it."""

    projection: Projection

    @classmethod
    def of(cls, path: str, sql: str, schema: Schema) -> Direction:
        """Check `sql`.  Raises ExpressionError at `path`, JobError where it yields no integer."""
        number = "_row"
        while number in schema:
            number += "_"
        wide = Schema.of((*schema.fields, Field(number, INT64)))
        try:
            projection = Projection.of("", {path: sql, "row": f'"{number}"'}, wide)
        except EdgedError as fault:
            raise JobError(path, str(fault).partition(": ")[2] or str(fault)) from None
        dtype = projection.output.fields[0].dtype
        if not dtype.integer:
            raise JobError(path, f"yields {dtype}, not the number of an instance", "an integer")
        return cls(projection)


def _named(batch: Batch, name: str, out: Int64s) -> None:
    """The values of an integer column; NOWHERE for nulls and for numbers beyond int64."""
    column = batch[name]
    out[:] = column.values.astype(np.int64, copy=False)
    if column.valid is not None:
        out[column.valid == 0] = NOWHERE
