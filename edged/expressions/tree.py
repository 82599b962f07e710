"""The typed tree of a checked expression, the code generator's only input.

Nodes are immutable and compare by value, so that equal subexpressions are computed once.  Code made
from a tree contains no text of the user: names are resolved to positions, strings are bytes in
`Const.value` that the kernel reads through a table.
"""

from __future__ import annotations

from dataclasses import dataclass

from edged.expressions.types import NULL, SqlType

ANY, ONE = 0xFF, 0xFE
"""`%` and `_` in a LIKE pattern's bytes; neither byte occurs in UTF-8."""


@dataclass(frozen=True, slots=True)
class Node:
    """An expression with its type, and whether it can be NULL."""

    type: SqlType
    nullable: bool


@dataclass(frozen=True, slots=True)
class ColumnRef(Node):
    """An input column by position; positions past the schema's are derived text columns."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Const(Node):
    """A constant.

    `value` is None for NULL, a bool, an int (integers, timestamps and intervals in µs), bytes, or
    for the real types the text of a Python float (text, because 0.0 and -0.0 must differ).
    `literal` marks a literal of the source, which takes its neighbour's type.
    """

    value: bool | int | str | bytes | None
    literal: bool = False
    months: int = 0


@dataclass(frozen=True, slots=True)
class Call(Node):
    """An operation.  `fault` is the message of its error; None where it has none."""

    op: str
    args: tuple[Node, ...]
    extra: tuple[int | str | bytes, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Case(Node):
    """The first value whose condition is true, else `default`; no other value is evaluated."""

    arms: tuple[tuple[Node, Node], ...]
    default: Node


@dataclass(frozen=True, slots=True)
class Try(Node):
    """`arg`, or NULL where evaluating it is an error."""

    arg: Node


def null_of(type: SqlType) -> Const:
    """A typed NULL."""
    return Const(type, True, None, literal=type == NULL)


def children(node: Node) -> tuple[Node, ...]:
    """The operands of a node."""
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Case):
        return (*(n for arm in node.arms for n in arm), node.default)
    return (node.arg,) if isinstance(node, Try) else ()


def depth(node: Node) -> int:
    """Levels of nesting."""
    return 1 + max((depth(c) for c in children(node)), default=0)


def faults(node: Node) -> bool:
    """Whether evaluating the node can be an error."""
    if isinstance(node, Try):
        return False
    own = isinstance(node, Call) and node.fault is not None
    return own or any(faults(c) for c in children(node))
