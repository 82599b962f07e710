"""Reads a schema and its event-time column from a table of a job document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edged.data.schema import (
    INT32,
    LIST_LENGTH_MAX,
    TIMESTAMP,
    TYPES,
    DType,
    Field,
    Schema,
    type_named,
)
from edged.data.schema_message import STRUCT_DEPTH_MAX
from edged.documents.faults import FaultCollector
from edged.documents.reader import below, did_you_mean, table, text
from edged.errors import JobError

COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
"""Names of columns, and of a struct's fields."""
PATH = re.compile(rf"{COLUMN.pattern}(?:\.{COLUMN.pattern})*")
"""Names of a stream's columns: those of a struct's fields have dots."""
COLUMNS_MAX = 1000


def columns(path: str, document: Mapping[str, Any], key: str = "columns") -> Schema:
    """A schema written as `{ name = "type", other = "type?" }`; `?` marks a nullable column.

    A table in place of a type is a struct, whose fields are columns `name.field`.  Raises JobError
    with every column that is wrong.
    """
    given = _leaves(below(path, key), table(path, document, key))
    path = below(path, key)
    if not given:
        raise JobError(path, "is empty", "name at least the time column")
    if len(given) > COLUMNS_MAX:
        raise JobError(path, f"holds {len(given)} columns", f"at most {COLUMNS_MAX}")
    wrong = FaultCollector()
    lower: dict[str, str] = {}
    fields: list[Field] = []
    for name in given:
        try:
            fields.append(_field(path, given, name, lower))
        except JobError as fault:
            wrong.faults.append(fault)
    wrong.settle()
    return Schema.of(fields)


def _leaves(path: str, given: Mapping[str, Any], depth: int = 1) -> dict[str, Any]:
    """The columns of a document with structs, by their paths.  Raises JobError."""
    found: dict[str, Any] = {}
    for name, kind in given.items():
        if not isinstance(kind, Mapping):
            found[name] = kind
        elif depth == STRUCT_DEPTH_MAX:
            raise JobError(below(path, name), f"is nested deeper than {STRUCT_DEPTH_MAX} structs")
        elif not kind:
            raise JobError(below(path, name), "has no fields", "name at least one")
        else:
            inside = _leaves(below(path, name), kind, depth + 1)
            found |= {f"{name}.{field}": leaf for field, leaf in inside.items()}
    return found


def _field(path: str, given: Mapping[str, Any], name: str, lower: dict[str, str]) -> Field:
    """A column; `lower` holds the names before it by their lower case."""
    where = below(path, name)
    if not PATH.fullmatch(name):
        advice = "letters, digits and _, no digit first, at most 63"
        raise JobError(where, f"{name!r} is not a column's name", advice)
    other = lower.setdefault(name.lower(), name)
    if other != name:
        raise JobError(where, f"differs from {other} only in case", "SQL ignores case")
    kind = text(path, given, name)
    dtype = type_named(kind.removesuffix("?"))
    if dtype is None:
        lists = (
            f" or, for a list, like float32[64] of up to {LIST_LENGTH_MAX}" if "[" in kind else ""
        )
        raise JobError(where, f"{kind!r} is not a type", did_you_mean(kind, TYPES) + lists)
    return Field(name, dtype, kind.endswith("?"))


def time_column(path: str, document: Mapping[str, Any], schema: Schema) -> str:
    """The name of the event-time column, which is a timestamp of `schema` that is not nullable.

    Raises JobError.
    """
    return _role(path, document, "time", TIMESTAMP, schema)


def weight_column(path: str, document: Mapping[str, Any], schema: Schema) -> str:
    """The name of the weight column, an int32 of `schema` that is not nullable; empty: none.

    Raises JobError.
    """
    return _role(path, document, "weight", INT32, schema) if "weight" in document else ""


def _role(path: str, document: Mapping[str, Any], key: str, dtype: DType, schema: Schema) -> str:
    """The column that `key` names, which has the type `dtype` and no nulls."""
    name = text(path, document, key)
    where = below(path, key)
    if name not in schema:
        raise JobError(where, f"no column is called {name}", did_you_mean(name, schema.names))
    column = schema.field(name)
    if column.dtype is not dtype or column.nullable:
        given = column.dtype.name + ("?" if column.nullable else "")
        raise JobError(where, f"{name} is {given}", f"the {key} column must be {dtype}, not null")
    return name
