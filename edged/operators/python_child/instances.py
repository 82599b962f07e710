"""The user's operator in a child process: its code, and one instance for each partition.

The code defines one of

    class Operator:
        def __init__(self, context): ...
        def on_batch(self, batch): ...      # pyarrow.RecordBatch
        def save(self): ...                 # bytes; with `load`, optional
        def load(self, data): ...

    def on_batch(batch, context): ...

`on_batch` returns a RecordBatch or Table of the output, a dict of them by output name, or None.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Code:
    """What a child runs, and on which rows."""

    source: str
    filename: str
    settings: dict[str, Any]
    files: dict[str, str]
    partitions: int
    outputs: dict[str, pa.Schema]


@dataclass(frozen=True)
class OperatorContext:
    """What the user's code is given."""

    settings: Mapping[str, Any]
    """The table `settings` of the operator."""
    files: Mapping[str, str]
    """Paths of the table `files` of the operator, by name."""
    partition: int
    """The number of this partition, from 0."""
    partitions: int
    outputs: Mapping[str, pa.Schema]
    """The schema of each output; that of an operator with one output has the name ""."""


class Instances:
    """The instances of one child."""

    def __init__(self, code: Code) -> None:
        """Load the code.  Raises what it raises."""
        self._code = code
        module = _module(code)
        self._class = getattr(module, "Operator", None)
        self._function: Callable[[Any, Any], Any] | None = getattr(module, "on_batch", None)
        self._alive: dict[int, Any] = {}
        self._dirty: set[int] = set()

    @property
    def stateful(self) -> bool:
        """Whether the code defines a class."""
        return self._class is not None

    def run(
        self, partition: int, batch: pa.RecordBatch
    ) -> Iterator[tuple[str, Sequence[pa.RecordBatch]]]:
        """The outputs of a partition's rows, by name.  Raises what the code raises, TypeError and
        ValueError for a wrong output."""
        instance = self._instance(partition)
        self._dirty.add(partition)
        if self._class is None:
            assert self._function is not None
            found = self._function(batch, instance)
        else:
            found = instance.on_batch(batch)
        yield from self._outputs(found)

    def load(self, partition: int, data: bytes) -> None:
        """Give a state to a partition."""
        self._instance(partition).load(data)

    def save(self) -> Iterator[tuple[int, bytes]]:
        """The states that have changed since the last call."""
        if self._class is None or not hasattr(self._class, "save"):
            return
        for partition in sorted(self._dirty):
            yield partition, bytes(self._alive[partition].save())
        self._dirty.clear()

    def _instance(self, partition: int) -> Any:
        if partition not in self._alive:
            code = self._code
            context = OperatorContext(
                code.settings, code.files, partition, code.partitions, code.outputs
            )
            made = context if self._class is None else self._class(context)
            self._alive[partition] = made
        return self._alive[partition]

    def _outputs(self, found: Any) -> Iterator[tuple[str, Sequence[pa.RecordBatch]]]:
        if found is None:
            return
        outputs = self._code.outputs
        if not isinstance(found, dict):
            found = {next(iter(outputs)): found}
        for name, rows in found.items():
            if name not in outputs:
                raise ValueError(f"there is no output {name!r}, but {', '.join(outputs)}")
            yield name, _batches(name, rows, outputs[name])


def _batches(name: str, rows: Any, schema: pa.Schema) -> Sequence[pa.RecordBatch]:
    """Rows of an output, cast to its schema."""
    if isinstance(rows, pa.RecordBatch) and rows.schema.equals(schema):
        if nulls := [f.name for f in schema if not f.nullable and rows[f.name].null_count]:
            raise ValueError(f"column {nulls[0]} of output {name!r} holds nulls")
        return [rows]
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if not isinstance(rows, pa.Table):
        kind = type(rows).__name__
        raise TypeError(f"output {name!r} is a {kind}, not a pyarrow.RecordBatch or Table")
    if missing := [n for n in schema.names if n not in rows.schema.names]:
        raise ValueError(f"output {name!r} lacks the columns {', '.join(missing)}")
    rows = rows.select(schema.names).cast(schema)
    for field in schema:
        if not field.nullable and rows.column(field.name).null_count:
            raise ValueError(f"column {field.name} of output {name!r} holds nulls")
    batches: list[pa.RecordBatch] = rows.to_batches()
    return batches


def _module(code: Code) -> Any:
    module = types.ModuleType("edged_operator")
    module.__file__ = code.filename
    exec(compile(code.source, code.filename, "exec"), module.__dict__)
    return module
