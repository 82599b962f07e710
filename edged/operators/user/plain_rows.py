"""Which `if` of `on_row` gives one row that can be stored before the condition is known.

    if row.x > 0:
        out.good(time=row.time, x=row.x * 2)

The row is stored beyond the end of the output in any case, and counted where the condition holds:
no branch that the processor predicts wrongly.  This needs a row whose values cannot raise, and few
columns, since they are stored for rows that do not count as well.
"""

from __future__ import annotations

import ast
from typing import Protocol

from edged.data.schema import FLOAT32, FLOAT64, UINT64, Field
from edged.operators.user.declarations import Declarations

COLUMNS_MAX = 8
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult)


class RowNames(Protocol):
    """What the body of `on_row` calls its arguments, and where it is."""

    declared: Declarations
    loops: int
    state: str
    out: str
    parameters: str

    def of_row(self, node: ast.expr) -> Field | None:
        """The column, where the expression is `row.x`."""


def plain_row(body: RowNames, node: ast.If) -> ast.Call | None:
    """The only statement of an `if`, where it is such a row; else None."""
    one = node.body[0]
    if len(node.body) != 1 or node.orelse or body.loops or not isinstance(one, ast.Expr):
        return None
    call = one.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    output = body.declared.outputs.get(call.func.attr)
    if ast.unparse(call.func.value) != body.out or output is None or call.args:
        return None
    given = {word.arg: word.value for word in call.keywords}
    fields = {f.name: f for f in output.schema}
    if len(fields) > COLUMNS_MAX or given.keys() != fields.keys():
        return None
    return call if all(_is_plain(body, fields[str(n)], v) for n, v in given.items()) else None


def _is_plain(body: RowNames, f: Field, value: ast.expr) -> bool:
    """Whether storing the value cannot raise."""
    if f.dtype.variable or f.nullable:
        return False
    source = body.of_row(value)
    if source is not None and source.dtype is f.dtype:
        return not source.nullable
    return f.dtype in (FLOAT32, FLOAT64) and _is_sum(body, value)


def _is_sum(body: RowNames, node: ast.expr) -> bool:
    """Whether an expression is sums and products of numbers that are there."""
    if isinstance(node, ast.BinOp):
        fine = isinstance(node.op, _ARITHMETIC)
        return fine and _is_sum(body, node.left) and _is_sum(body, node.right)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        f = body.of_row(node)
        if f is not None:
            return not f.nullable and not f.dtype.variable and f.dtype is not UINT64
        return node.value.id in (body.state, body.parameters)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
