"""Columns that are computed for a whole batch before an operator's kernel runs.

Kernels create no strings.  A function that does is *derived*: it makes a column of its operands at
once, with a kernel of its own or with pyarrow.compute, and the operator's kernel reads that column.
An operand that is no column and no constant is *computed* by a generated kernel first.  Both are
slots: columns after the schema's own, in the order of binding.

    level 0 computed ─► level 1 derived ─► level 1 computed ─► level 2 derived ─► … ─► the kernel

A derived value that can be an error has a second slot, its error flags.  The kernel reads value and
flag where SQL evaluates the function, and evaluates operands that can be in error once more, so
that an error counts only where CASE or COALESCE reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edged.data.columns import Column
from edged.expressions import types as t
from edged.expressions.operands import Flags, Operand, of_constant, without
from edged.expressions.tree import Call, ColumnRef, Const, Node, Try, children, faults, null_of

Made = tuple[Column, "Flags | None"]
"""A derived column and its error flags; None where no row is in error."""
Derive = Callable[[Call, Sequence[Operand], int], Made]
DERIVED: dict[str, Derive] = {}
"""What makes a derived column, by operation."""
STAGED = "staged"
"""A `Call` that reads slots: a value, its error flags if `extra` is (1,), and the operands whose
errors are its own."""


def derived(op: str) -> Callable[[Derive], Derive]:
    """Decorator: register what makes the columns of operation `op`."""

    def register(make: Derive) -> Derive:
        DERIVED[op] = make
        return make

    return register


SKIPPING = ("join",)
"""Operations that leave out operands that are NULL, but for the first."""


def _is_null(node: Node) -> bool:
    return isinstance(node, Const) and node.value is None


@dataclass(frozen=True, slots=True)
class DerivedSlot:
    """A column after the schema's own: a computed tree, a derived call, or a call's error flags."""

    node: Node
    level: int
    flags: bool = False


class Slots:
    """The slots of the expressions of one operator, as they are bound."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self.slots: list[DerivedSlot] = []

    def derive(self, call: Call, fault: str, attempt: bool = False) -> Node:
        """The node that reads the derived column of `call`, whose operands may be any nodes.

        `fault` is the message of its errors; "" where it has none.  With `attempt` an error is
        NULL.  A NULL operand gives NULL.  A call of constants becomes one; raises ValueError where
        it is an error.
        """
        fault = "" if attempt else fault
        effects = [a for a in call.args if faults(a)]
        args = tuple(self._operand(a) for a in call.args)
        if call.op in SKIPPING:
            args = (args[0], *(a for a in args[1:] if not _is_null(a)))
            args = args if len(args) > 1 else (*args, Const(call.type, False, b""))
        call = Call(call.type, call.nullable or attempt, call.op, args, call.extra, fault or None)
        if any(_is_null(a) for a in args):
            return Call(call.type, True, STAGED, (null_of(call.type), *effects), (0,))
        if all(isinstance(a, Const) for a in args):
            return fold(call)
        level = 1 + max(self._level(a) for a in args)
        index = self._slot(DerivedSlot(call, level), 2 if fault else 1)
        value = ColumnRef(call.type, call.nullable, index, call.op)
        if not (fault or effects):
            return value
        flags = [ColumnRef(t.BOOLEAN, False, index + 1, call.op)] if fault else []
        extra = (len(flags),)
        return Call(
            call.type, call.nullable, STAGED, (value, *flags, *effects), extra, fault or None
        )

    def _operand(self, node: Node) -> Node:
        """A column or a constant: a node's own, or the slot that computes it."""
        if isinstance(node, Call) and node.op == STAGED:
            return node.args[0]
        if isinstance(node, (ColumnRef, Const)):
            return node
        tree = Try(node.type, True, node) if faults(node) else node
        index = self._slot(DerivedSlot(tree, self._level(tree)))
        return ColumnRef(node.type, tree.nullable, index, "computed")

    def _slot(self, slot: DerivedSlot, width: int = 1) -> int:
        if slot not in self.slots:
            self.slots.append(slot)
            if width == 2:
                self.slots.append(DerivedSlot(slot.node, slot.level, flags=True))
        return self._columns + self.slots.index(slot)

    def _level(self, node: Node) -> int:
        if isinstance(node, ColumnRef):
            at = node.index - self._columns
            return self.slots[at].level if at >= 0 else 0
        return max((self._level(c) for c in children(node)), default=0)


def make(call: Call, args: Sequence[Operand], rows: int) -> Made:
    """The derived column of a call and its error flags.

    The column has validity exactly if the call is nullable, the flags exist exactly if it has a
    fault; without one an error is NULL.
    """
    column, bad = DERIVED[call.op](call, args, rows)
    valid = column.valid
    if call.nullable:
        valid = np.ones(rows, np.uint8) if valid is None else valid
        valid = without(valid, bad) if call.fault is None else valid
    column = Column(column.values, valid if call.nullable else None, column.offsets)
    if call.fault is None:
        return column, None
    return column, np.zeros(rows, np.uint8) if bad is None else bad


def fold(call: Call) -> Node:
    """A call of constants as a constant.  Raises ValueError with its fault."""
    consts = [a for a in call.args if isinstance(a, Const)]
    column, bad = make(call, [of_constant(c, 1) for c in consts], 1)
    if bad is not None and bad[0]:
        raise ValueError(call.fault)
    if column.valid is not None and not column.valid[0]:
        return null_of(call.type)
    if column.offsets is not None:
        at = column.offsets
        return Const(call.type, False, column.values[at[0] : at[1]].tobytes())
    value = column.values[0]
    kind = call.type.kind
    if kind == "float":
        return Const(call.type, False, repr(float(value)))
    return Const(call.type, False, bool(value) if kind == "bool" else int(value))
