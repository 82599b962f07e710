"""Functions of lists: list_sum, list_mean, list_rms, list_min, list_max, element.

A sum of integers is a BIGINT and one of floats a DOUBLE; means are DOUBLE; the others have the
items' type.  `list_avg`, `list_element` and `list_extract` are DuckDB's names of two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edged.expressions import types as t
from edged.expressions.arguments import Handler, bound
from edged.expressions.bind import Binder, call
from edged.expressions.made import Made, Operand
from edged.expressions.tree import Call, Node, null_of

OPS = ("list_sum", "list_mean", "list_rms", "list_min", "list_max", "try_list_element")


def item_of(kind: t.SqlType) -> t.SqlType:
    """The type of a list's elements."""
    assert kind.dtype is not None and kind.dtype.item is not None
    return t.of_dtype(kind.dtype.item)


def _list(b: Binder, node: Node, what: str) -> Node:
    if node.type.kind != "list":
        b.fail(f"{what} takes a list, not {node.type}", 'a column such as "float32[64]"')
    return node


def _whole(op: str) -> Handler:
    def handler(b: Binder, args: list[Any], what: str) -> Node:
        (x,) = bound(b, args, what, 1, 1)
        x = _list(b, x, what)
        item = item_of(x.type)
        kind = t.DOUBLE
        if op in ("list_min", "list_max"):
            kind = item
        elif op == "list_sum" and item.integer:
            kind = t.BIGINT
        return call(kind, op, x)

    return handler


def _element(b: Binder, args: list[Any], what: str) -> Node:
    x, place = bound(b, args, what, 2, 2)
    place = null_of(t.BIGINT) if place.type == t.NULL else place
    if not place.type.integer or place.type == t.UBIGINT:
        b.fail(f"{what}: a place is an integer, not {place.type}", "CAST it")
    x = _list(b, x, what)
    return Call(item_of(x.type), True, "try_list_element", (x, b.cast(place, t.BIGINT, what)))


def render(node: Call, operands: Sequence[Operand]) -> Made:
    """The Python of one of `OPS`."""
    (a, size), *rest = operands
    dtype = node.args[0].type.dtype
    assert dtype is not None and dtype.item is not None
    item, count = dtype.item.name, dtype.length
    if node.op == "try_list_element":
        return Made(f"list_element_{item}({a}, {size}, {rest[0][0]})", pair=True)
    if node.op in ("list_min", "list_max"):
        return Made(f"list_extreme_{item}({a}, {size}, {node.op == 'list_max'})")
    if node.op == "list_mean":
        return Made(f"list_sum_{item}({a}, {size}) / {float(count)!r}")
    return Made(f"{node.op}_{item}({a}, {size})")


FUNCTIONS: dict[str, Handler] = {
    "list_sum": _whole("list_sum"),
    "list_mean": _whole("list_mean"),
    "list_avg": _whole("list_mean"),
    "list_rms": _whole("list_rms"),
    "list_min": _whole("list_min"),
    "list_max": _whole("list_max"),
    "element": _element,
    "list_element": _element,
    "list_extract": _element,
}
