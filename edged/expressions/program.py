"""Programs of operators: a checked predicate or projection, and its execution over batches.

    plan = Predicate.of("operators.f.where", "power_kw > 0", schema)    # raises ExpressionError
    run = plan.build()                                                  # compiles, outside a beat
    rows = run.select(batch, workers)

Rows whose evaluation is an error (overflow, division by zero, a CAST out of range) are dropped and
counted; the first error's message and event time are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edged.data.columns import Array, Batch, Column, address
from edged.data.gather import take
from edged.data.schema import Field, Schema
from edged.data.scratch import Scratch
from edged.data.workers import Workers
from edged.documents.faults import FaultCollector
from edged.errors import ExpressionError
from edged.expressions import codegen, parse, stage_plan, tree
from edged.expressions import types as t
from edged.expressions.bind import Binder
from edged.expressions.emit import TooDeep
from edged.expressions.handlers import dispatch
from edged.expressions.kernel_run import Addresses, Loaded, StageRun, TreeKernel, ranges
from edged.expressions.stage_plan import Stages
from edged.expressions.tree import Node

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
    stages: Stages

    @classmethod
    def of(cls, path: str, sql: object, schema: Schema) -> Predicate:
        """Check `sql`.  Raises ExpressionError at `path`."""
        binder = Binder(schema, dispatch)
        binder.path = path
        bound = _shallow(path, binder.condition, parse.parse(path, sql))
        source = _shallow(path, codegen.predicate, bound)
        return cls(schema, source, _shallow(path, _stages, binder))

    def generated(self) -> tuple[str, ...]:
        """The sources of its kernels."""
        return (*self.stages.texts, self.source.text)

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
    stages: Stages

    @classmethod
    def of(cls, path: str, columns: Mapping[str, object], schema: Schema) -> Projection:
        """Check `columns`, name to SQL.  Raises JobError at every `path.<name>` at fault."""
        binder = Binder(schema, dispatch)
        trees: list[Node] = []
        fields: list[Field] = []
        wrong = FaultCollector()
        for name, sql in columns.items():
            binder.path = f"{path}.{name}"
            try:
                bound = _shallow(binder.path, binder.bind, parse.parse(binder.path, sql))
                fields.append(_field(binder.path, name, bound))
                trees.append(bound)
            except ExpressionError as fault:
                wrong.faults.append(fault)
        wrong.settle()
        computed = [n for n in trees if not isinstance(n, tree.ColumnRef)]
        source = _shallow(path, codegen.projection, computed)
        done = _shallow(path, _stages, binder)
        return cls(schema, Schema.of(fields), tuple(trees), source, done)

    def generated(self) -> tuple[str, ...]:
        """The sources of its kernels."""
        return (*self.stages.texts, self.source.text)

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
            t.DATE: "CAST it to TIMESTAMP or VARCHAR",
            t.INTERVAL: "epoch_us(...) converts it to a number",
            t.HUGEINT: "CAST it to UBIGINT or DOUBLE",
        }[node.type]
        raise ExpressionError(path, f"a column cannot be of type {node.type}", advice)
    return Field(name, node.type.dtype, node.nullable)


def _stages(binder: Binder) -> Stages:
    return stage_plan.plan(binder.slots, len(binder.schema))


class _Runner:
    """Common part of selectors and projectors: the stages before the kernel, error counters."""

    def __init__(self, source: codegen.KernelSource, before: Stages, child: bool) -> None:
        self._before = StageRun(before, child)
        self._faults = source.faults
        self.errors = 0
        """Rows dropped because of an error."""
        self.first_error = ""
        """Message of the first error."""
        self.first_row = -1
        """Row of the first error in its batch; -1: none."""

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


_NO_OUTPUTS: Addresses = np.zeros((0, 4), np.int64)


class Selector(_Runner):
    """Finds the rows of a batch where a predicate is TRUE."""

    def __init__(self, plan: Predicate, child: bool) -> None:
        super().__init__(plan.source, plan.stages, child)
        self._loaded = Loaded(plan.source, child)
        self._kernel = self._loaded.call
        self._scratch = Scratch()

    def select(self, batch: Batch, workers: Workers) -> npt.NDArray[np.int64]:
        """The kept rows in order; valid until the next call."""
        flags = self._scratch.get("flags", batch.rows, np.uint8)
        rows = self._scratch.get("rows", batch.rows + 1, np.int64)
        columns, table = self._before.columns(batch, workers)
        parts = ranges(batch.rows, workers)
        notes = np.zeros((len(parts), 2), np.int64)
        calls = [
            partial(
                self._kernel, table, self._loaded.literals, _NO_OUTPUTS, start, stop,
                address(flags), address(rows), notes[k],
            )
            for k, (start, stop) in enumerate(parts)
        ]  # fmt: skip
        counts = workers.run(calls)
        del columns  # the kernel has read them
        kept = counts[0]
        for (start, _), count in zip(parts[1:], counts[1:], strict=True):
            rows[kept : kept + count] = rows[start : start + count]
            kept += count
        for errors, flag in notes:
            self._note(int(errors), lambda: np.flatnonzero(flags > 1), int(flag) - 1)
        return rows[:kept]


class Projector(_Runner):
    """Computes the output columns of batches."""

    def __init__(self, plan: Projection, child: bool) -> None:
        super().__init__(plan.source, plan.stages, child)
        self._plan = plan
        self._computed = [n for n in plan.trees if not isinstance(n, tree.ColumnRef)]
        self._kernel = TreeKernel(self._computed, plan.source, child)
        self._scratch = Scratch()

    def project(self, batch: Batch, workers: Workers) -> Batch:
        """The output batch without the rows in error; valid until the next call."""
        columns, table = self._before.columns(batch, workers)
        wrong = None
        made: Iterator[Column] = iter(())
        if self._computed:
            raw, flags = self._kernel.run(table, batch.rows, workers)
            wrong = flags if self._plan.source.fallible and flags.any() else None
            made = (self._kernel.collected(k, c, wrong) for k, c in enumerate(raw))
        outputs = [
            columns[n.index] if isinstance(n, tree.ColumnRef) else next(made)
            for n in self._plan.trees
        ]
        done = Batch(self._plan.output, batch.rows, tuple(outputs))
        if wrong is None:
            return done
        lost = np.flatnonzero(wrong)
        self._note(lost.size, lambda: lost, int(wrong[lost[0]]))
        return take(done, np.flatnonzero(wrong == 0), self._scratch, "good", workers)
