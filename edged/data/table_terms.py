"""The terms of a table: what its rows mean, and what the document says about its use."""

from __future__ import annotations

from dataclasses import dataclass

INSERT, UPSERT = "insert", "upsert"
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
    column says how often the row is added, or taken back where it is negative.  `debezium`: as
    the source decodes its envelopes."""
    role: str = "auto"
    """A hint, how often the table changes."""
    compact: str = "auto"
    """When its files are merged (`edged.tables.base.COMPACTIONS`)."""
    missing: str = REFUSE
    """What becomes of a delete of an absent row."""
