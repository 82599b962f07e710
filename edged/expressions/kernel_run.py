"""Generated kernels over batches: their literals, their outputs, and the stages before them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.expressions import cache, codegen, operands, stages
from edged.expressions.stage_plan import Stages
from edged.expressions.tree import ColumnRef, Const, Node
from kernels.cpu import collect
from kernels.cpu.columns import COLUMN, ColumnMemory

Addresses = npt.NDArray[np.int64]


def ranges(rows: int, workers: Workers) -> list[tuple[int, int]]:
    """The rows of each worker's call."""
    parts = workers.count if rows >= PARALLEL_ROWS else 1
    edges = [rows * k // parts for k in range(parts + 1)]
    return list(pairwise(edges))


def describe(column: Column) -> ColumnMemory:
    """A column's row in the table of generated kernels, which do not read the width."""
    return ColumnMemory(
        0,
        address(column.values),
        0 if column.valid is None else address(column.valid),
        0 if column.offsets is None else address(column.offsets),
        0,
    )


class Loaded:
    """A compiled kernel and its literals in memory."""

    def __init__(self, source: codegen.KernelSource, child: bool) -> None:
        self.call = cache.kernel(source.text, child)
        self._texts = [np.frombuffer(bytearray(b or b"\0"), np.uint8) for b in source.literals]
        self.literals = np.zeros((len(self._texts), 2), np.int64)
        for k, literal in enumerate(source.literals):
            self.literals[k] = address(self._texts[k]), len(literal)


class TreeKernel:
    """A projection's kernel and the memory of its outputs, valid until the next `run`."""

    def __init__(self, trees: Sequence[Node], source: codegen.KernelSource, child: bool) -> None:
        self._trees = tuple(trees)
        self._loaded = Loaded(source, child)
        self._scratch = Scratch()

    def run(self, table: Addresses, rows: int, workers: Workers) -> tuple[list[Column], Array]:
        """The trees' columns and the fault of every row.

        A text's values are addresses and its offsets are sizes: `collected` makes a column.
        """
        flags = self._scratch.get("flags", rows, np.uint8)
        columns = [self._output(k, n, rows) for k, n in enumerate(self._trees)]
        out = np.array([describe(c) for c in columns], np.int64).reshape(-1, len(COLUMN))
        unused = np.zeros(2, np.int64)
        loaded = self._loaded
        workers.run([
            partial(loaded.call, table, loaded.literals, out, a, b, address(flags), 0, unused)
            for a, b in ranges(rows, workers)
        ])  # fmt: skip
        return columns, flags

    def collected(self, k: int, c: Column, without: Array | None = None) -> Column:
        """Output `k` as a column; texts of the rows that `without` flags are empty."""
        if not self._trees[k].type.variable:
            return c
        sizes = c.offsets
        assert sizes is not None
        if without is not None:
            sizes[without != 0] = 0
        offsets = self._scratch.get(f"{k}.offsets", sizes.size + 1, np.int64)
        total = collect.collect_offsets(sizes, offsets)
        values = self._scratch.get(f"{k}.bytes", total, np.uint8)
        collect.collect_bytes(c.values, offsets, 0, sizes.size, address(values))
        return Column(values, c.valid, offsets)

    def _output(self, k: int, node: Node, rows: int) -> Column:
        valid = self._scratch.get(f"{k}.valid", rows, np.uint8) if node.nullable else None
        if node.type.variable:
            places = self._scratch.get(f"{k}.places", rows, np.int64)
            return Column(places, valid, self._scratch.get(f"{k}.sizes", rows, np.int64))
        assert node.type.dtype is not None
        return Column(self._scratch.get(f"{k}.values", rows, node.type.dtype.numpy), valid)


class StageRun:
    """The running form of `Stages`."""

    def __init__(self, plan: Stages, child: bool) -> None:
        self._plan = plan
        self._kernels = [
            None
            if level.source is None
            else TreeKernel([node for _, node in level.computed], level.source, child)
            for level in plan.levels
        ]

    def columns(self, batch: Batch, workers: Workers) -> tuple[list[Column], Addresses]:
        """The batch's columns and the slots after them, and the addresses of all of them."""
        columns = [*batch.columns, *[_EMPTY] * self._plan.width]
        table = np.zeros((len(columns), len(COLUMN)), np.int64)
        table[: self._plan.columns] = batch.addresses()
        for level, kernel in zip(self._plan.levels, self._kernels, strict=True):
            if kernel is not None:
                made, _ = kernel.run(table, batch.rows, workers)
                for k, (slot, _) in enumerate(level.computed):
                    self._place(columns, table, slot, kernel.collected(k, made[k]))
            for slot, call in level.derived:
                args = [_operand(a, columns, batch.rows) for a in call.args]
                column, bad = stages.make(call, args, batch.rows)
                self._place(columns, table, slot, column)
                if bad is not None:
                    self._place(columns, table, slot + 1, Column(bad))
        return columns, table

    def _place(self, columns: list[Column], table: Any, slot: int, column: Column) -> None:
        at = self._plan.columns + slot
        columns[at] = column
        table[at] = describe(column)


_EMPTY = Column(np.zeros(1, np.uint8))


def _operand(node: Node, columns: Sequence[Column], rows: int) -> operands.Operand:
    if isinstance(node, Const):
        return operands.of_constant(node, rows)
    assert isinstance(node, ColumnRef)
    return operands.of_column(node.type, columns[node.index], rows)
