"""Programs of operators: a checked predicate or projection, and its execution over batches.

    plan = Predicate.of("operators.f.where", "power_kw > 0", schema)    # raises ExpressionError
    run = plan.build()                                                  # compiles, outside a beat
    rows = run.select(batch, workers)

Rows whose evaluation is an error (overflow, division by zero, a CAST out of range) are dropped and
counted; the first error's message and event time are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address
from edged.data.gather import take
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import PARALLEL_ROWS, Workers
from edged.errors import ExpressionError
from edged.expressions import cache, codegen, parse, text, tree
from edged.expressions import types as t
from edged.expressions.bind import Binder
from edged.expressions.emit import TooDeep
from edged.expressions.handlers import dispatch
from edged.expressions.tree import Call, Node
from kernels.cpu import collect
from kernels.cpu.columns import COLUMN

_Addresses = npt.NDArray[np.int64]


_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


def _shallow(path: str, make: Callable[[_Given], _Made], given: _Given) -> _Made:
    """`make(given)`; running out of stack or of indentation becomes an ExpressionError."""
    try:
        return make(given)
    except (TooDeep, RecursionError):
        raise ExpressionError(path, "the expression is nested too deeply", "split it") from None


@dataclass(frozen=True)
class Predicate:
    """A checked condition over a schema."""

    schema: Schema
    source: codegen.KernelSource
    derived: tuple[Call, ...]

    @classmethod
    def of(cls, path: str, sql: object, schema: Schema) -> Predicate:
        """Check `sql`.  Raises ExpressionError at `path`."""
        binder = Binder(schema, dispatch)
        binder.path = path
        bound = _shallow(path, binder.condition, parse.parse(path, sql))
        source = _shallow(path, codegen.predicate, bound)
        return cls(schema, source, tuple(binder.derived))

    def build(self, child: bool = True) -> Selector:
        """The running form, its kernel compiled (in a child process, or here)."""
        return Selector(self, child)


@dataclass(frozen=True)
class Projection:
    """Checked expressions over a schema, one an output column."""

    schema: Schema
    output: Schema
    trees: tuple[Node, ...]
    source: codegen.KernelSource
    derived: tuple[Call, ...]

    @classmethod
    def of(cls, path: str, columns: Mapping[str, object], schema: Schema) -> Projection:
        """Check `columns`, name to SQL.  Raises ExpressionError at `path.<name>`."""
        binder = Binder(schema, dispatch)
        trees: list[Node] = []
        fields: list[Field] = []
        for name, sql in columns.items():
            binder.path = f"{path}.{name}"
            bound = _shallow(binder.path, binder.bind, parse.parse(binder.path, sql))
            fields.append(_field(binder.path, name, bound))
            trees.append(bound)
        computed = [n for n in trees if not isinstance(n, tree.ColumnRef)]
        source = _shallow(path, codegen.projection, computed)
        return cls(schema, Schema.of(fields), tuple(trees), source, tuple(binder.derived))

    def passed(self) -> dict[str, str]:
        """Unchanged input columns: output name to input name."""
        n = len(self.schema)
        return {
            field.name: bound.name
            for field, bound in zip(self.output, self.trees, strict=True)
            if isinstance(bound, tree.ColumnRef) and bound.index < n
        }

    def build(self, child: bool = True) -> Projector:
        """The running form, its kernel compiled (in a child process, or here)."""
        return Projector(self, child)


def _field(path: str, name: str, node: Node) -> Field:
    if node.type.dtype is None:
        advice = {
            t.NULL: "CAST(NULL AS its type)",
            t.INTERVAL: "epoch_us(...) converts it to a number",
            t.HUGEINT: "CAST it to UBIGINT or DOUBLE",
        }[node.type]
        raise ExpressionError(path, f"a column cannot be of type {node.type}", advice)
    return Field(name, node.type.dtype, node.nullable)


class _Runner:
    """Common part of selectors and projectors: literals, input addresses, error counters."""

    def __init__(self, source: codegen.KernelSource, derived: Sequence[Call], child: bool) -> None:
        self._kernel = cache.kernel(source.text, child)
        self._faults = source.faults
        self._derived = derived
        self._scratch = Scratch()
        self._texts = [np.frombuffer(bytearray(b or b"\0"), np.uint8) for b in source.literals]
        self._literals = np.zeros((len(self._texts), 2), np.int64)
        for k, literal in enumerate(source.literals):
            self._literals[k] = address(self._texts[k]), len(literal)
        self.errors = 0
        """Rows dropped because of an error."""
        self.first_error = ""
        """Message of the first error."""
        self.first_row = -1
        """Row of the first error in its batch; -1: none."""

    def _inputs(self, batch: Batch) -> tuple[list[Column], _Addresses]:
        """The derived columns, and the addresses of all columns including them."""
        if not self._derived:
            return [], batch.addresses()
        made = text.evaluate(self._derived, batch)
        table = np.zeros((len(made), len(COLUMN)), np.int64)
        for i, column in enumerate(made):
            assert column.offsets is not None
            table[i, COLUMN.values] = address(column.values)
            table[i, COLUMN.offsets] = address(column.offsets)
            table[i, COLUMN.valid] = 0 if column.valid is None else address(column.valid)
        return made, np.concatenate([batch.addresses(), table])

    def _note(self, count: int, rows: Callable[[], Array], fault: int) -> None:
        """Count errors; `rows` returns their rows, the first one first."""
        self.errors += count
        if count and not self.first_error:
            self.first_error = self._faults[fault - 1]
            self.first_row = int(rows()[0])


class FirstError:
    """The first row in error of an operator: its event time and the error's message."""

    def __init__(self, time: str) -> None:
        self._time = time
        self._time_us: int | None = None

    def look(self, runner: _Runner, batch: Batch) -> None:
        """Record the event time of the first row in error; `batch` must still be valid."""
        if runner.first_error and self._time_us is None:
            self._time_us = int(batch[self._time].values[runner.first_row])

    def counters(self, runner: _Runner) -> Mapping[str, Any]:
        """`rows_in_error`, and `first_error` and `first_error_time_us` once there is one."""
        if self._time_us is None:
            return {"rows_in_error": runner.errors}
        return {
            "rows_in_error": runner.errors,
            "first_error": runner.first_error,
            "first_error_time_us": self._time_us,
        }


