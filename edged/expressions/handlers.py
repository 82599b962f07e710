"""The table of sqlglot's classes and their handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from edged.expressions import (
    arithmetic,
    choices,
    conditions,
    functions,
    literals,
    parse,
    times,
    zoned,
)
from edged.expressions import types as t
from edged.expressions.bind import Binder, fits
from edged.expressions.tree import ColumnRef, Const, Node, null_of


def _column(b: Binder, node: Any) -> Node:
    parts = node.parts if isinstance(node, exp.Column) else _path(node)
    names = b.schema.names
    plain = bool(parts) and all(isinstance(part, exp.Identifier) for part in parts)
    name = ".".join(part.name for part in parts) if plain else ""
    matches = [n for n in names if n == name] or [n for n in names if n.lower() == name.lower()]
    if not plain or (len(parts) > 1 and not matches):
        b.fail(
            f"{parse.excerpt(node)} is not a column of the input", 'write its name, or "its.name"'
        )
    if len(matches) != 1:
        problem = "is ambiguous" if matches else "is not there"
        b.fail(f"column '{name}' {problem}", f"the input has {', '.join(names)}")
    field = b.schema.field(matches[0])
    index = b.schema.index(field.name)
    return ColumnRef(t.of_dtype(field.dtype), field.nullable, index, field.name)


def _path(node: Any) -> list[Any]:
    """The parts of a column with more than four of them; empty for another expression."""
    parts: list[Any] = []
    while isinstance(node, exp.Dot):
        parts.insert(0, node.expression)
        node = node.this
    return [*node.parts, *parts] if isinstance(node, exp.Column) else []


def _literal(b: Binder, node: Any) -> Node:
    if node.is_string:
        return Const(t.VARCHAR, False, node.this.encode(), literal=True)
    value = literals.number(node.this)
    if value.type == t.HUGEINT and not fits(value, t.UBIGINT):
        b.fail(f"{node.this} does not fit into 64 bits", "write it with a decimal point")
    return value


HANDLERS: dict[Any, Callable[[Binder, Any], Node]] = {
    exp.Column: _column,
    exp.Dot: _column,
    exp.Literal: _literal,
    exp.Null: lambda b, node: null_of(t.NULL),
    exp.Boolean: lambda b, node: Const(t.BOOLEAN, False, bool(node.this)),
    exp.Paren: lambda b, node: b.bind(node.this),
    exp.Neg: arithmetic.negation,
    exp.Add: arithmetic.operator("add"),
    exp.Sub: arithmetic.operator("sub"),
    exp.Mul: arithmetic.operator("mul"),
    exp.Div: arithmetic.operator("div"),
    exp.IntDiv: arithmetic.operator("idiv"),
    exp.Mod: arithmetic.operator("mod"),
    exp.BitwiseAnd: arithmetic.bit_operator("and_bits"),
    exp.BitwiseOr: arithmetic.bit_operator("or_bits"),
    exp.BitwiseXor: arithmetic.bit_operator("xor"),
    exp.BitwiseLeftShift: arithmetic.bit_operator("shl"),
    exp.BitwiseRightShift: arithmetic.bit_operator("shr"),
    exp.BitwiseNot: arithmetic.inversion,
    exp.EQ: conditions.comparison("eq"),
    exp.NEQ: conditions.comparison("ne"),
    exp.LT: conditions.comparison("lt"),
    exp.LTE: conditions.comparison("le"),
    exp.GT: conditions.comparison("gt"),
    exp.GTE: conditions.comparison("ge"),
    exp.NullSafeEQ: conditions.distinct(negate=True),
    exp.NullSafeNEQ: conditions.distinct(negate=False),
    exp.And: conditions.logic("and"),
    exp.Or: conditions.logic("or"),
    exp.Not: conditions.negation,
    exp.Is: conditions.is_test,
    exp.Between: conditions.between,
    exp.In: conditions.membership,
    exp.Case: choices.case_of,
    exp.If: choices.if_of,
    exp.Coalesce: choices.coalesce,
    exp.Nullif: choices.nullif,
    exp.Cast: choices.cast,
    exp.TryCast: choices.try_cast,
    exp.Try: choices.attempted,
    exp.Interval: times.interval,
    exp.AtTimeZone: zoned.at_time_zone,
}
"""Handler by class; functions are in `functions.FUNCTIONS`."""


def dispatch(b: Binder, node: Any) -> Node:
    """The typed form of sqlglot's `node`.  A class without a handler is refused."""
    handler = HANDLERS.get(type(node), functions.bind_call)
    return handler(b, node)
