"""Which of a stream's columns a query uses, so that only those are decoded.

Spark does not tell a Python data source; the text of the query does.  Names are matched without
regard to case and scope, so the answer may hold a column too many, never one too few.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp


def needed_columns(sql: str, columns: Sequence[str], also: Sequence[str] = ()) -> list[str]:
    """The `columns` that `sql` (Spark's dialect) or `also` names, in order; all where it is unsure.

    A query that names none, as `count(*)` alone does, needs the first.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except sqlglot.errors.SqlglotError:
        return list(columns)
    stars = [s for s in tree.find_all(exp.Star) if not isinstance(s.parent, exp.Count)]
    if stars:
        return list(columns)
    named = {str(i.this).lower() for i in tree.find_all(exp.Identifier)}
    named |= {name.lower() for name in also}
    return [c for c in columns if c.lower() in named] or list(columns[:1])
