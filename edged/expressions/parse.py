"""From SQL text to sqlglot's tree.

sqlglot's DuckDB dialect accepts text that DuckDB refuses or reads otherwise.  Such text is refused
with advice: chained comparisons, `~x` as an operand of arithmetic (in DuckDB `~` binds looser than
`+`), `!x`, `<=>`, and a unit without quotes in date_trunc.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokens import TokenType

from edged.errors import ExpressionError

TEXT_CHARS_MAX = 65_536
"""Longest expression, in characters."""
DEPTH_MAX = 60
"""Deepest nesting."""

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow, exp.Neg)


def parse(path: str, sql: object) -> Any:
    """The one scalar expression in `sql`.  Raises ExpressionError at `path`."""
    if not isinstance(sql, str) or not sql.strip():
        raise ExpressionError(path, "an expression is a string that is not empty")
    if len(sql) > TEXT_CHARS_MAX:
        raise ExpressionError(path, f"the expression is longer than {TEXT_CHARS_MAX} characters")
    if "\0" in sql:
        raise ExpressionError(path, "the expression holds a NUL character")
    try:
        _refuse_tokens(path, sqlglot.tokenize(sql, read="duckdb"))
        trees = sqlglot.parse(sql, read="duckdb")
        if len(trees) != 1 or trees[0] is None:
            raise ExpressionError(path, "one expression is expected, without ';'")
        _refuse(path, trees[0])
    except SqlglotError as problem:
        text = str(problem).splitlines()[0].replace("\x1b[4m", "").replace("\x1b[0m", "")
        raise ExpressionError(path, f"not a SQL expression: {text}") from None
    except RecursionError:
        raise ExpressionError(path, "the expression is nested too deeply") from None
    return trees[0]


def _refuse_tokens(path: str, tokens: Sequence[Any]) -> None:
    for token, *rest in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.text.lower() not in ("date_trunc", "datetrunc", "date_part", "datepart"):
            continue
        if rest[0].text == "(" and rest[1].token_type != TokenType.STRING:
            raise ExpressionError(
                path, f"{token.text} takes a unit in quotes", f"{token.text}('hour', time)"
            )
    for at, token in enumerate(tokens):
        if token.text.lower() in ("strftime", "strptime") and _ends_empty(tokens[at + 1 :]):
            raise ExpressionError(path, f"the format is empty in {token.text}")
    for token in tokens:
        if token.text in ("!", "<=>") and token.token_type != TokenType.STRING:
            raise ExpressionError(path, f"there is no operator {token.text}", "write NOT, or IS")


def _ends_empty(tokens: Sequence[Any]) -> bool:
    """Whether a call's last argument is '', which sqlglot makes 'None' of where it is a format."""
    depth = 0
    for before, token in pairwise(tokens):
        depth += (before.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth <= 0:
            return before.token_type == TokenType.STRING and not before.text
    return False


def _levels(tree: Any) -> Iterator[tuple[Any, int]]:
    """Every node with its depth; a chain of ANDs, or of ORs, is one level."""
    stack = [(tree, 1)]
    while stack:
        node, level = stack.pop()
        yield node, level
        for child in node.iter_expressions():
            chain = type(child) is type(node) and isinstance(node, (exp.And, exp.Or))
            stack.append((child, level + (not chain)))


def _refuse(path: str, tree: Any) -> None:
    for node, level in _levels(tree):
        if level > DEPTH_MAX:
            raise ExpressionError(
                path, f"the expression is nested deeper than {DEPTH_MAX} levels", "split it"
            )
        if isinstance(node, exp.Alias):
            raise ExpressionError(
                path, f"'{excerpt(node)}' names its result", "the key is the name"
            )
        if isinstance(node, _COMPARISONS):
            if isinstance(node.this, _COMPARISONS) or isinstance(node.expression, _COMPARISONS):
                raise ExpressionError(
                    path, "chained comparisons are ambiguous", "use AND, or parentheses"
                )
        elif isinstance(node, _ARITHMETIC) and any(
            isinstance(side, exp.BitwiseNot) for side in (node.this, node.args.get("expression"))
        ):
            raise ExpressionError(
                path, "~ beside arithmetic is ambiguous", "write (~x) in parentheses"
            )


def excerpt(node: Any) -> str:
    """A part of an expression as SQL, shortened for a message; its name where that fails.

    sqlglot's generator assumes numbers of arguments that its parser does not check.
    """
    try:
        sql = str(node.sql(dialect="duckdb", unsupported_level=ErrorLevel.IGNORE))
    except (IndexError, ValueError, TypeError, AttributeError):
        sql = f"{node.key}(...)"
    text = " ".join(sql.split())
    return text if len(text) <= 80 else text[:77] + "..."
