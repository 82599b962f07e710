"""Arithmetic and bit operators, and the types in which they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.expressions import casts, parse, times, zoned
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, fits, is_integer_literal
from edged.expressions.tree import Const, Node, null_of
from edged.expressions.types import SqlType


def negation(b: Binder, node: Any) -> Node:
    """-x; a negative literal where x is a literal."""
    arg = b.bind(node.this)
    if isinstance(arg, Const) and arg.value is not None and (arg.literal or arg.type == t.INTERVAL):
        if isinstance(arg.value, bytes):
            b.fail(f"{parse.excerpt(node)}: a string cannot be negated")
        return casts.negate(arg)
    if arg.type == t.NULL:
        return null_of(t.BIGINT)
    if not arg.type.numeric and arg.type != t.INTERVAL:
        b.fail(f"{parse.excerpt(node)}: {arg.type} cannot be negated")
    fault = "" if arg.type.real else f"overflow of {arg.type} in {parse.excerpt(node)}"
    return call(arg.type, "neg", arg, fault=fault)


def operator(op: str) -> Callable[[Binder, Any], Node]:
    """The handler of an arithmetic operator."""

    def handler(b: Binder, node: Any) -> Node:
        return arithmetic(b, op, b.bind(node.this), b.bind(node.expression), parse.excerpt(node))

    return handler


def arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """+ - * / // % over numbers; + and - also over times."""
    if any(n.type == t.DATE for n in (left, right)):
        return zoned.date_arithmetic(b, op, left, right, what)
    if any(n.type.kind in ("instant", "timestamp", "interval") for n in (left, right)):
        return times.arithmetic(b, op, left, right, what)
    left, right = _nulls_typed(left, right)
    for n in (left, right):
        if not n.type.numeric and n.type != t.HUGEINT:
            b.fail(f"{n.type} where a number is expected in {what}", "CAST it")
    if not left.type.real and not right.type.real and op != "div":
        return _integer_arithmetic(b, op, left, right, what)
    kind = t.DOUBLE if op in ("div", "idiv") and t.FLOAT not in (left.type, right.type) else None
    kind = kind or t.meet(left.type, right.type)
    if kind is None or (op in ("div", "idiv") and t.DOUBLE in (left.type, right.type)):
        kind = t.DOUBLE
    args = [b.cast(n, kind, what) for n in (left, right)]
    zero = op == "idiv" or (op == "mod" and kind == t.DECIMAL)
    return call(kind, op, *args, fault=f"division by zero in {what}" if zero else "")


def _nulls_typed(left: Node, right: Node) -> tuple[Node, Node]:
    """A bare NULL takes the other operand's type; two bare NULLs are INTEGER."""
    kind = right.type if left.type == t.NULL else left.type
    kind = t.INTEGER if kind == t.NULL else kind
    typed = [null_of(kind) if n.type == t.NULL else n for n in (left, right)]
    return typed[0], typed[1]


def integer_type(b: Binder, left: Node, right: Node, what: str) -> SqlType:
    """The type in which integer arithmetic on both operands computes."""
    kinds = [left.type, right.type]
    if is_integer_literal(left) and not is_integer_literal(right) and fits(left, right.type):
        kinds[0] = right.type
    elif is_integer_literal(right) and not is_integer_literal(left) and fits(right, left.type):
        kinds[1] = left.type
    kind = t.HUGEINT if t.HUGEINT in kinds else t.arithmetic_integers(*kinds)
    if kind == t.HUGEINT:
        b.fail(
            f"{kinds[0]} with {kinds[1]} is a 128-bit integer in {what}",
            "CAST one side to BIGINT, UBIGINT or DOUBLE",
        )
    return kind


def _integer_arithmetic(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    kind = integer_type(b, left, right, what)
    args = [b.cast(n, kind, what) for n in (left, right)]
    fault = f"overflow of {kind} in {what}"
    if op in ("idiv", "mod"):
        fault = f"division by zero, or overflow of {kind}, in {what}"
        divisor = args[1].value if isinstance(args[1], Const) else 0
        fault = fault if divisor in (0, -1, None) else ""
    return call(kind, op, *args, fault=fault)


def bit_operator(op: str) -> Callable[[Binder, Any], Node]:
    """The handler of a bit operator."""

    def handler(b: Binder, node: Any) -> Node:
        return bits(b, op, b.bind(node.this), b.bind(node.expression), parse.excerpt(node))

    return handler


def bits(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """& | xor << >> over integers."""
    left, right = _nulls_typed(left, right)
    for n in (left, right):
        if not n.type.integer and n.type != t.HUGEINT:
            b.fail(f"{n.type} where an integer is expected in {what}", "CAST it")
    kind = integer_type(b, left, right, what)
    args = [b.cast(n, kind, what) for n in (left, right)]
    fault = f"overflow of {kind}, or a shift out of range, in {what}" if op == "shl" else ""
    return call(kind, op, *args, fault=fault)


def inversion(b: Binder, node: Any) -> Node:
    """~x."""
    arg = b.bind(node.this)
    if not arg.type.integer:
        b.fail(f"{arg.type} where an integer is expected in {parse.excerpt(node)}")
    return call(arg.type, "invert", arg)
