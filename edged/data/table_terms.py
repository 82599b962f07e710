"""The terms of a table: what its rows mean, and what the document says about its use."""

from __future__ import annotations

from dataclasses import dataclass

INSERT, UPSERT = "insert", "upsert"
DEBEZIUM, POSTGRES = EVENTS = ("debezium", "postgres")
"""Kinds of change events."""
WEIGHT = "weight:"
"""Before the name of the weight column."""

ROLES = ("auto", "static", "slow", "fast")
REFUSE, COUNT, OWE = MISSING = ("refuse", "count", "owe")


@dataclass(frozen=True, slots=True)
class TableTerms:
    """Rows are changes of the table, in the order of their arrival."""

    key: tuple[str, ...] = ()
    """Columns that identify a row; empty: rows are a multiset."""
    changes: str = INSERT
    """`insert`: each row is new.  `upsert`: it replaces the row of its key.  `weight:<column>`: the
    column says how often the row is added, or taken back where it is negative.  `debezium`,
    `postgres`: as the source decodes its events; see `by_key`."""
    role: str = "auto"
    """A hint, how often the table changes."""
    compact: str = "auto"
    """When its files are merged (`edged.tables.base.COMPACTIONS`)."""
    missing: str = REFUSE
    """What becomes of a delete of an absent row."""

    @property
    def by_key(self) -> bool:
        """Whether rows are events that name their row by its key: one of weight 1 replaces the row
        of its key, one of weight -1 takes it back, whatever its other columns hold."""
        return bool(self.key) and self.changes in EVENTS

    @property
    def finds_by_key(self) -> bool:
        """Whether a change needs the row that its key has already."""
        return self.by_key or self.changes == UPSERT or (self.changes == INSERT and bool(self.key))
