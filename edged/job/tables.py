"""`[tables.x]`: the checked terms of a table.

    [tables.devices]
    source = { type = "file", path = "devices.csv" }
    columns = { device = "string", site = "string", factor = "float64" }
    key = ["device"]
    changes = "upsert"        # insert (default), upsert, weight:COLUMN, debezium, postgres
    missing = "refuse"        # refuse (default), count, owe: a delete of a row that is not there
    compact = "auto"          # auto (default), always, never, seed
    role = "auto"             # a hint: auto (default), static, slow, fast

A table is read like a stream, by the same sources, and has no event time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.data.schema import INT32, WEIGHT_COLUMN, Schema
from edged.data.table_terms import (
    EVENTS,
    INSERT,
    MISSING,
    OWE,
    REFUSE,
    ROLES,
    UPSERT,
    WEIGHT,
    TableTerms,
)
from edged.documents import reader as doc
from edged.documents.faults import FaultCollector
from edged.errors import JobError
from edged.tables.base import AUTO, COMPACTIONS

IDLE_AFTER_US = 1
"""A table waits for no producer: it has no event time that a silent one could hold back."""
KEYS = ("source", "columns", "key", "changes", "role", "compact", "missing")


def terms(path: str, document: Mapping[str, Any], schema: Schema) -> TableTerms:
    """The terms of a table with these columns.  Raises JobError with every fault."""
    wrong = FaultCollector()
    changes = wrong.attempt(lambda: _changes(path, document, schema), INSERT)
    key = wrong.attempt(lambda: _key(path, document, schema, changes), ())
    role = wrong.attempt(lambda: doc.choice(path, document, "role", ROLES, "auto"), "auto")
    compact = wrong.attempt(lambda: doc.choice(path, document, "compact", COMPACTIONS, AUTO), AUTO)
    missing = wrong.attempt(lambda: doc.choice(path, document, "missing", MISSING, REFUSE), REFUSE)
    made = TableTerms(key, changes, role, compact, missing)
    if made.by_key and missing == OWE:
        advice = f"refuse or count, or leave {doc.below(path, 'key')} out"
        wrong.note(doc.below(path, "missing"), "a delete by key owes no row", advice)
    wrong.settle()
    return made


def weight_column(changes: str) -> str:
    """The name of the weight column; empty: each row has weight 1."""
    if changes in EVENTS:
        return WEIGHT_COLUMN
    return changes.removeprefix(WEIGHT) if changes.startswith(WEIGHT) else ""


def _changes(path: str, document: Mapping[str, Any], schema: Schema) -> str:
    changes = doc.text(path, document, "changes", INSERT)
    where = doc.below(path, "changes")
    if not changes.startswith(WEIGHT):
        if changes not in (INSERT, UPSERT, *EVENTS):
            advice = "insert, upsert, debezium, postgres or weight:COLUMN"
            raise JobError(where, f"{changes!r} is no kind of change", advice)
        return changes
    name = weight_column(changes)
    if name not in schema:
        advice = doc.did_you_mean(name, schema.names)
        raise JobError(where, f"no column is called {name}", advice)
    column = schema.field(name)
    if column.dtype is not INT32 or column.nullable:
        given = column.dtype.name + ("?" if column.nullable else "")
        raise JobError(where, f"{name} is {given}", "the weight column must be int32, not null")
    return changes


def _key(path: str, document: Mapping[str, Any], schema: Schema, changes: str) -> tuple[str, ...]:
    where = doc.below(path, "key")
    if "key" not in document:
        if changes == UPSERT:
            raise JobError(
                where, "is missing", "upsert replaces the row of a key: name its columns"
            )
        return ()
    names = doc.names(path, document, "key")
    for i, name in enumerate(names):
        if name not in schema:
            advice = doc.did_you_mean(name, schema.names)
            raise JobError(f"{where}[{i}]", f"no column is called {name}", advice)
        if name == weight_column(changes):
            raise JobError(f"{where}[{i}]", f"{name} is the weight column", "name another one")
        if schema.field(name).nullable:
            raise JobError(
                f"{where}[{i}]", f"{name} may be null", "a null equals nothing: drop its ?"
            )
    return names
