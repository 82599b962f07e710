"""Column pruning: the columns of a stream that a query uses, so that only those are decoded.

Spark does not pass the used columns to a Python data source, so they are taken from the words of
the query.  Every word counts, whatever its meaning, so the result may contain an unused column but
never lacks a used one.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot.tokens import TokenType

_OPERANDS = (
    TokenType.VAR,
    TokenType.IDENTIFIER,
    TokenType.NUMBER,
    TokenType.R_PAREN,
    TokenType.R_BRACKET,
)


def needed_columns(sql: str, columns: Sequence[str], also: Sequence[str] = ()) -> list[str]:
    """The `columns` named by `sql` (Spark's dialect) or by `also`, in order; all of them if
    unclear.

    For a query that names none, such as `count(*)` alone, the first.
    """
    try:
        tokens = sqlglot.tokenize(sql, dialect="spark")
    except sqlglot.errors.SqlglotError:
        return list(columns)
    for i, token in enumerate(tokens):
        if token.token_type == TokenType.STAR and not _counts_or_multiplies(tokens[:i]):
            return list(columns)
    words = {t.text.lower() for t in tokens} | {name.lower() for name in also}
    if "select" not in words or "table" in words or "|>" in sql:  # TABLE t, FROM t |> …
        return list(columns)
    return [c for c in columns if c.lower() in words] or list(columns[:1])


def _counts_or_multiplies(before: Sequence[sqlglot.tokens.Token]) -> bool:
    """Whether a star after these tokens is that of `count(*)` or of a product."""
    if before and before[-1].token_type in _OPERANDS:
        return True
    return [t.text.lower() for t in before[-2:]] == ["count", "("]
