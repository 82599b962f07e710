"""Comparisons and three-valued logic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from edged.expressions import parse
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, compare
from edged.expressions.tree import Call, Const, Node, null_of


def comparison(op: str) -> Callable[[Binder, Any], Node]:
    """The handler of a comparison."""

    def handler(b: Binder, node: Any) -> Node:
        return compare(b, op, b.bind(node.this), b.bind(node.expression), parse.excerpt(node))

    return handler


def distinct(negate: bool) -> Callable[[Binder, Any], Node]:
    """The handler of IS [NOT] DISTINCT FROM."""

    def handler(b: Binder, node: Any) -> Node:
        what = parse.excerpt(node)
        kind, args = b.unify([b.bind(node.this), b.bind(node.expression)], what)
        if kind == t.NULL:
            return Const(t.BOOLEAN, False, negate)
        node_ = Call(t.BOOLEAN, False, "distinct", tuple(args))
        return call(t.BOOLEAN, "not", node_) if negate else node_

    return handler


def logic(op: str) -> Callable[[Binder, Any], Node]:
    """The handler of a chain of ANDs or ORs."""

    def handler(b: Binder, node: Any) -> Node:
        return call(t.BOOLEAN, op, *(b.condition(n) for n in node.flatten()))

    return handler


def negation(b: Binder, node: Any) -> Node:
    """NOT x."""
    return call(t.BOOLEAN, "not", b.condition(node.this))


def is_test(b: Binder, node: Any) -> Node:
    """IS NULL, IS TRUE, IS FALSE."""
    if isinstance(node.expression, exp.Null):
        return Call(t.BOOLEAN, False, "is_null", (b.bind(node.this),))
    if not isinstance(node.expression, exp.Boolean):
        b.fail(f"{parse.excerpt(node)}: IS takes NULL, TRUE or FALSE")
    truth = "is_true" if node.expression.this else "is_false"
    return Call(t.BOOLEAN, False, truth, (b.condition(node.this),))


def between(b: Binder, node: Any) -> Node:
    """x BETWEEN low AND high."""
    if node.args.get("symmetric"):
        b.fail("BETWEEN SYMMETRIC is not supported", "order the bounds")
    parts = [b.bind(n) for n in (node.this, node.args["low"], node.args["high"])]
    kind, (x, low, high) = b.unify(parts, parse.excerpt(node))
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    return call(t.BOOLEAN, "and", call(t.BOOLEAN, "ge", x, low), call(t.BOOLEAN, "le", x, high))


def membership(b: Binder, node: Any) -> Node:
    """x IN (...)."""
    items = node.args.get("expressions") or []
    if not items:
        b.fail(f"{parse.excerpt(node)}: IN takes a list of at least one value in parentheses")
    kind, parts = b.unify([b.bind(n) for n in (node.this, *items)], parse.excerpt(node))
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    tests = [call(t.BOOLEAN, "eq", parts[0], item) for item in parts[1:]]
    return call(t.BOOLEAN, "or", *tests) if len(tests) > 1 else tests[0]
