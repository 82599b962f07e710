"""Arguments of functions: their number and their types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edged.expressions import types as t
from edged.expressions.bind import Binder, fits, is_integer_literal, is_text_literal
from edged.expressions.tree import Node, null_of

Handler = Callable[[Binder, list[Any], str], Node]
"""Types a call, of its arguments and its excerpt for messages."""


def bound(b: Binder, args: Sequence[Any], what: str, least: int, most: int) -> list[Node]:
    """The arguments bound; refused where their number is wrong."""
    if not least <= len(args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        b.fail(f"{what} takes {count} arguments, not {len(args)}")
    return [b.bind(a) for a in args]


def texts(b: Binder, nodes: Sequence[Node], what: str) -> list[Node]:
    """Nodes that must be strings; NULL becomes one."""
    nodes = [null_of(t.VARCHAR) if n.type == t.NULL else n for n in nodes]
    for n in nodes:
        if n.type != t.VARCHAR:
            b.fail(f"{what} takes strings, not {n.type}", "CAST it to VARCHAR")
    return nodes


def whole(b: Binder, node: Node, to: t.SqlType, what: str) -> Node:
    """A node that must be an integer whose type fits into `to`."""
    if node.type == t.NULL:
        return null_of(to)
    literal = is_integer_literal(node) or is_text_literal(node)
    inside = node.type.integer and to.holds(node.type.low) and to.holds(node.type.high)
    if not inside and not (literal and (is_text_literal(node) or fits(node, to))):
        b.fail(f"{what} takes a number of type {to}, not {node.type}", f"CAST it to {to}")
    return b.cast(node, to, what)
