"""Streams and tables whose rows are made of change events: Debezium's, or those of a `postgres`
source.  Their weight column is WEIGHT_COLUMN, which the document does not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.data.schema import BINARY, INT32, WEIGHT_COLUMN, Field, Schema
from edged.data.schema_document import columns, weight_column
from edged.data.table_terms import DEBEZIUM, EVENTS, INSERT, POSTGRES
from edged.documents.reader import below, choice
from edged.errors import JobError


def change_events(path: str, document: Mapping[str, Any]) -> str:
    """The events of a stream or table: DEBEZIUM, POSTGRES, or empty: its rows are no events.

    Raises JobError where its source has others.
    """
    source, changes = document.get("source"), document.get("changes")
    kind = source.get("type") if isinstance(source, Mapping) else None
    if kind == POSTGRES and changes != POSTGRES:
        advice = f'changes = "{POSTGRES}"'
        raise JobError(below(path, "changes"), "the source gives changes of its own", advice)
    if kind != POSTGRES and changes == POSTGRES:
        where = below(path, "changes")
        raise JobError(where, "only a source postgres gives such changes", "debezium?")
    return str(changes) if changes in EVENTS else ""


def with_weight_column(path: str, schema: Schema, events: str = DEBEZIUM) -> Schema:
    """The columns of a stream or table whose rows come from events, and WEIGHT_COLUMN.

    Raises JobError at `path` or below for a column that events cannot fill.
    """
    for field in schema:
        if field.dtype is BINARY and events == DEBEZIUM:
            raise JobError(f"{path}.{field.name}", "binary data of Debezium is base64", "string?")
    if WEIGHT_COLUMN in schema:
        raise JobError(f"{path}.{WEIGHT_COLUMN}", "is the weight of the events", "leave it out")
    return Schema.of([*schema, Field(WEIGHT_COLUMN, INT32)])


def stream_columns(path: str, document: Mapping[str, Any]) -> Schema:
    """The columns of a stream's document; where its rows come from events, WEIGHT_COLUMN is added.
    Raises JobError."""
    schema = columns(path, document)
    choice(path, document, "changes", (INSERT, *EVENTS), INSERT)
    if not (events := change_events(path, document)):
        return schema
    if "weight" in document:
        raise JobError(below(path, "weight"), f"is {WEIGHT_COLUMN} with events", "leave it out")
    return with_weight_column(below(path, "columns"), schema, events)


def stream_weight(path: str, document: Mapping[str, Any], schema: Schema) -> str:
    """The weight column of a stream with these columns; empty: none.  Raises JobError."""
    if document.get("changes") in EVENTS:
        return WEIGHT_COLUMN
    return weight_column(path, document, schema) if schema.fields else ""
