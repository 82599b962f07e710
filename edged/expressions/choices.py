"""CASE, its derived forms, CAST and TRY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edged.expressions import casts, parse, text_casts
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, compare
from edged.expressions.tree import Call, Case, Const, Node, Try, null_of


def case_of(b: Binder, node: Any) -> Node:
    """CASE, searched or with a subject."""
    subject = None if node.this is None else b.bind(node.this)
    conditions = [_when(b, subject, arm.this) for arm in node.args["ifs"]]
    default = node.args.get("default")
    values = [b.bind(arm.args["true"]) for arm in node.args["ifs"]]
    values.append(null_of(t.NULL) if default is None else b.bind(default))
    return case(b, conditions, values, parse.excerpt(node))


def _when(b: Binder, subject: Node | None, value: Any) -> Node:
    if subject is None:
        return b.condition(value)
    return compare(b, "eq", subject, b.bind(value), parse.excerpt(value))


def case(b: Binder, conditions: Sequence[Node], values: Sequence[Node], what: str) -> Node:
    """CASE; `values` has one more entry (the default) than `conditions`."""
    kind, values = b.unify(values, what)
    if kind == t.HUGEINT:
        b.fail(f"the values of {what} meet in a 128-bit integer", "CAST one of them")
    if kind == t.NULL:
        b.fail(f"{what} has no type", "CAST(NULL AS its type)")
    if kind == t.INTERVAL and any(isinstance(v, Const) and v.months for v in values):
        b.fail(f"{what}: an interval of months cannot be chosen among others", "use days")
    nullable = any(v.nullable for v in values)
    return Case(kind, nullable, tuple(zip(conditions, values[:-1], strict=True)), values[-1])


def if_of(b: Binder, node: Any) -> Node:
    """IF(condition, value, value)."""
    if node.args.get("false") is None:
        b.fail(f"{parse.excerpt(node)}: IF takes a condition and two values")
    values = [b.bind(node.args["true"]), b.bind(node.args["false"])]
    return case(b, [b.condition(node.this)], values, parse.excerpt(node))


def coalesce(b: Binder, node: Any) -> Node:
    """COALESCE and IFNULL."""
    what = parse.excerpt(node)
    args = [b.bind(n) for n in (node.this, *node.expressions)]
    kind, values = b.unify(args, what)
    if kind in (t.NULL, t.HUGEINT):
        b.fail(f"{what} has no type that a column can have", "CAST its values")
    values = [v for v in values[:-1] if not _always_null(v)] + values[-1:]
    some = [call(t.BOOLEAN, "not", Call(t.BOOLEAN, False, "is_null", (v,))) for v in values[:-1]]
    if not some:
        return values[-1]
    built = case(b, some, values, what)
    assert isinstance(built, Case)
    nullable = all(v.nullable for v in values)
    return Case(built.type, nullable, built.arms, built.default)


def _always_null(node: Node) -> bool:
    return isinstance(node, Const) and node.value is None


def nullif(b: Binder, node: Any) -> Node:
    """NULLIF(x, y)."""
    left, right = b.bind(node.this), b.bind(node.expression)
    if left.type == t.NULL:
        b.fail(f"{parse.excerpt(node)} has no type", "CAST(NULL AS its type)")
    same = compare(b, "eq", left, right, parse.excerpt(node))
    return Case(left.type, True, ((same, null_of(left.type)),), left)


def cast(b: Binder, node: Any, attempt: bool = False) -> Node:
    """CAST and `::`, or TRY_CAST where `attempt`."""
    what = parse.excerpt(node)
    to = casts.named_type(node.args["to"])
    if to is None:
        b.fail(
            f"{parse.excerpt(node.args['to'])} is not a supported type in {what}",
            f"use one of {', '.join(k.name for k in t.COLUMN_TYPES)}",
        )
    if node.args.get("format") is not None or node.args.get("action") is not None:
        b.fail(f"{what}: CAST takes no FORMAT")
    return text_casts.cast(b, b.bind(node.this), to, what, attempt)


def try_cast(b: Binder, node: Any) -> Node:
    """TRY_CAST."""
    return cast(b, node, attempt=True)


def attempted(b: Binder, node: Any) -> Node:
    """TRY(x)."""
    arg = b.bind(node.this)
    return Try(arg.type, True, arg)
