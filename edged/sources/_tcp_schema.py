"""A peer's Arrow schema against the stream's: which columns the kernels decode directly.

Columns are matched by name; their order may differ, their set may not.  A column *fits* if its
Arrow type is the stream's (a timestamp: microseconds, any zone, since all count from 1970 UTC).  A
column that can be cast without loss makes the connection slow: pyarrow decodes its batches.  These
are integers of another width (values are checked), float32 for float64, other units of timestamp
and timestamps without a zone (taken as UTC), large, view and dictionary forms of string and binary,
fixed-size binary, lists of a fixed size, and structs, whose fields are columns of their own
(`edged.data.nested`).  Any other type is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edged.data.nested import flat_schema, has_structs
from edged.data.schema import BINARY, BOOL, FLOAT64, STRING, TIMESTAMP, Field, Schema
from edged.errors import SchemaMismatch
from kernels.cpu.ipc import LAYOUT

LISTED_MAX = 20
"""Columns that an error names."""


@dataclass(frozen=True)
class Layout:
    """The layout of a peer's batches: the kernel's layout table, or None for pyarrow."""

    table: npt.NDArray[np.int64] | None


def match(wire: pa.Schema, schema: Schema, stream: str) -> Layout:
    """How batches of `wire` become rows of `schema`, in time proportional to their columns.

    Raises SchemaMismatch with the missing or extra columns, up to LISTED_MAX of each, or with the
    first column whose type cannot be cast.
    """
    problems, slow = [], has_structs(wire)
    if slow:
        wire = flat_schema(wire)
    known, count = set(schema.names), Counter(wire.names)
    missing = [name for name in schema.names if name not in count]
    extra = [name for name in count if name not in known]
    twice = sorted(name for name, times in count.items() if times > 1)
    for what, names in (("lacks", missing), ("does not know", extra), ("has twice", twice)):
        if names:
            who = "the stream" if what == "does not know" else "the sender"
            problems.append(f"{who} {what} {_listed(names)}")
    if problems:
        raise SchemaMismatch(
            f"stream {stream} has the columns {_listed(schema.names)}: {'; '.join(problems)}"
        )
    kinds = dict(zip(wire.names, wire.types, strict=True))
    for f in schema:
        kind = kinds[f.name]
        if _fits(kind, f) and f.dtype.item is None:
            continue
        if not _castable(kind, f):
            raise SchemaMismatch(
                f"stream {stream}, column {f.name}: {kind} arrives, {f.dtype.arrow} is expected"
            )
        slow = True
    return Layout(None if slow else _table(wire, schema))


def _listed(names: Iterable[str]) -> str:
    """The first LISTED_MAX names, and how many follow."""
    known = list(names)
    more = len(known) - LISTED_MAX
    return ", ".join(known[:LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _fits(kind: pa.DataType, f: Field) -> bool:
    if f.dtype is TIMESTAMP:
        return bool(pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None)
    return bool(kind.equals(f.dtype.arrow))


def _castable(kind: pa.DataType, f: Field) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
        if _fits(kind, f):
            return True
    if f.dtype.item is not None:
        return bool(kind.equals(f.dtype.arrow))
    if f.dtype is TIMESTAMP:
        return bool(types.is_timestamp(kind))
    if f.dtype is STRING:
        return bool(types.is_large_string(kind) or _is_view(kind, "string_view"))
    if f.dtype is BINARY:
        fixed = types.is_fixed_size_binary(kind)
        return bool(types.is_large_binary(kind) or _is_view(kind, "binary_view") or fixed)
    if f.dtype.integer:
        return bool(types.is_integer(kind))
    if f.dtype is FLOAT64:
        return bool(types.is_float32(kind))
    return False


def _is_view(kind: pa.DataType, name: str) -> bool:
    return str(kind) == name


def _table(wire: pa.Schema, schema: Schema) -> npt.NDArray[np.int64]:
    """The kernel's layout table: an `IpcColumn` for each column."""
    nodes, first_buffer, at = {}, [], 0
    variable = {f.name: f.dtype.variable for f in schema}
    for node, name in enumerate(wire.names):
        nodes[name] = node
        first_buffer.append(at)
        at += 3 if variable[name] else 2
    table = np.empty((len(schema), len(LAYOUT)), np.int64)
    ordinal = 0
    for i, f in enumerate(schema):
        node = nodes[f.name]
        kind = 0 if f.dtype is BOOL else f.dtype.width
        if f.dtype.variable:
            kind = -1 if f.dtype is STRING else -2
        table[i] = node, first_buffer[node], kind, f.nullable, ordinal if kind < 0 else -1
        ordinal += kind < 0
    return table
