"""From sqlglot's tree to the typed tree: names, types, implicit casts, refusals.

`Binder` is the state that all handlers share; `handlers` maps sqlglot's classes to them.  A class
without a handler is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from edged.data.schema import Schema
from edged.errors import ExpressionError
from edged.expressions import casts, parse
from edged.expressions import types as t
from edged.expressions.stages import Slots
from edged.expressions.tree import Call, Const, Node, null_of
from edged.expressions.types import SqlType

NODES_MAX = 4_000
"""Most nodes of one expression."""


class Binder:
    """Binds expressions of one operator against its input's schema."""

    def __init__(self, schema: Schema, dispatch: Callable[[Binder, Any], Node]) -> None:
        self.schema, self.path = schema, ""
        self._dispatch = dispatch
        self.slots = Slots(len(schema))
        """Columns that are computed before the kernel runs."""
        self._count = 0

    def fail(self, problem: str, advice: str = "") -> NoReturn:
        """Refuse the expression."""
        raise ExpressionError(self.path, problem, advice)

    def bind(self, node: Any) -> Node:
        """The typed form of sqlglot's `node`."""
        self._count += 1
        if self._count > NODES_MAX:
            self.fail(f"the expression has more than {NODES_MAX} parts", "split it")
        return self._dispatch(self, node)

    def derive(
        self,
        type: SqlType,
        op: str,
        args: Sequence[Node],
        *,
        extra: tuple[int | str | bytes, ...] = (),
        nullable: bool | None = None,
        fault: str = "",
        attempt: bool = False,
    ) -> Node:
        """A function that makes a whole column before the kernel runs (`edged.expressions.stages`).

        NULL where an operand is, unless `nullable` says otherwise.
        """
        null = any(a.nullable for a in args) if nullable is None else nullable
        try:
            return self.slots.derive(Call(type, null, op, tuple(args), extra), fault, attempt)
        except ValueError as problem:
            self.fail(str(problem))

    def cast(self, node: Node, to: SqlType, what: str) -> Node:
        """`node` converted implicitly to `to`; `meet` must allow the conversion."""
        try:
            return casts.cast(node, to, what)
        except ValueError as problem:
            self.fail(f"{problem} in {what}")

    def unify(self, nodes: Sequence[Node], what: str) -> tuple[SqlType, list[Node]]:
        """The nodes cast to the type in which all meet; HUGEINT leaves them unchanged."""
        to = self._meet_all(nodes, what)
        if to == t.HUGEINT:
            return to, [casts.narrow(n) for n in nodes]
        return to, [self.cast(n, to, what) for n in nodes]

    def _meet_all(self, nodes: Sequence[Node], what: str) -> SqlType:
        to, literal = t.NULL, None
        texts = [n for n in nodes if is_text_literal(n)]
        for node in [n for n in nodes if not is_text_literal(n)]:
            previous, mine = to, node.type
            lit = node if is_integer_literal(node) else None
            if lit is not None and previous.integer and literal is None:
                mine = previous if fits(lit, previous) else mine
            elif literal is not None and lit is None and mine.integer:
                previous = mine if fits(literal, mine) else previous
            met = t.meet(previous, mine)
            if met is None:
                self.mixed(previous, mine, what)
            literal = lit if previous == t.NULL else (literal if node.type == t.NULL else None)
            to = met
        if texts and to == t.NULL:
            return t.VARCHAR
        return to

    def mixed(self, a: SqlType, b: SqlType, what: str) -> NoReturn:
        """Refuse two types that do not meet."""
        self.fail(f"{a} and {b} have no common type in {what}", "CAST one of them")

    def condition(self, node: Any) -> Node:
        """A node bound as a condition: BOOLEAN, or a number, which is true where it is not 0."""
        bound = self.bind(node)
        if bound.type == t.NULL:
            return null_of(t.BOOLEAN)
        if bound.type.kind != "bool" and not bound.type.numeric:
            self.fail(f"{parse.excerpt(node)} is a {bound.type} where a condition is expected")
        return self.cast(bound, t.BOOLEAN, parse.excerpt(node))


def is_integer_literal(node: Node) -> bool:
    """Whether the node is an untyped integer literal, which takes its neighbour's type."""
    return isinstance(node, Const) and node.literal and isinstance(node.value, int)


def is_text_literal(node: Node) -> bool:
    """Whether the node is a string literal."""
    return isinstance(node, Const) and node.literal and isinstance(node.value, bytes)


def fits(literal: Node, type: SqlType) -> bool:
    """Whether an integer literal's value fits into an integer type."""
    value = literal.value if isinstance(literal, Const) else None
    return isinstance(value, int) and type.holds(value)


def call(
    type: SqlType, op: str, *args: Node, extra: tuple[int | str | bytes, ...] = (), fault: str = ""
) -> Call:
    """An operation that is NULL where one of its operands is."""
    return Call(type, any(a.nullable for a in args), op, args, extra, fault or None)


def compare(b: Binder, op: str, left: Node, right: Node, what: str) -> Node:
    """A comparison with its operands cast to their common type."""
    kind, args = b.unify([left, right], what)
    if kind == t.NULL:
        return null_of(t.BOOLEAN)
    return call(t.BOOLEAN, op, *args)
