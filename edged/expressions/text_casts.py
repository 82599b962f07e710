"""CAST between strings and booleans or numbers, explicit or within a concatenation.

The text is DuckDB's: a DOUBLE has the shortest digits that read back as itself.  A string is read
as DuckDB reads it (`runtime_number`, `kernels.cpu.text_number`).
"""

from __future__ import annotations

from edged.expressions import casts, time_formats
from edged.expressions import types as t
from edged.expressions.bind import Binder, call, is_text_literal
from edged.expressions.tree import Call, Case, Const, Node, null_of
from edged.expressions.types import SqlType

_TRUE, _FALSE = Const(t.VARCHAR, False, b"true"), Const(t.VARCHAR, False, b"false")


def cast(b: Binder, node: Node, to: SqlType, what: str, attempt: bool = False) -> Node:
    """CAST(node AS to), or TRY_CAST where `attempt`; refused where edged has no such conversion."""
    literal = isinstance(node, Const) and is_text_literal(node)
    try:
        if to == t.VARCHAR and node.type not in (t.VARCHAR, t.NULL):
            return _to_text(b, node, what)
        if node.type == t.VARCHAR and to != t.VARCHAR and not literal:
            return _from_text(b, node, to, what, attempt)
        if literal and attempt:
            return _try_literal(b, node, to, what)
        done = casts.cast(node, to, what, explicit=True)
    except ValueError as problem:
        b.fail(f"{problem} in {what}")
    return casts.attempted(done) if attempt and done != node else done


def _try_literal(b: Binder, node: Node, to: SqlType, what: str) -> Node:
    assert isinstance(node, Const)
    try:
        return casts.cast_text(node, to)
    except ValueError:
        if to.kind in ("timestamp", "date", "blob") or to == t.UBIGINT:
            raise
        return _from_text(b, node, to, what, attempt=True)


def _to_text(b: Binder, node: Node, what: str) -> Node:
    if node.type == t.BOOLEAN:
        arms = ((node, _TRUE), (call(t.BOOLEAN, "not", node), _FALSE))
        return Case(t.VARCHAR, node.nullable, arms, null_of(t.VARCHAR))
    if node.type.integer:
        return b.derive(t.VARCHAR, "integer_text", [node])
    if node.type == t.DOUBLE:
        return b.derive(t.VARCHAR, "float_text", [node])
    if node.type == t.TIMESTAMP:
        return time_formats.time_text(b, node)
    if node.type == t.DATE:
        return time_formats.date_text(b, casts.cast(node, t.TIMESTAMP, what))
    advice = {
        t.TIMESTAMPTZ: "; x AT TIME ZONE 'UTC' makes a TIMESTAMP",
        t.FLOAT: "; CAST it to DOUBLE first: DuckDB's text of a FLOAT is not always its shortest",
        t.DECIMAL: "; CAST it to DOUBLE first, or write it as a string",
        t.INTERVAL: "; epoch_us(x) gives a number",
    }.get(node.type, "")
    raise ValueError(f"CAST from {node.type} to VARCHAR is not supported{advice}")


def _from_text(b: Binder, node: Node, to: SqlType, what: str, attempt: bool) -> Node:
    fault = f"a string is not a {to} in {what}"
    if to.kind == "float":
        return b.derive(to, "text_float", [node], fault=fault, attempt=attempt)
    if to == t.UBIGINT or not (to.integer or to == t.BOOLEAN):
        advice = {
            t.TIMESTAMP: "; strptime(s, '%Y-%m-%d %H:%M:%S') reads it",
            t.DATE: "; strptime(s, '%Y-%m-%d') reads it",
            t.UBIGINT: "; CAST it to BIGINT",
        }.get(to, "")
        raise ValueError(f"CAST from VARCHAR to {to} is not supported{advice}")
    op = "text_boolean" if to == t.BOOLEAN else "text_integer"
    extra = () if to == t.BOOLEAN else (to.low, to.high)
    if attempt:
        return Call(to, True, f"try_{op}", (node,), extra)
    return call(to, op, node, extra=extra, fault=fault)