def _ranges(rows: int, workers: Workers) -> list[tuple[int, int]]:
    parts = workers.count if rows >= PARALLEL_ROWS else 1
    edges = [rows * k // parts for k in range(parts + 1)]
    return list(pairwise(edges))


_NO_OUTPUTS: _Addresses = np.zeros((0, 4), np.int64)


class Selector(_Runner):
    """Finds the rows of a batch where a predicate is TRUE."""

    def __init__(self, plan: Predicate, child: bool) -> None:
        super().__init__(plan.source, plan.derived, child)

    def select(self, batch: Batch, workers: Workers) -> npt.NDArray[np.int64]:
        """The kept rows in order; valid until the next call."""
        flags = self._scratch.get("flags", batch.rows, np.uint8)
        rows = self._scratch.get("rows", batch.rows + 1, np.int64)
        made, table = self._inputs(batch)
        ranges = _ranges(batch.rows, workers)
        notes = np.zeros((len(ranges), 2), np.int64)
        calls = [
            partial(
                self._kernel, table, self._literals, _NO_OUTPUTS, start, stop,
                address(flags), address(rows), notes[k],
            )
            for k, (start, stop) in enumerate(ranges)
        ]  # fmt: skip
        counts = workers.run(calls)
        del made
        kept = counts[0]
        for (start, _), count in zip(ranges[1:], counts[1:], strict=True):
            rows[kept : kept + count] = rows[start : start + count]
            kept += count
        for errors, flag in notes:
            self._note(int(errors), lambda: np.flatnonzero(flags > 1), int(flag) - 1)
        return rows[:kept]


class Projector(_Runner):
    """Computes the output columns of batches."""

    def __init__(self, plan: Projection, child: bool) -> None:
        super().__init__(plan.source, plan.derived, child)
        self._plan = plan
        self._fallible = plan.source.fallible
        self._computed = any(not isinstance(n, tree.ColumnRef) for n in plan.trees)

    def project(self, batch: Batch, workers: Workers) -> Batch:
        """The output batch without the rows in error; valid until the next call."""
        made, table = self._inputs(batch)
        columns = [*batch.columns, *made]
        outputs = [
            columns[n.index] if isinstance(n, tree.ColumnRef) else self._output(k, n, batch.rows)
            for k, n in enumerate(self._plan.trees)
        ]
        if not self._computed:
            return Batch(self._plan.output, batch.rows, tuple(outputs))
        flags = self._scratch.get("flags", batch.rows, np.uint8)
        self._run(batch.rows, table, outputs, flags, workers)
        rows = np.flatnonzero(flags == 0) if self._fallible and flags.any() else None
        outputs = [
            self._collect(k, c, rows, flags)
            if n.type.variable and not isinstance(n, tree.ColumnRef)
            else c
            for k, (n, c) in enumerate(zip(self._plan.trees, outputs, strict=True))
        ]
        done = Batch(self._plan.output, batch.rows, tuple(outputs))
        if rows is None:
            return done
        wrong = np.flatnonzero(flags)
        self._note(wrong.size, lambda: wrong, int(flags[wrong[0]]))
        return take(done, rows, self._scratch, "good", workers)

    def _output(self, k: int, node: Node, rows: int) -> Column:
        """Memory of a computed column; a text's values and offsets hold addresses and sizes."""
        valid = self._scratch.get(f"{k}.valid", rows, np.uint8) if node.nullable else None
        if node.type.variable:
            places = self._scratch.get(f"{k}.places", rows, np.int64)
            return Column(places, valid, self._scratch.get(f"{k}.sizes", rows, np.int64))
        assert node.type.dtype is not None
        return Column(self._scratch.get(f"{k}.values", rows, node.type.dtype.numpy), valid)

    def _run(
        self,
        rows: int,
        table: _Addresses,
        outputs: Sequence[Column],
        flags: Array,
        workers: Workers,
    ) -> None:
        computed = [
            c
            for n, c in zip(self._plan.trees, outputs, strict=True)
            if not isinstance(n, tree.ColumnRef)
        ]
        out = np.zeros((len(computed), len(COLUMN)), np.int64)
        for i, c in enumerate(computed):
            out[i, COLUMN.values] = address(c.values)
            out[i, COLUMN.valid] = 0 if c.valid is None else address(c.valid)
            out[i, COLUMN.offsets] = 0 if c.offsets is None else address(c.offsets)
        unused = np.zeros(2, np.int64)
        calls = [
            partial(self._kernel, table, self._literals, out, a, b, address(flags), 0, unused)
            for a, b in _ranges(rows, workers)
        ]
        workers.run(calls)

    def _collect(self, k: int, c: Column, rows: Array | None, flags: Array) -> Column:
        """A text column from its addresses and sizes."""
        sizes = c.offsets
        assert sizes is not None
        if rows is not None:
            sizes[flags != 0] = 0
        offsets = self._scratch.get(f"{k}.offsets", sizes.size + 1, np.int64)
        total = collect.collect_offsets(sizes, offsets)
        values = self._scratch.get(f"{k}.bytes", total, np.uint8)
        collect.collect_bytes(c.values, offsets, 0, sizes.size, address(values))
        return Column(values, c.valid, offsets)
