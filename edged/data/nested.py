"""Structs as columns: the field `lat` of a column `pos` is the column `pos.lat`.

    flat_schema(schema)      the schema of the leaves
    flattened(batch)         its rows; a null struct has null leaves
    nested_schema(fields)    the inverse of `flat_schema`, for readers that expect structs

Structs within structs become `a.b.c`.  A column whose own name has dots stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


def has_structs(schema: pa.Schema) -> bool:
    """Whether a column is a struct."""
    return any(pa.types.is_struct(kind) for kind in schema.types)


def flat_schema(schema: pa.Schema) -> pa.Schema:
    """The leaves of the columns, in order; the metadata stays."""
    leaves: list[pa.Field] = []
    for field in schema:
        leaves += _leaves(field)
    return pa.schema(leaves, schema.metadata)


def _leaves(field: pa.Field) -> list[pa.Field]:
    if not pa.types.is_struct(field.type):
        return [field]
    return [leaf for part in field.flatten() for leaf in _leaves(part)]


def flattened(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the leaves as columns; the batch itself where it has no structs."""
    if not has_structs(batch.schema):
        return batch
    arrays: list[pa.Array] = []
    for array in batch.columns:
        arrays += _leaf_arrays(array)
    return pa.RecordBatch.from_arrays(arrays, schema=flat_schema(batch.schema))


def _leaf_arrays(array: pa.Array) -> list[pa.Array]:
    if not pa.types.is_struct(array.type):
        return [array]
    return [leaf for part in array.flatten() for leaf in _leaf_arrays(part)]


def nested_schema(fields: Iterable[tuple[str, pa.DataType]]) -> pa.Schema:
    """Names and types of leaves as a schema with structs."""
    return pa.schema(_nested(list(fields)))


def _nested(fields: list[tuple[str, pa.DataType]]) -> list[pa.Field]:
    groups: dict[str, list[tuple[str, pa.DataType]]] = {}
    for name, kind in fields:
        first, _, rest = name.partition(".")
        groups.setdefault(first, []).append((rest, kind))
    return [
        pa.field(name, parts[0][1] if not parts[0][0] else pa.struct(_nested(parts)))
        for name, parts in groups.items()
    ]
