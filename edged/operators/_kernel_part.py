"""A worker's part of a batch in a kernel operator: runs the kernel, grows outputs, notes errors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edged.data.columns import address, apart
from edged.data.schema import TIMESTAMP, Schema
from edged.operators._kernel_outputs import OutputMemory
from edged.operators._kernel_records import RecordLane, key_values
from edged.operators._window_groups import Groups, Shape
from edged.operators.user.declarations import Declarations
from edged.operators.user.rows import INFO, LOGGED_WORDS, GeneratedKernel
from kernels.cpu.columns import COLUMN
from kernels.cpu.window import STATE

Ints = npt.NDArray[np.int64]


class KernelShare:
    """What one worker needs; `errors` are rows of the batch and reasons."""

    def __init__(
        self, declared: Declarations, kernel: GeneratedKernel, by_column: bool, call: Any
    ) -> None:
        self._call, self._by_column = call, by_column
        self._bounded = kernel.bounded
        self.outputs = [OutputMemory(o.schema) for o in declared.outputs.values()]
        self._texts = [np.frombuffer(bytearray(b or b"\0"), np.uint8) for b in kernel.literals]
        self._literals = np.zeros((len(self._texts), 2), np.int64)
        for q, literal in enumerate(kernel.literals):
            self._literals[q] = address(self._texts[q]), len(literal)
        self._info = apart(INFO.outputs + 3 * len(self.outputs) + 1)
        self._words = declared.words
        self._logged = not by_column and self._words > LOGGED_WORDS
        size = 1 + 3 * self._words if self._logged else max(1, self._words)
        self._undo: Ints = np.zeros(size, np.int64)
        self.errors: list[tuple[int, str]] = []

    def count(self, output: int) -> int:
        """Rows of an output."""
        return int(self._info[INFO.outputs + 3 * output])

    def run_range(self, columns: Ints, start: int, stop: int) -> None:
        """Rows `start..stop-1`, without state."""
        self._info[INFO.records] = self._info[INFO.stride] = 0
        self._run(columns, start, stop, 0, 0, lambda at: at)

    def run_record(self, columns: Ints, lane: RecordLane, rows: int) -> None:
        """All rows, with one record."""
        if self._words and not int(lane.state[STATE.groups]):
            lane.make_record()
        self._info[INFO.records], self._info[INFO.stride] = lane.memory() if self._words else (0, 0)
        self._run(columns, 0, rows, 0, 0, lambda at: at)

    def run_lane(
        self,
        columns: Ints,
        lane: RecordLane,
        settings: Ints,
        hashes: npt.NDArray[np.uint64],
        rows: int,
        keeping: Ints,
    ) -> None:
        """The rows of a lane, with the records of their keys."""
        found = lane.find(columns, settings, hashes, rows, keeping)
        self._info[INFO.records], self._info[INFO.stride] = lane.memory()
        self._run(
            columns, 0, found.rows.size, address(found.slots), address(found.rows),
            lambda at: int(found.rows[at]),
        )  # fmt: skip

    def _run(
        self, columns: Ints, start: int, stop: int, slots: int, rows: int, row_of: Any
    ) -> None:
        info, first = self._info, INFO.outputs
        self.errors = []
        info[INFO.undo] = address(self._undo)
        for j, memory in enumerate(self.outputs):
            info[first + 3 * j] = 0
            memory.reserve((stop - start) * max(1, min(2, self._bounded[j])))
        table, at = self._outputs_table(), start
        while at < stop:
            info[INFO.full] = info[INFO.record] = 0
            try:
                at = self._call(columns, self._literals, table, at, stop, slots, rows, info)
            except Exception as problem:
                self._restore()
                failed = int(info[INFO.at])
                at = stop if self._by_column else failed + 1
                reason = f"{type(problem).__name__}: {problem}"
                self.errors += [(row_of(k), reason) for k in range(failed, at)]
                continue
            if at < stop:
                self._restore()
                self._grow(int(info[INFO.full]) - 1)
                table = self._outputs_table()

    def _restore(self) -> None:
        """Undo what the row at hand has done to its record."""
        if not (record := int(self._info[INFO.record])) or not self._words:
            return
        undo, words = self._undo, self._words
        if not self._logged:
            ctypes.memmove(record, address(undo), 8 * words)
            return
        state = np.ctypeslib.as_array((ctypes.c_int64 * words).from_address(record))
        if (count := int(undo[0])) > words:
            state[:] = undo[1 + 2 * words :]
        else:  # of a place that is there twice the first entry is assigned last
            log = undo[1 : 1 + 2 * count].reshape(count, 2)[::-1]
            state[log[:, 0]] = log[:, 1]

    def _grow(self, output: int) -> None:
        """Double the room of an output, or more where the row needs it."""
        memory, count = self.outputs[output], self.count(output)
        memory.reserve(max(2 * memory.capacity, int(self._info[-1])), count)
        self._info[-1] = 0

    def _outputs_table(self) -> Ints:
        first, rows = INFO.outputs, []
        for j, memory in enumerate(self.outputs):
            self._info[first + 3 * j + 1] = memory.capacity
            self._info[first + 3 * j + 2] = address(memory.sources)
            rows += memory.rows()
        return np.array(rows, np.int64).reshape(-1, len(COLUMN))


def shown_records(
    declared: Declarations, schema: Schema, by: Sequence[str], shape: Shape, records: Groups
) -> tuple[list[str], list[list[Any]]]:
    """Names and values of records, keys first."""
    keys = key_values(shape, schema, by, records)
    names, columns = [*by], [column.to_pylist() for column in keys.columns]
    for f in declared.state.values():
        at = shape.first + f.word
        words = np.ascontiguousarray(records.rows[:, at : at + f.words])
        values: Any = words.view(np.float64) if f.type == "float64" else words
        if f.type == "bool":
            values = words != 0
        if f.type == TIMESTAMP.name:
            values = words.view("datetime64[us]").astype(str)
        columns.append(values.tolist() if f.size else values[:, 0].tolist())
        names.append(f.name)
    return names, [list(row) for row in zip(*columns, strict=True)]
